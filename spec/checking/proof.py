"""Claims proved for any number of slots and copies, by induction over the steps.

Every claim is a statement about one copy of each actor and some slots, and a step is taken by one copy that touches
the slots which its locals name. So if a step could break a claim among any number of slots and copies, it could do so
among just those that the claim and the step speak of: leave out all others, and every claim still holds before the
step, for fewer copies and slots. It is therefore enough to try every state, reachable or not, of one size: the claims
hold before, a command is taken, the claim must hold after. ``count`` is the exception, since it speaks of all copies;
those left out are counted by a number that the step does not change (``ground(for_proof=True)``).

Claims are proved together: what holds in the first state and is kept by every command as long as all of them hold. One
that is not kept is left out, and the rest tried again. A claim that is true but not kept needs a *lemma* beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from ..language.expressions import Compare, Expr, Name, Number, Remote
from ..language.protocol import Protocol, range_of
from ..language.solver import to_z3
from ..language.trees import names_in, rewritten, walked
from .dead import dead_steps
from .folding import TRUE, folded, negation
from .grounding import ground
from .symmetry import Symmetry, symmetry_of
from .system import Claim, Command, System

Reread = Callable[[Mapping[str, int]], Protocol]  # the same protocol with other bounds


class NeedsZ3(Exception):
    """Proofs are found by Z3, which is not installed."""

    def __init__(self) -> None:
        super().__init__("proofs need Z3; fix: pip install 'kvfsm[proofs]'")


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A counterexample to induction: every claim that was still assumed holds in ``before``, and ``command`` breaks it.

    ``before`` may be a state that no run reaches; then a lemma that rules it out helps. ``at_first``: it is the first
    state itself that does not fulfil the claim.
    """

    command: Command | None
    binding: str
    before: Mapping[str, int]  # cell -> value; cells that do not matter are left out
    assumed: tuple[str, ...]

    @property
    def at_first(self) -> bool:
        """Whether the claim fails before anything has happened."""
        return self.command is None


@dataclass(frozen=True, slots=True)
class Proof:
    """What became of one claim; ``sizes`` are the bounds that it holds for any value of."""

    name: str
    proved: bool
    sizes: tuple[str, ...]
    obstacle: Obstacle | None


def prove(protocol: Protocol, reread: Reread) -> dict[str, Proof]:
    """Every ``always`` and ``lemma`` of a protocol and of its machines: proved for all sizes, or not.

    Args:
        protocol: as its file says.
        reread: reads the same file with other bounds, for the one size that decides.

    Raises:
        NeedsZ3: Z3 is missing.

    """
    if find_spec("z3") is None:
        raise NeedsZ3
    bounds = deciding_size(protocol, reread)
    large = reread(bounds)
    system = ground(large, for_proof=True)
    sizes = tuple(bounds)
    search = _Induction(system, symmetry_of(large, system))
    return {name: Proof(name, obstacle is None, sizes, obstacle) for name, obstacle in search.run().items()}


def deciding_size(protocol: Protocol, reread: Reread) -> dict[str, int]:
    """The bounds that decide for any: enough copies and slots for one step and one claim.

    Of each actor two copies: one that moves and one that a claim speaks of. Of the slots as many as these copies can
    name, before a step and after it, and a claim. A local that is left out names slot 0 for all that it matters.
    """
    sizes = {}
    for bound in protocol.bounds:
        more = reread({bound.name: bound.value + 1})
        actors = [old.name for old, new in zip(protocol.programs, more.programs, strict=True) if old.count != new.count]
        pools = [
            old.name for old, new in zip(protocol.instances, more.instances, strict=True) if old.slots != new.slots
        ]
        if not actors and not pools:
            continue
        wanted = 2 if actors else 1
        if pools:
            wanted = max(wanted, _slots(protocol, more))
        sizes[bound.name] = wanted
    return sizes


def _slots(protocol: Protocol, more: Protocol) -> int:
    """How many slots a step and a claim can speak of, where ``more`` has one slot more."""
    system = ground(protocol, for_proof=True)
    named = picked = 0
    for old, new in zip(protocol.programs, more.programs, strict=True):
        grown = {a.name for a, b in zip(old.locals, new.locals, strict=True) if a.high != b.high}
        cells = {cell.field: cell for cell in system.cells if cell.owner == old.name and cell.field in grown}
        named += min(old.count, 2) * len(cells)
        # What is chosen needs a slot beside the one that the local names still, unless that is of no account any more.
        dead = {local: dead_steps(system, cell) for local, cell in cells.items()}
        for step in old.steps:
            chosen = [pick.local for pick in step.choose if pick.local in grown]
            picked = max(picked, sum(step.code not in dead.get(local, ()) for local in chosen))
    actors = frozenset(program.name for program in protocol.programs)
    exprs = [item.that for item in protocol.properties if item.kind != "sometimes"]
    free = max([1, *(len(range_of(expr, actors).indexes) for expr in exprs)])
    literals = [
        part.index.value
        for expr in (*exprs, *_step_exprs(protocol))
        for part in walked(expr)
        if isinstance(part, Remote) and isinstance(part.index, Number)
    ]
    fired = [
        fire.slot.value
        for program in protocol.programs
        for step in program.steps
        for fire in step.fire
        if isinstance(fire.slot, Number)
    ]
    return named + picked + free + len(set(literals) | set(fired))


