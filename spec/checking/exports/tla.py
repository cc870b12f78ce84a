"""A system as TLA+, for TLC: a module, and the configuration that says what to check in it.

Each command is an action. A state that nothing leaves is judged by an invariant, so TLC's own search for deadlocks has
to be switched off. Promises are temporal formulas under weak fairness, which TLC checks when the configuration asks it
to.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...language.expressions import BOOL, Choice, Compare, Expr, Logic
from ...targets.tla import render
from ..folding import both
from ..system import Claim, Command, Promise, System
from .moves import moves_of
from .naming import Naming, filled, heading


def export(system: System, module: str | None = None) -> str:
    """The text of a module; TLC wants its name, the protocol's unless another is given, to be that of the file."""
    return "\n".join(_Text(system).lines(module or system.name)) + "\n"


def configuration(system: System) -> str:
    """The text of the .cfg file beside the module."""
    text = _Text(system)
    lines = ["SPECIFICATION Spec", "INVARIANTS"]
    lines += [f"  {text.claims[claim.name]}" for claim in system.claims if claim.kind != "sometimes"]
    reached = [text.claims[claim.name] for claim in system.claims if claim.kind == "sometimes"]
    if reached:
        lines.append("\\* Situations that must arise: each of these is violated, by the shortest way to it.")
        lines += [f"\\* INVARIANT never_{name}" for name in reached]
    if text.promises:
        lines.append("\\* Promises: name the specification in place of Spec, and the property.")
        lines += [f"\\* SPECIFICATION fair_{name}  PROPERTY {name}" for name in text.promises.values()]
    return "\n".join(lines) + "\n"


class _Text:
    def __init__(self, system: System) -> None:
        self.system = system
        self.naming = Naming(system, ("Init", "Next", "Spec", "vars"))
        self.claims = {claim.name: self.naming.take(claim.name) for claim in system.claims}
        self.promises = {promise.name: self.naming.take(promise.name) for promise in system.promises}
        self.moves = moves_of(system)
        self.actions = {number: self.naming.take(command.label) for number, command in self.moves.items()}

    def lines(self, module: str) -> Iterator[str]:
        system, naming = self.system, self.naming
        yield f"---- MODULE {module} ----\n\\* {heading(system)}"
        yield "\\* Every state, the shortest violation first: java -cp tla2tools.jar tlc2.TLC -deadlock FILE"
        yield "EXTENDS Integers\n"
        cells = [naming.cells[cell.name] for cell in system.cells]
        yield f"VARIABLES\n{filled(_separated(cells), '  ')}\nvars == <<\n{filled(_separated(cells), '  ')}>>\n"
        yield from (f"{constant.name} == {constant.value}" for constant in naming.constants)
        yield "\nInit =="
        yield from (f"  /\\ {naming.cells[c.name]} = {'FALSE' if c.type == BOOL else 0}" for c in system.cells)
        for number, command in self.moves.items():
            yield f"\n\\* {command.label}\n{self.actions[number]} =="
            yield from self._action(command)
        yield "\nNext =="
        yield from (f"  \\/ {name}" for name in self.actions.values())
        yield "\nSpec == Init /\\ [][Next]_vars"
        for claim in system.claims:
            yield from self._claim(claim)
        for promise in system.promises:
            yield from self._promise(promise)
        yield "===="

    def text(self, expr: Expr) -> str:
        return render(self.naming.worded(expr), self.naming.spelled)

    def _action(self, command: Command) -> Iterator[str]:
        yield from (f"  /\\ {self._operand(part)}" for part in command.guard)
        for name, value in command.updates:
            printed = render(self.naming.assigned(self.system.cell(name), value), self.naming.spelled)
            if isinstance(value, Logic | Choice | Compare):
                printed = f"({printed})"
            yield f"  /\\ {self.naming.cells[name]}' = {printed}"
        written = {name for name, _ in command.updates}
        rest = [self.naming.cells[cell.name] for cell in self.system.cells if cell.name not in written]
        if rest:
            yield f"  /\\ UNCHANGED <<\n{filled(_separated(rest), '       ')}>>"

    def _operand(self, expr: Expr) -> str:
        """An expression as an item of a list: in parentheses where it would take in what follows."""
        return f"({self.text(expr)})" if isinstance(expr, Logic | Choice) else self.text(expr)

    def _claim(self, claim: Claim) -> Iterator[str]:
        name = self.claims[claim.name]
        match claim.kind:
            case "always":
                yield f"\n{name} =="
                yield from (f"  /\\ {self._operand(expr)}" for expr in claim.exprs)
            case "sometimes":
                yield f"\n\\* must arise\n{name} =="
                yield from (f"  \\/ {self._operand(expr)}" for expr in claim.exprs)
                yield f"never_{name} == ~{name}"
            case _:
                yield f"\n\\* where nobody can move, nobody has to\n{name} =="
                yield f"  \\/ {self._operand(both(claim.exprs))}\n  \\/ ENABLED Next"

    def _promise(self, promise: Promise) -> Iterator[str]:
        """``leads_to``: what is promised, and the runs that it is promised for."""
        name = self.promises[promise.name]
        yield f"\n{name} =="
        for source, target in promise.pairs:
            yield f"  /\\ {self._operand(source)} ~> {self._operand(target)}"
        yield f"fair_{name} ==\n  /\\ Spec"
        for group in promise.fair:
            steps = " \\/ ".join(self.actions[number] for number in group if number in self.actions)
            if steps:
                yield f"  /\\ WF_vars({steps})"


def _separated(words: list[str]) -> list[str]:
    """The words with commas after all but the last."""
    return [f"{word}," for word in words[:-1]] + words[-1:]
