"""A trace of the runtime is a path of the model; whatever is planted in the runtime or done to the file is named."""

from __future__ import annotations

import json
import random
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from kvfsm.codegen.emit_python import machine_module
from kvfsm.codegen.names import class_name
from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.generated import KINDS, Refusal, SwaWindowTable
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.generated.swa_window import _pin
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.table import Table
from kvfsm.runtime.trace import EventTrace
from kvfsm.spec.checking.traces import replay
from kvfsm.spec.checking.traces.replay import EventOverArrays, Replayer
from kvfsm.spec.checking.traces.validate import Illegal, Validator
from kvfsm.spec.language.digest import machine_digest
from kvfsm.spec.language.expressions import Truth
from kvfsm.spec.language.interpreter import evaluate, step
from kvfsm.spec.language.load import load_spec
from kvfsm.spec.language.model import Case, Event, Machine
from kvfsm.spec.language.word import pack, unpack

SPEC = load_spec().required()
PROFILE = PROFILES["tiny_deepseek_v4"]
A = PROFILE.granule
SEED = 7


@pytest.fixture(scope="module")
def judge() -> Validator:
    return Validator(SPEC.generated)


def recorded(made: type[Table], slots: Any, capacity: int = 1 << 16) -> tuple[Table, EventTrace]:
    trace = EventTrace(capacity)
    source = trace.source("test")
    table = made(slots, source)
    source.watch([table], threading.Lock())
    return table, trace


def busy() -> EventTrace:
    """A manager that fills, reads, packs, expands, decodes, evicts and resets."""
    trace = EventTrace()
    manager = Manager(PROFILE, dict.fromkeys(PROFILE.kinds, 16), NumpyBackend(), cold=8, rows=2, trace=trace)
    keys = manager.keys(list(range(4 * A + 1)))
    fill = manager.reserve(keys, 0, 3)
    manager.publish(fill)
    with manager.acquire(manager.match(keys)):
        manager.evict("swa_window", 1)
    manager.abandon(manager.reserve(keys, 3, 4))
    manager.pack(keys)
    manager.expand(keys)
    row = manager.requests.admit(3)
    for _ in range(A + 3):
        manager.requests.step([row])
    manager.requests.finish(row)
    manager.reset()
    return trace


@pytest.fixture(scope="module")
def lines() -> list[str]:
    return list(busy().lines())


def resealed(lines: list[str]) -> list[str]:
    """Lines with checksums that fit: what a recorder would have written that saw this happen."""
    check, sealed = 0, []
    for line in lines:
        text = line[:-20] + "}"
        check = zlib.crc32(text.encode(), check)
        sealed.append(f'{text[:-1]}, "crc": "{check:08x}"}}')
    return sealed


def edited(lines: list[str], event: str, edit: Callable[[dict[str, Any]], None]) -> tuple[list[str], int]:
    """The trace with one call of ``event`` changed, as if it had happened so; and the number of its line."""
    at = next(n for n, line in enumerate(lines) if f'"event": "{event}"' in line)
    said = json.loads(lines[at])
    edit(said)
    said["crc"] = said.pop("crc")  # stands last
    return resealed([*lines[:at], json.dumps(said), *lines[at + 1 :]]), at + 1


def found(judge: Validator, lines: list[str]) -> Illegal:
    illegal = judge.validate(lines).first_illegal
    assert illegal is not None
    return illegal


# ---- what is well -------------------------------------------------------------------------------------------------


def test_a_managers_trace_is_a_path_of_the_model(judge: Validator, lines: list[str]) -> None:
    verdict = judge.validate(lines)
    assert verdict.ok, verdict.first_illegal
    assert verdict.events > 100 and verdict.pools == 6 and verdict.dropped == 0
    fired = {(machine, event) for machine, event, _ in verdict.taken}
    assert {("compressed_kv", "compress_done"), ("compressed_kv", "expand_done"), ("swa_window", "evict"),
            ("uncompressed_tail", "emit"), ("indexer_state", "expire")} <= fired  # fmt: skip


