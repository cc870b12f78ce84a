"""The five machines hold what they claim, from every legal corner word and not only from reachable ones.

A claim that every event keeps, whatever the word it starts from, holds for any number of slots and actors.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache

import pytest

from kvfsm.spec.checking.explore import explore
from kvfsm.spec.checking.grounding import ground
from kvfsm.spec.language.interpreter import evaluate, step
from kvfsm.spec.language.load import Spec, load_spec
from kvfsm.spec.language.model import Argument, Event, Machine
from kvfsm.spec.language.narrowing import with_faulty
from kvfsm.spec.language.word import FieldOverflow, pack, unpack

MACHINES = ("compressed_kv", "uncompressed_tail", "swa_window", "indexer_state", "ondisk_prefix")


@cache
def spec() -> Spec:
    return load_spec().required()


@cache
def legal_words(name: str) -> tuple[int, ...]:
    """Words of corner values in which every ``always`` of the machine holds."""
    machine = spec().machine(name)
    corners = [
        range(len(machine.states))
        if field.name == "state"
        else range(field.max + 1)
        if field.names or field.is_bool
        else sorted({0, 1, field.max} if field.name in ("pins", "generation", "rows") else {0, field.max})
        for field in machine.fields
    ]
    names = [field.name for field in machine.fields]
    words = (pack(machine, dict(zip(names, values, strict=True))) for values in itertools.product(*corners))
    return tuple(word for word in words if not broken(machine, word))


def broken(machine: Machine, word: int) -> list[str]:
    """Names of the ``always`` that do not hold in a word."""
    values = unpack(machine, word)
    return [item.name for item in machine.properties if item.kind == "always" and not evaluate(item.that, values)]


def calls(machine: Machine, event: Event, word: int) -> Iterator[dict[str, int]]:
    """Corner arguments for one event; the generation is right once and wrong once."""
    values = unpack(machine, word)

    def options(argument: Argument) -> list[int]:
        if argument.name == "expected":
            return sorted({values["generation"], 0 if values["generation"] else 1})
        high = machine.field(argument.like).max if argument.like else argument.max
        near = values.get(argument.like or "", 0)
        return sorted(value for value in {0, 1, near, high} if value <= high)

    for chosen in itertools.product(*(options(argument) for argument in event.given)):
        yield dict(zip((argument.name for argument in event.given), chosen, strict=True))


def first_fault(machine: Machine, event: Event) -> str | None:
    """The first ``always`` that the event breaks from a legal word; "overflow" when a value leaves its field."""
    for word in legal_words(machine.name):
        for args in calls(machine, event, word):
            try:
                after = step(machine, word, event, args).word
            except FieldOverflow:
                return "overflow"
            if after != word and (names := broken(machine, after)):
                return names[0]
    return None


@pytest.mark.parametrize("name", MACHINES)
def test_every_event_keeps_every_always(name: str) -> None:
    machine = spec().machine(name)
    assert len(legal_words(name)) > 50
    assert {event.name: first_fault(machine, event) for event in machine.events} == dict.fromkeys(
        (event.name for event in machine.events), None
    )


@pytest.mark.parametrize("name", MACHINES)
def test_every_state_is_met_among_the_legal_words(name: str) -> None:
    machine = spec().machine(name)
    met = {unpack(machine, word)["state"] for word in legal_words(name)}
    assert met == {state.code for state in machine.states}


def test_the_machines_are_these() -> None:
    assert tuple(machine.name for machine in spec().machines) == MACHINES


@pytest.mark.parametrize("name", MACHINES)
def test_a_wrong_generation_is_stale_in_every_state(name: str) -> None:
    machine = spec().machine(name)
    for event in machine.events:
        if not any(argument.name == "expected" for argument in event.given):
            continue
        for word in legal_words(name):
            generation = unpack(machine, word)["generation"]
            args = {argument.name: 0 for argument in event.given} | {"expected": 0 if generation else 1}
            assert step(machine, word, event, args).refusal == "stale"


@pytest.mark.parametrize("name", MACHINES)
def test_only_taking_a_slot_changes_its_generation_and_by_one(name: str) -> None:
    machine = spec().machine(name)
    for event in machine.events:
        for word in legal_words(name):
            before = unpack(machine, word)
            for args in calls(machine, event, word):
                after = unpack(machine, step(machine, word, event, args).word)
                taken = before["state"] == 0 and after["state"] != 0
                assert after["generation"] - before["generation"] == int(taken), (event.name, before, args)


@pytest.mark.parametrize("name", MACHINES)
def test_failed_and_quarantined_slots_are_not_readable_and_become_free_only(name: str) -> None:
    """A transfer that failed or is in doubt leaves memory that nobody reads before it is free and taken anew."""
    machine = spec().machine(name)
    for word in legal_words(name):
        before = machine.states[unpack(machine, word)["state"]]
        if before.name not in ("failed", "quarantined"):
            continue
        assert not before.readable and not before.evictable
        for event in machine.events:
            for args in calls(machine, event, word):
                outcome = step(machine, word, event, args)
                if outcome.refusal is None:
                    assert machine.states[unpack(machine, outcome.word)["state"]].name == "free"
                    assert event.name not in ("pin", "open", "hold", "use_layer")


@pytest.mark.parametrize("name", MACHINES)
def test_expired_slots_take_nobody_in(name: str) -> None:
    machine = spec().machine(name)
    for word in legal_words(name):
        before = unpack(machine, word)
        if machine.states[before["state"]].name != "expired":
            continue
        for event in machine.events:
            for args in calls(machine, event, word):
                after = unpack(machine, step(machine, word, event, args).word)
                assert after["pins"] <= before["pins"]
                assert machine.states[after["state"]].name in ("expired", "free")


@pytest.mark.parametrize("name", MACHINES[:4])
def test_a_slot_becomes_lossy_by_being_told_and_stays_so_until_it_is_given_up_or_made_anew(name: str) -> None:
    machine = spec().machine(name)
    forgets, learns = set(), set()
    for word in legal_words(name):
        before = unpack(machine, word)["lossy"]
        for event in machine.events:
            for args in calls(machine, event, word):
                after = unpack(machine, step(machine, word, event, args).word)
                if before and not after["lossy"]:
                    forgets.add((event.name, machine.states[after["state"]].name))
                if after["lossy"] and not before:
                    learns.add(event.name)
                    assert args["is_lossy"] and machine.states[after["state"]].evictable
    anew = {("rebuild_done", "resident"), ("rebuild_done", "failed")} if name == "indexer_state" else set()
    packed = {("compress_done", "free")} if name == "compressed_kv" else set()
    assert forgets == {("evict", "free")} | anew | packed
    assert learns == {event.name for event in machine.events if any(given.name == "is_lossy" for given in event.given)}


def test_layers_of_a_load_are_used_only_once_they_have_landed() -> None:
    """The latent may be there while the index of the same layer is still pending."""
    kv, index = spec().machine("compressed_kv"), spec().machine("indexer_state")
    kv_word = fire(kv, 0, "load_begin", wanted_layout=1, wanted_form=0, at_version=3)
    index_word = fire(index, 0, "load_begin", wanted_layout=1, kv_version=3)
    for layer in range(4):
        kv_word = fire(kv, kv_word, "land", expected=1, layer=layer)
    for layer in range(2):
        index_word = fire(index, index_word, "land", expected=1, layer=layer)
    version = unpack(kv, kv_word)["version"]

    def use(layer: int) -> tuple[str | None, str | None]:
        args = {"expected": 1, "layer": layer}
        return (
            step(kv, kv_word, "use_layer", args).refusal,
            step(index, index_word, "use_layer", {**args, "kv_version": version}).refusal,
        )

    assert use(1) == (None, None)
    assert use(2) == (None, "pending")
    index_word = fire(index, index_word, "land", expected=1, layer=2)
    assert use(2) == (None, None)
    assert step(index, index_word, "use_layer", {"expected": 1, "layer": 0, "kv_version": 2}).refusal == "version"
    assert step(index, index_word, "pin", {"expected": 1, "wanted": 1, "kv_version": 3}).refusal == "pending"


def fire(machine: Machine, word: int, event: str, **args: int) -> int:
    outcome = step(machine, word, event, args)
    assert outcome.refusal is None, outcome
    return outcome.word


def test_an_aligned_tail_needs_its_carry() -> None:
    machine = spec().machine("uncompressed_tail")
    word = fire(machine, 0, "take", wanted_semantics=0)
    where = {"expected": 1, "at": 1, "with_rows": 0, "is_lossy": 0}
    sealed = {carry: fire(machine, word, "seal", **where, has_carry=carry) for carry in (0, 1)}
    pin = {"expected": 1, "at": 1, "with_rows": 0, "wanted_semantics": 0}
    assert step(machine, sealed[0], "pin", pin).refusal == "incomplete"
    assert step(machine, sealed[1], "pin", pin).refusal is None
    assert step(machine, sealed[1], "pin", {**pin, "wanted_semantics": 1}).refusal == "semantics"
    assert step(machine, sealed[1], "pin", {**pin, "with_rows": 1}).refusal == "position"


def test_compressed_tail_and_window_cover_a_growing_sequence() -> None:
    """556 tokens at ratio 128: four windows of entries, 44 rows that wait, and no gap at any step."""
    machine, span = spec().machine("uncompressed_tail"), 128
    word = fire(machine, 0, "take", wanted_semantics=1)
    for token in range(556):
        word = fire(machine, word, "append", expected=1, count=1, span=span)
        if unpack(machine, word)["rows"] == span:
            assert step(machine, word, "append", {"expected": 1, "count": 1, "span": span}).refusal == "full"
            word = fire(machine, word, "emit", expected=1, span=span)
        values = unpack(machine, word)
        assert values["position"] * span + values["rows"] == token + 1
    assert (values["position"], values["rows"], values["carry"]) == (4, 44, 1)
    assert step(machine, word, "rewind", {"expected": 1, "to_position": 3, "to_rows": 100}).refusal == "gap"


@pytest.mark.parametrize("name", MACHINES)
def test_every_mutant_breaks_a_claim_or_is_caught_in_a_protocol(name: str) -> None:
    machine = spec().machine(name)
    left = [mutant for mutant in machine.mutants if first_fault(machine, mutant.faulty) is None]
    unseen = {mutant.name for mutant in left if killing_protocol(machine, mutant.event, mutant.name) is None}
    assert unseen == set()


def killing_protocol(machine: Machine, event: str, mutant: str) -> str | None:
    for protocol in spec().protocols:
        users = [item for item in protocol.instances if item.machine.name == machine.name]
        names = {item.name for item in users}
        fired = {
            fire.event
            for program in protocol.programs
            for step_ in program.steps
            for fire in step_.fire
            if fire.instance in names
        }
        if event not in fired:
            continue
        faulty = [(item.name, next(own.faulty for own in item.machine.mutants if own.name == mutant)) for item in users]
        found = explore(ground(with_faulty(protocol, faulty)), engine="numpy", stop_at_first=True)
        if found.violations:
            return f"{protocol.name} by {', '.join(found.violations)}"
    return None
