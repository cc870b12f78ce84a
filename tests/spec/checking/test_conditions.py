"""Conditions as tests of bits: one for a whole conjunction, and equal to the plain meaning for every state."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kvfsm.spec.checking.engines.c_text import spelling as c_spelling
from kvfsm.spec.checking.engines.conditions import Conditions
from kvfsm.spec.checking.engines.numpy_text import predicate, spelling
from kvfsm.spec.checking.folding import both, either, equal, negation, number
from kvfsm.spec.checking.layout import Layout
from kvfsm.spec.checking.system import NOWHERE, Cell, Command, System
from kvfsm.spec.language.expressions import BOOL, INT, Arithmetic, Choice, Expr, Member
from tests.spec.checking.searching import random_system

A, B, C = (Cell(f"{name}[0].x", name, 0, "x", INT, 3, (), True) for name in "abc")
FLAG = Cell("d[0].x", "d", 0, "x", BOOL, 1, (), True)
SYSTEM = System("bits", (), (A, B, C, FLAG), (), (), (), ())
LAYOUT = Layout(SYSTEM)


def text(expr: Expr) -> str | bool:
    return Conditions(LAYOUT, spelling()).condition(expr)


def updated(guard: tuple[Expr, ...], **updates: Expr) -> str:
    values = tuple((f"{name}[0].x", value) for name, value in updates.items())
    command = Command("actor", 0, "step", (), "applied", (), guard, values)
    (word,) = Conditions(LAYOUT, spelling()).updated(command)
    return word


def test_a_conjunction_of_equalities_is_one_test() -> None:
    assert text(both((equal(A.read(), number(1)), equal(C.read(), number(2)), FLAG.read()))) == "((s0 & 115) == 97)"


def test_values_that_share_bits_are_one_test() -> None:
    assert text(Member(A.read(), (number(1), number(3)), False, NOWHERE)) == "((s0 & 1) == 1)"
    assert text(Member(A.read(), (number(1), number(3)), True, NOWHERE)) == "((s0 & 1) == 0)"


def test_all_values_but_one_are_one_test() -> None:
    assert text(negation(equal(B.read(), number(2)))) == "((s0 & 12) != 8)"


def test_a_disjunction_of_differences_is_one_test() -> None:
    assert text(negation(both((equal(A.read(), number(1)), equal(B.read(), number(2)))))) == "((s0 & 15) != 9)"


def test_equal_cells_are_compared_bit_by_bit() -> None:
    assert text(equal(A.read(), C.read())) == "(((s0 ^ (s0 >> 4)) & 3) == 0)"


def test_the_cell_that_another_names_is_tested_by_bits_in_each_case() -> None:
    chosen = Choice(equal(A.read(), number(0)), B.read(), C.read(), NOWHERE)
    found = text(equal(chosen, number(2)))
    assert found == "((s0 & 15) == 8) | (((s0 & 48) == 32) & ((s0 & 3) != 0))"


def test_what_the_range_of_a_cell_decides_is_no_test() -> None:
    assert text(either((equal(A.read(), number(1)), negation(equal(A.read(), number(1)))))) is True
    assert text(both((equal(A.read(), number(1)), equal(A.read(), number(2))))) is False


def test_bits_that_the_guard_fixes_are_flipped() -> None:
    assert updated((equal(A.read(), number(1)), equal(B.read(), number(2))), a=number(3), b=number(0)) == "(s0 ^ 10)"


def test_other_bits_are_cleared_first() -> None:
    assert updated((), a=number(2)) == "((s0 & -4) ^ 2)"


def test_a_step_that_fits_is_added_in_place() -> None:
    up = Arithmetic("+", B.read(), number(1), NOWHERE)
    assert updated((negation(equal(B.read(), number(3))),), b=up) == "(s0 + 4)"
    assert updated((), b=up) != "(s0 + 4)"


def test_cells_swap_their_values_at_once() -> None:
    command = Command("actor", 0, "swap", (), "applied", (), (), ((A.name, B.read()), (B.name, A.read())))
    (word,) = Conditions(LAYOUT, spelling()).updated(command)
    s0 = LAYOUT.pack([(1, 2, 3, 1)])[:, 0].view(np.int64)
    after = eval(word, {"s0": s0})
    assert LAYOUT.unpack(after.view(np.uint64)) == (2, 1, 3, 1)


@pytest.mark.parametrize("seed", range(40))
def test_conditions_mean_what_the_reference_says_in_states_of_all_kinds(seed: int) -> None:
    system = random_system(seed)
    pick, layout = random.Random(seed), Layout(system)
    states = [tuple(pick.choice((0, 1, pick.randint(0, c.high), c.high)) for c in system.cells) for _ in range(200)]
    rows = layout.pack(states).view(np.int64)
    for expr in [expr for claim in system.claims for expr in claim.exprs]:
        function = system.function(expr)
        assert predicate(layout, expr)(rows, np).tolist() == [bool(function(state)) for state in states]


def test_c_writes_patterns_without_a_sign() -> None:
    wide = Cell("w[0].x", "w", 0, "x", INT, (1 << 64) - 1, (), True)
    conditions = Conditions(Layout(System("wide", (), (wide,), (), (), (), ())), c_spelling())
    command = Command("actor", 0, "step", (), "applied", (), (), ((wide.name, number((1 << 64) - 1)),))
    assert conditions.updated(command) == ("((s0 & UINT64_C(0x0)) ^ UINT64_C(0xffffffffffffffff))",)