def test_a_call_that_was_held_back_is_a_path_too(judge: Validator) -> None:
    table, trace = recorded(SwaWindowTable, 3)
    table.take([0, 1])
    assert table.whole.seal([0, 1, 2], expected=1, at=4, is_lossy=False).tolist() == [0, 0, Refusal.STALE]
    verdict = judge.validate(trace.lines())
    assert verdict.ok and verdict.events == 5
    assert verdict.taken["swa_window", "seal", 1] == 1 and verdict.taken["swa_window", "seal", 2] == 2


def test_resealing_changes_nothing(judge: Validator, lines: list[str]) -> None:
    """Control of the control: only what a test edits makes a difference below."""
    assert resealed(lines) == lines


@cache
def random_words(name: str, count: int) -> Any:
    """Words of a machine for which all that it claims is true, with fields at both their ends."""
    machine, chance, found = SPEC.machine(name), np.random.default_rng(SEED), np.zeros(0, np.uint64)
    while len(found) < count:
        words = chance.integers(len(machine.states), size=8 * count).astype(np.uint64)
        plain = chance.random(len(words)) < 0.3  # free slots hold nothing but their generation
        idle = chance.random(len(words)) < 0.6  # slots in most states are neither pinned nor held
        for field in machine.fields[1:]:
            ends = np.minimum([0, 1, 1, 2, field.max - 1, field.max], field.max)
            empty = plain & (field.name != "generation") | idle & (field.name in ("pins", "holds"))
            values = np.where(empty, 0, chance.choice(ends, len(words)))
            words |= values.astype(np.uint64) << np.uint64(field.shift)
        broken = Replayer(machine).broken(words.tolist())
        found = np.concatenate((found, words[~np.isin(words, np.array(list(broken), np.uint64))]))
    return found[:count]


def random_given(machine: Machine, event: Event, words: Any, chance: np.random.Generator) -> dict[str, Any]:
    """Arguments that fit the words mostly, and values near 0 or near both ends."""
    given = {}
    for argument in event.given:
        field = machine.field("generation" if argument.name == "expected" else argument.like or "state")
        high = field.max if argument.like is not None else argument.max
        held = (words >> np.uint64(field.shift) & np.uint64((1 << field.bits) - 1)).astype(np.int64)
        other = np.clip(np.where(chance.random(len(words)) < 0.5, chance.choice([0, 1, 2, high - 1, high], len(words)),
                                 held + chance.choice([-1, 1], len(words))), 0, high)  # fmt: skip
        keep = chance.random(len(words)) < (0.9 if argument.name == "expected" else 0.5)
        values = np.where(keep & (held <= high), held, other)
        given[argument.name] = values != 0 if argument.is_bool else values
    return given


EVENTS = [
    pytest.param(machine, event, id=f"{machine.name}.{event.name}")
    for machine in SPEC.machines
    for event in machine.events
]


@pytest.mark.parametrize(("machine", "event"), EVENTS)
def test_events_over_arrays_are_those_of_the_interpreter(machine: Machine, event: Event) -> None:
    print(f"seed {SEED}")
    chance = np.random.default_rng(SEED)
    words = random_words(machine.name, 300)
    given = random_given(machine, event, words, chance)
    many = EventOverArrays(machine, event)
    after, cases = many(words, {name: values.astype(np.int64) for name, values in given.items()})
    for n, word in enumerate(words.tolist()):
        said = step(machine, word, event, {name: int(values[n]) for name, values in given.items()})
        assert (int(after[n]), int(cases[n])) == (said.word, said.case or 0)


