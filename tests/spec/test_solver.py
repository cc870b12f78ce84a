"""The four ways of deciding conditions agree, and examples are examples."""

from __future__ import annotations

import random
from importlib.util import find_spec

import pytest

from kvfsm.spec.language.expressions import BOOL, Expr
from kvfsm.spec.language.interpreter import evaluate
from kvfsm.spec.language.solver import Answer, Way, satisfy
from kvfsm.spec.language.trees import names_in

from .expressions_of import parsed
from .random_conditions import random_condition

COUNT = 160


def conditions(count: int, seed: int) -> list[list[str]]:
    source = random.Random(seed)
    return [[random_condition(source) for _ in range(source.randrange(1, 4))] for _ in range(count)]


def check_example(texts: list[str], exprs: list[Expr], answer: Answer) -> None:
    if answer.example is not None:
        for expr in exprs:
            for name in names_in(expr):
                assert 0 <= answer.example[name.name] <= name.high
            assert evaluate(expr, answer.example), (texts, answer)


def ways_for(exprs: list[Expr]) -> dict[Way, Answer]:
    answers = {}
    for way in Way:
        if way is Way.Z3 and find_spec("z3") is None:
            continue
        try:
            answers[way] = satisfy(exprs, way=way)
        except ValueError:
            assert way is Way.LINEAR  # too many names to enumerate never happens here
    return answers


@pytest.mark.parametrize("seed", range(4))
def test_all_ways_agree_on_random_conditions(seed: int) -> None:
    linear = 0
    for texts in conditions(COUNT // 4, seed):
        exprs = [parsed(text, expected=BOOL) for text in texts]
        answers = ways_for(exprs)
        truth = answers[Way.ENUMERATED].example is not None
        for way, answer in answers.items():
            check_example(texts, exprs, answer)
            if way is not Way.CORNERS:
                assert (answer.example is not None) == truth, (texts, way, answer)
            elif answer.example is not None:
                assert truth, (texts, way, answer)
        linear += Way.LINEAR in answers
    assert linear > COUNT // 4 * 0.8  # the linear way is the usual one, and was compared


def test_a_wrong_way_would_be_seen() -> None:
    """Negative control: an answer that says no where there is an example differs from enumeration."""
    exprs = [parsed("a + b > 13", expected=BOOL)]
    assert satisfy(exprs, way=Way.ENUMERATED).example == {"a": 7, "b": 7}
    assert Answer(None, Way.LINEAR).example != satisfy(exprs, way=Way.LINEAR).example


@pytest.mark.parametrize(
    ("texts", "way"),
    [
        (["a + b > 3", "a < b"], Way.LINEAR),
        (["c // 7 == 5 and c % 7 == 6"], Way.LINEAR),
        (["a * b == 42"], Way.ENUMERATED),
        (["min(a, b) > 3 and max(a, b) < 5"], Way.LINEAR),
        (["state == resident and form == narrow"], Way.LINEAR),
        (["a % max(2 if p else 0, 1) == 1"], Way.LINEAR),  # one of its parts, never reached, divides by 0
    ],
)
def test_the_usual_way_is_taken(texts: list[str], way: Way) -> None:
    exprs = [parsed(text, expected=BOOL) for text in texts]
    answer = satisfy(exprs)
    assert answer.way is way
    assert answer.example is not None
    check_example(texts, exprs, answer)


def test_wide_products_are_left_to_z3_or_corners() -> None:
    exprs = [parsed("c * c * c == 1331 and c * a > c * b", expected=BOOL)]
    answer = satisfy(exprs)
    assert answer.way in (Way.ENUMERATED, Way.Z3)
    assert answer.example is not None and answer.example["c"] == 11


def test_high_prefers_great_values() -> None:
    exprs = [parsed("a > 2", expected=BOOL)]
    assert satisfy(exprs).example == {"a": 3}
    assert satisfy(exprs, high=True).example == {"a": 7}


def test_fixed_names_keep_their_value() -> None:
    exprs = [parsed("a > b", expected=BOOL)]
    assert satisfy(exprs, {"b": 6}).example == {"a": 7, "b": 6}
    assert satisfy(exprs, {"b": 7}).example is None


def test_corners_prove_nothing() -> None:
    exprs = [parsed("c % 16 == 9 and c > 100 and c < 110", expected=BOOL)]
    assert satisfy(exprs).example is not None
    assert Answer(None, Way.CORNERS).proved is False
    assert Answer(None, Way.LINEAR).proved is True
