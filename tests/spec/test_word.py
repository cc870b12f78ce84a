"""Words pack and unpack every field, and refuse what does not fit."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from kvfsm.spec.language.word import FieldOverflow, pack, unpack

from .bad_specs import good

PAGE = good()[1]


@seed(3)
@settings(max_examples=200, deadline=None)
@given(st.integers(0, (1 << PAGE.bits) - 1))
def test_every_word_comes_back(word: int) -> None:
    assert pack(PAGE, unpack(PAGE, word)) == word


def test_fields_do_not_overlap() -> None:
    greatest = [pack(PAGE, {field.name: (1 << field.bits) - 1}) for field in PAGE.fields]
    assert all(left & right == 0 for left, right in product(greatest, greatest) if left != right)
    assert sum(greatest) == (1 << PAGE.bits) - 1


def test_state_lies_in_the_low_bits() -> None:
    assert pack(PAGE, {"state": 2}) == 2


@pytest.mark.parametrize("value", [-1, 16])
def test_what_does_not_fit_is_refused(value: int) -> None:
    with pytest.raises(FieldOverflow, match=r"page\.pins holds 0 to 15"):
        pack(PAGE, {"pins": value})


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(KeyError):
        pack(PAGE, {"pin": 1})


@pytest.mark.parametrize("word", [-1, 1 << PAGE.bits])
def test_a_word_with_foreign_bits_is_refused(word: int) -> None:
    with pytest.raises(FieldOverflow):
        unpack(PAGE, word)
