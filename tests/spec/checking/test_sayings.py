"""What counts as unchanged by an exchange of two slots is so in every state; what is plainly so is seen at any size."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from functools import cache

import pytest

from kvfsm.spec.checking import sayings
from kvfsm.spec.checking.folding import FALSE, TRUE, with_values
from kvfsm.spec.checking.sayings import Exchange, Saying, Sayings
from kvfsm.spec.language.expressions import (
    BOOL,
    INT,
    Arithmetic,
    Choice,
    Compare,
    Expr,
    Logic,
    Member,
    Name,
    Not,
    Number,
)
from kvfsm.spec.language.problems import Place

HERE = Place("", 0, 0)
SLOTS = 3
POINTERS = {"a.slot": SLOTS - 1, "b.slot": SLOTS - 1}
EXCHANGE = Exchange({"kv[0].pins": "kv[1].pins", "kv[1].pins": "kv[0].pins"}, {0: 1, 1: 0})


def cell(name: str, high: int = 1) -> Name:
    return Name(name, "cell", INT if high > 1 else BOOL, high, HERE)


def number(value: int) -> Number:
    return Number(value, HERE)


def same(left: Expr, right: Expr, op: str = "==") -> Expr:
    return Compare(op, left, right, HERE)


def pins_at(pointer: Name) -> Expr:
    """``kv[pointer].pins``, as grounding writes it."""
    found: Expr = cell(f"kv[{SLOTS - 1}].pins")
    for slot in reversed(range(SLOTS - 1)):
        found = Choice(same(pointer, number(slot)), cell(f"kv[{slot}].pins"), found, HERE)
    return found


def random_expr(pick: random.Random, depth: int) -> Expr:
    """A condition of two pointers, three slots with a truth value each, and a truth value of nobody's."""
    pointer = cell(pick.choice(tuple(POINTERS)), SLOTS - 1)
    leaves: tuple[Expr, ...] = (
        cell("late"),
        pins_at(pointer),
        cell(f"kv[{pick.randrange(SLOTS)}].pins"),
        same(pointer, number(pick.randrange(SLOTS)), pick.choice(("==", "!=", "<", ">="))),
        same(cell("a.slot", SLOTS - 1), cell("b.slot", SLOTS - 1), pick.choice(("==", "!=", "<"))),
        Member(pointer, tuple(number(slot) for slot in pick.sample(range(SLOTS), 2)), pick.random() < 0.5, HERE),
        same(Arithmetic("+", pointer, number(1), HERE), number(pick.randrange(SLOTS))),
    )
    if depth == 0 or pick.random() < 0.3:
        return pick.choice(leaves)
    parts = [random_expr(pick, depth - 1) for _ in range(3)]
    kind = pick.randrange(4)
    if kind == 0:
        return Not(parts[0], HERE)
    if kind == 1:
        return Choice(parts[0], parts[1], parts[2], HERE)
    # A condition and its image, which together are unchanged, come up often enough this way.
    parts = parts[:2] if pick.random() < 0.5 else [parts[0], exchanged(parts[0])]
    return Logic("and" if kind == 2 else "or", tuple(parts), HERE)


def expr_of(seed: int) -> Expr:
    return random_expr(random.Random(seed), 3)


def exchanged(expr: Expr) -> Expr:
    """The same of the other slot, where a slot or its number is written."""
    match expr:
        case Name(name=name):
            return cell(EXCHANGE.cells[name]) if name in EXCHANGE.cells else expr
        case Number(value):
            return number(EXCHANGE.numbers.get(value, value))
        case Compare("==" | "!=" as op, left, right):
            return Compare(op, exchanged(left), exchanged(right), HERE)
        case Member(item, options, negated):
            return Member(item, tuple(map(exchanged, options)), negated, HERE)
        case Not(operand):
            return Not(exchanged(operand), HERE)
        case Logic(op, operands):
            return Logic(op, tuple(map(exchanged, operands)), HERE)
        case Choice(condition, then, otherwise):
            return Choice(exchanged(condition), exchanged(then), exchanged(otherwise), HERE)
    return expr


