"""One expression, every target: each row is printed for each and computed where that can be done here."""

from __future__ import annotations

import ctypes
import random
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from kvfsm.spec.language.bounds import interval
from kvfsm.spec.language.expressions import (
    BOOL,
    INT,
    Arithmetic,
    Bound,
    Choice,
    Compare,
    Expr,
    Extreme,
    Logic,
    Member,
    Name,
    Not,
    Number,
    Truth,
    Value,
)
from kvfsm.spec.language.interpreter import evaluate
from kvfsm.spec.language.parser import Scope, Symbol, parse_expression
from kvfsm.spec.language.problems import Place, Problems
from kvfsm.spec.language.source import Scalar
from kvfsm.spec.targets import c, cuda, javascript, murphi, numpy, promela, python, smt, text, tla

AT = Place("row", 1, 1)
STATES = {"free": 0, "filling": 1, "resident": 2, "expired": 3}
FORMS = {"expanded": 0, "packed": 1}
SCOPE = Scope(
    "toy",
    {
        "state": Symbol("field", "state", 3),
        "pins": Symbol("field", INT, 4095),
        "rows": Symbol("field", INT, 255),
        "form": Symbol("field", "form", 1),
        "lossy": Symbol("field", BOOL, 1),
        "at": Symbol("argument", INT, 65535),
        "ok": Symbol("argument", BOOL, 1),
    },
    {"state": STATES, "form": FORMS},
    {"pins": 4095, "rows": 255},
)
NAMES = tuple(SCOPE.names)
BOOLS = ("lossy", "ok")


@dataclass(frozen=True)
class Row:
    """The spec's text, what targets print, and some values with the result."""

    spec: str
    python: str
    numpy: str
    c: str
    smt: str
    tla: str
    promela: str
    murphi: str
    javascript: str
    results: tuple[tuple[dict[str, int], int], ...]


