"""Expressions: precedence, types, names, bounds, and messages that help."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from kvfsm.spec.language.bounds import INT64_MAX, interval, type_of
from kvfsm.spec.language.expressions import BOOL, INT, Bound, Compare, Count, Logic, Name, Remote, Value
from kvfsm.spec.language.interpreter import evaluate
from kvfsm.spec.language.parser import Scope
from kvfsm.spec.language.problems import Place
from kvfsm.spec.language.protocol import range_of
from kvfsm.spec.language.trees import actors_in
from kvfsm.spec.targets.text import render

from .expressions_of import PROPERTIES, SCOPE, SLOTS, parse, parsed

TEXTS = [
    "a + b * 2 - 1",
    "a - b - c",
    "a * b // max(b, 1)",
    "c % max(a, 3) + (a + b) * 2",
    "a < b and b < c or not p",
    "not p or a == b and c != 0",
    "p implies a > b or b > 3",
    "(a > 1 implies b > 1) and p",
    "a if p else b + 1",
    "min(a, b, c) + max(a, b)",
    "a in [1, b, c] or b not in [0, a]",
    "(a if a > b else b) == max(a, b)",
    "p == (a > b)",
    "1 if a > 3 else 2 if b > 3 else 3",
]


def python(text: str, names: dict[str, int]) -> int:
    """What Python itself makes of a text, with ``implies`` spelt out; the only place that may."""
    for marked in ("(a > 1 implies b > 1)", "p implies a > b or b > 3"):
        left, _, right = marked.strip("()").partition(" implies ")
        text = text.replace(marked, f"((not ({left})) or ({right}))")
    return int(eval(text, {"min": min, "max": max}, names))


@pytest.mark.parametrize("text", TEXTS)
def test_meaning_is_that_of_python(text: str) -> None:
    expr = parsed(text)
    for a, b, c, p in product((0, 1, 3, 7), (0, 2, 7), (0, 5, 255), (0, 1)):
        names = {"a": a, "b": b, "c": c, "p": p}
        assert evaluate(expr, names) == python(text, names), names


@seed(20)
@settings(max_examples=300, deadline=None)
@given(st.sampled_from(TEXTS), st.integers(0, 7), st.integers(0, 7), st.integers(0, 255), st.integers(0, 1))
def test_values_lie_in_the_proved_interval(text: str, a: int, b: int, c: int, p: int) -> None:
    expr = parsed(text)
    low, high = interval(expr)
    assert low <= evaluate(expr, {"a": a, "b": b, "c": c, "p": p}) <= high


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("a + 1", 1, 8),
        ("a - b", -7, 7),
        ("a * b", 0, 49),
        ("c // 2", 0, 127),
        ("c % 8", 0, 7),
        ("a % 100", 0, 7),
        ("min(a, 3)", 0, 3),
        ("max(a, 3)", 3, 7),
        ("1 if p else 9", 1, 9),
        ("max(a)", 7, 7),
        ("a > 3", 0, 1),
        ("(a - 3) * (b - 3)", -12, 16),
    ],
)
def test_intervals(text: str, low: int, high: int) -> None:
    assert interval(parsed(text)) == (low, high)


def test_states_are_known_beside_their_field_on_either_side() -> None:
    for text in ("state == resident", "resident == state"):
        expr = parsed(text)
        assert isinstance(expr, Compare)
        assert {type(expr.left), type(expr.right)} == {Name, Value}
        assert evaluate(expr, {"state": 2}) and not evaluate(expr, {"state": 0})


def test_named_values_take_the_type_that_is_wanted() -> None:
    expr = parsed("narrow if p else wanted", expected="form")
    assert type_of(expr) == "form"
    assert evaluate(expr, {"p": 1, "wanted": 0}) == 1


def test_max_of_a_field_is_a_bound() -> None:
    assert isinstance(parsed("max(a)"), Bound)
    assert type_of(parsed("max(a)")) == INT


def test_and_or_are_flat() -> None:
    expr = parsed("p and a > 1 and b > 1")
    assert isinstance(expr, Logic) and len(expr.operands) == 3
    assert type_of(expr) == BOOL


def test_places_point_at_the_operand() -> None:
    expr = parsed("p and a > 12")
    assert isinstance(expr, Logic)
    assert expr.operands[1].at == Place("a.yaml", 1, 14, 6)


@pytest.mark.parametrize(
    ("text", "code", "part", "hint"),
    [
        ("p && p", "E203", "&", "did you mean 'and'?"),
        ("p || p", "E203", "||", "did you mean 'or'?"),
        ("!p", "E203", "!", "did you mean 'not'?"),
        ("a = 1", "E203", "=", "did you mean '=='?"),
        ("a / 2 > 1", "E203", "/", "did you mean '//'?"),
        ("p == True", "E203", "True", "did you mean 'true'?"),
        ("0 < a < 3", "E203", "chains", "join two comparisons"),
        ("a > " + "9" * 5_000, "E206", "64 signed bits", "smaller"),
        ("p implies p implies p", "E203", "implies", "parentheses"),
        ("p implies a > 0 if p else p", "E203", "implies", "parentheses"),
        ("a > ", "E203", "the end", ""),
        ("(a > 1", "E203", "')'", ""),
        ("a b", "E203", "'b'", "operator"),
        ("1x > a", "E203", "1x", "decimal"),
        ("a > -1", "E203", "-", "0 - x"),
        ("a in b", "E203", "'['", ""),
        ("", "E203", "the end", ""),
        ("aa > 1", "E204", "aa", "closest: a"),
        ("state == residnt", "E204", "residnt", "closest: resident"),
        ("state == 1", "E205", "state", "free, filling, resident"),
        ("state > free", "E205", "no order", "state in ["),
        ("resident", "E205", "away from it", "state == resident"),
        ("state == wide", "E205", "wide", "use a value of 'state'"),
        ("p + 1 > 2", "E205", "a number", ""),
        ("not a", "E205", "a truth value", "a > 0"),
        ("p in [true]", "E205", "truth value in a list", ""),
        ("(a if p else state) == a", "E205", "unlike", "compare 'state'"),
        ("a // b > 1", "E206", "may be 0", "max(b, 1)"),
        ("(a - b) // 2 > 1", "E206", "may be -7", "max(x, 0)"),
        ("a * 9223372036854775807 > 1", "E206", "64", ""),
        ("a > 9223372036854775808", "E206", "64", ""),
        ("window[0].pins > 1", "E207", "window", "its own slot"),
        ("abs(a) > 1", "E208", "abs", "min, max"),
        ("a == max(form)", "E208", "form", "a, b"),
        ("a == min(b)", "E208", "min of one", ""),
    ],
)
def test_mistakes_are_located_and_come_with_a_hint(text: str, code: str, part: str, hint: str) -> None:
    expr, problems = parse(text, expected=BOOL)
    assert expr is None
    assert [problem.code for problem in problems] == [code]
    assert part in problems.found[0].text
    assert hint in problems.found[0].fix


def test_all_mistakes_of_an_expression_are_noted() -> None:
    _, problems = parse("aa > 1 and state == 3 and b // a > 1")
    assert [problem.code for problem in problems] == ["E204", "E205", "E206"]


def test_the_greatest_number_passes() -> None:
    assert interval(parsed(f"a < {INT64_MAX}")) == (0, 1)


def test_deep_parentheses_are_a_problem_not_a_crash() -> None:
    _, problems = parse("(" * 3000 + "a" + ")" * 3000)
    assert [problem.code for problem in problems] == ["E203"]


@pytest.mark.parametrize("sign", ["not " * 3000 + "p", "+".join(["a"] * 3000) + " > 1"])
def test_long_expressions_are_a_problem_not_a_crash(sign: str) -> None:
    expr, problems = parse(sign)
    assert expr is not None or [problem.code for problem in problems] == ["E203"]


def test_remote_names_read_slots_and_actors() -> None:
    expr = parsed("reader.at == use implies window[reader.slot].state == resident", SLOTS)
    assert isinstance(expr, Logic)
    condition = expr.operands[1]
    assert isinstance(condition, Compare) and isinstance(condition.left, Remote)
    assert condition.left.owner == "window" and isinstance(condition.left.index, Remote)


@pytest.mark.parametrize(
    ("text", "code", "part"),
    [
        ("window.pins > 1", "E207", "several slots"),
        ("reader[0].at == use", "E207", "takes no index"),
        ("window[slot].pinz > 1", "E204", "pinz"),
        ("window[slot + 1].pins > 1", "E206", "may be 1 to 2"),
        ("windw[slot].pins > 1", "E207", "windw"),
        ("reader > 1", "E207", "without saying what"),
        ("reader.at == used", "E204", "used"),
    ],
)
def test_mistakes_in_remote_names(text: str, code: str, part: str) -> None:
    _, problems = parse(text, SLOTS)
    assert [problem.code for problem in problems] == [code]
    assert part in problems.found[0].text


def test_a_count_goes_through_the_copies_of_an_actor() -> None:
    expr = parsed("window[i].pins == count(reader, reader.at == use and reader.slot == i)", PROPERTIES, BOOL)
    assert isinstance(expr, Compare) and isinstance(expr.right, Count)
    assert (expr.right.actor, interval(expr.right), type_of(expr.right)) == ("reader", (0, 2), INT)
    assert list(actors_in(expr)) == []
    assert range_of(expr, frozenset({"reader"})).indexes == (("i", 1),)


def test_outside_of_its_count_an_actor_is_one_copy() -> None:
    expr = parsed("reader.at == use implies count(reader, reader.slot == window[i].pins) < 2", PROPERTIES)
    assert range_of(expr, frozenset({"reader"})).actors == ("reader",)


def test_an_index_is_a_number_everywhere_in_the_property() -> None:
    expr = parsed("i == reader.slot implies window[i].pins < i + 1", PROPERTIES)
    assert range_of(expr, frozenset({"reader"})).indexes == (("i", 1),)
    assert render(expr) == "i == reader.slot implies window[i].pins < i + 1"


@pytest.mark.parametrize(
    ("text", "scope", "code", "part"),
    [
        ("count(reader, reader.at == use) > 0", SLOTS, "E218", "which only a property of a protocol may"),
        ("count(reader, a > 0) > 0", SCOPE, "E218", "which only a property of a protocol may"),
        ("count(readr, reader.at == use) > 0", PROPERTIES, "E207", "'readr', which is no actor"),
        ("count(reader) > 0", PROPERTIES, "E218", "'count(reader)'"),
        ("count(reader, reader.at == use, 2) > 0", PROPERTIES, "E218", "counts 'count("),
        ("count(reader.at == use, reader) > 0", PROPERTIES, "E218", "counts 'count("),
        ("count(reader, window[i].pins > 0) > 0", PROPERTIES, "E218", "reads none of them"),
        ("count(reader, count(reader, reader.at == use) > 0) > 0", PROPERTIES, "E218", "reads none of them"),
        ("count(reader, reader.slot) > 0", PROPERTIES, "E205", "needs a truth value"),
        ("count(reader, reader.at == use)", PROPERTIES, "E205", "is a number"),
        ("cont(reader, reader.at == use) > 0", PROPERTIES, "E208", "'cont', which is no function"),
        ("window[i].pins == j", PROPERTIES, "E204", "reads 'j'"),
    ],
)
def test_mistakes_in_counts(text: str, scope: Scope, code: str, part: str) -> None:
    expr, problems = parse(text, scope, BOOL)
    assert expr is None
    assert [problem.code for problem in problems] == [code]
    assert part in problems.found[0].text


def test_a_count_is_printed_as_it_is_written() -> None:
    text = "window[i].pins == count(reader, reader.at in [match, use] or not reader.slot == i)"
    assert render(parsed(text, PROPERTIES)) == text


def test_a_machine_cannot_evaluate_a_count() -> None:
    with pytest.raises(ValueError, match="has no actors"):
        evaluate(parsed("count(reader, reader.at == use)", PROPERTIES), {})


def test_nothing_is_evaluated_as_python() -> None:
    _, problems = parse("__import__(a)", SCOPE)
    assert [problem.code for problem in problems] == ["E208"]
