"""Constructed words lead into every case of every shipped machine, and every refusal is met."""

from __future__ import annotations

from functools import cache

import pytest

from kvfsm.spec.language.coverage import all_samples, argument_max, constructed_words, paths
from kvfsm.spec.language.interpreter import ILLEGAL, step
from kvfsm.spec.language.model import Machine
from kvfsm.spec.language.word import unpack

from .bad_specs import good, shipped


@cache
def machines() -> dict[str, Machine]:
    return {machine.name: machine for machine in (*shipped().machines, good()[1])}


NAMES = ["compressed_kv", "uncompressed_tail", "swa_window", "indexer_state", "ondisk_prefix", "page"]


@pytest.mark.parametrize("name", NAMES)
def test_every_path_has_a_word_or_is_shadowed(name: str) -> None:
    machine = machines()[name]
    for event in machine.events:
        for path in paths(machine, event):
            samples = constructed_words(machine, event, path.state, path.case)
            # Only a case from any state may be out of reach in one of them.
            assert samples or path.case is None or path.case.any_state, (event.name, path.state, path.case)


@pytest.mark.parametrize("name", NAMES)
def test_samples_take_their_path(name: str) -> None:
    machine = machines()[name]
    for sample in all_samples(machine):
        outcome = step(machine, sample.word, sample.event, sample.args)
        assert outcome == sample.outcome
        assert outcome.case == sample.case
        assert machine.states[unpack(machine, sample.word)["state"]].name == sample.state


@pytest.mark.parametrize("name", NAMES)
def test_every_case_and_every_refusal_is_met(name: str) -> None:
    machine = machines()[name]
    met = {(sample.event, sample.case) for sample in all_samples(machine)}
    assert {(event.name, case.number) for event in machine.events for case in event.cases} <= met
    refusals = {sample.outcome.refusal for sample in all_samples(machine)}
    assert {case.refuse for event in machine.events for case in event.cases} | {ILLEGAL} == refusals | {None}


def test_samples_differ_where_the_path_leaves_room() -> None:
    page = good()[1]
    event = page.event("unpin")
    samples = constructed_words(page, event, "resident", event.cases[2])
    rows = {unpack(page, sample.word)["rows"] for sample in samples}
    pins = {unpack(page, sample.word)["pins"] for sample in samples}
    assert rows == {0, 63}
    assert pins == {1, 15}


def test_a_dead_case_has_no_word() -> None:
    """Negative control: the third case of a machine whose second always fits."""
    page = good()[1]
    event = page.event("evict")
    assert constructed_words(page, event, "free", event.cases[0]) == ()


def test_arguments_reach_their_own_greatest_value() -> None:
    page = good()[1]
    seal = page.event("seal")
    assert [argument_max(page, argument) for argument in seal.given] == [255, 1, 1]
