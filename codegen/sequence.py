"""What a picture of a protocol shows, before any format: pools of slots, and what each actor does to them.

A protocol has no single order of events: its actors take turns in any order. So the picture shows one scene an actor,
each read from top to bottom, and marks in every scene the *window between check and use*: the stretch after a step that
looked at a pool without changing it, up to the step that relies on what was seen. Everybody else may act in there.

``emit_mermaid.py`` and ``sequence_svg.py`` draw from these values.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..spec.language.expressions import Expr, Remote
from ..spec.language.model import Assignment, Event
from ..spec.language.protocol import Branch, Fire, Program, Protocol, Step
from ..spec.language.trees import walked
from ..spec.targets.text import render


@dataclass(frozen=True, slots=True)
class Pool:
    """Slots of one machine: a lifeline."""

    name: str
    machine: str
    slots: int


@dataclass(frozen=True, slots=True)
class Message:
    """One event that a step fires. ``args`` are "name: value"; ``refusals`` are the words that may come back."""

    pool: str
    slot: str
    event: str
    args: tuple[str, ...]
    refusals: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """Between the steps ``checked`` and the step that this stands before, others may change what ``pools`` showed."""

    checked: tuple[str, ...]
    pools: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """Where an actor goes on that could not take a step, and what it remembers then."""

    step: str
    effects: tuple[str, ...]  # "local = value"

    @property
    def text(self) -> str:
        """Such as "match, with slot = 0"."""
        return f"{self.step}, with {', '.join(self.effects)}" if self.effects else self.step


@dataclass(frozen=True, slots=True)
class Moment:
    """One atomic step. ``then`` is the name of a step, or None when the next one follows."""

    name: str
    chooses: tuple[str, ...]
    when: str | None
    messages: tuple[Message, ...]
    effects: tuple[str, ...]  # "local = value"
    refused: Turn | None  # None: a refused step waits
    otherwise: Turn | None  # for a guard that does not hold; None: the step waits until it does
    then: str | None
    window: Window | None  # that ends with this step

    @property
    def refusals(self) -> tuple[str, ...]:
        """Every word that one of the events may be refused with, each once."""
        return tuple(dict.fromkeys(word for message in self.messages for word in message.refusals))


@dataclass(frozen=True, slots=True)
class Scene:
    """What one kind of actor does, over and over."""

    actor: str
    count: int
    plays: tuple[str, ...]
    moments: tuple[Moment, ...]


@dataclass(frozen=True, slots=True)
class Sequence:
    """A protocol as a picture."""

    name: str
    title: str
    about: str
    path: str
    pools: tuple[Pool, ...]
    scenes: tuple[Scene, ...]


def sequence(protocol: Protocol) -> Sequence:
    """The picture of one protocol. ``path`` starts at the spec's own folder, wherever that lies."""
    return Sequence(
        name=protocol.name,
        title=protocol.title,
        about=" ".join(protocol.about.split()),
        path="/".join(protocol.path.split("/")[-3:]),
        pools=tuple(Pool(item.name, item.machine.name, item.slots) for item in protocol.instances),
        scenes=tuple(
            Scene(program.name, program.count, program.plays, _moments(protocol, program))
            for program in protocol.programs
        ),
    )


def guard_text(moment: Moment) -> str:
    """What becomes of a step whose guard does not hold."""
    if moment.otherwise is None:
        return f"wait until {moment.when}"
    return f"if {moment.when}; else go on at {moment.otherwise.text}"


def _moments(protocol: Protocol, program: Program) -> tuple[Moment, ...]:
    seen: dict[str, str] = {}  # pool -> the step that looked at it, while nothing has been fired at it since
    moments = []
    for step in program.steps:
        fired = {fire.instance for fire in step.fire}
        relied = [pool for pool in seen if pool in fired]
        window = Window(tuple(dict.fromkeys(seen[pool] for pool in relied)), tuple(relied)) if relied else None
        following = (step.code + 1) % len(program.steps)
        moments.append(
            Moment(
                name=step.name,
                chooses=tuple(pick.local for pick in step.choose),
                when=render(step.when) if step.when is not None else None,
                messages=tuple(_message(protocol, fire) for fire in step.fire),
                effects=_effects(step.do),
                refused=_turn(program, step.refused),
                otherwise=_turn(program, step.otherwise),
                then=program.steps[step.then].name if step.then != following else None,
                window=window,
            )
        )
        seen = {pool: name for pool, name in seen.items() if pool not in fired}
        seen |= {pool: step.name for pool in _looked_at(protocol, step) if pool not in fired}
    return tuple(moments)


def _turn(program: Program, branch: Branch | None) -> Turn | None:
    return Turn(program.steps[branch.then].name, _effects(branch.do)) if branch is not None else None


def _effects(do: Iterable[Assignment]) -> tuple[str, ...]:
    return tuple(f"{item.field} = {render(item.value)}" for item in do)


def _looked_at(protocol: Protocol, step: Step) -> list[str]:
    """The pools whose words the step reads, in the protocol's order."""
    branches = [branch for branch in (step.refused, step.otherwise) if branch is not None]
    read: list[Expr] = [item.value for do in (step.do, *(branch.do for branch in branches)) for item in do]
    if step.when is not None:
        read.append(step.when)
    owners = {part.owner for expr in read for part in walked(expr) if isinstance(part, Remote)}
    return [instance.name for instance in protocol.instances if instance.name in owners]


def _message(protocol: Protocol, fire: Fire) -> Message:
    event = protocol.instance(fire.instance).machine.event(fire.event)
    args = tuple(f"{name}: {render(value)}" for name, value in fire.args)
    return Message(fire.instance, render(fire.slot), fire.event, args, _refusals(event))


def _refusals(event: Event) -> tuple[str, ...]:
    return tuple(dict.fromkeys(case.refuse for case in event.cases if case.refuse is not None))
