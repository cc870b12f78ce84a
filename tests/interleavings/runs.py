"""Runs named operations on a new world, by one schedule or by all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .exploring import Exploration, Outcome, explore
from .operations import BEGINNINGS, OPERATIONS
from .scheduler import Pick, Scheduler, Step, Stuck
from .world import Op, Setting, World, quiet


def once(
    begin: str | Op,
    names: Sequence[str | Op],
    choices: Sequence[int] = (),
    setting: Setting | None = None,
    *,
    pick: Pick | None = None,
) -> tuple[list[Step], list[str]]:
    """One schedule; returns its steps and what is wrong."""
    outcome = Scenario(begin, names, setting).run(choices, pick)
    return list(outcome.steps), list(outcome.wrong)


def every(
    begin: str | Op,
    names: Sequence[str | Op],
    setting: Setting | None = None,
    *,
    bound: int | None = None,
    reduce: bool = True,
    most: int = 100_000,
    until: Callable[[tuple[str, ...]], bool] | None = None,
) -> Exploration:
    """All schedules, or one of each class that leads to the same; see `explore`."""
    return explore(Scenario(begin, names, setting).run, bound=bound, reduce=reduce, most=most, until=until)


class Scenario:
    """Operations that start together in a world that another operation has prepared.

    Args:
        begin: name of a beginning, or an operation of one's own.
        names: of operations, or operations of one's own; one for each task.
        setting: of the world.
    """

    def __init__(self, begin: str | Op, names: Sequence[str | Op], setting: Setting | None = None) -> None:
        self._begin = BEGINNINGS[begin] if isinstance(begin, str) else begin
        self._ops = [OPERATIONS[one] if isinstance(one, str) else one for one in names]
        self._setting = setting
        self._judged: dict[str, list[str]] = {}  # what is wrong in a state

    def run(
        self, choices: Sequence[int], pick: Pick | None = None, given_up: Callable[[], bool] | None = None
    ) -> Outcome:
        """One schedule. Equal states are judged once; what led there is held against the model each time."""
        scheduler = Scheduler(choices, pick)
        world = World(scheduler, self._setting)
        try:
            quiet(self._begin, world)()
            try:
                errors = scheduler.run([quiet(op, world) for op in self._ops])
            except Stuck as stuck:
                return Outcome(scheduler.steps, (str(stuck),), "stuck")
            if given_up is not None and given_up():
                return Outcome(scheduler.steps, (), None)
            wrong = [f"raised {type(error).__name__}: {error}" for error in errors]
            wrong += dict.fromkeys(world.wrong)
            final = f"{world.snapshot()} {sorted(world.told.items())} {wrong}"
            if final not in self._judged:
                self._judged[final] = wrong or world.check()
            return Outcome(scheduler.steps, tuple(self._judged[final] or world.illegal()), final)
        finally:
            world.close()
