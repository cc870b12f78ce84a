"""A run of a protocol as a story: who did what, which fields changed, why events were refused, and what broke.

``tell`` looks up in the protocol what the flat system leaves out: arguments, reasons of refusals, and the windows
between check and use. ``story_text.py`` and ``story_json.py`` write a story down; pictures and a test that replays it
on the runtime are made by ``codegen``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from ...language.expressions import BOOL, INT, Choice, Expr, Logic, Name, Number, Remote
from ...language.interpreter import Outcome, evaluate, step
from ...language.model import Argument, Assignment, Event, Machine
from ...language.problems import Place
from ...language.protocol import Fire, Program, Protocol, Step, slots_in
from ...language.trees import parts_of, rewritten
from ...language.word import FieldOverflow, pack, unpack
from ...targets.text import promise_text, render
from ..system import Claim, Command, Promise, State, System

Path = Sequence[tuple[int, State]]  # the number of each command, and the state that it leads to


@dataclass(frozen=True, slots=True)
class Change:
    """A cell that a step gave another value; ``before`` and ``after`` are as the spec calls them."""

    cell: str
    before: str
    after: str
    value: int  # the number behind ``after``


@dataclass(frozen=True, slots=True)
class Attempt:
    """An event that a step fired at a slot. ``refusal`` is a word of the vocabulary, or None when it was applied.

    ``args`` are the numbers, ``shown`` the same as the spec calls them. ``case`` counts from 1; None when the state
    does not list the event. ``after`` is the slot's word after it, as numbers by field; a step that is refused as a
    whole leaves no trace of it. ``fits`` is False when a value did not fit its field, as only a mutant's can.
    """

    instance: str
    slot: int
    machine: str
    event: str
    args: tuple[tuple[str, int], ...]
    shown: tuple[tuple[str, str], ...]
    case: int | None
    refusal: str | None
    why: str | None  # the condition of the case that refused, in the spec's words, or the state
    after: tuple[tuple[str, int], ...]
    fits: bool = True

    @property
    def target(self) -> str:
        """The slot, such as "kv[0]"."""
        return f"{self.instance}[{self.slot}]"


@dataclass(frozen=True, slots=True)
class Turn:
    """One step of one copy, the ``number``-th of the story, counted from 1."""

    number: int
    actor: str
    copy: int
    step: str
    choices: tuple[tuple[str, str], ...]
    outcome: str  # applied | refused | otherwise
    looks: tuple[str, ...]  # slots that the step reads without firing at them
    attempts: tuple[Attempt, ...]
    changes: tuple[Change, ...]
    then: str  # the step that comes next for this copy
    state: State

    @property
    def who(self) -> str:
        """The copy, such as "reader 0"."""
        return f"{self.actor} {self.copy}"

    @property
    def slots(self) -> tuple[str, ...]:
        """The slots that it changed."""
        return tuple(dict.fromkeys(change.cell.rpartition(".")[0] for change in self.changes))


@dataclass(frozen=True, slots=True)
class Window:
    """From the step in which a copy looked at slots to the one in which it relies on them; others ran in between.

    ``closed`` is None when it is still open at the story's end. ``disturbed`` are the steps that changed such a slot.
    """

    actor: str
    copy: int
    slots: tuple[str, ...]
    opened: int
    closed: int | None
    disturbed: tuple[int, ...]

    @property
    def who(self) -> str:
        """The copy, such as "reader 0"."""
        return f"{self.actor} {self.copy}"

    def covers(self, number: int) -> bool:
        """Whether a turn lies inside, that is, after the look and before the use."""
        return self.opened < number and (self.closed is None or number < self.closed)


@dataclass(frozen=True, slots=True)
class Break:
    """How a claim fails at the end of the story: for which copies and slots, and the values that make it so."""

    claim: str
    kind: str  # always | sometimes | deadlock | leads_to
    says: str | None
    that: str  # the claim in the spec's words
    bindings: tuple[str, ...]  # such as "reader=0, i=1"; empty when it ranges over nothing
    values: tuple[tuple[str, str], ...]  # cell, value
    at: Place


@dataclass(frozen=True, slots=True)
class Story:
    """A path from the initial state. With ``loop``, turns from that number on repeat for ever; the end itself if none.

    ``stutters``: the last state stays as it is for ever, as nobody who would have to move can; ``stuck`` says why, for
    each step that must not be starved: "reader 0 done", "unpin kv[1] is refused as illegal: free does not take unpin".
    """

    protocol: str
    bounds: tuple[tuple[str, int], ...]
    turns: tuple[Turn, ...]
    windows: tuple[Window, ...]
    broken: Break | None
    waiting: tuple[tuple[str, str], ...]  # at the end, each copy and its next step
    loop: int | None = None
    stutters: bool = False
    stuck: tuple[tuple[str, str], ...] = ()

    @property
    def lanes(self) -> tuple[str, ...]:
        """The copies that act, in the order of the protocol."""
        acting = {turn.who for turn in self.turns} | {window.who for window in self.windows}
        return tuple(who for who, _ in self.waiting if who in acting)


def tell(
    protocol: Protocol,
    system: System,
    path: Path,
    broken: Claim | Promise | None = None,
    *,
    binding: str | None = None,
    loop: int | None = None,
    stutters: bool = False,
) -> Story:
    """The story of a path.

    Args:
        protocol: what was laid flat, with its fault if it is a mutant.
        system: ``ground(protocol)``.
        path: commands and the states that they lead to, from the initial state on.
        broken: the claim or promise that fails at the path's end.
        binding: of a promise, the choice of copies and slots for which it fails.
        loop: the number of the first turn that is repeated for ever.
        stutters: whether the path's end stays as it is for ever.

    """
    teller = _Teller(protocol, system)
    turns = []
    before = system.initial
    for number, (command, after) in enumerate(path, 1):
        turns.append(teller.turn(number, system.commands[command], before, after))
        before = after
    how = teller.broken(broken, before, binding) if broken is not None else None
    waiting = tuple(teller.waiting(before))
    windows = _windows(protocol, turns, how)
    stuck = tuple(teller.stuck(broken.name, before)) if broken is not None and stutters else ()
    return Story(system.name, system.bounds, tuple(turns), windows, how, waiting, loop, stutters, stuck)


def claim_text(protocol: Protocol, name: str) -> str:
    """A claim in the spec's words, by its name in the system."""
    for item in protocol.properties:
        if item.name == name:
            return render(item.that)
    for promise in protocol.leads_to:
        if promise.name == name:
            return promise_text(promise)
    owner, _, inner = name.partition(".")
    for instance in protocol.instances:
        for item in instance.machine.properties:
            if (instance.name, item.name) == (owner, inner):
                return render(item.that)
    if name == "deadlock":
        return "where nobody can move any more, nothing is in use and nothing is under way"
    return "every value fits its field"


