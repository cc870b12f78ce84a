"""Parsing an expression in a test: fields a and b (0 to 7), c (0 to 255), truth p, form (wide, narrow), state."""

from __future__ import annotations

from dataclasses import replace

from kvfsm.spec.language.expressions import BOOL, INT, Expr
from kvfsm.spec.language.parser import Owner, Scope, Symbol, parse_expression
from kvfsm.spec.language.problems import Problems
from kvfsm.spec.language.source import Mapping, Scalar, load_yaml

FIELDS = {
    "state": Symbol("field", "state", 2),
    "a": Symbol("field", INT, 7),
    "b": Symbol("field", INT, 7),
    "c": Symbol("argument", INT, 255),
    "p": Symbol("argument", BOOL, 1),
    "form": Symbol("field", "form", 1),
    "wanted": Symbol("argument", "form", 1),
}
SCOPE = Scope(
    "toy",
    FIELDS,
    {"state": {"free": 0, "filling": 1, "resident": 2}, "form": {"wide": 0, "narrow": 1}},
    {"a": 7, "b": 7},
)
SLOTS = Scope(
    "toy",
    {"slot": Symbol("local", INT, 1)},
    {"window.state": {"free": 0, "resident": 1}, "reader.at": {"match": 0, "use": 1}},
    remotes={
        "window": Owner({"state": Symbol("field", "window.state", 1), "pins": Symbol("field", INT, 3)}, 1),
        "reader": Owner({"at": Symbol("local", "reader.at", 1), "slot": Symbol("local", INT, 1)}, None),
    },
)

PROPERTIES = replace(SLOTS, names={}, free_index=True, copies={"reader": 2})  # as in the properties of a protocol


def parse(text: str, scope: Scope = SCOPE, expected: str | None = None) -> tuple[Expr | None, Problems]:
    problems = Problems()
    quoted = text.replace("'", "''")
    node = load_yaml("a.yaml", f"when: '{quoted}'\n", problems)
    assert isinstance(node, Mapping)
    source = node.entries[0].value
    assert isinstance(source, Scalar)
    return parse_expression(source, scope, problems, "the guard", expected), problems


def parsed(text: str, scope: Scope = SCOPE, expected: str | None = None) -> Expr:
    expr, problems = parse(text, scope, expected)
    assert expr is not None, problems.found
    return expr
