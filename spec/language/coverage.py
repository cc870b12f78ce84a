"""Words and arguments that lead into every case of every event: what full coverage of a machine is made of.

A *path* is one (event, state, case) with the conditions under which the case decides; the case None stands for a state
that does not take the event. ``constructed_words`` finds words for a path; a test that walks all paths of a machine has
met every transition and every refusal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .expressions import Expr, Not
from .interpreter import ILLEGAL, Outcome, step
from .model import Argument, Case, Event, Machine
from .scopes import STATE
from .solver import Answer, Way, satisfy
from .word import pack


@dataclass(frozen=True, slots=True)
class Path:
    """One way through an event: in ``state``, all ``conditions`` hold together exactly when ``case`` decides."""

    event: Event
    state: str
    case: Case | None  # None: the state does not take the event
    conditions: tuple[Expr, ...]

    @property
    def refusal(self) -> str | None:
        """Why the event is refused on this path, or None: it is applied."""
        return ILLEGAL if self.case is None else self.case.refuse


@dataclass(frozen=True, slots=True)
class Sample:
    """One firing of an event, with what the interpreter says of it."""

    event: str
    state: str
    case: int | None
    word: int
    args: dict[str, int]
    outcome: Outcome


def paths(machine: Machine, event: Event) -> Iterator[Path]:
    """All paths of an event, by state and then by case; those that no word takes are among them."""
    for state in machine.states:
        failed: tuple[Expr, ...] = ()
        for case in event.cases_from(state.name):
            yield Path(event, state.name, case, failed if case.when is None else (*failed, case.when))
            if case.when is None:
                break
            failed = (*failed, Not(case.when, case.when.at))
        else:
            yield Path(event, state.name, None, failed)


def selects(machine: Machine, path: Path, *more: Expr, high: bool = False, way: Way | None = None) -> Answer:
    """Values of fields and arguments that lead into a path, and make ``more`` true, if there are any."""
    return satisfy((*path.conditions, *more), {STATE: machine.state(path.state).code}, high=high, way=way)


def constructed_words(machine: Machine, event: Event, state: str, case: Case | None) -> tuple[Sample, ...]:
    """Up to three firings that take the path of (event, state, case); none when no word takes it.

    They differ in what the path leaves open: all zero, all at the greatest value, and both; a generated class that
    clobbers a field shows on one of them.
    """
    found = [path for path in paths(machine, event) if path.state == state and path.case == case]
    samples: list[Sample] = []
    for path in found:
        for high, fill in ((False, False), (True, True), (False, True)):
            answer = selects(machine, path, high=high)
            if answer.example is None:
                break
            sample = _sample(machine, path, dict(answer.example), fill)
            if sample not in samples:
                samples.append(sample)
    return tuple(samples)


def all_samples(machine: Machine) -> Iterator[Sample]:
    """The constructed words of every path of every event, in the order of the spec."""
    for event in machine.events:
        for path in paths(machine, event):
            yield from constructed_words(machine, event, path.state, path.case)


def _sample(machine: Machine, path: Path, example: dict[str, int], fill: bool) -> Sample:
    values = {field.name: example.get(field.name, field.max if fill else 0) for field in machine.fields}
    values[STATE] = machine.state(path.state).code
    args = {
        argument.name: example.get(argument.name, argument_max(machine, argument) if fill else 0)
        for argument in path.event.given
    }
    word = pack(machine, values)
    outcome = step(machine, word, path.event, args)
    assert outcome.case == (None if path.case is None else path.case.number)
    return Sample(path.event.name, path.state, outcome.case, word, args, outcome)


def argument_max(machine: Machine, argument: Argument) -> int:
    """The greatest value of an argument; that of its field where it is like one."""
    return machine.field(argument.like).max if argument.like is not None else argument.max