class _Teller:
    """Reads expressions of the protocol in states of the system."""

    def __init__(self, protocol: Protocol, system: System) -> None:
        self.protocol = protocol
        self.system = system

    def turn(self, number: int, command: Command, before: State, after: State) -> Turn:
        program = self.protocol.program(command.actor)
        item = program.step(command.step)
        here = _Here(self.system, before, command.actor, command.copy, dict(command.choices))
        attempts = tuple(self._attempts(item.fire[: len(command.fired)], here))
        fired = {attempt.target for attempt in attempts}
        return Turn(
            number=number,
            actor=command.actor,
            copy=command.copy,
            step=command.step,
            choices=tuple((name, self._local(program, name, value)) for name, value in command.choices),
            outcome=command.outcome,
            looks=tuple(slot for slot in _looks(item, command.outcome, here) if slot not in fired),
            attempts=attempts,
            changes=tuple(self._changes(before, after)),
            then=self._next(program, command.copy, after),
            state=after,
        )

    def _changes(self, before: State, after: State) -> Iterable[Change]:
        for cell, old, new in zip(self.system.cells, before, after, strict=True):
            if old != new:
                yield Change(cell.name, cell.shown(old), cell.shown(new), new)

    def _local(self, program: Program, name: str, value: int) -> str:
        local = next(local for local in program.locals if local.name == name)
        if local.type == BOOL:
            return "true" if value else "false"
        if local.type == INT:
            return str(value)
        machine, _, field = local.type.partition(".")
        return next(
            _shown(item.machine, field, value) for item in self.protocol.instances if item.machine.name == machine
        )

    def _next(self, program: Program, copy: int, state: State) -> str:
        return program.steps[_value(self.system, state, f"{program.name}[{copy}].at")].name

    def waiting(self, state: State) -> Iterable[tuple[str, str]]:
        for program in self.protocol.programs:
            for copy in range(program.count):
                yield f"{program.name} {copy}", self._next(program, copy, state)

    def stuck(self, promise: str, state: State) -> Iterable[tuple[str, str]]:
        """For each step that a promise calls fair, and each copy: why it is not taken in a state."""
        said = next(item for item in self.protocol.leads_to if item.name == promise)
        for name in dict.fromkeys((*said.fair, *said.strong)):
            actor, _, word = name.partition(".")
            program = self.protocol.program(actor)
            for copy in range(program.count):
                at = self._next(program, copy, state)
                why = f"it is at {at}" if at != word else "; ".join(self._hindrances(program, copy, state))
                if why:
                    yield f"{actor} {copy} {word}", why

    def _hindrances(self, program: Program, copy: int, state: State) -> Iterable[str]:
        """What keeps a copy from its next step, whatever it chooses; each said once."""
        item = program.step(self._next(program, copy, state))
        said: dict[str, None] = {}
        for values in product(*(range(pick.high + 1) for pick in item.choose)):
            picked = dict(zip((pick.local for pick in item.choose), values, strict=True))
            here = _Here(self.system, state, program.name, copy, picked)
            if item.when is not None and not here.number(item.when):
                said[f"it waits until {render(item.when)}"] = None
                continue
            for attempt in self._attempts(item.fire, here):
                if attempt.refusal is not None:
                    said[f"{attempt.event} {attempt.target} is refused as {attempt.refusal}: {attempt.why}"] = None
        return said

    # Events.

    def _attempts(self, fires: Sequence[Fire], here: _Here) -> Iterable[Attempt]:
        """Events fired one after the other, up to the first one that is refused."""
        words: dict[str, int] = {}
        for fire in fires:
            slot = here.number(fire.slot)
            machine = self.protocol.instance(fire.instance).machine
            target = f"{fire.instance}[{slot}]"
            word = words.get(target, self._word(machine, target, here.state))
            args = {name: here.number(value) for name, value in fire.args}
            attempt, words[target] = _attempt(machine, fire, slot, word, args)
            yield attempt
            if attempt.refusal is not None or not attempt.fits:
                return

    def _word(self, machine: Machine, target: str, state: State) -> int:
        values = {field.name: _value(self.system, state, f"{target}.{field.name}") for field in machine.fields}
        return pack(machine, values)

    # What broke.

    def broken(self, claim: Claim | Promise, state: State, binding: str | None) -> Break:
        if isinstance(claim, Claim):
            kind = claim.kind
            wrong = [place for place, expr in enumerate(claim.exprs) if not self.system.function(expr)(state)]
            exprs = [claim.exprs[place] for place in wrong]
        else:
            kind = "leads_to"
            wrong = [place for place, each in enumerate(claim.bindings) if each == binding]
            exprs = [claim.pairs[place][1] for place in wrong]
        read = dict.fromkeys(name for expr in exprs for name in _read(expr, self.system.place, state))
        values = tuple((name, self.system.cell(name).shown(_value(self.system, state, name))) for name in read)
        return Break(
            claim=claim.name,
            kind=kind,
            says=claim.says,
            that=claim_text(self.protocol, claim.name),
            bindings=tuple(claim.bindings[place] for place in wrong if claim.bindings[place]),
            values=values,
            at=claim.at,
        )


