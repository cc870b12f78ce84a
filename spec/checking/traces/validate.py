"""Whether a recorded trace is a path of the model; if not, the first event that is not, and why.

Each recorded event is held against what its machine's spec makes of it: refusal or word, case by case. Words follow one
another from call to call, so that a word which changed without an event shows at the next event on its slot or at the
end; and every word fulfils the machine's ``always``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from ...language.digest import machine_digest
from ...language.interpreter import ILLEGAL
from ...language.model import Event, Machine
from .replay import Replayer
from .trace_file import Call, Damaged, End, Grown, Header, PoolHead, read_trace
from .trace_story import changed_fields, claim_story, shown_word, step_story

TOGETHER = 1 << 16  # events that are looked at together


@dataclass(frozen=True, slots=True)
class Illegal:
    """The first thing in a trace that is no step of the model.

    ``kind`` is damaged, other_spec, bad_start, unknown_event, bad_slot, bad_arguments, changed_without_event,
    not_taken, refused (the model refuses what was applied), applied (the model applies what was refused),
    other_refusal, other_word, held_for_nothing or always. ``text`` is one sentence, ``why`` more lines.
    """

    kind: str
    line: int
    text: str
    why: tuple[str, ...] = ()
    source: str | None = None
    machine: str | None = None
    call: int | None = None  # number among the calls of the source
    event: str | None = None
    slot: int | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found. ``taken`` counts, for each (machine, event, case), the events before the first illegal one.

    Case 0 stands for a state that does not take the event.
    """

    dropped: int
    pools: int
    calls: int
    taken: Mapping[tuple[str, str, int], int]
    first_illegal: Illegal | None

    @property
    def ok(self) -> bool:
        """Whether the trace is a path of the model."""
        return self.first_illegal is None

    @property
    def events(self) -> int:
        """Events, a slot each, that are steps of the model."""
        return sum(self.taken.values())


class Validator:
    """Holds traces against some machines. What one trace taught about them is remembered for the next."""

    def __init__(self, machines: Iterable[Machine], edited: bool = False) -> None:
        self.edited = edited  # whether a trace of machines with other guards and effects, and the same fields, is taken
        self.replayers = {machine.name: Replayer(machine) for machine in machines}
        self.digests = {name: machine_digest(replayer.machine) for name, replayer in self.replayers.items()}

    def validate(self, lines: Iterable[str], progress: Callable[[int], None] | None = None) -> Verdict:
        """The verdict on one trace; ``progress`` is called now and then with the events seen."""
        run = _Run(self, progress or (lambda events: None))
        try:
            for entry in read_trace(lines):
                run.see(entry)
        except Damaged as damage:
            return run.verdict(Illegal("damaged", damage.line, str(damage)))
        except _Found as found:
            return run.verdict(found.illegal)
        return run.verdict(None)


class _Found(Exception):
    def __init__(self, illegal: Illegal) -> None:
        self.illegal = illegal


@dataclass(slots=True)
class _Rows:
    """Events of one kind that wait to be judged; a row each."""

    given: dict[str, list[int]]  # in the order of the spec
    calls: list[Call] = field(default_factory=list)
    places: list[int] = field(default_factory=list)  # of the slot in its call
    before: list[int] = field(default_factory=list)
    after: list[int] = field(default_factory=list)
    told: list[str | None] = field(default_factory=list)  # recorded refusals

    def keep(self, call: Call, before: Sequence[int], after: Sequence[int], told: Sequence[str | None]) -> None:
        """The rows of one call."""
        self.calls += [call] * len(before)
        self.places += range(len(before))
        self.before += before
        self.after += after
        self.told += told
        for name, column in self.given.items():
            column += call.given[name]


