"""Commands that keep a derived cell what it is derived as are told from those that do not."""

from __future__ import annotations

from dataclasses import replace

from kvfsm.spec.checking.engines.derivation import unproven
from kvfsm.spec.checking.folding import equal, number
from kvfsm.spec.checking.system import NOWHERE, Cell, Command, System
from kvfsm.spec.language.expressions import INT, Arithmetic

from .shipped import grounded

X, Y = (Cell(f"it[0].{name}", "it", 0, name, INT, 3, (), True) for name in "xy")


def system(*commands: Command) -> System:
    return System("copied", (), (X, Y), commands, (), (), ((Y.name, X.read()),))


def command(x: int, y: int, *guard: object) -> Command:
    up = [(cell, Arithmetic("+", cell.read(), number(by), NOWHERE)) for cell, by in ((X, x), (Y, y)) if by]
    return Command("actor", 0, "step", (), "applied", (), guard, tuple((c.name, v) for c, v in up))  # type: ignore[arg-type]


def test_every_command_of_toctou_keeps_its_counts_of_readers() -> None:
    toctou = grounded("toctou")
    assert toctou.derived
    assert unproven(toctou) == ()


def test_a_release_that_is_forgotten_keeps_nothing() -> None:
    toctou = grounded("toctou")
    forgetful = tuple(
        replace(item, updates=tuple((name, value) for name, value in item.updates if not name.endswith(".pins")))
        if item.step == "done"
        else item
        for item in toctou.commands
    )
    found = unproven(replace(toctou, commands=forgetful))
    assert found == tuple(index for index, item in enumerate(forgetful) if item.step == "done")


def test_both_sides_have_to_change_by_the_same() -> None:
    assert unproven(system(command(1, 1), command(1, 0), command(0, 1), command(2, 2), command(0, 0))) == (1, 2)


def test_what_the_guard_fixes_is_filled_in() -> None:
    from_two = Command(
        "actor",
        0,
        "step",
        (),
        "applied",
        (),
        (equal(X.read(), number(2)),),
        ((X.name, number(3)), (Y.name, Arithmetic("+", Y.read(), number(1), NOWHERE))),
    )
    assert unproven(system(from_two)) == ()
    assert unproven(system(replace(from_two, guard=()))) == (0,)