ROWS = (
    Row(
        "pins == max(pins)", "pins == 4095", "pins == 4095", "pins == 4095", "(= pins 4095)", "pins = 4095",
        "pins == 4095",
        "pins = 4095",
        "pins == 4095",
        (({"pins": 4095}, 1), ({"pins": 4094}, 0)),
    ),
    Row(
        "state == resident and pins > 0", "state == 2 and pins > 0", "(state == 2) & (pins > 0)",
        "state == 2 && pins > 0", "(and (= state 2) (> pins 0))", r"state = 2 /\ pins > 0", "state == 2 && pins > 0",
        "state = 2 & pins > 0",
        "state == 2 && pins > 0",
        (({"state": 2, "pins": 1}, 1), ({"state": 2}, 0), ({"pins": 1}, 0)),
    ),
    Row(
        "pins > 0 implies state in [resident, expired]", "pins <= 0 or state in (2, 3)",
        "(pins <= 0) | (state == 2) | (state == 3)", "pins <= 0 || state == 2 || state == 3",
        "(=> (> pins 0) (or (= state 2) (= state 3)))", r"pins > 0 => state \in {2, 3}",
        "pins <= 0 || state == 2 || state == 3",
        "pins > 0 -> (state = 2 | state = 3)",
        "pins <= 0 || state == 2 || state == 3",
        (({"pins": 1, "state": 2}, 1), ({"pins": 1, "state": 1}, 0), ({"state": 0}, 1)),
    ),
    Row(
        "state not in [free, filling]", "state not in (0, 1)", "(state != 0) & (state != 1)",
        "state != 0 && state != 1",
        "(and (distinct state 0) (distinct state 1))", r"state \notin {0, 1}", "state != 0 && state != 1",
        "state != 0 & state != 1",
        "state != 0 && state != 1",
        (({"state": 0}, 0), ({"state": 3}, 1)),
    ),
    Row(
        "not (ok and lossy)", "not (ok and lossy)", "~(ok & lossy)", "!(ok && lossy)", "(not (and ok lossy))",
        r"~(ok /\ lossy)", "!(ok && lossy)",
        "!(ok & lossy)",
        "!(ok && lossy)",
        (({"ok": 1, "lossy": 1}, 0), ({"ok": 1}, 1)),
    ),
    Row(
        "not pins == at", "pins != at", "pins != at", "pins != at", "(distinct pins at)", "pins # at", "pins != at",
        "pins != at",
        "pins != at",
        (({"pins": 3, "at": 3}, 0), ({"pins": 3}, 1)),
    ),
    Row(
        "ok or lossy and pins == 0", "ok or (lossy and pins == 0)", "ok | (lossy & (pins == 0))",
        "ok || (lossy && pins == 0)", "(or ok (and lossy (= pins 0)))", r"ok \/ (lossy /\ pins = 0)",
        "ok || (lossy && pins == 0)",
        "ok | (lossy & pins = 0)",
        "ok || (lossy && pins == 0)",
        (({"lossy": 1}, 1), ({"lossy": 1, "pins": 1}, 0), ({"ok": 1, "pins": 1}, 1)),
    ),
    Row(
        "(ok or lossy) and pins == 0", "(ok or lossy) and pins == 0", "(ok | lossy) & (pins == 0)",
        "(ok || lossy) && pins == 0", "(and (or ok lossy) (= pins 0))", r"(ok \/ lossy) /\ pins = 0",
        "(ok || lossy) && pins == 0",
        "(ok | lossy) & pins = 0",
        "(ok || lossy) && pins == 0",
        (({"ok": 1, "pins": 1}, 0), ({"lossy": 1}, 1)),
    ),
    Row(
        "lossy == ok", "lossy == ok", "lossy == ok", "lossy == ok", "(= lossy ok)", "lossy = ok", "lossy == ok",
        "lossy = ok",
        "lossy == ok",
        (({}, 1), ({"ok": 1}, 0)),
    ),
    Row(
        "lossy == (pins > 0)", "lossy == (pins > 0)", "lossy == (pins > 0)", "lossy == (pins > 0)",
        "(= lossy (> pins 0))", "lossy = (pins > 0)", "lossy == (pins > 0)",
        "lossy = (pins > 0)",
        "lossy == pins > 0",
        (({}, 1), ({"pins": 1}, 0), ({"pins": 1, "lossy": 1}, 1)),
    ),
    Row(
        "pins - (rows - 1) - at", "pins - (rows - 1) - at", "pins - (rows - 1) - at", "pins - (rows - 1) - at",
        "(- (- pins (- rows 1)) at)", "pins - (rows - 1) - at", "pins - (rows - 1) - at",
        "pins - (rows - 1) - at",
        "pins - (rows - 1) - at",
        (({"pins": 10, "rows": 4, "at": 2}, 5), ({"at": 7}, -6)),
    ),
    Row(
        "pins + rows % 4", "pins + rows % 4", "pins + rows % 4", "pins + rows % 4", "(+ pins (mod rows 4))",
        "pins + (rows % 4)", "pins + rows % 4",
        "pins + rows % 4",
        "pins + rows % 4",
        (({"pins": 3, "rows": 6}, 5),),
    ),
    Row(
        "(pins + rows) * 2", "(pins + rows) * 2", "(pins + rows) * 2", "(pins + rows) * 2", "(* (+ pins rows) 2)",
        "(pins + rows) * 2", "(pins + rows) * 2",
        "(pins + rows) * 2",
        "(pins + rows) * 2",
        (({"pins": 3, "rows": 4}, 14),),
    ),
    Row(
        "at // (rows + 1) % 8", "at // (rows + 1) % 8", "at // np.maximum(rows + 1, 1) % 8", "at / (rows + 1) % 8",
        "(mod (div at (+ rows 1)) 8)", r"(at \div (rows + 1)) % 8", "at / (rows + 1) % 8",
        "at / (rows + 1) % 8",
        "(at - at % (rows + 1)) / (rows + 1) % 8",
        (({"at": 100, "rows": 2}, 1), ({"at": 7}, 7)),
    ),
    Row(
        "min(pins, rows, 7)", "min(pins, rows, 7)", "np.minimum(np.minimum(pins, rows), 7)",
        "(pins < rows ? pins : rows) < 7 ? (pins < rows ? pins : rows) : 7",
        "(ite (< (ite (< pins rows) pins rows) 7) (ite (< pins rows) pins rows) 7)",
        "IF (IF pins < rows THEN pins ELSE rows) < 7 THEN IF pins < rows THEN pins ELSE rows ELSE 7",
        "((pins < rows -> pins : rows) < 7 -> (pins < rows -> pins : rows) : 7)",
        "((pins < rows ? pins : rows) < 7 ? (pins < rows ? pins : rows) : 7)",
        "Math.min(pins, rows, 7)",
        (({"pins": 9, "rows": 8}, 7), ({"pins": 2, "rows": 8}, 2), ({"pins": 5, "rows": 4}, 4)),
    ),
    Row(
        "pins if ok else rows + 1", "pins if ok else rows + 1", "np.where(ok, pins, rows + 1)", "ok ? pins : rows + 1",
        "(ite ok pins (+ rows 1))", "IF ok THEN pins ELSE rows + 1", "(ok -> pins : rows + 1)",
        "(ok ? pins : rows + 1)",
        "ok ? pins : rows + 1",
        (({"ok": 1, "pins": 4}, 4), ({"rows": 4}, 5)),
    ),
    Row(
        "(pins if ok else rows) + 1 == at", "(pins if ok else rows) + 1 == at", "np.where(ok, pins, rows) + 1 == at",
        "(ok ? pins : rows) + 1 == at", "(= (+ (ite ok pins rows) 1) at)", "(IF ok THEN pins ELSE rows) + 1 = at",
        "(ok -> pins : rows) + 1 == at",
        "(ok ? pins : rows) + 1 = at",
        "(ok ? pins : rows) + 1 == at",
        (({"ok": 1, "pins": 4, "at": 5}, 1), ({"rows": 4}, 0)),
    ),
    Row(
        "form == packed or form != packed and ok", "form == 1 or (form != 1 and ok)",
        "(form == 1) | ((form != 1) & ok)",
        "form == 1 || (form != 1 && ok)", "(or (= form 1) (and (distinct form 1) ok))",
        r"form = 1 \/ (form # 1 /\ ok)", "form == 1 || (form != 1 && ok)",
        "form = 1 | (form != 1 & ok)",
        "form == 1 || (form != 1 && ok)",
        (({"form": 1}, 1), ({}, 0), ({"ok": 1}, 1)),
    ),
    Row(
        "ok == true and lossy == false", "ok and not lossy", "ok & ~lossy", "ok && !lossy", "(and ok (not lossy))",
        r"ok /\ ~lossy", "ok && !lossy",
        "ok & !lossy",
        "ok && !lossy",
        (({"ok": 1}, 1), ({"ok": 1, "lossy": 1}, 0)),
    ),
    Row(
        "not ok", "not ok", "~ok", "!ok", "(not ok)", "~ok", "!ok",
        "!ok",
        "!ok",
        (({}, 1), ({"ok": 1}, 0)),
    ),
)


