"""A system as an SMT-LIB 2 script for bounded checking: whether a claim is violated after at most so many steps.

``check-sat`` answers sat exactly when one is. The relation between a state and the next is defined once, over all
cells, and used for each step; a run may also stand still, so that short runs are among those of full length.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...language.expressions import BOOL, Expr
from ...targets.smt import render
from ..folding import both, condition_of, either
from ..system import Command, System
from .moves import moves_of
from .naming import Naming, filled, heading

_RESERVED = frozenset(
    "abs and assert distinct div exit false first ite let mod move not or par pop push step true xor".split()
)
STEPS = 10  # of a run, unless told


def export(system: System, steps: int = STEPS) -> str:
    """The text of a script that Z3 and other solvers read.

    Args:
        system: what to lay down.
        steps: how many steps a run may take; 0 looks at the first state alone.

    """
    return "\n".join(_Text(system, steps).lines()) + "\n"


class _Text:
    def __init__(self, system: System, steps: int) -> None:
        self.system, self.steps = system, steps
        self.naming = Naming(system, _RESERVED)
        self.claims = {claim.name: self.naming.take(claim.name) for claim in system.claims}
        self.moves = moves_of(system)

    def lines(self) -> Iterator[str]:
        system, steps = self.system, self.steps
        yield f"; {heading(system)}, runs of at most {steps} steps"
        yield "; sat: a claim is violated; (get-value (move@0 move@1 ..)) and the cells tell how. unsat: none is."
        yield "(set-option :produce-models true)\n(set-logic QF_LIA)\n"
        yield from (f"(define-fun {constant.name} () Int {constant.value})" for constant in self.naming.constants)
        yield "\n; the first state"
        yield self._defined("first", [""], self._all(f"(= {cell} {zero})" for cell, zero in self._zeros()))
        yield "\n; one step from a state to the next; move is the number of the command that is taken, -1 for none"
        yield self._defined("step", ["", ".next"], "\n".join(self._steps()), "(move Int)")
        for claim in system.claims:
            said = condition_of(claim)
            if claim.kind == "sometimes":
                yield "\n; must arise"
            elif claim.kind == "deadlock":
                yield "\n; where nobody can move, nobody has to"
                said = either((said, *(both(command.guard) for command in self.moves.values())))
            else:
                yield ""
            yield self._defined(self.claims[claim.name], [""], self.text(said))
        yield "\n; a run"
        for at in range(steps + 1):
            for cell in system.cells:
                yield f"(declare-const {self.naming.cells[cell.name]}@{at} {_sort(cell.type)})"
        yield f"(assert (first {self._cells(0)}))"
        for at in range(steps):
            yield f"(declare-const move@{at} Int)\n(assert (step move@{at} {self._cells(at)} {self._cells(at + 1)}))"
        yield "\n; that ends badly"
        judged = [self.claims[claim.name] for claim in system.claims if claim.kind != "sometimes"]
        yield f"(assert (not (and true\n{filled((f'({name} {self._cells(steps)})' for name in judged), '  ')})))"
        yield "(check-sat)"

    def text(self, expr: Expr) -> str:
        return render(self.naming.worded(expr), self.naming.spelled)

    def _zeros(self) -> Iterator[tuple[str, str]]:
        return ((self.naming.cells[c.name], "false" if c.type == BOOL else "0") for c in self.system.cells)

    def _cells(self, at: int) -> str:
        return " ".join(f"{self.naming.cells[cell.name]}@{at}" for cell in self.system.cells)

    def _defined(self, name: str, ends: list[str], body: str, before: str = "") -> str:
        """A function of the cells of one state, or of two, that says whether something holds."""
        words = [f"({self.naming.cells[c.name]}{end} {_sort(c.type)})" for end in ends for c in self.system.cells]
        words = [before, *words] if before else words
        return f"(define-fun {name} (\n{filled(words, '    ')}) Bool\n  {body})"

    def _all(self, parts: Iterator[str]) -> str:
        return f"(and true\n{filled(parts, '    ')})"

    def _steps(self) -> Iterator[str]:
        yield "(or"
        for number, command in self.moves.items():
            yield f"    ; {command.label}"
            yield f"    (and (= move {number}) {self.text(both(command.guard))}\n{self._after(command)})"
        stays = filled((f"(= {name}.next {name})" for name in self.naming.cells.values()), "         ")
        yield f"    ; nobody moves\n    (and (= move (- 1))\n{stays}))"

    def _after(self, command: Command) -> str:
        values = {
            name: render(self.naming.assigned(self.system.cell(name), value), self.naming.spelled)
            for name, value in command.updates
        }
        cells = self.naming.cells.items()
        return filled((f"(= {name}.next {values.get(cell, name)})" for cell, name in cells), "         ")


def _sort(type_: str) -> str:
    return "Bool" if type_ == BOOL else "Int"
