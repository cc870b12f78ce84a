"""The table's promises that hold for every machine: checks before writes, all or nothing, reports."""

from __future__ import annotations

from dataclasses import replace
from enum import IntEnum

import numpy as np
import pytest

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.errors import BadSlots, BadWord, DuplicateSlots, FieldOverflow
from kvfsm.runtime.generated import KINDS, CompressedKvTable, Refusal, SwaWindow, SwaWindowTable
from kvfsm.runtime.generated.compressed_kv import CompressedKvForm
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.table import Fired

STALE = Refusal.STALE


def sealed(slots: int) -> SwaWindowTable:
    """A table whose slots are all resident, at boundary 5, in generation 1."""
    table = SwaWindowTable(slots)
    table.take(np.arange(slots))
    table.seal(np.arange(slots), expected=1, at=5, is_lossy=False)
    return table


def test_each_slot_is_decided_for_itself() -> None:
    table = sealed(3)
    codes = table.pin([2, 0, 1], expected=[1, 2, 1], at=5)
    assert codes.dtype == np.uint8
    assert codes.tolist() == [0, STALE, 0]
    assert table.fields("pins").tolist() == [0, 1, 1]


def test_whole_applies_to_all_or_none() -> None:
    table = sealed(3)
    assert table.whole.pin([0, 1], expected=[1, 2], at=5).tolist() == [0, STALE]
    assert table.fields("pins").tolist() == [0, 0, 0]
    assert table.whole.pin([0, 1], expected=1, at=5).tolist() == [0, 0]
    assert table.fields("pins").tolist() == [1, 1, 0]
    assert np.shares_memory(table.whole.words, table.words)


@pytest.mark.parametrize("slots", [[0, 3], [-1], [0, 1, 2, 3]])
def test_a_slot_that_is_not_there_changes_nothing(slots: list[int]) -> None:
    table = sealed(3)
    before = table.words.copy()
    with pytest.raises(BadSlots, match=r"swa_window: there is no slot (3|-1); slots are 0 to 2"):
        table.pin(slots, expected=1, at=5)
    assert (table.words == before).all()


def test_a_slot_named_twice_changes_nothing() -> None:
    table = sealed(3)
    with pytest.raises(DuplicateSlots, match=r"swa_window: slots must be unique .*: 1") as refused:
        table.pin([1, 2, 1], expected=1, at=5)
    assert refused.value.slots == (1,)
    assert table.fields("pins").tolist() == [0, 0, 0]


@pytest.mark.parametrize("slots", [[0.5], [True], ["0"]])
def test_slots_must_be_whole_numbers(slots: list[object]) -> None:
    with pytest.raises(BadSlots, match="slots are whole numbers"):
        sealed(2).evict(slots)  # type: ignore[arg-type]


@pytest.mark.parametrize("expected", [-1, 1 << 20, [1, 1 << 20], np.array([1, 1 << 63], np.uint64)])
def test_an_argument_beyond_its_field_is_named(expected: object) -> None:
    table = sealed(2)
    with pytest.raises(FieldOverflow, match="'expected' holds whole numbers from 0 to 1048575"):
        table.pin([0, 1], expected=expected, at=5)  # type: ignore[arg-type]
    assert table.fields("pins").tolist() == [0, 0]


def test_arguments_have_the_shape_of_the_slots() -> None:
    with pytest.raises(ValueError, match="'at' takes one value, or one for each of 2 slots"):
        sealed(2).pin([0, 1], expected=1, at=[5, 5, 5])


def test_numbers_and_truths_are_not_mixed() -> None:
    table = SwaWindowTable(1)
    table.load_begin([0], at=1)
    with pytest.raises(TypeError, match="'ok' takes true or false"):
        table.load_done([0], expected=1, ok=[1], is_lossy=False)
    with pytest.raises(TypeError, match="'expected' takes whole numbers"):
        table.load_done([0], expected=[1.0], ok=True, is_lossy=False)
    codes = table.load_done(np.array([0], np.int32), expected=np.uint8(1), ok=np.array([True]), is_lossy=False)
    assert codes.tolist() == [0]


def test_nothing_to_do_is_fine() -> None:
    table = sealed(2)
    assert table.pin([], expected=[], at=[]).tolist() == []
    assert table.whole.pin(np.zeros(0, np.int32), expected=1, at=5).tolist() == []
    assert len(SwaWindowTable(0)) == 0


def test_words_are_used_and_not_copied() -> None:
    words = np.zeros(2, np.uint64)
    table = SwaWindowTable(words)
    table.take([1])
    assert words[1] != 0


def test_a_word_that_no_slot_can_hold_is_refused() -> None:
    with pytest.raises(BadWord, match=r"swa_window slot 1: .* 'state' is 15, and its values end at 6"):
        SwaWindowTable(np.array([0, 15], np.uint64))
    with pytest.raises(BadWord, match="it uses the low 63 bits only"):
        CompressedKvTable(np.array([1 << 63], np.uint64))
    with pytest.raises(TypeError, match="one contiguous row of uint64"):
        SwaWindowTable(np.zeros(2, np.int64))  # type: ignore[arg-type]