def parsed(spec: str) -> Expr:
    problems = Problems()
    expr = parse_expression(Scalar(spec, False, spec, AT), SCOPE, problems, "the row")
    assert expr is not None, [problem.text for problem in problems]
    return expr


def values_of(given: dict[str, int]) -> dict[str, int]:
    return {name: given.get(name, 0) for name in NAMES}


def typed(values: dict[str, int]) -> dict[str, int | bool]:
    return {name: bool(value) if name in BOOLS else value for name, value in values.items()}


def by_python(printed: str, values: dict[str, int]) -> int:
    return int(eval(printed, {}, typed(values)))


def by_numpy(printed: str, many: list[dict[str, int]]) -> list[int]:
    arrays = {name: np.array([typed(values)[name] for values in many]) for name in NAMES}
    result = eval(printed, {"np": np}, arrays)
    return [int(value) for value in np.broadcast_to(result, len(many))]


def by_z3(printed: str, values: dict[str, int]) -> int:
    z3 = pytest.importorskip("z3", reason="needs the package z3-solver")
    solver = z3.Solver()
    sorts = "".join(
        f"(declare-const {name} {'Bool' if name in BOOLS else 'Int'})"
        f"(assert (= {name} {str(bool(value)).lower() if name in BOOLS else value}))"
        for name, value in values.items()
    )
    number = f"(declare-const result Int)(assert (= result {printed}))"
    truth = f"(declare-const result Int)(assert (= result (ite {printed} 1 0)))"
    try:
        solver.add(z3.parse_smt2_string(sorts + number))
    except z3.Z3Exception:
        solver.add(z3.parse_smt2_string(sorts + truth))
    assert solver.check() == z3.sat
    model = solver.model()
    return next(model[name].as_long() for name in model if name.name() == "result")


