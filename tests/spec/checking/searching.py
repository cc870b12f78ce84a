"""The plain search that the engines must agree with, and random systems for them to agree on."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvfsm.spec.checking.exploration import Exploration
from kvfsm.spec.checking.folding import number
from kvfsm.spec.checking.system import NOWHERE, Cell, Claim, Command, State, System
from kvfsm.spec.language.expressions import (
    BOOL,
    INT,
    Arithmetic,
    Choice,
    Compare,
    Expr,
    Extreme,
    Logic,
    Member,
    Not,
    Truth,
)


@dataclass(frozen=True)
class Reference:
    """What a search of a system has to find; claims by the depth at which they are decided."""

    states: frozenset[State]
    transitions: int
    depth: int
    decided: dict[str, int]
    taken: list[int]


Parents = dict[State, tuple[int, State] | None]  # a state -> the command and the state by which it was met first


def breadth_first(system: System, parents: Parents) -> Iterator[tuple[State, list[tuple[int, State]]]]:
    """Each state with what can follow it, by ``System.successors``, nearest first; ``parents`` is filled on the way."""
    parents[system.initial] = None
    waiting = [system.initial]
    for state in waiting:
        after = list(system.successors(state))
        for command, there in after:
            if there not in parents:
                parents[there] = (command, state)
                waiting.append(there)
        yield state, after


def path_to(parents: Parents, state: State) -> list[tuple[int, State]]:
    """The run by which a state was met first."""
    path = []
    while (link := parents[state]) is not None:
        command, before = link
        path.append((command, state))
        state = before
    return path[::-1]


def reference(system: System) -> Reference:
    """What there is to find, one state at a time."""
    claims = [(claim, [system.function(expr) for expr in claim.exprs]) for claim in system.claims]
    decided: dict[str, int] = {}
    depths: dict[State, int] = {}
    taken = [0] * len(system.commands)
    parents: Parents = {}
    for state, after in breadth_first(system, parents):
        link = parents[state]
        depths[state] = 0 if link is None else depths[link[1]] + 1
        quiet = all(there == state for _, there in after)
        for claim, tests in claims:
            if claim.kind == "sometimes":
                now = any(test(state) for test in tests)
            else:
                now = (claim.kind == "always" or quiet) and not all(test(state) for test in tests)
            if now:
                decided.setdefault(claim.name, depths[state])
        for command, _ in after:
            taken[command] += 1
    return Reference(frozenset(depths), sum(taken), max(depths.values()), decided, taken)


def assert_agrees(exploration: Exploration, expected: Reference) -> None:
    """An exploration found what the reference did, and its paths are shortest runs."""
    system = exploration.system
    assert exploration.complete, exploration.why_incomplete
    found = (exploration.states, exploration.transitions, exploration.depth)
    assert found == (len(expected.states), expected.transitions, expected.depth)
    assert {exploration.state(index) for index in range(exploration.states)} == expected.states
    assert exploration.taken.tolist() == expected.taken
    first = exploration.violations | exploration.reached
    assert {name: len(exploration.path(index)) for name, index in first.items()} == expected.decided
    for index in (*first.values(), exploration.states - 1):
        assert_is_run(system, exploration.path(index), exploration.state(index))
    verdicts = exploration.verdicts()
    for claim in system.claims:
        decided = claim.name in expected.decided
        assert verdicts[claim.name] == ("holds" if decided == (claim.kind == "sometimes") else "violated")


def assert_is_run(system: System, path: Sequence[tuple[int, State]], end: State) -> None:
    """Each step of a path is a transition, and the last leads to ``end``."""
    state = system.initial
    for command, after in path:
        assert (command, after) in list(system.successors(state))
        state = after
    assert state == end


# Random systems.


def random_system(seed: int) -> System:
    """A small system: copies with steps, plain cells and truth values, some of them wide; all kinds of expression."""
    pick = random.Random(seed)
    cells = [
        Cell(f"p[{copy}].at", "p", copy, "at", "p.at", steps, tuple(f"step{step}" for step in range(steps + 1)), False)
        for copy in range(pick.randint(1, 2))
        for steps in [pick.randint(1, 3)]
    ]
    for place in range(pick.randint(2, 4)):
        high = pick.choice((1, 1, 2, 3, 4, 5, 6, 70, 5000, (1 << 33) - 1, (1 << 62) - 1))
        type_ = BOOL if high == 1 and pick.random() < 0.7 else INT
        cells.append(Cell(f"v[{place}].x", "v", place, "x", type_, high, (), True))
    maker = _Maker(pick, cells)
    commands = tuple(maker.command(number_) for number_ in range(pick.randint(10, 24)))
    claims = tuple(
        Claim(f"claim{place}", kind, None, tuple(maker.condition(2) for _ in range(count)), ("",) * count, NOWHERE)
        for place, kind in enumerate(("always", "always", "sometimes", "sometimes", "deadlock"))
        for count in [pick.randint(1, 2)]
    )
    return System(f"random{seed}", (), tuple(cells), commands, claims, (), ())


class _Maker:
    def __init__(self, pick: random.Random, cells: Sequence[Cell]) -> None:
        self.pick, self.cells = pick, cells
        self.numbers = [cell for cell in cells if cell.type != BOOL]
        self.truths = [cell for cell in cells if cell.type == BOOL]
        self.steps = [cell for cell in cells if cell.field == "at"]

    def command(self, place: int) -> Command:
        pick = self.pick
        step = pick.choice(self.steps)
        guard = [self.condition(2) for _ in range(pick.choice((0, 1, 1, 2)))]
        if pick.random() < 0.8:
            guard.insert(0, Compare("==", step.read(), number(pick.randint(0, step.high)), NOWHERE))
        written = pick.sample(list(self.cells), pick.choice((0, 1, 1, 2, 2, 3)))
        updates = tuple((cell.name, self.update(cell)) for cell in written)
        return Command("p", step.number, f"step{place}", (), "applied", (), tuple(guard), updates)

    def update(self, cell: Cell) -> Expr:
        """A value that fits into the cell, and few of them for a wide one."""
        pick = self.pick
        if cell.type == BOOL:
            return self.condition(1) if pick.random() < 0.6 else Truth(pick.random() < 0.5, NOWHERE)
        if cell.high > 8:
            edges = (number(0), number(1), number(cell.high), number(cell.high // 3))
            if pick.random() < 0.3:
                return Choice(self.condition(1), pick.choice(edges), pick.choice(edges), NOWHERE)
            return pick.choice(edges)
        match pick.randint(0, 5):
            case 0:
                return number(pick.randint(0, cell.high))
            case 1:
                return Extreme("min", (Arithmetic("+", cell.read(), number(1), NOWHERE), number(cell.high)), NOWHERE)
            case 2:
                step = Arithmetic("+", cell.read(), number(pick.randint(1, 3)), NOWHERE)
                return Arithmetic("%", step, number(cell.high + 1), NOWHERE)
            case 3:
                back = Arithmetic("-", cell.read(), number(1), NOWHERE)
                return Extreme("max", (back, number(0)), NOWHERE)
            case 4:
                least = Extreme("min", (pick.choice(self.numbers).read(), number(cell.high)), NOWHERE)
                return Choice(self.condition(1), least, cell.read(), NOWHERE)
        others = [other for other in self.numbers if other.high <= cell.high]
        return pick.choice(others).read()

    def condition(self, depth: int) -> Expr:
        pick = self.pick
        if depth and pick.random() < 0.5:
            match pick.randint(0, 3):
                case 0:
                    return Not(self.condition(depth - 1), NOWHERE)
                case 1:
                    parts = (self.condition(depth - 1), self.condition(depth - 1), self.condition(depth - 1))
                    return Choice(*parts, NOWHERE)
                case _:
                    count = pick.randint(2, 3)
                    parts = tuple(self.condition(depth - 1) for _ in range(count))
                    return Logic(pick.choice(("and", "or")), parts, NOWHERE)
        if self.truths and pick.random() < 0.3:
            cell = pick.choice(self.truths)
            if pick.random() < 0.3:
                other = pick.choice(self.truths)
                return Compare(pick.choice(("==", "!=")), cell.read(), other.read(), NOWHERE)
            return cell.read()
        left = self.value()
        if pick.random() < 0.3:
            options = tuple(number(pick.randint(0, 6)) for _ in range(pick.randint(2, 3)))
            return Member(left, options, pick.random() < 0.5, NOWHERE)
        right = self.value() if pick.random() < 0.5 else number(pick.randint(0, 6))
        return Compare(pick.choice(("==", "!=", "<", "<=", ">", ">=")), left, right, NOWHERE)

    def value(self) -> Expr:
        pick = self.pick
        one, other = pick.choice(self.numbers).read(), pick.choice(self.numbers).read()
        small = one.high < 1 << 30 and other.high < 1 << 30
        match pick.randint(0, 6):
            case 0 if small:
                return Arithmetic(pick.choice("+-"), one, other, NOWHERE)
            case 1 if small:
                return Arithmetic("*", one, number(pick.randint(0, 3)), NOWHERE)
            case 2:
                return Arithmetic(pick.choice(("//", "%")), one, number(pick.randint(1, 4)), NOWHERE)
            case 3:
                return Extreme(pick.choice(("min", "max")), (one, other, number(pick.randint(0, 4))), NOWHERE)
            case 4:
                test = Compare("==", pick.choice(self.steps).read(), number(pick.randint(0, 2)), NOWHERE)
                return Choice(test, one, other, NOWHERE)
        return one