def states() -> Iterator[dict[str, int]]:
    cells = {**{f"kv[{slot}].pins": 2 for slot in range(SLOTS)}, "late": 2, "a.slot": SLOTS, "b.slot": SLOTS}
    for values in itertools.product(*map(range, cells.values())):
        yield dict(zip(cells, values, strict=True))


def turned(state: dict[str, int]) -> dict[str, int]:
    """A state after the two slots are exchanged."""
    return {
        EXCHANGE.cells.get(name, name): EXCHANGE.numbers.get(value, value) if name in POINTERS else value
        for name, value in state.items()
    }


@cache
def says_the_same(seed: int) -> bool:
    expr = expr_of(seed)
    return all(with_values(expr, state) == with_values(expr, turned(state)) for state in states())


def unchanged(*exprs: Expr) -> bool:
    return Sayings([Saying("claim", TRUE, (expr,)) for expr in exprs], POINTERS).unchanged_by(EXCHANGE)


def mistaken(seeds: range) -> tuple[list[int], int, int]:
    """Seeds of conditions that are wrongly taken for unchanged; how many are, and how many are seen to be."""
    wrong, true, seen = [], 0, 0
    for seed in seeds:
        said, really = unchanged(expr_of(seed)), says_the_same(seed)
        wrong += [seed] if said and not really else []
        true += really
        seen += said and really
    return wrong, true, seen


@pytest.mark.parametrize("written_only", [False, True], ids=["and value by value", "as written"])
def test_what_counts_as_unchanged_says_the_same_in_every_state(
    written_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if written_only:
        monkeypatch.setattr(sayings, "VALUES_MAX", 0)
    wrong, true, seen = mistaken(range(200))
    assert wrong == []
    assert true > 20
    assert seen > true / 2


def test_a_key_that_forgets_which_slots_differ_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sayings._Keys, "_answers", lambda keys, pointer, expr: pointer)
    assert mistaken(range(200))[0]


def test_a_key_that_forgets_cells_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Exchange, "moved", property(lambda exchange: frozenset(map(sayings._Slot, exchange.numbers))))
    assert mistaken(range(200))[0]


def test_commands_that_are_one_anothers_images_are_unchanged_together_only() -> None:
    def take(slot: int) -> Saying:
        a = cell("a.slot", SLOTS - 1)
        return Saying("", FALSE, (same(a, number(slot)),), ((f"kv[{slot}].pins", number(1)), ("b.slot", number(slot))))

    def unchanged(*slots: int) -> bool:
        return Sayings(map(take, slots), POINTERS).unchanged_by(EXCHANGE)

    assert unchanged(0, 1)
    assert unchanged(0, 1, 2)
    assert unchanged(2)
    assert not unchanged(0)
    assert not unchanged(1, 2)


def test_a_claim_is_not_taken_for_another() -> None:
    pins = [Saying(f"claim{slot}", TRUE, (cell(f"kv[{slot}].pins"),)) for slot in (0, 1)]
    assert not Sayings(pins, POINTERS).unchanged_by(EXCHANGE)
    assert unchanged(cell("kv[0].pins"), cell("kv[1].pins")), "two conditions of one claim may change places"


def test_a_claim_of_very_many_pointers_is_seen_as_it_is_written() -> None:
    many = {f"reader[{copy}].slot": 19 for copy in range(20)}  # 20 ** 20 values
    asked = Logic("and", tuple(same(cell(name, 19), number(7)) for name in many), HERE)
    claim = Sayings([Saying("claim", TRUE, (asked,))], many)
    assert claim.unchanged_by(Exchange({}, {0: 1, 1: 0}))
    assert not claim.unchanged_by(Exchange({}, {0: 7, 7: 0}))
