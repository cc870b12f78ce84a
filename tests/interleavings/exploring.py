"""Every schedule, or one of each class of schedules that lead to the same.

Two steps of different tasks *depend* on each other when they touch one resource and one of them writes it. Schedules
that differ only in the order of steps that don't depend on each other end in the same state, so one of each class is
enough. ``explore`` knows three ways through them:

* without a reduction: depth first through all schedules, or through all with few preemptions;
* reduced and without a bound: source sets and sleep sets (Abdulla, Aronis, Jonsson, Sagonas: Optimal dynamic partial
  order reduction, POPL 2014). After each run its races are reversed;
* reduced and with a bound on preemptions, under which source sets would lose schedules: a beginning whose order of
  dependent steps was reached before, with the same task running and no more preemptions spent, is not followed again
  (Musuvathi, Qadeer: Partial-order reduction for context-bounded state exploration, 2007).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from .scheduler import Pick, Resource, Scheduler, Step, preemptions

Touched = Mapping[Resource, bool]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run: its steps, what is wrong, and a digest of everything that it left; None when it was given up."""

    steps: Sequence[Step]
    wrong: tuple[str, ...]
    final: str | None


Run = Callable[[Sequence[int], Pick | None, Callable[[], bool]], Outcome]
"""Runs a schedule: choices, what picks beyond them, and whether the run was given up and needs no judgement."""


@dataclass(frozen=True, slots=True)
class Exploration:
    """What an exploration went through.

    Attributes:
        schedules: runs that were judged.
        cut: runs that were given up because they repeat what another run shows.
        complete: whether every schedule (within the bound) is covered; False past ``most``, or where the first wrong
            run ended it.
        bound: most preemptions; None without a bound.
        finals: digests of the states that the runs left.
        verdicts: what was wrong with any of them; of a run with nothing wrong, the empty tuple.
        choices, wrong: the run that ended the exploration, else the first that went wrong; empty when none did.
    """

    schedules: int
    cut: int
    complete: bool
    bound: int | None
    finals: frozenset[str]
    verdicts: frozenset[tuple[str, ...]]
    choices: tuple[int, ...]
    wrong: tuple[str, ...]

    def __str__(self) -> str:
        within = "" if self.bound is None else f" with at most {self.bound} preemptions"
        how = "complete" if self.complete else "not complete"
        return f"{self.schedules} schedules{within}, {self.cut} cut, {len(self.finals)} final states, {how}"


@dataclass(slots=True)
class _Tally:
    most: int
    until: Callable[[tuple[str, ...]], bool] | None
    schedules: int = 0
    cut: int = 0
    finals: set[str] = field(default_factory=set)
    verdicts: set[tuple[str, ...]] = field(default_factory=set)
    choices: tuple[int, ...] = ()
    wrong: tuple[str, ...] = ()
    found: bool = False

    def add(self, outcome: Outcome) -> None:
        if outcome.final is None:
            self.cut += 1
            return
        self.schedules += 1
        self.finals.add(outcome.final)
        self.verdicts.add(outcome.wrong)
        found = self.until is not None and self.until(outcome.wrong)
        if found or (outcome.wrong and not self.wrong):
            self.choices, self.wrong = tuple(step.chosen for step in outcome.steps), outcome.wrong
        self.found = found

    @property
    def over(self) -> bool:
        return self.found or self.schedules + self.cut >= self.most

    def result(self, complete: bool, bound: int | None) -> Exploration:
        return Exploration(
            self.schedules, self.cut, complete, bound, frozenset(self.finals), frozenset(self.verdicts), self.choices,
            self.wrong,
        )  # fmt: skip


def explore(
    run: Run,
    *,
    bound: int | None = None,
    reduce: bool = True,
    most: int = 100_000,
    until: Callable[[tuple[str, ...]], bool] | None = None,
) -> Exploration:
    """Go through every schedule.

    Args:
        run: runs one.
        bound: most preemptions; None: any number.
        reduce: leave out what is equivalent to another schedule.
        most: runs after which to give up; the result is then not complete.
        until: ends the exploration, asked what is wrong with each run; `wrong` is any complaint.
    """
    tally = _Tally(most, until)
    if reduce and bound is None:
        return tally.result(_reduced(run, tally), bound)
    return tally.result(_bounded(run, bound, reduce, tally), bound)