@dataclass(frozen=True, slots=True)
class _Here:
    """One copy in one state, with the values that its step chose."""

    system: System
    state: State
    actor: str
    copy: int
    picked: Mapping[str, int]

    def number(self, expr: Expr) -> int:
        """The value of an expression of the copy's step."""
        return evaluate(rewritten(expr, self._leaf), {})

    def _leaf(self, part: Expr) -> Expr:
        match part:
            case Name(name=name, kind="local") if name in self.picked:
                return Number(self.picked[name], part.at)
            case Name(name=name, kind="local"):
                return Number(_value(self.system, self.state, f"{self.actor}[{self.copy}].{name}"), part.at)
            case Remote(owner=owner, index=None, field=field):
                copy = self.copy if owner == self.actor else 0
                return Number(_value(self.system, self.state, f"{owner}[{copy}].{field}"), part.at)
            case Remote(owner=owner, index=index, field=field) if index is not None:
                slot = evaluate(index, {})
                return Number(_value(self.system, self.state, f"{owner}[{slot}].{field}"), part.at)
        return part


def _looks(item: Step, outcome: str, here: _Here) -> Iterable[str]:
    """The slots that a step read in its condition and in what it assigned, each once."""
    branch = {"refused": item.refused, "otherwise": item.otherwise}.get(outcome)
    do: Iterable[Assignment] = item.do if branch is None else branch.do
    exprs = [*([item.when] if item.when is not None else []), *(each.value for each in do)]
    if outcome == "otherwise" and item.choose:
        return ()  # what it chose is forgotten, so that it looked at nothing in particular
    return dict.fromkeys(f"{pool}[{here.number(index)}]" for expr in exprs for pool, index in slots_in(expr))


def _attempt(machine: Machine, fire: Fire, slot: int, word: int, args: Mapping[str, int]) -> tuple[Attempt, int]:
    """Fire one event on one word: how it went, and the word after it."""
    event = machine.event(fire.event)
    try:
        outcome = step(machine, word, event, args)
        fits = True
    except FieldOverflow:
        outcome, fits = Outcome(word, None, None), False
    given = {argument.name: argument for argument in event.given}
    attempt = Attempt(
        instance=fire.instance,
        slot=slot,
        machine=machine.name,
        event=fire.event,
        args=tuple(args.items()),
        shown=tuple((name, _argument(machine, given[name], value)) for name, value in args.items()),
        case=outcome.case,
        refusal=outcome.refusal,
        why=_why(machine, event, word, outcome),
        after=tuple(unpack(machine, outcome.word).items()),
        fits=fits,
    )
    return attempt, outcome.word