def test_the_highest_bit_is_an_ordinary_bit() -> None:
    table = sealed(1)
    high = (1 << 23) - 1
    table.evict([0])
    table.load_begin([0], at=high)
    assert table.load_done([0], expected=2, ok=True, is_lossy=True).tolist() == [0]
    assert int(table.words[0]) >> 63 == 1
    assert (table.fields("boundary").tolist(), table.fields("lossy").tolist()) == ([high], [1])
    assert table.pin([0], expected=2, at=high).tolist() == [0]
    assert int(table.words[0]) >> 63 == 1


def test_named_values_are_arguments() -> None:
    table = CompressedKvTable(1)
    assert table.take([0], wanted_layout=3, wanted_form=CompressedKvForm.PACKED).tolist() == [0]
    with pytest.raises(FieldOverflow, match="'wanted_form' holds whole numbers from 0 to 1"):
        table.take([0], wanted_layout=3, wanted_form=2)


def test_states_are_counted() -> None:
    table = sealed(3)
    table.evict([0])
    assert {state: count for state, count in table.count_by_state().items() if count} == {"free": 1, "resident": 2}
    assert repr(table) == "SwaWindowTable(free: 1, resident: 2)"


def test_an_observer_hears_what_happened() -> None:
    heard: list[Fired] = []
    table = SwaWindowTable(3, on_event=heard.append)
    table.take([2, 0])
    table.whole.seal([0, 1], expected=1, at=5, is_lossy=False)  # slot 1 is stale: nothing is sealed
    took, held = heard
    assert [(fired.machine, fired.event, fired.held) for fired in heard] == [
        ("swa_window", "take", False), ("swa_window", "seal", True)]  # fmt: skip
    assert (took.slots.tolist(), took.codes.tolist(), took.arguments) == ([2, 0], [0, 0], ())
    assert took.after.tolist() == table.words[[2, 0]].tolist() != took.before.tolist()
    assert (held.slots.tolist(), held.codes.tolist(), held.arguments) == ([0, 1], [0, STALE], (1, 5, False))
    assert held.after.tolist() == held.before.tolist() == table.words[[0, 1]].tolist()


def test_a_slot_explains_itself() -> None:
    table = sealed(3)
    table.pin([1], expected=1, at=5)
    told = table.explain(1, "evict").splitlines()
    assert told[0] == "swa_window slot 1 is 'resident': pins 1, holds 0, generation 1, boundary 5, lossy 0"
    assert told[1] == "  1. pins > 0 -> refused as pinned: readers hold leases on the slot"
    assert table.explain(1, "take").splitlines()[-1].startswith("  else 'resident' does not take 'take'; it takes: pin")
    with pytest.raises(ValueError, match="swa_window has no event 'evit'; it has: take"):
        table.explain(1, "evit")


def test_eviction_takes_expired_slots_first_and_then_the_oldest() -> None:
    table = sealed(5)
    table.expire([3], expected=1)
    table.pin([4], expected=1, at=5)
    meta = {"last_use": np.array([9, 2, 5, 7, 1], np.uint64), "owner": np.zeros(5, np.uint32)}
    rule = SwaWindowTable.EVICTION
    assert rule is not None
    eligible = rule.eligible(table, meta, np.arange(5))
    assert eligible.tolist() == [0, 1, 2, 3]
    assert rule.ordered(table, meta, eligible).tolist() == [3, 1, 2, 0]


def test_every_kind_has_its_table() -> None:
    assert list(KINDS) == ["compressed_kv", "uncompressed_tail", "swa_window", "indexer_state", "ondisk_prefix"]
    assert all(kind == table.MACHINE for kind, table in KINDS.items())


def test_a_class_of_another_spec_stands_for_the_shipped_one_where_it_has_all_of_it() -> None:
    class Fewer(SwaWindowTable):
        EVENTS = {name: event for name, event in SwaWindowTable.EVENTS.items() if name != "pin"}  # noqa: RUF012
        STATES = IntEnum("Renumbered", {one.name: one + 1 for one in SwaWindowTable.STATES})
        LAYOUT = replace(SwaWindowTable.LAYOUT, fields=SwaWindowTable.LAYOUT.fields[:-1])

    SwaWindowTable.check_stands_for(SwaWindowTable)
    with pytest.raises(ValueError, match="swa_window can't be used here: it lacks the event 'pin'; ") as error:
        Fewer.check_stands_for(SwaWindowTable)
    assert "; state 0 'free'; " in str(error.value)
    assert f"; the field '{SwaWindowTable.LAYOUT.fields[-1].name}'; fix: keep what" in str(error.value)
    profile = PROFILES["tiny_gpt_oss"]
    with pytest.raises(ValueError, match="can't be used here"):
        Manager(profile, dict.fromkeys(profile.kinds, 4), NumpyBackend(), kinds={"swa_window": Fewer})


def test_a_slot_can_be_taken_out_and_looked_at() -> None:
    slot = sealed(2).slot(1)
    assert isinstance(slot, SwaWindow)
    assert repr(slot) == "SwaWindow(RESIDENT, pins=0, holds=0, generation=1, boundary=5, lossy=0)"