def wrong(complaints: tuple[str, ...]) -> bool:
    """Ends an exploration with the first run that goes wrong."""
    return bool(complaints)


def depend(one: Touched, other: Touched) -> bool:
    """Whether two steps touch a resource that one of them writes."""
    small, large = (one, other) if len(one) <= len(other) else (other, one)
    return any(resource in large and (write or large[resource]) for resource, write in small.items())


# ---- all schedules, or those with few preemptions -----------------------------------------------------------------


def _bounded(run: Run, bound: int | None, reduce: bool, tally: _Tally) -> bool:
    waiting: list[list[int]] = [[]]
    seen: dict[object, int] = {}  # order of dependent steps and the task that ran last -> fewest preemptions
    while waiting:
        if tally.over:
            return False
        prefix = waiting.pop()
        walk = _Walk(seen if reduce else None)
        outcome = run(prefix, walk.pick, walk.given_up)
        tally.add(outcome)
        steps = outcome.steps
        spent = preemptions(steps[: len(prefix)])
        for at in range(len(prefix), len(steps) if walk.cut is None else walk.cut):
            step = steps[at]
            for other in step.runnable:
                if other != step.chosen and (bound is None or spent + (step.before in step.runnable) <= bound):
                    waiting.append([one.chosen for one in steps[:at]] + [other])
            spent += step.before in step.runnable and step.chosen != step.before
    return not tally.found


class _Walk:
    """One run beyond its choices. With ``seen`` it is given up where it comes to what was seen before."""

    def __init__(self, seen: dict[object, int] | None) -> None:
        self._seen, self._order = seen, _Order()
        self.cut: int | None = None

    def given_up(self) -> bool:
        """Whether it was."""
        return self.cut is not None

    def pick(self, scheduler: Scheduler, runnable: tuple[int, ...], before: int | None) -> int:
        """A task goes on as long as it can, then the first one does."""
        if self._seen is not None and self.cut is None:
            steps = scheduler.steps
            self._order.extend(steps)
            state, spent = (self._order.key(), before), preemptions(steps)
            if self._seen.get(state, spent + 1) <= spent:
                self.cut = len(steps)
            else:
                self._seen[state] = spent
        return before if before is not None and before in runnable else runnable[0]


class _Order:
    """The order of dependent steps: for each step, how many steps of each task come before it in every equal run."""

    def __init__(self) -> None:
        self.clocks: list[dict[int, int]] = []
        self._steps: list[Step] = []
        self._last: dict[int, int] = {}
        self._tasks: dict[int, list[tuple[tuple[int, int], ...]]] = {}

    def extend(self, steps: Sequence[Step]) -> None:
        """Take in steps that were made since."""
        for at in range(len(self._steps), len(steps)):
            step = steps[at]
            clock = dict(self.clocks[self._last[step.chosen]]) if step.chosen in self._last else {}
            for earlier in range(at - 1, -1, -1):
                one = self._steps[earlier]
                known = clock.get(one.chosen, 0) >= self.clocks[earlier][one.chosen]
                if not known and one.chosen != step.chosen and depend(one.touched, step.touched):
                    for task, count in self.clocks[earlier].items():
                        clock[task] = max(count, clock.get(task, 0))
            clock[step.chosen] = clock.get(step.chosen, 0) + 1
            self._steps.append(step)
            self.clocks.append(clock)
            self._last[step.chosen] = at
            self._tasks.setdefault(step.chosen, []).append(tuple(sorted(clock.items())))

    def key(self) -> object:
        """Equal for beginnings that differ in the order of independent steps only."""
        return tuple((task, tuple(clocks)) for task, clocks in sorted(self._tasks.items()))

    def before(self, earlier: int, later: int) -> bool:
        """Whether one step comes before another in every equal run."""
        task = self._steps[earlier].chosen
        return self.clocks[later].get(task, 0) >= self.clocks[earlier][task]


# ---- source sets and sleep sets -----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Node:
    """A place in the tree of schedules. ``sleep``: tasks whose next step, as recorded, is tried elsewhere."""

    runnable: tuple[int, ...]
    sleep: dict[int, Touched]
    todo: set[int]
    chosen: int
    step: Step | None = None


