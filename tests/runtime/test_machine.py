"""The class of one slot: messages, ranges, and the same machine for the `transitions` library."""

from __future__ import annotations

import pytest

from kvfsm.runtime.errors import BadWord, FieldOverflow, IllegalEvent
from kvfsm.runtime.generated import Refusal, SwaWindow


def test_an_illegal_event_names_the_slot_its_state_and_what_it_takes() -> None:
    slot = SwaWindow(slot_id=17)
    with pytest.raises(IllegalEvent) as refused:
        slot.seal(expected=0, at=1, is_lossy=False)
    assert str(refused.value) == (
        "swa_window slot 17 is 'free' and does not take 'seal'; from 'free' it takes: take, load_begin"
    )
    assert refused.value.takes == ("take", "load_begin")


def test_a_slot_without_a_number_is_named_by_its_machine() -> None:
    with pytest.raises(IllegalEvent, match=r"^swa_window is 'free' and does not take 'evict'"):
        SwaWindow().evict()


def test_a_refusal_leaves_the_word_as_it_was() -> None:
    slot = SwaWindow()
    assert slot.take() is None
    word = slot.word
    assert slot.seal(expected=2, at=1, is_lossy=False) is Refusal.STALE
    assert slot.word == word
    assert Refusal.STALE.reason == "the generation moved on since the handle was made"


def test_a_stale_handle_is_stale_in_every_state() -> None:
    assert SwaWindow().pin(expected=1, at=0) is Refusal.STALE


def test_an_argument_beyond_its_field_is_named() -> None:
    with pytest.raises(FieldOverflow, match="'at' holds whole numbers from 0 to 8388607, not 8388608"):
        SwaWindow().load_begin(at=1 << 23)


def test_a_word_that_no_slot_can_hold_is_refused() -> None:
    with pytest.raises(BadWord, match="'state' is 7, and its values end at 6"):
        SwaWindow(7)


def test_fire_takes_an_event_by_name() -> None:
    slot = SwaWindow()
    assert slot.fire("take") is None
    assert slot.fire("seal", expected=3, at=0, is_lossy=False) == "stale"
    assert slot.fire("evict") == "illegal"


def test_the_library_machine_does_the_same() -> None:
    pytest.importorskip("transitions", reason="needs the package transitions")
    slot = SwaWindow()
    model = slot.machine().model
    model.take()
    assert (model.state, model.refusal) == ("filling", None)
    model.seal(expected=2, at=7, is_lossy=False)
    assert (model.state, model.refusal) == ("filling", "stale")
    model.seal(expected=1, at=7, is_lossy=False)
    assert model.state == "resident"
    assert slot.state.name == "FREE", "the library drives a copy"
    slot.take()
    slot.seal(expected=1, at=7, is_lossy=False)
    assert model.word == slot.word