def _step_exprs(protocol: Protocol) -> Iterator[Expr]:
    for program in protocol.programs:
        for step in program.steps:
            if step.when is not None:
                yield step.when
            yield from (item.value for item in step.do)
            yield from (value for fire in step.fire for _, value in fire.args)


class _Induction:
    def __init__(self, system: System, alike: Symmetry) -> None:
        self.system = system
        self.z3: Any = import_module("z3")
        self.names = {cell.name: self.z3.Int(cell.name) for cell in system.cells}
        # Copies are alike, so that one of each actor moves for all; the claims speak of every copy. So are slots.
        self.commands = [command for command in system.commands if command.copy == 0 and _is_first(command, alike)]
        self.solver = self.z3.Solver()
        self.solver.set("random_seed", 0)
        for cell in system.cells:
            self.solver.add(self.names[cell.name] >= 0, self.names[cell.name] <= cell.high)
        self.assumed = {claim.name: self.z3.Bool(claim.name) for claim in system.claims if claim.kind == "always"}
        for claim in system.claims:
            if claim.kind == "always":
                self.solver.add(self.z3.Implies(self.assumed[claim.name], self.z3.And(*map(self._z3, claim.exprs))))
        # (claim, command) -> the claims that its proof rests on, which stands as long as all of these do
        self.rests_on: dict[tuple[str, int], frozenset[str]] = {}

    def run(self) -> dict[str, Obstacle | None]:
        """What stands in the way of each claim; None: it is proved."""
        found: dict[str, Obstacle | None] = {}
        claims = [claim for claim in self.system.claims if claim.kind == "always"]
        kept = []
        for claim in claims:
            wrong = self._wrong_at_first(claim)
            found[claim.name] = wrong
            if wrong is None:
                kept.append(claim)
        settled = False
        while not settled:
            settled = True
            for claim in kept:
                obstacle = self._obstacle(claim, kept)
                if obstacle is not None:
                    found[claim.name] = obstacle
                    kept = [other for other in kept if other is not claim]
                    settled = False
        return found

    def _wrong_at_first(self, claim: Claim) -> Obstacle | None:
        for expr, binding in zip(claim.exprs, claim.bindings, strict=True):
            if not self.system.function(expr)(self.system.initial):
                return Obstacle(None, binding, {}, ())
        return None

    def _obstacle(self, claim: Claim, kept: list[Claim]) -> Obstacle | None:
        """A state in which all that is kept holds, and a command that breaks ``claim`` there."""
        names = frozenset(other.name for other in kept)
        for number, command in enumerate(self.commands):
            rests_on = self.rests_on.get((claim.name, number))
            if rests_on is not None and rests_on <= names:
                continue
            broken = [
                (negation(after), binding)
                for expr, binding in zip(claim.exprs, claim.bindings, strict=True)
                for after in [_after(expr, command)]
                if after not in (TRUE, expr)
            ]
            if not broken:
                self.rests_on[claim.name, number] = frozenset({claim.name})
                continue
            self.solver.push()
            for expr in command.guard:
                self.solver.add(self._z3(expr))
            self.solver.add(self.z3.Or(*(self._z3(expr) for expr, _ in broken)))
            answer = self.solver.check(*(self.assumed[name] for name in sorted(names)))
            model = self.solver.model() if answer == self.z3.sat else None
            core = frozenset(map(str, self.solver.unsat_core())) if answer == self.z3.unsat else None
            self.solver.pop()
            if model is not None:
                return self._told(model, command, broken, kept)
            if core is None:
                return Obstacle(command, "Z3 does not know", {}, tuple(names))
            self.rests_on[claim.name, number] = core
        return None

    def _told(self, model: Any, command: Command, broken: list[tuple[Expr, str]], kept: list[Claim]) -> Obstacle:
        values = {name: model.eval(var, model_completion=True).as_long() for name, var in self.names.items()}
        state = tuple(values[cell.name] for cell in self.system.cells)
        binding = next(where for expr, where in broken if self.system.function(expr)(state))
        return Obstacle(command, binding, values, tuple(claim.name for claim in kept))

    def _z3(self, expr: Expr) -> Any:
        return to_z3(expr, self.names, self.z3)


def _is_first(command: Command, alike: Symmetry) -> bool:
    """Whether a command stands for all that differ from it by numbers of slots: it names them in ascending order."""
    for part in alike.slots:
        pointers = {pointer.cell for pointer in part.pointers}
        named = [fired.slot for fired in command.fired if fired.instance in part.instances]
        named += [value for name, value in command.choices if f"{command.actor}[{command.copy}].{name}" in pointers]
        for expr in command.guard:
            match expr:
                case Compare("==", Name(name=name), Number(value)) if name in pointers:
                    named.append(value)
        first = [slot for slot in dict.fromkeys(named) if slot in part.numbers]
        if first != list(part.numbers[: len(first)]):
            return False
    return True


def _after(expr: Expr, command: Command) -> Expr:
    """What an expression says after a command, in terms of the state before it."""
    updates = dict(command.updates)
    if not any(name.name in updates for name in names_in(expr)):
        return expr

    def rule(part: Expr) -> Expr:
        return updates.get(part.name, part) if isinstance(part, Name) else part

    return folded(rewritten(expr, rule))
