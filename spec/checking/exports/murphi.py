"""A system as Murphi, for Rumur and CMurphi.

Each command is a rule; a state that nothing leaves is judged by an invariant, so Rumur's own search for deadlocks has
to be switched off. Situations that must arise are ``cover`` properties, which only Rumur has. Rumur is told to compute
with 32 bits: by itself it takes the fewest that hold every variable, and those lack what is less than 0 on the way.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...language.expressions import BOOL, Expr
from ...targets.murphi import render
from ..folding import both, condition_of, either
from ..system import Cell, Command, System
from .moves import in_sequence, moves_of
from .naming import Naming, heading, spread

_SIGNS = {"and": "&", "or": "|"}


def export(system: System) -> str:
    """The text of a model that ``rumur`` reads."""
    return "\n".join(_Text(system).lines()) + "\n"


class _Text:
    def __init__(self, system: System) -> None:
        self.system = system
        self.naming = Naming(system)

    def lines(self) -> Iterator[str]:
        system, naming = self.system, self.naming
        yield f"""\
-- {heading(system)}
--
-- Every state, breadth first, the shortest violation first:
--   rumur --deadlock-detection off --value-type int32_t --output checker.c FILE
--   cc -O3 -march=native -o checker checker.c -lpthread && ./checker
"""
        constants = list(naming.constants)
        if constants:
            yield "const"
            yield from (f"  {constant.name}: {constant.value};" for constant in constants)
        yield "\nvar"
        yield from (f"  {naming.cells[cell.name]}: {_type(cell)};" for cell in system.cells)
        yield "\nstartstate begin"
        yield from (f"  {naming.cells[cell.name]} := {'false' if cell.type == BOOL else 0};" for cell in system.cells)
        yield "end;\n"
        moves = list(moves_of(system).values())
        for command in moves:
            yield f'rule "{command.label}"\n{self._spread(both(command.guard))}\n==>'
            yield from self._assignments(command)
            yield "end;\n"
        for claim in system.claims:
            said, kind = condition_of(claim), "cover" if claim.kind == "sometimes" else "invariant"
            if claim.kind == "deadlock":
                yield "-- where nobody can move, nobody has to"
                said = either((said, *(both(command.guard) for command in moves)))
            yield f'{kind} "{claim.name}"\n{self._spread(said)};\n'

    def text(self, expr: Expr) -> str:
        return render(self.naming.worded(expr), self.naming.spelled)

    def _spread(self, expr: Expr) -> str:
        return spread(expr, self.text, _SIGNS, "  ")

    def _assignments(self, command: Command) -> Iterator[str]:
        sequence = in_sequence(command)
        before = {self.naming.cells[name]: f"{self.naming.cells[name]}_before" for name in sequence.kept}
        for name in sequence.kept:
            yield f"  var {self.naming.cells[name]}_before: {_type(self.system.cell(name))};"
        yield "begin"
        yield from (f"  {aside} := {cell};" for cell, aside in before.items())
        for name, value in sequence.steps:
            value = self.naming.assigned(self.system.cell(name), value)
            printed = render(value, lambda leaf: before.get(self.naming.spelled(leaf), self.naming.spelled(leaf)))
            yield f"  {self.naming.cells[name]} := {printed};"


def _type(cell: Cell) -> str:
    return "boolean" if cell.type == BOOL else f"0 .. {cell.high}"
