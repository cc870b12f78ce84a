"""What an event does to a word, read off the page machine by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvfsm.spec.language.interpreter import ILLEGAL, Outcome, step
from kvfsm.spec.language.word import FieldOverflow, pack, unpack

from .bad_specs import good

PAGE = good()[1]


def word(state: str, **values: int) -> int:
    return pack(PAGE, {"state": PAGE.state(state).code, **values})


def test_an_event_that_applies_changes_what_it_says_and_nothing_else() -> None:
    before = word("free", generation=6, rows=9, form=1)
    outcome = step(PAGE, before, "take", {})
    assert outcome == Outcome(word("filling", generation=7, rows=0, form=1), None, 2)


def test_the_first_case_that_fits_decides() -> None:
    assert step(PAGE, word("free", generation=255), "take", {}) == Outcome(word("free", generation=255), "retired", 1)


def test_a_refused_event_leaves_the_word() -> None:
    before = word("resident", pins=15, generation=3)
    assert step(PAGE, before, "pin", {"expected": 3}) == Outcome(before, "too_many_readers", 2)


def test_any_comes_before_the_states_below_it() -> None:
    assert step(PAGE, word("resident", generation=3), "pin", {"expected": 4}).refusal == "stale"


@pytest.mark.parametrize(("expected", "refusal"), [(4, "stale"), (3, ILLEGAL)])
def test_a_state_that_only_guarded_any_cases_reach_is_illegal(expected: int, refusal: str) -> None:
    outcome = step(PAGE, word("free", generation=3), "pin", {"expected": expected})
    assert outcome.refusal == refusal
    assert (outcome.case is None) == (refusal == ILLEGAL)


def test_right_sides_see_the_old_values() -> None:
    take = PAGE.event("take")
    case = take.cases[1]
    swap = tuple(replace(item, field=field) for item, field in zip(case.do, ("rows", "generation"), strict=True))
    event = replace(take, cases=(replace(case, do=swap),))
    outcome = step(PAGE, word("free", generation=6, rows=9), event, {})
    assert (unpack(PAGE, outcome.word)["rows"], unpack(PAGE, outcome.word)["generation"]) == (7, 0)


def test_truth_values_and_named_values_are_assigned() -> None:
    outcome = step(PAGE, word("filling"), "seal", {"expected": 0, "as_form": 1, "is_lossy": True})
    assert unpack(PAGE, outcome.word) == {"state": 2, "pins": 0, "generation": 0, "rows": 0, "form": 1, "lossy": 1}


@pytest.mark.parametrize("args", [{}, {"expected": 0, "other": 1}])
def test_arguments_must_match(args: dict[str, int]) -> None:
    with pytest.raises(TypeError, match="'pin' of page takes expected"):
        step(PAGE, word("resident"), "pin", args)


@pytest.mark.parametrize("args", [{"expected": 256}, {"expected": -1}])
def test_arguments_must_fit(args: dict[str, int]) -> None:
    with pytest.raises(FieldOverflow):
        step(PAGE, word("resident"), "pin", args)


def test_an_argument_like_a_named_field_takes_its_values_only() -> None:
    with pytest.raises(FieldOverflow, match="takes 0 to 1"):
        step(PAGE, word("filling"), "seal", {"expected": 0, "as_form": 2, "is_lossy": 0})


def test_a_state_without_name_is_refused() -> None:
    with pytest.raises(ValueError, match="no state 7"):
        step(PAGE, 7, "take", {})


def test_a_mutant_may_overflow_and_says_so() -> None:
    pin = PAGE.event("pin")
    faulty = replace(pin, cases=pin.cases[2:])
    with pytest.raises(FieldOverflow, match="pins cannot hold 16"):
        step(PAGE, word("resident", pins=15), faulty, {"expected": 0})