def by_javascript(printed: str, values: dict[str, int]) -> int:
    """What an embedded engine computes, from numbers and with 0 and 1 for truth values."""
    quickjs = pytest.importorskip("quickjs", reason="needs the package quickjs-ng, which mermaidx brings along")
    context = quickjs.Context()
    for name, value in values.items():
        context.set(name, value)
    return int(context.eval(f"+({printed})"))


class Compiled:
    """C functions, one for each printed expression."""

    def __init__(self, folder: Path, printed: list[str], warnings: bool = True):
        compiler = shutil.which("g++")
        if compiler is None:
            pytest.skip("needs g++ (Debian package g++)")
        parameters = ", ".join(f"{'bool' if name in BOOLS else 'long long'} {name}" for name in NAMES)
        functions = [
            f'extern "C" long long f{number}({parameters}) {{ return {expression}; }}'
            for number, expression in enumerate(printed)
        ]
        source = folder / "expressions.cc"
        source.write_text("\n".join(functions))
        library = folder / "expressions.so"
        strict = ["-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror"] if warnings else ["-w"]
        subprocess.run([compiler, "-shared", "-fPIC", *strict, "-o", library, source], check=True)
        self.compiled = ctypes.CDLL(str(library))

    def __call__(self, number: int, values: dict[str, int]) -> int:
        function = self.compiled[f"f{number}"]
        function.restype = ctypes.c_longlong
        function.argtypes = [ctypes.c_bool if name in BOOLS else ctypes.c_longlong for name in NAMES]
        return int(function(*typed(values).values()))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    return Compiled(tmp_path_factory.mktemp("c"), [cuda.render(parsed(row.spec)) for row in ROWS])


TARGETS: dict[str, ModuleType] = {
    "python": python,
    "numpy": numpy,
    "c": c,
    "smt": smt,
    "tla": tla,
    "promela": promela,
    "murphi": murphi,
    "javascript": javascript,
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.spec)
def test_every_target_prints_what_a_person_would_write(row: Row, target: str) -> None:
    assert getattr(row, target) == TARGETS[target].render(parsed(row.spec))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.spec)
def test_every_target_computes_the_same(row: Row, compiled: Compiled) -> None:
    expr = parsed(row.spec)
    many = [values_of(given) for given, _ in row.results]
    expected = [result for _, result in row.results]
    assert expected == [evaluate(expr, values) for values in many]
    assert expected == [by_python(python.render(expr), values) for values in many]
    assert expected == by_numpy(numpy.render(expr), many)
    assert expected == [compiled(ROWS.index(row), values) for values in many]
    assert expected == [by_z3(smt.render(expr), values) for values in many]
    assert expected == [by_javascript(javascript.render(expr), values) for values in many]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.spec)
def test_the_text_of_an_expression_is_read_back_as_the_same(row: Row) -> None:
    once = text.render(parsed(row.spec))
    assert text.render(parsed(once)) == once
    for given, result in row.results:
        assert evaluate(parsed(once), values_of(given)) == result


def test_a_divisor_that_a_guard_leaves_out_does_not_trap() -> None:
    printed = numpy.render(parsed("at // (rows + 1)"))
    with np.errstate(all="raise"):
        many = [values_of({"at": 4}), values_of({"at": 4, "rows": 2})]
        assert by_numpy(printed.replace("rows + 1", "rows"), many) == [4, 2]


