"""Expressions as Promela, Murphi and TLA+: SPIN, Rumur and TLC compute what the interpreter does."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvfsm.spec.checking.exports.peers import Missing, Outcome, run_rumur, run_spin, run_tlc
from kvfsm.spec.language.bounds import interval, type_of
from kvfsm.spec.language.expressions import BOOL, INT, Expr
from kvfsm.spec.language.interpreter import evaluate
from kvfsm.spec.language.trees import walked
from kvfsm.spec.targets import murphi, promela, tla

from .test_targets import BOOLS, NAMES, ROWS, SCOPE, parsed, random_expression, values_of

Case = tuple[Expr, dict[str, int], int]  # an expression, the value of each name, and what it should be


def cases(seed: int = 11) -> Iterator[Case]:
    """Every row of the table, and random expressions whose parts all fit the 32 bits that SPIN and TLC have."""
    for row in ROWS:
        for given, result in row.results:
            yield parsed(row.spec), values_of(given), result
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(120):
        expr = random_expression(rng, rng.choice((BOOL, INT)), rng.randint(1, 4))
        if all(abs(end) < 1 << 31 for part in walked(expr) for end in interval(part)):
            values = {name: rng.randint(0, 1 if name in (*BOOLS, "form") else 3) for name in NAMES}
            yield expr, values, evaluate(expr, values)


def spelled(expr: Expr, value: int, true: str, false: str) -> str:
    return (true if value else false) if type_of(expr) == BOOL else str(value)


def typed(name: str, value: int, true: str, false: str) -> str:
    return (true if value else false) if name in BOOLS else str(value)


def by_spin(wanted: list[Case], folder: Path) -> Outcome:
    lines = [f"{'bool' if name in BOOLS else 'int'} {name};" for name in NAMES]
    lines.append("active proctype all() { d_step {")
    for expr, values, result in wanted:
        lines += [f"  {name} = {value};" for name, value in values.items()]
        lines.append(f"  assert(({promela.render(expr)}) == {spelled(expr, result, 'true', 'false')});")
    return run_spin("\n".join([*lines, "  skip } }", ""]), folder)


def by_rumur(wanted: list[Case], folder: Path) -> Outcome:
    lines = ["var"]
    lines += [f"  {n}: {'boolean' if n in BOOLS else f'0 .. {SCOPE.names[n].high}'};" for n in NAMES]
    lines.append("startstate begin")
    for expr, values, result in wanted:
        lines += [f"  {name} := {typed(name, value, 'true', 'false')};" for name, value in values.items()]
        lines.append(f"  assert ({murphi.render(expr)}) = {spelled(expr, result, 'true', 'false')};")
    lines += ["end;", "rule ok ==> begin ok := ok; end;", ""]
    return run_rumur("\n".join(lines), folder)


def by_tlc(wanted: list[Case], folder: Path) -> Outcome:
    lines = ["---- MODULE expressions ----", "EXTENDS Integers", "VARIABLE now"]
    lines += ["Init == now = 0", "Next == now' = now"]
    for expr, values, result in wanted:
        given = " ".join(f"{name} == {typed(name, value, 'TRUE', 'FALSE')}" for name, value in values.items())
        lines.append(f"ASSUME LET {given} IN ({tla.render(expr)}) = {spelled(expr, result, 'TRUE', 'FALSE')}")
    return run_tlc("\n".join([*lines, "====", ""]), "INIT Init\nNEXT Next\n", folder)


@pytest.mark.parametrize("compute", [by_spin, by_rumur, by_tlc])
def test_a_checker_computes_what_we_do(compute: Callable[[list[Case], Path], Outcome], tmp_path: Path) -> None:
    wanted = list(cases())
    assert len(wanted) > 100
    expr, values, result = next(case for case in wanted if type_of(case[0]) == INT)
    wrong = (expr, values, result + 1)
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.mkdir()
    bad.mkdir()
    try:
        found = compute(wanted, good)
        assert not found.violated, found.story
        assert compute([wrong], bad).violated
    except Missing as problem:
        pytest.skip(str(problem))