def _why(machine: Machine, event: Event, word: int, outcome: Outcome) -> str | None:
    if outcome.refusal is None:
        return None
    state = machine.states[unpack(machine, word)["state"]].name
    if outcome.case is None:
        return f"{state} does not take {event.name}"
    case = event.cases[outcome.case - 1]
    return f"in {state}" if case.when is None else render(case.when)


def _argument(machine: Machine, argument: Argument, value: int) -> str:
    if argument.is_bool:
        return "true" if value else "false"
    return _shown(machine, argument.like, value) if argument.like is not None else str(value)


def _shown(machine: Machine, field: str, value: int) -> str:
    if field == "state":
        return machine.states[value].name
    known = machine.field(field)
    if known.is_bool:
        return "true" if value else "false"
    return known.names[value] if known.names else str(value)


def _value(system: System, state: State, cell: str) -> int:
    """A cell's value; one that the system leaves out is always 0."""
    place = system.place.get(cell)
    return 0 if place is None else state[place]


def _read(expr: Expr, places: Mapping[str, int], state: State) -> list[str]:
    """The cells that make an expression what it is: of a conjunction that fails, only those of the parts that fail."""

    def holds(part: Expr) -> bool:
        return bool(evaluate(part, _Values(places, state)))

    match expr:
        case Name(name=name, kind="cell"):
            return [name]
        case Choice(condition=condition, then=then, otherwise=otherwise):
            taken = then if holds(condition) else otherwise
            return [*_read(condition, places, state), *_read(taken, places, state)]
        case Logic(op="and" | "or" as op, operands=operands):
            decisive = [part for part in operands if holds(part) == (op == "or")]
            return [name for part in decisive or operands for name in _read(part, places, state)]
    return [name for part in parts_of(expr) for name in _read(part, places, state)]


class _Values(dict[str, int]):
    """A state as names; made for each question, and small."""

    def __init__(self, places: Mapping[str, int], state: State) -> None:
        super().__init__({name: state[place] for name, place in places.items()})


# Windows.


def _windows(protocol: Protocol, turns: Sequence[Turn], broken: Break | None) -> tuple[Window, ...]:
    """The windows that others disturbed; those open at the end only of copies whose step makes the claim fail.

    A copy that starts over has forgotten what it saw.
    """
    first = {program.name: program.steps[0].name for program in protocol.programs}
    found: list[Window] = []
    seen: dict[str, dict[str, int]] = {}  # copy -> slot -> the turn that looked at it
    for turn in turns:
        own = seen.setdefault(turn.who, {})
        fired = list(dict.fromkeys(attempt.target for attempt in turn.attempts))
        found += _closed(turns, turn, own, fired)
        for slot in fired:
            own.pop(slot, None)
        own.update(dict.fromkeys(turn.looks, turn.number))
        if turn.attempts and turn.outcome == "applied":  # what it has taken, it relies on in its next step
            own.update({attempt.target: turn.number for attempt in turn.attempts})
        if turn.then == first[turn.actor]:
            own.clear()
    if broken is not None and turns:
        read = {cell for cell, _ in broken.values}
        for who, own in seen.items():
            last = [turn for turn in turns if turn.who == who][-1]
            if f"{last.actor}[{last.copy}].at" in read:
                found += _open(turns, last, own)
    return tuple(sorted(found, key=lambda window: (window.opened, window.who)))


def _closed(turns: Sequence[Turn], turn: Turn, own: Mapping[str, int], fired: Sequence[str]) -> Iterable[Window]:
    for opened in dict.fromkeys(own[slot] for slot in fired if slot in own):
        slots = tuple(slot for slot in fired if own.get(slot) == opened)
        yield from _disturbed(turns, Window(turn.actor, turn.copy, slots, opened, turn.number, ()))


def _open(turns: Sequence[Turn], last: Turn, own: Mapping[str, int]) -> Iterable[Window]:
    for opened in dict.fromkeys(own.values()):
        slots = tuple(slot for slot, number in own.items() if number == opened)
        yield from _disturbed(turns, Window(last.actor, last.copy, slots, opened, None, ()))


def _disturbed(turns: Sequence[Turn], window: Window) -> Iterable[Window]:
    """The window with what happened to its slots in it; none when nothing did."""
    inside = [turn for turn in turns if window.covers(turn.number) and turn.who != window.who]
    disturbed = tuple(turn.number for turn in inside if set(turn.slots) & set(window.slots))
    if disturbed:
        yield replace(window, disturbed=disturbed)