class _Descent:
    """One run beyond the nodes that are known. It is given up where every task that could go on sleeps."""

    def __init__(self, path: list[_Node]) -> None:
        self._path = path
        self.cut: int | None = None

    def given_up(self) -> bool:
        """Whether it was."""
        return self.cut is not None

    def pick(self, scheduler: Scheduler, runnable: tuple[int, ...], before: int | None) -> int:
        """A task goes on as long as it can and does not sleep."""
        at = len(scheduler.steps)
        if self.cut is None:
            sleep: dict[int, Touched] = {}
            if at:
                self._path[at - 1].step = scheduler.steps[at - 1]
                sleep = _asleep(self._path[at - 1])
            awake = [task for task in runnable if task not in sleep]
            if awake:
                chosen = before if before is not None and before in awake else awake[0]
                self._path.append(_Node(runnable, sleep, {chosen}, chosen))
                return chosen
            self.cut = at
        return runnable[0]


def _reduced(run: Run, tally: _Tally) -> bool:
    path: list[_Node] = []
    while True:
        if tally.over:
            return False
        known, descent = len(path), _Descent(path)
        outcome = run([node.chosen for node in path], descent.pick, descent.given_up)
        tally.add(outcome)
        steps = outcome.steps[: descent.cut]
        assert len(steps) == len(path), "a schedule did not replay"
        for node, step in zip(path, steps, strict=True):
            assert (node.runnable, node.chosen) == (step.runnable, step.chosen), "a schedule did not replay"
            node.step = step
        _reverse_races(path, steps, max(0, known - 1))
        if tally.found:
            return False
        while path:
            node = path[-1]
            assert node.step is not None
            node.sleep[node.chosen] = node.step.touched
            left = sorted(node.todo - node.sleep.keys())
            if left:
                node.chosen, node.step = left[0], None
                break
            path.pop()
        if not path:
            return True


def _asleep(node: _Node) -> dict[int, Touched]:
    """Tasks that still sleep after a node's step: those whose next step does not depend on it."""
    assert node.step is not None
    touched = node.step.touched
    return {task: one for task, one in node.sleep.items() if task != node.chosen and not depend(one, touched)}


def _reverse_races(path: list[_Node], steps: Sequence[Step], fresh: int) -> None:
    """See to it that each race of a run is tried the other way round. Steps before ``fresh`` were seen to before."""
    order = _Order()
    order.extend(steps)
    for later in range(fresh, len(steps)):
        for earlier in range(later - 1, -1, -1):
            one, two = steps[earlier], steps[later]
            if one.chosen == two.chosen or not depend(one.touched, two.touched):
                continue
            between = range(earlier + 1, later)
            if any(order.before(earlier, k) and order.before(k, later) for k in between):
                if not _lock_race(one, two):
                    continue
            at = earlier
            while two.chosen in steps[at].holders:  # it waited for a lock: the race is about who takes that first
                at = _taken(steps, at, steps[at].holders[two.chosen], two)
            _insert(path[at], _initials(order, steps, at, later), two.chosen)


def _lock_race(one: Step, two: Step) -> bool:
    """Whether two steps both take a lock: its release stands between them, and yet they can change places."""
    return any(write and resource[0] == "lock" and resource in two.touched for resource, write in one.touched.items())


def _taken(steps: Sequence[Step], at: int, holder: int, two: Step) -> int:
    """The step at which ``holder`` took the lock that the task of ``two`` waits for at step ``at``."""
    while at > 0 and two.chosen in steps[at].holders:
        at -= 1
    while at > 0 and steps[at].chosen != holder:
        at -= 1
    return at


def _initials(order: _Order, steps: Sequence[Step], at: int, later: int) -> set[int]:
    """Tasks that can begin the steps which reverse a race: those after ``at`` that don't need it, and ``later``."""
    free = [k for k in range(at + 1, later) if not order.before(at, k)] + [later]
    found: set[int] = set()
    seen: set[int] = set()
    for place, k in enumerate(free):
        task = steps[k].chosen
        if task not in seen and not any(order.before(j, k) for j in free[:place]):
            found.add(task)
        seen.add(task)
    return found


def _insert(node: _Node, initials: set[int], wanted: int) -> None:
    if initials & node.todo:
        return
    able = initials & set(node.runnable)
    if able:
        node.todo.add(wanted if wanted in able else min(able))
    else:
        node.todo.update(node.runnable)