def test_many_rows_and_few_are_judged_alike(
    judge: Validator, monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    alone = judge.validate(lines)
    monkeypatch.setattr(replay, "FEW", 1)
    assert Validator(SPEC.generated).validate(lines) == alone


# ---- a runtime with a fault ----------------------------------------------------------------------------------------


class Careless(SwaWindowTable):
    """Its ``pin`` does not look at the boundary."""

    def pin(self, slots: Any, *, expected: Any, at: Any) -> Any:
        index = self._index(slots)

        def careless(words: Any, expected: Any, at: Any) -> Any:
            return _pin(words, expected, words >> 40 & 0x7FFFFF)

        return self._apply("pin", careless, index, np.int64(expected), np.int64(at))


def test_a_dropped_guard_is_named_with_the_values_in_it(judge: Validator) -> None:
    table, trace = recorded(Careless, 4)
    table.take([2])
    table.seal([2], expected=1, at=9, is_lossy=False)
    table.pin([2], expected=1, at=9)
    table.pin([2], expected=1, at=8)  # type: ignore[attr-defined]
    illegal = found(judge, list(trace.lines()))
    assert (illegal.kind, illegal.line, illegal.call, illegal.slot) == ("refused", 5, 3, 2)
    assert (illegal.source, illegal.machine, illegal.event) == ("test 1", "swa_window", "pin")
    assert illegal.text == "'pin' was applied to slot 2, and the model refuses it as position"
    assert illegal.why == (
        "the slot: resident, pins 1, holds 0, generation 1, boundary 9, lossy false",
        "given:    expected 1, at 8",
        "  case 1: expected != generation -> refused as stale; it does not hold: expected is 1, generation is 1",
        "  case 6: at != boundary -> refused as position; it holds: at is 8, boundary is 9",
        "'resident' takes: pin, unpin, hold, unhold, expire, evict",
    )


GUARDS = [
    pytest.param(machine, event, case, id=f"{machine.name}.{event.name}.{case.number}")
    for machine in SPEC.machines
    for event in machine.events
    for case in event.cases
    if case.when is not None
]


IMPLIED = {"uncompressed_tail.emit.3": "carry_is_kept"}  # guards that no word meets for which that property holds


def faulty_table(machine: Machine, event: Event) -> type[Table]:
    """Generated from a machine with that event in its event's place, and with the digest of the right one."""
    alone = replace(machine, events=(event,), eviction=None, mutants=(), leads_to=())
    text = machine_module(alone, "kvfsm.runtime").replace("from .refusal", "from kvfsm.runtime.generated.refusal")
    names: dict[str, Any] = {"__name__": "faulty"}
    exec(compile(text, "faulty.py", "exec"), names)
    made: type[Table] = names[f"{class_name(machine.name)}Table"]
    made.DIGEST = machine_digest(machine)
    return made


def judged(judge: Validator, machine: Machine, event: Event) -> Illegal | None:
    """One call of a table's event on many words."""
    chance = np.random.default_rng(SEED)
    words = random_words(machine.name, 4000).copy()
    table, trace = recorded(faulty_table(machine, event), words)
    table.fire(event.name, np.arange(len(words)), **random_given(machine, event, words, chance))
    return judge.validate(trace.lines()).first_illegal


def every_word_of(machine: Machine, case: Case) -> Iterator[int]:
    """Words in the states of a case, with small numbers in the other fields."""
    others = [field for field in machine.fields[1:] if field.name not in ("pins", "holds", "generation")]
    for state in case.sources:
        for values in product(*(range(min(field.max, 2) + 1) for field in others)):
            fields = {field.name: value for field, value in zip(others, values, strict=True)}
            yield pack(machine, {"state": machine.state(state).code, "generation": 1, **fields})


FITTING = {"expected": 1, "span": 1}


@pytest.mark.parametrize(("machine", "event", "case"), GUARDS)
def test_every_guard_is_missed_when_it_is_dropped(judge: Validator, machine: Machine, event: Event, case: Case) -> None:
    print(f"seed {SEED}")
    assert case.when is not None
    cases = tuple(replace(one, when=Truth(False, one.at)) if one is case else one for one in event.cases)
    assert judged(judge, machine, event) is None
    illegal = judged(judge, machine, replace(event, cases=cases))
    if implied := IMPLIED.get(f"{machine.name}.{event.name}.{case.number}"):
        (claim,) = (one for one in machine.properties if one.name == implied)
        words = every_word_of(machine, case)
        given = {argument.name: FITTING.get(argument.name, 0) for argument in event.given}
        meets = [word for word in words if step(machine, word, event, given).case == case.number]
        assert illegal is None and meets
        assert not any(evaluate(claim.that, unpack(machine, word)) for word in meets)
        return
    assert illegal is not None
    assert (illegal.machine, illegal.event) == (machine.name, event.name)
    assert any(f"case {case.number}: " in line for line in illegal.why)


DECLARED = [
    pytest.param(machine, mutant.faulty, id=f"{machine.name}.{mutant.name}")
    for machine in SPEC.machines
    for mutant in machine.mutants
]


@pytest.mark.parametrize(("machine", "faulty"), DECLARED)
def test_every_declared_mutant_of_a_machine_is_caught(judge: Validator, machine: Machine, faulty: Event) -> None:
    print(f"seed {SEED}")
    illegal = judged(judge, machine, faulty)
    assert illegal is not None and illegal.event == faulty.name


def test_a_word_that_changes_without_an_event_is_caught_at_the_next_event_on_it(judge: Validator) -> None:
    table, trace = recorded(SwaWindowTable, 3)
    table.take([0, 1])
    table.words[1] += np.uint64(1 << 40)
    table.take([2])
    table.seal([1], expected=1, at=5, is_lossy=False)
    illegal = found(judge, list(trace.lines()))
    assert (illegal.kind, illegal.line, illegal.slot, illegal.event) == ("changed_without_event", 4, 1, "seal")
    assert "between the event in line 2 and 'seal'" in illegal.text
    assert illegal.why[-1] == "differs in:    boundary 0 -> 1"


def test_a_word_that_changes_without_an_event_is_caught_at_the_end(judge: Validator) -> None:
    table, trace = recorded(SwaWindowTable, 3)
    table.words[2] = 1
    illegal = found(judge, list(trace.lines()))
    assert (illegal.kind, illegal.line, illegal.slot) == ("changed_without_event", 2, 2)
    assert "between the start and the end" in illegal.text


def test_a_start_against_a_property_is_caught(judge: Validator) -> None:
    words = np.array([0, 1 << 4], np.uint64)  # the second: free, with a pin
    _, trace = recorded(SwaWindowTable, words)
    illegal = found(judge, list(trace.lines()))
    assert (illegal.kind, illegal.slot) == ("always", 1)
    assert illegal.why[-1].startswith("lease_protects (S3): pins > 0 implies state in ")


def test_a_step_against_a_property_is_caught_though_the_model_takes_it() -> None:
    """A spec whose own events break what it claims: evict without its guards."""
    machine = SPEC.machine("swa_window")
    (evict,) = (event for event in machine.events if event.name == "evict")
    careless = replace(evict, cases=tuple(replace(case, number=1) for case in evict.cases if case.refuse is None))
    faulty = replace(machine, events=tuple(careless if event is evict else event for event in machine.events))
    made = faulty_table(machine, careless)
    made.DIGEST = machine_digest(faulty)
    pinned = np.array([2 | 1 << 4 | 1 << 20], np.uint64)
    table, trace = recorded(made, pinned)
    table.fire("evict", [0])
    illegal = found(Validator([faulty]), list(trace.lines()))
    assert (illegal.kind, illegal.line, illegal.event) == ("always", 2, "evict")


# ---- a file that was touched ---------------------------------------------------------------------------------------


def test_a_truncated_trace_is_named_by_its_last_line(judge: Validator, lines: list[str]) -> None:
    for kept in (1, 5, len(lines) - 1):
        illegal = found(judge, lines[:kept])
        assert (illegal.kind, illegal.line) == ("damaged", kept)
        assert "breaks off behind this line" in illegal.text
    half = found(judge, [*lines[:5], lines[5][:30]])
    assert (half.kind, half.line) == ("damaged", 6)
    assert found(judge, []).text == "the file is empty"


def damages(lines: list[str]) -> Iterator[tuple[str, list[str], int]]:
    yield "swapped", [*lines[:4], lines[5], lines[4], *lines[6:]], 5
    yield "repeated", [*lines[:5], lines[4], *lines[5:]], 6
    yield "left out", [*lines[:4], *lines[5:]], 5
    yield "edited", [*lines[:5], lines[5].replace('"expected": [1', '"expected": [2'), *lines[6:]], 6
    yield "appended", [*lines, lines[4]], len(lines) + 1


@pytest.mark.parametrize("which", ["swapped", "repeated", "left out", "edited", "appended"])
def test_a_line_that_was_touched_is_named(judge: Validator, lines: list[str], which: str) -> None:
    ((touched, line),) = [(touched, line) for name, touched, line in damages(lines) if name == which]
    assert touched != lines
    illegal = found(judge, touched)
    assert (illegal.kind, illegal.line) == ("damaged", line)


@pytest.mark.parametrize("which", ["swapped", "repeated", "left out"])
def test_lost_or_moved_calls_show_by_their_numbers_where_checksums_fit(
    judge: Validator, lines: list[str], which: str
) -> None:
    ((touched, line),) = [(touched, line) for name, touched, line in damages(lines) if name == which]
    illegal = found(judge, resealed(touched))
    assert (illegal.kind, illegal.line) == ("damaged", line)
    assert "lines are lost, repeated or out of order" in illegal.text


def put(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda said: said.__setitem__(name, value)


def give(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda said: said["given"].__setitem__(name, value)


@pytest.mark.parametrize(
    ("event", "edit", "kind", "text"),
    [
        ("take", put("event", "tak"), "unknown_event", "'compressed_kv' has no event 'tak'"),
        ("take", put("slots", [0, 1, 99]), "bad_slot", "there is no slot 99; slots are 0 to 23"),
        ("take", put("slots", [0, 1, 1]), "bad_slot", "one call names the slot twice"),
        ("take", put("given", {}), "bad_arguments", "'take' takes wanted_layout, wanted_form, not nothing"),
        ("take", give("wanted_layout", 64), "bad_arguments", "'wanted_layout' of 'take' takes 0 to 63, not 64"),
        ("take", put("codes", [0, 200, 0]), "other_refusal", "no refusal has the code 200"),
        ("take", put("codes", [0, 2, 0]), "applied", "'take' was refused by slot 1 as stale, and"),
        ("emit", put("words", 7), "other_word", "'emit' left another word in slot 0 than by the model: "),
        ("emit", give("expected", [1, 3, 1]), "refused", "'emit' was applied to slot 1, and the model refuses it"),
        ("pin", put("event", "discard"), "bad_arguments", "'discard' takes expected, not expected, wanted"),
        ("unpin", put("event", "quiesce"), "not_taken", "'quiesce' was applied, and slot 0 was 'resident'"),
        ("take", put("pool", 9), "damaged", "there is no pool 9; the header names 6"),
        ("take", put("slots", ["0"]), "damaged", "are no whole numbers"),
        ("take", put("words", [1, 2]), "damaged", "2 values stand beside 3 slots"),
        ("take", put("held", True), "damaged", "a call has words after it unless it was held back"),
    ],
)
def test_a_call_that_did_not_happen_so_is_told(
    judge: Validator, lines: list[str], event: str, edit: Callable[[dict[str, Any]], None], kind: str, text: str
) -> None:
    touched, line = edited(lines, event, edit)
    illegal = found(judge, touched)
    assert (illegal.kind, illegal.line) == (kind, line), illegal
    assert text in illegal.text


def test_another_refusal_than_the_models_is_told(judge: Validator) -> None:
    table, trace = recorded(SwaWindowTable, 1)
    table.take([0])
    table.pin([0], expected=1, at=3)  # busy
    touched, line = edited(list(trace.lines()), "pin", put("codes", [int(Refusal.PENDING)]))
    illegal = found(judge, touched)
    assert (illegal.kind, illegal.line) == ("other_refusal", line)
    assert illegal.text == "'pin' was refused by slot 0 as pending; by the model, as busy"


def test_a_call_that_was_held_back_for_nothing_is_told(judge: Validator) -> None:
    def hold(said: dict[str, Any]) -> None:
        del said["words"]
        said["held"] = True

    table, trace = recorded(SwaWindowTable, 1)
    table.take([0])
    touched, line = edited(list(trace.lines()), "take", hold)
    illegal = found(judge, touched)
    assert (illegal.kind, illegal.line) == ("held_for_nothing", line)


JUNK = (None, True, -1, 0, 1, 3, 1 << 63, 1 << 64, 1.5, "", "pin", "eAE=", [], [0], [1, 2, 3], {}, {"a": 1})


@pytest.mark.parametrize("seed", range(8))
def test_whatever_stands_in_a_file_is_judged(judge: Validator, lines: list[str], seed: int) -> None:
    """Values put in place of others, with checksums that fit: a verdict each time, never an exception."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    kinds = Counter[str]()
    for _ in range(60):
        at = chance.choice([0, len(lines) - 1, *range(1, len(lines) - 1)])
        said = json.loads(lines[at])
        inside = said["pools"][0] if at == 0 and chance.random() < 0.7 else said
        inside = inside["given"] if inside.get("given") and chance.random() < 0.4 else inside
        inside[chance.choice([key for key in inside if key != "crc"])] = chance.choice(JUNK)
        said["crc"] = said.pop("crc")
        verdict = judge.validate(resealed([*lines[:at], json.dumps(said), *lines[at + 1 :]]))
        kinds[verdict.first_illegal.kind if verdict.first_illegal is not None else "well"] += 1
    assert kinds["damaged"] > 10 and len(kinds) > 3, kinds


def test_the_first_of_several_faults_is_the_one_that_is_told(judge: Validator, lines: list[str]) -> None:
    """A guard that fails is noticed when many rows are judged together, yet comes before a damaged line."""
    touched, line = edited(lines, "emit", give("expected", [1, 3, 1]))
    illegal = found(judge, touched[:-1])
    assert (illegal.kind, illegal.line) == ("refused", line)


def test_a_trace_of_another_spec_is_told(lines: list[str]) -> None:
    machine = SPEC.machine("swa_window")
    wider = tuple(replace(field, bits=field.bits - 1) if field.name == "holds" else field for field in machine.fields)
    guard = next(event for event in machine.events if event.name == "evict")
    fewer = tuple(replace(event, cases=event.cases[1:]) if event is guard else event for event in machine.events)
    others = [one for one in SPEC.generated if one is not machine]
    for changed, what in ((replace(machine, fields=wider), "the fields of its word differ"),
                          (replace(machine, events=fewer), "its states, guards or effects differ")):  # fmt: skip
        illegal = found(Validator([*others, changed]), lines)
        assert (illegal.kind, illegal.line, illegal.machine) == ("other_spec", 1, "swa_window")
        assert what in illegal.text and "--spec" in illegal.text
    assert "which this spec does not have" in found(Validator(others), lines).text


def test_titles_and_properties_leave_the_digest_as_it_is() -> None:
    machine = SPEC.machine("swa_window")
    other = replace(machine, title="x", properties=(), mutants=(), eviction=None)
    assert machine_digest(other) == machine_digest(machine) == SwaWindowTable.DIGEST


def test_generated_tables_carry_the_digest_of_their_machine() -> None:
    assert {name: made.DIGEST for name, made in KINDS.items()} == {
        machine.name: machine_digest(machine) for machine in SPEC.machines
    }
