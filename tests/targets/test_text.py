"""Expressions printed in the spec's own language read back as the same expressions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvfsm.spec.language.expressions import Arithmetic, Choice, Compare, Expr, Logic, Name, Not, Number
from kvfsm.spec.language.load import load_spec
from kvfsm.spec.language.model import LeadsTo
from kvfsm.spec.language.problems import Place
from kvfsm.spec.targets.text import promise_text, render

AT = Place("x.yaml", 1, 1)
A, B, C = (Name(name, "field", "int", 7, AT) for name in "abc")
P, Q, R = (Name(name, "field", "bool", 1, AT) for name in "pqr")


def times(left: Expr, right: Expr, op: str = "*") -> Expr:
    return Arithmetic(op, left, right, AT)


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (times(A, times(B, C, "+")), "a * (b + c)"),
        (times(times(A, B), C, "+"), "a * b + c"),
        (times(A, times(B, C, "-"), "-"), "a - (b - c)"),
        (times(times(A, B, "-"), C, "-"), "a - b - c"),
        (Not(Logic("and", (P, Q), AT), AT), "not (p and q)"),
        (Logic("and", (Not(P, AT), Q), AT), "not p and q"),
        (Logic("or", (Logic("and", (P, Q), AT), R), AT), "p and q or r"),
        (Logic("and", (Logic("or", (P, Q), AT), R), AT), "(p or q) and r"),
        (Logic("implies", (Logic("implies", (P, Q), AT), R), AT), "(p implies q) implies r"),
        (Compare("==", times(A, Number(1, AT), "+"), B, AT), "a + 1 == b"),
        (times(Choice(P, A, B, AT), C, "+"), "(a if p else b) + c"),
    ],
)
def test_brackets_stand_where_they_are_needed_and_nowhere_else(expression: Expr, text: str) -> None:
    assert render(expression) == text


def shipped() -> Iterator[tuple[Expr, str]]:
    spec = load_spec().required()
    for machine in spec.machines:
        for event in machine.events:
            for case in event.cases:
                if case.when is not None:
                    yield case.when, machine.path
        for claim in machine.properties:
            yield claim.that, machine.path


def test_every_guard_of_the_shipped_spec_prints_as_it_was_written() -> None:
    """Where the author wrote no needless brackets, the text is the author's own."""
    spec = load_spec()
    count = 0
    for expression, path in shipped():
        count += 1
        written = " ".join(spec.required().root.joinpath(*path.split("/")[1:]).read_text("utf-8").split())
        assert render(expression) in written or "(" in render(expression), render(expression)
    assert count > 200


@pytest.mark.parametrize(
    ("fair", "strong", "text"),
    [
        (("a", "b"), (), "p leads to q (fair: a, b)"),
        ((), ("c",), "p leads to q (strong: c)"),
        (("a",), ("b", "c"), "p leads to q (fair: a; strong: b, c)"),
    ],
)
def test_a_promise_says_all_that_it_rests_on(fair: tuple[str, ...], strong: tuple[str, ...], text: str) -> None:
    assert promise_text(LeadsTo("x", None, P, Q, fair, strong, "", AT)) == text