class _Run:
    """One trace on its way."""

    def __init__(self, validator: Validator, progress: Callable[[int], None]) -> None:
        self.validator, self.progress = validator, progress
        self.header = Header(0, {}, ())
        self.words: list[list[int]] = []  # of each pool, as the trace says
        self.touched: list[dict[int, int]] = []  # slot -> line of the last call on it
        self.calls = 0
        self.events = 0
        self.taken: Counter[tuple[str, str, int]] = Counter()
        self.waiting: dict[tuple[str, str], _Rows] = {}
        self.together = 0

    def see(self, entry: Header | Call | Grown | End) -> None:
        """One line."""
        match entry:
            case Header():
                self._begin(entry)
            case Call():
                self._call(entry)
            case Grown(pool=pool, slots=slots):
                more = slots - len(self.words[pool])
                if more < 0:
                    self._fail(Illegal("bad_slot", entry.line, f"a pool of {len(self.words[pool])} slots shrinks"))
                self.words[pool] += [0] * more
                self.calls += 1
            case End():
                self._end(entry)

    def verdict(self, illegal: Illegal | None) -> Verdict:
        """What was found up to ``illegal``; an earlier event that waits still may turn out to be the first."""
        if illegal is not None:
            try:
                self._judge()
            except _Found as found:
                illegal = found.illegal
        return Verdict(self.header.dropped, len(self.header.pools), self.calls, self.taken, illegal)

    def _fail(self, illegal: Illegal) -> NoReturn:
        raise _Found(illegal)

    # ---- lines -----------------------------------------------------------------------------------------------------

    def _begin(self, header: Header) -> None:
        self.header = header
        for pool in header.pools:
            about: dict[str, Any] = {"source": pool.source, "machine": pool.machine}
            if why := self._other_spec(pool):
                self._fail(Illegal("other_spec", 1, why, **about))
            replayer = self.validator.replayers[pool.machine]
            words: list[int] = pool.words.tolist()
            for word in dict.fromkeys(words):
                if not replayer.is_word(word):
                    slot = words.index(word)
                    self._fail(Illegal("bad_start", 1, f"slot {slot} starts as {word:#018x}, no word of "
                                       f"{pool.machine}", slot=slot, **about))  # fmt: skip
            for word, claim in replayer.broken(words).items():
                slot = words.index(word)
                text = f"slot {slot} of {pool.machine} starts against its property '{claim.name}'"
                self._fail(Illegal("always", 1, text, claim_story(replayer.machine, claim, word), slot=slot, **about))
            self.words.append(words)
            self.touched.append({})

    def _other_spec(self, pool: PoolHead) -> str:
        """Why the trace of a pool can't be held against this spec; empty when it can."""
        if pool.machine not in self.validator.replayers:
            return f"the trace follows a machine '{pool.machine}', which this spec does not have"
        if pool.digest == self.validator.digests[pool.machine]:
            return ""
        machine = self.validator.replayers[pool.machine].machine
        ours = {one.name: one.bits for one in machine.fields}
        if pool.fields == ours and self.validator.edited:
            return ""
        what, more = "the fields of its word differ", ""
        if pool.fields == ours:
            what, more = "its states, guards or effects differ", ", or try it against these with --edited"
        return (
            f"the trace follows another '{pool.machine}' than this spec's: {what}; "
            f"give its own with --spec, or generate with `kvfsm gen` and record anew{more}"
        )

    def _call(self, call: Call) -> None:
        pool, words = self.header.pools[call.pool], self.words[call.pool]
        replayer = self.validator.replayers[pool.machine]
        if call.event not in replayer.events:
            self._fail(self._illegal(call, None, "unknown_event", f"'{pool.machine}' has no event '{call.event}'"))
        self._check_slots(call, len(words))
        self._check_given(call, replayer.machine, replayer.events[call.event])
        told = self._refusals(call, pool)
        before = [words[slot] for slot in call.slots]
        if call.was is not None and call.was != before:
            self._changed(call, before, call.was)
        after = before if call.words is None else call.words
        rows = self.waiting.get((pool.machine, call.event))
        if rows is None:
            given: dict[str, list[int]] = {argument.name: [] for argument in replayer.events[call.event].given}
            rows = self.waiting[pool.machine, call.event] = _Rows(given)
        rows.keep(call, before, after, told)
        for slot, word in zip(call.slots, after, strict=True):
            words[slot] = word
        self.touched[call.pool].update(dict.fromkeys(call.slots, call.line))
        self.calls += 1
        self.together += len(before)
        if self.together >= TOGETHER:
            self._judge()
            self.progress(self.events)

    def _refusals(self, call: Call, pool: PoolHead) -> list[str | None]:
        """The recorded refusal of each slot, in words; None: applied."""
        if not any(call.codes):
            if call.held:
                text = f"'{call.event}' was kept from all its slots, and none of them refused it"
                self._fail(self._illegal(call, 0, "held_for_nothing", text))
            return [None] * len(call.codes)
        unknown = [code for code in call.codes if not 0 <= code < len(pool.refusals)]
        if unknown:
            self._fail(self._illegal(call, None, "other_refusal", f"no refusal has the code {unknown[0]}"))
        return [pool.refusals[code] if code else None for code in call.codes]

    def _end(self, end: End) -> None:
        self._judge()
        if (end.calls, end.events) != (self.calls, self.events):
            told = f"the end tells of {end.calls} calls and {end.events} events, and"
            self._fail(Illegal("damaged", end.line, f"{told} {self.calls} and {self.events} were found"))
        if [len(words) for words in end.words] != [len(words) for words in self.words]:
            self._fail(Illegal("damaged", end.line, "the end has words of other slots than the trace"))
        for number, last in enumerate(end.words):
            found: list[int] = last.tolist()
            for slot, (word, now) in enumerate(zip(self.words[number], found, strict=True)):
                if word != now:
                    self._fail(self._changed_at(end.line, number, slot, word, now, "the end"))

    # ---- what is checked at once -----------------------------------------------------------------------------------

    def _check_slots(self, call: Call, size: int) -> None:
        if call.slots and not 0 <= min(call.slots) <= max(call.slots) < size:
            place = next(n for n, slot in enumerate(call.slots) if not 0 <= slot < size)
            text = f"there is no slot {call.slots[place]}; slots are 0 to {size - 1}"
            self._fail(self._illegal(call, place, "bad_slot", text))
        if len(set(call.slots)) < len(call.slots):
            place = next(n for n, slot in enumerate(call.slots) if slot in call.slots[:n])
            self._fail(self._illegal(call, place, "bad_slot", "one call names the slot twice"))

    def _check_given(self, call: Call, machine: Machine, event: Event) -> None:
        if len(call.given) != len(event.given) or any(argument.name not in call.given for argument in event.given):
            wanted = [argument.name for argument in event.given]
            text = f"'{call.event}' takes {', '.join(wanted) or 'nothing'}, not {', '.join(call.given) or 'nothing'}"
            self._fail(self._illegal(call, None, "bad_arguments", text))
        for argument in event.given:
            high = machine.field(argument.like).max if argument.like is not None else argument.max
            values = call.given[argument.name]
            if values and not 0 <= min(values) <= max(values) <= high:
                place = next(n for n, value in enumerate(values) if not 0 <= value <= high)
                text = f"'{argument.name}' of '{call.event}' takes 0 to {high}, not {values[place]}"
                self._fail(self._illegal(call, place, "bad_arguments", text))

    def _changed(self, call: Call, before: Sequence[int], was: Sequence[int]) -> None:
        place = next(n for n, (one, other) in enumerate(zip(before, was, strict=True)) if one != other)
        pool, slot = self.header.pools[call.pool], call.slots[place]
        until = f"'{call.event}' (call {call.number} of {pool.source})"
        self._fail(self._changed_at(call.line, call.pool, slot, before[place], was[place], until, call))

    def _changed_at(
        self, line: int, number: int, slot: int, word: int, now: int, until: str, call: Call | None = None
    ) -> Illegal:
        pool = self.header.pools[number]
        machine = self.validator.replayers[pool.machine].machine
        last = self.touched[number].get(slot)
        since = f"the event in line {last}" if last is not None else "the start"
        text = f"the word of slot {slot} of {pool.machine} changed without an event between {since} and {until}"
        why = (
            f"by its events: {shown_word(machine, word)}",
            f"found:         {shown_word(machine, now)}",
            f"differs in:    {changed_fields(machine, word, now)}",
        )
        name, at = (None, None) if call is None else (call.event, call.number)
        return Illegal("changed_without_event", line, text, why, pool.source, pool.machine, at, name, slot)

    def _illegal(self, call: Call, place: int | None, kind: str, text: str, why: tuple[str, ...] = ()) -> Illegal:
        pool = self.header.pools[call.pool]
        slot = None if place is None else call.slots[place]
        return Illegal(kind, call.line, text, why, pool.source, pool.machine, call.number, call.event, slot)

    # ---- what is judged together -----------------------------------------------------------------------------------

    def _judge(self) -> None:
        """Hold the rows that wait against the model; raises at the first, in the order of the trace, that differs."""
        waiting, self.waiting, self.together = self.waiting, {}, 0
        first: tuple[int, int, _Rows, int, int] | None = None  # line, place; where it is; its case
        numbers: list[tuple[str, str, _Rows, list[int]]] = []
        for (machine, event), rows in waiting.items():
            replayer = self.validator.replayers[machine]
            words, cases = replayer.outcomes(event, rows.before, tuple(rows.given.values()))
            numbers.append((machine, event, rows, cases))
            refusals = {0: ILLEGAL} | {case.number: case.refuse for case in replayer.machine.event(event).cases}
            expected = [refusals[case] for case in cases]
            broken = replayer.broken(rows.after)
            if expected == rows.told and not broken and words == rows.after:
                continue
            for n, call in enumerate(rows.calls):
                after = rows.before[n] if call.held else words[n]
                differs = expected[n] != rows.told[n] or after != rows.after[n] or rows.after[n] in broken
                if differs and (first is None or (call.line, rows.places[n]) < first[:2]):
                    first = call.line, rows.places[n], rows, n, cases[n]
        for machine, event, rows, cases in numbers:
            self._count(machine, event, rows, cases, first)
        if first is not None:
            _, place, rows, n, case = first
            self._fail(self._different(rows, n, place, case))

    def _count(
        self, machine: str, event: str, rows: _Rows, cases: list[int], first: tuple[int, int, _Rows, int, int] | None
    ) -> None:
        if first is not None:
            placed = zip(cases, rows.calls, rows.places, strict=True)
            cases = [case for case, call, place in placed if (call.line, place) < first[:2]]
        for case, count in Counter(cases).items():
            self.taken[machine, event, case] += count
        self.events += len(cases)

    def _different(self, rows: _Rows, n: int, place: int, number: int) -> Illegal:
        """Why one row is no step of the model."""
        call, before, after, told = rows.calls[n], rows.before[n], rows.after[n], rows.told[n]
        pool = self.header.pools[call.pool]
        replayer = self.validator.replayers[pool.machine]
        machine, event = replayer.machine, replayer.machine.event(call.event)
        given = {name: call.given[name][place] for name in rows.given}
        (model,), _ = replayer.outcomes(call.event, [before], [[value] for value in given.values()])
        refusal = next((case.refuse for case in event.cases if case.number == number), ILLEGAL)
        state = machine.states[before & (1 << machine.fields[0].bits) - 1].name
        slot, held = f"slot {call.slots[place]}", " (the call was held back)" if call.held else ""
        if refusal == ILLEGAL and told != ILLEGAL:
            recorded = "applied" if told is None else f"refused as {told}"
            kind, text = "not_taken", f"'{call.event}' was {recorded}, and {slot} was '{state}', which does not take it"
        elif told is None and refusal is not None:
            kind, text = "refused", f"'{call.event}' was applied to {slot}, and the model refuses it as {refusal}"
        elif told is not None and refusal is None:
            kind, text = "applied", f"'{call.event}' was refused by {slot} as {told}, and the model applies it"
        elif told != refusal:
            kind, text = "other_refusal", f"'{call.event}' was refused by {slot} as {told}; by the model, as {refusal}"
        elif after != (before if call.held else model):
            what = changed_fields(machine, before if call.held else model, after)
            kind, text = "other_word", f"'{call.event}' left another word in {slot} than by the model: {what}"
        else:
            claim = replayer.broken([after])[after]
            text = f"'{call.event}' left {slot} against the property '{claim.name}' of {machine.name}"
            return self._illegal(call, place, "always", text, claim_story(machine, claim, after))
        return self._illegal(call, place, kind, text + held, step_story(machine, event, before, given, number))
