"""A system as Promela, for SPIN.

One process with one control location, so that SPIN's states are ours; each command is one ``d_step``. Claims are looked
at in every state. A state that nothing leaves is one of SPIN's invalid end states only where something is in use.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...language.expressions import BOOL, Expr
from ...targets.promela import render
from ..folding import both, condition_of
from ..system import Cell, Command, System
from .moves import in_sequence, moves_of
from .naming import Naming, filled, heading, spread

_RESERVED = frozenset(
    """
    active assert atomic bit bool break byte c_code c_decl c_expr c_state c_track chan d_step do else empty enabled eval
    false fi full get_priority goto hidden if init inline int len local ltl mtype nempty never nfull notrace np_ od of
    pc_value pid print printf printm priority proctype provided return run select set_priority short show skip timeout
    trace true typedef unless unsigned xr xs
    """.split()
)
_SIGNS = {"and": "&&", "or": "||"}


def export(system: System) -> str:
    """The text of a model that ``spin -a`` reads."""
    return "\n".join(_Text(system).lines()) + "\n"


class _Text:
    def __init__(self, system: System) -> None:
        self.system = system
        self.naming = Naming(system, _RESERVED)
        self.claims = {claim.name: self.naming.take(claim.name) for claim in system.claims}
        self.before: dict[str, str] = {}  # a cell whose value is put aside, and where

    def lines(self) -> Iterator[str]:
        system, naming = self.system, self.naming
        moves = "\n".join(self._moves())
        yield f"""\
/* {heading(system)}
 *
 * Every state, breadth first, the shortest violation first:
 *   spin -o2 -a FILE && cc -O3 -DSAFETY -DNOREDUCE -DBFS -o pan pan.c && ./pan -w24
 * (without -o2, SPIN leaves out of the state what no command reads). Its story: spin -t -p -g FILE.
 * The way to a situation that must arise: spin -DREACH_name -o2 -a FILE, and so on as above.
 */"""
        for constant in naming.constants:
            yield f"#define {constant.name} {constant.value}"
        yield ""
        for cell in system.cells:
            yield f"{_type(cell)} {naming.cells[cell.name]}{_width(cell)};"
        for name, aside in self.before.items():
            cell = system.cell(name)
            yield f"{_type(cell)} {aside}{_width(cell)};  /* 0 but within a step */"
        yield ""
        for claim in system.claims:
            said = self._spread(condition_of(claim), "  ")
            yield f"#define {self.claims[claim.name]} (\n{said})".replace("\n", " \\\n")
        yield f"""
active proctype {naming.take(f"{system.name}_protocol")}() {{
  do
{moves}"""
        yield from self._checks()
        yield "  od\n}"

    def text(self, expr: Expr) -> str:
        return render(self.naming.worded(expr), self.naming.spelled)

    def _spread(self, expr: Expr, indent: str) -> str:
        return spread(expr, self.text, _SIGNS, indent)

    def _moves(self) -> Iterator[str]:
        for command in moves_of(self.system).values():
            yield f"  /* {command.label} */\n  :: d_step {{\n{self._spread(both(command.guard), '       ')} ->"
            *assignments, last = self._assignments(command)
            yield f"{filled([*(f'{item};' for item in assignments), last], '       ')} }}"

    def _assignments(self, command: Command) -> Iterator[str]:
        sequence = in_sequence(command)
        for name in sequence.kept:
            if name not in self.before:
                self.before[name] = self.naming.take(f"{name}.before")
            yield f"{self.before[name]} = {self.naming.cells[name]}"
        for name, value in sequence.steps:
            value = self.naming.assigned(self.system.cell(name), value)
            printed = render(value, lambda leaf: self._kept(self.naming.spelled(leaf), sequence.kept))
            yield f"{self.naming.cells[name]} = {printed}"
        yield from (f"{self.before[name]} = 0" for name in sequence.kept)

    def _kept(self, spelled: str, kept: tuple[str, ...]) -> str:
        return next((self.before[name] for name in kept if self.naming.cells[name] == spelled), spelled)

    def _checks(self) -> Iterator[str]:
        always = [self.claims[claim.name] for claim in self.system.claims if claim.kind == "always"]
        if always:
            yield "\n  /* what holds in every state */"
            signed = [*(f"{name} &&" for name in always[:-1]), always[-1]]
            yield f"  :: d_step {{ !(\n{filled(signed, '         ')}) ->"
            for name in always:
                yield f'       if :: !{name} -> printf("{name} does not hold\\n") :: else fi;'
            yield "       assert(false) }"
        for claim in self.system.claims:
            name = self.claims[claim.name]
            if claim.kind == "sometimes":
                yield f"#ifdef REACH_{name}\n  :: d_step {{ {name} -> assert(false) }}\n#endif"
        quiet = [self.claims[claim.name] for claim in self.system.claims if claim.kind == "deadlock"]
        if quiet:
            yield "  /* here nobody can move, and nobody has to */"
            yield f"  :: timeout && {' && '.join(quiet)}"


def _type(cell: Cell) -> str:
    return "bool" if cell.type == BOOL else "bit" if cell.high == 1 else "unsigned"


def _width(cell: Cell) -> str:
    return f" : {cell.bits}" if _type(cell) == "unsigned" else ""