def test_the_array_module_has_the_name_that_is_asked_for() -> None:
    assert numpy.render(parsed("min(pins, 3) if ok else 0"), xp="xp") == "xp.where(ok, xp.minimum(pins, 3), 0)"


def random_expression(rng: random.Random, kind: str, depth: int) -> Expr:
    """An expression of one type whose numbers stay small enough for every target."""
    if depth == 0:
        return random_leaf(rng, kind)

    def inner(wanted: str) -> Expr:
        return random_expression(rng, wanted, depth - 1)

    if kind == BOOL:
        match rng.randrange(5):
            case 0:
                return Not(inner(BOOL), AT)
            case 1:
                return Logic(rng.choice(("and", "or")), tuple(inner(BOOL) for _ in range(rng.randint(2, 3))), AT)
            case 2:
                return Logic("implies", (inner(BOOL), inner(BOOL)), AT)
            case 3:
                names = rng.sample(sorted(STATES), rng.randint(1, 3))
                options = tuple(Value(name, STATES[name], "state", AT) for name in names)
                return Member(Name("state", "field", "state", 3, AT), options, rng.random() < 0.5, AT)
            case _:
                return Compare(rng.choice(("==", "!=", "<", "<=", ">", ">=")), inner(INT), inner(INT), AT)
    match rng.randrange(4):
        case 0:
            return Choice(inner(BOOL), inner(INT), inner(INT), AT)
        case 1:
            return Extreme(rng.choice(("min", "max")), (inner(INT), inner(INT)), AT)
        case 2:
            dividend = Extreme("max", (inner(INT), Number(0, AT)), AT)
            return Arithmetic(rng.choice(("//", "%")), dividend, Number(rng.randint(1, 9), AT), AT)
        case _:
            return Arithmetic(rng.choice(("+", "-", "*")), inner(INT), inner(INT), AT)


def random_leaf(rng: random.Random, kind: str) -> Expr:
    if kind == BOOL:
        name = Name(rng.choice(BOOLS), "field", BOOL, 1, AT)
        return rng.choice((name, name, Truth(rng.random() < 0.5, AT)))
    name = Name(rng.choice(("pins", "rows", "at")), "field", INT, 255, AT)
    return rng.choice((name, name, Number(rng.randint(0, 5), AT), Bound("rows", 255, AT)))


def test_random_expressions_compute_the_same_everywhere(tmp_path: Path) -> None:
    seed = 7
    print(f"seed {seed}")
    rng = random.Random(seed)
    expressions = [random_expression(rng, rng.choice((BOOL, INT)), rng.randint(1, 4)) for _ in range(150)]
    expressions = [expr for expr in expressions if all(abs(end) < 1 << 40 for end in interval(expr))]
    assert len(expressions) > 100
    run = Compiled(tmp_path, [c.render(expr) for expr in expressions], warnings=False)
    for number, expr in enumerate(expressions):
        many = [{name: rng.randint(0, 1 if name in (*BOOLS, "form") else 3) for name in NAMES} for _ in range(4)]
        expected = [evaluate(expr, values) for values in many]
        told = text.render(expr)
        assert [by_python(python.render(expr), values) for values in many] == expected, told
        assert by_numpy(numpy.render(expr), many) == expected, told
        assert [run(number, values) for values in many] == expected, told
        assert [by_javascript(javascript.render(expr), values) for values in many] == expected, told
        if number % 10 == 0:
            assert [by_z3(smt.render(expr), values) for values in many[:1]] == expected[:1], told


def test_a_wrong_precedence_is_noticed() -> None:
    """The negative control: without its parentheses, a row computes something else."""
    expr = parsed("(pins + rows) * 2")
    wrong = python.render(expr).replace("(", "").replace(")", "")
    values = values_of({"pins": 3, "rows": 4})
    assert by_python(wrong, values) != evaluate(expr, values)
