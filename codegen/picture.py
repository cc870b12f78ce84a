"""What a picture of a machine shows, before any format: arrows, events that stay in place, refusals, roles of states.

``emit_dot``, ``emit_mermaid`` and ``emit_markdown`` draw from these values, so that all of them tell the same story.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ..spec.language.model import Case, Event, Eviction, Machine, Order, State
from ..spec.targets.text import render


class Role(Enum):
    """What a state is to somebody who wants to use the slot. The value is what legends say."""

    FREE = "free: nobody's"
    READABLE = "readable: a lease may cover it"
    EXCLUSIVE = "exclusive: one owner, not matchable"
    KEPT = "kept: bytes that nobody new reads"
    FAILED = "failed: not free until discarded"
    QUARANTINED = "quarantined: bytes may still change"


@dataclass(frozen=True, slots=True)
class Step:
    """One event on an arrow or inside a state; ``guard`` is the condition in the spec's words, or None."""

    event: str
    guard: str | None

    @property
    def text(self) -> str:
        """The event and its guard as a phrase."""
        if self.guard is None or self.guard.startswith("otherwise"):
            return " ".join(filter(None, (self.event, self.guard)))
        return f"{self.event} when {self.guard}"


@dataclass(frozen=True, slots=True)
class Arrow:
    """All the events that lead from one state to another one."""

    source: str
    target: str
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """Why an event is refused for one reason: in ``states`` always, elsewhere when one of ``guards`` holds."""

    word: str
    states: tuple[str, ...]
    guards: tuple[str, ...]
    any_state: bool  # one of the cases is asked in every state


def role(state: State) -> Role:
    """How a picture shows the state. Failed and quarantined come before the marks: they warn."""
    by_term = {"free": Role.FREE, "failed": Role.FAILED, "quarantined": Role.QUARANTINED}
    if state.counts_as in by_term:
        return by_term[state.counts_as]
    if state.readable:
        return Role.READABLE
    return Role.EXCLUSIVE if state.exclusive else Role.KEPT


def marks(state: State) -> tuple[str, ...]:
    """The state's marks as words, in the order of the language."""
    named = {
        "initial": state.initial,
        "readable": state.readable,
        "exclusive": state.exclusive,
        "evictable": state.evictable,
    }
    return tuple(name for name, is_set in named.items() if is_set)


def arrows(machine: Machine) -> tuple[Arrow, ...]:
    """One arrow for each pair of different states that an event connects, in the order of the states."""
    found: dict[tuple[str, str], list[Step]] = {}
    for event in machine.events:
        for case in event.cases:
            if case.refuse is not None or case.to is None:
                continue
            for source in case.sources:
                if source != case.to:
                    found.setdefault((source, case.to), []).append(_step(event, case, source))
    codes = {state.name: state.code for state in machine.states}
    pairs = sorted(found, key=lambda pair: (codes[pair[0]], codes[pair[1]]))
    return tuple(Arrow(source, target, _merge(found[source, target])) for source, target in pairs)


def in_place(machine: Machine, state: str) -> tuple[Step, ...]:
    """The events that ``state`` takes without leaving it."""
    steps = [
        _step(event, case, state)
        for event in machine.events
        for case in event.cases_from(state)
        if case.refuse is None and case.to in (None, state)
    ]
    return _merge(steps)


def refused(event: Event) -> tuple[Refused, ...]:
    """The reasons why ``event`` is refused, in the order of first mention; ``illegal`` is left out."""
    grouped: dict[str, list[Case]] = {}
    for case in event.cases:
        if case.refuse is not None:
            grouped.setdefault(case.refuse, []).append(case)
    return tuple(
        Refused(
            word=word,
            states=tuple(dict.fromkeys(name for case in cases if case.when is None for name in case.sources)),
            guards=tuple(dict.fromkeys(render(case.when) for case in cases if case.when is not None)),
            any_state=any(case.any_state for case in cases),
        )
        for word, cases in grouped.items()
    )


def refusal_text(item: Refused) -> str:
    """The refusal as a phrase: its word, and when or where."""
    parts = [f"in {', '.join(item.states)}"] if item.states else []
    parts += [f"when {' or '.join(item.guards)}"] if item.guards else []
    return f"{item.word} {', or '.join(parts)}"


def eviction_rule(eviction: Eviction) -> tuple[str, str]:
    """Who may go, and who goes first and what stays behind: two phrases."""
    guard = f" when {render(eviction.when)}" if eviction.when is not None else ""
    children = "children before parents; " if eviction.structure == "leaf_first" else ""
    order = ", then ".join(_first(key) for key in eviction.order)
    also = f"; with it go {', '.join(eviction.cascade)}" if eviction.cascade else ""
    shares = [] if eviction.budget is None else [("in all", eviction.budget.kind), ("a tenant", eviction.budget.tenant)]
    budget = "".join(f"; at most {share}% {whose}" for whose, share in shares if share is not None)
    return (
        f"{eviction.event} of {', '.join(eviction.candidates)}{guard}",
        f"{children}first {order}; leaves {eviction.leaves.replace('_', ' ')}{also}{budget}",
    )


def _first(key: Order) -> str:
    text = render(key.by)
    by_word = {"true": text, "false": f"not ({text})"}
    return by_word.get(key.first, f"{key.first} {text}")


def _step(event: Event, case: Case, source: str) -> Step:
    """The case as it looks from ``source``: its own guard, or "otherwise" after cases that apply as well."""
    if case.when is not None:
        return Step(event.name, render(case.when))
    earlier = (other for other in event.cases_from(source) if other.number < case.number)
    return Step(event.name, "otherwise" if any(other.refuse is None for other in earlier) else None)


def _merge(steps: list[Step]) -> tuple[Step, ...]:
    """One step an event, whose guard says when any of its cases fits; the cases of a picture's arrow look alike."""
    guards: dict[str, list[str]] = {}
    for step in steps:
        known = guards.setdefault(step.event, [])
        if step.guard is not None and step.guard not in known:
            known.append(step.guard)
    return tuple(Step(event, " or ".join(found) or None) for event, found in guards.items())
