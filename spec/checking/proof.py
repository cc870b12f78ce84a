"""Claims proved for any number of slots and copies, by induction over the steps.

Every claim is a statement about one copy of each actor and some slots, and a step is taken by one copy that touches
the slots which its locals name. So if a step could break a claim among many slots and copies, it could do so among just
those that the claim and the step speak of: leave out all others, and every claim still holds before the step, for fewer
copies and slots. It is therefore enough to try every state, reachable or not, of the sizes up to one that has room for
all of these (``sizes.py``): the claims hold before, a command is taken, the claim must hold after. Smaller sizes are
tried too, since a claim may fail just because there is no other slot, or no other copy. Slots can be left out only if
those left are like them: all but a few that are named by number must be alike, or the bound is not spoken of. Fields
stay as wide as the protocol narrows them.

``count`` is the exception, since it speaks of all copies. Those left out are counted by a number that the step does
not change (``ground(for_proof=True)``), which is true of a condition on what the copies themselves hold; a claim that
counts by anything else is not proved. At first that number is 0, or anything where copies fulfil the condition from the
start.

Claims are proved together: what holds in the first state and is kept by every command as long as all of them hold. One
that is not kept is left out, and the rest tried again. A claim that is true but not kept needs a *lemma* beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from ..language.expressions import Count, Expr, Name, Remote
from ..language.protocol import Protocol
from ..language.solver import to_z3
from ..language.trees import names_in, walked
from .folding import TRUE, negation, required, substituted
from .grounding import AT_FIRST, OTHERS, ground
from .sizes import Reread, growths_of, sizes_of
from .symmetry import SlotClass
from .system import Claim, Command, State, System


class NeedsZ3(Exception):
    """Proofs are found by Z3, which is not installed."""

    def __init__(self) -> None:
        super().__init__("proofs need Z3; fix: pip install 'kvfsm[proofs]'")


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A counterexample to induction: every claim that was not lost holds in ``before``, and ``command`` breaks it.

    ``before`` may be a state that no run reaches; then a lemma that rules it out helps. As many of its cells as can be
    are 0. Without a command: the first state itself does not fulfil the claim, or ``why`` says what the matter is.
    """

    command: Command | None
    binding: str
    before: Mapping[str, int]  # cell -> value
    told: tuple[str, ...] = ()  # the cells that are not 0, as the spec calls their values: "reader[0].at = release"
    why: str | None = None

    @property
    def at_first(self) -> bool:
        """Whether the claim fails before anything has happened."""
        return self.command is None and self.why is None


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
        reread: reads the same file with other bounds, for the sizes that decide; None where these are none of its.

    Raises:
        NeedsZ3: Z3 is missing.

    """
    if find_spec("z3") is None:
        raise NeedsZ3
    lost = _uncountable(protocol)
    growths = growths_of(protocol, reread, frozenset(lost))
    lost |= {name: _because(why) for growth in growths for name, why in growth.refused.items()}
    sizes = sizes_of(growths)
    growing = frozenset().union(*(growth.actors for growth in growths))
    smaller = (reread(bounds) for bounds in reversed(sizes))
    alike = tuple(part for growth in growths for part in growth.alike)
    searches = [_Induction(ground(each, for_proof=True), alike, growing) for each in smaller if each is not None]
    settled = False
    while not settled:  # what one size takes away, another may have rested on
        before = len(lost)
        for search in searches:
            search.run(lost)
        settled = len(lost) == before
    names = tuple(sizes[-1])
    return {name: Proof(name, name not in lost, names, lost.get(name)) for name in searches[0].claims}


def _uncountable(protocol: Protocol) -> dict[str, Obstacle]:
    """Claims that count copies by what these do not hold themselves, or by more than one slot."""
    found = {}
    for item in protocol.properties:
        for part in walked(item.that):
            if isinstance(part, Count):
                inner = tuple(walked(part.condition))
                if any(isinstance(each, Remote) and each.owner != part.actor for each in inner):
                    why = "it counts by what the copies do not hold themselves, which a step of another can change"
                    found[item.name] = _because(why)
                if len({each.name for each in inner if isinstance(each, Name) and each.kind == "index"}) > 1:
                    found[item.name] = _because("it counts by more than one index at once")
    return found


def _because(why: str) -> Obstacle:
    return Obstacle(None, "", {}, why=why)


class _Induction:
    """The induction at one size; Z3's solver, with what it was told already."""

    def __init__(self, system: System, alike: tuple[SlotClass, ...], growing: frozenset[str]) -> None:
        self.system = system
        self.z3: Any = import_module("z3")
        self.claims = {claim.name: claim for claim in system.claims if claim.kind == "always"}
        self.names = {cell.name: self.z3.Int(cell.name) for cell in system.cells}
        # Copies are alike, so that one of each actor moves for all; the claims speak of every copy. So are slots.
        self.commands = [command for command in system.commands if command.copy == 0 and _is_first(command, alike)]
        self.solver = self.z3.Solver()
        self.solver.set("random_seed", 0)
        for cell in system.cells:
            self.solver.add(self.names[cell.name] >= 0)
            if not cell.field.startswith(OTHERS):
                self.solver.add(self.names[cell.name] <= cell.high)
            elif not any(cell.field.startswith(f"{OTHERS}{actor}:") for actor in growing):
                self.solver.add(self.names[cell.name] == 0)
        self.assumed = {name: self.z3.Bool(name) for name in self.claims}
        for name, claim in self.claims.items():
            self.solver.add(self.z3.Implies(self.assumed[name], self.z3.And(*map(self._z3, claim.exprs))))
        # (claim, command) -> the claims that its proof rests on, which stands as long as all of these do
        self.rests_on: dict[tuple[str, int], frozenset[str]] = {}

    def run(self, lost: dict[str, Obstacle]) -> None:
        """Add to ``lost`` what is not kept here, with what stands in its way, until the rest is."""
        for name, claim in self.claims.items():
            if name not in lost:
                wrong = self._wrong_at_first(claim)
                if wrong is not None:
                    lost[name] = wrong
        settled = False
        while not settled:
            settled = True
            for name, claim in self.claims.items():
                if name not in lost:
                    obstacle = self._obstacle(claim, frozenset(self.claims) - frozenset(lost))
                    if obstacle is not None:
                        lost[name] = obstacle
                        settled = False

    def _wrong_at_first(self, claim: Claim) -> Obstacle | None:
        """All cells are 0 at first, but for the number of copies left out that fulfil a condition from then on."""
        for expr, binding in zip(claim.exprs, claim.bindings, strict=True):
            read = {name.name for name in names_in(expr)}
            many = {name for name in read if self.system.cell(name).field.endswith(AT_FIRST)}
            if not many:
                if not self.system.function(expr)(self.system.initial):
                    return Obstacle(None, binding, {})
                continue
            self.solver.push()
            self.solver.add(*(self.names[name] == 0 for name in read - many), self.z3.Not(self._z3(expr)))
            answer = self.solver.check()
            self.solver.pop()
            if answer != self.z3.unsat:
                return Obstacle(None, binding, {})
        return None

    def _obstacle(self, claim: Claim, kept: frozenset[str]) -> Obstacle | None:
        """A state in which all that is kept holds, and a command that breaks ``claim`` there."""
        for number, command in enumerate(self.commands):
            rests_on = self.rests_on.get((claim.name, number))
            if rests_on is not None and rests_on <= kept:
                continue
            updates = dict(command.updates)
            broken = [
                (negation(after), binding)
                for expr, binding in zip(claim.exprs, claim.bindings, strict=True)
                for after in [substituted(expr, updates)]
                if after not in (TRUE, expr)
            ]
            if not broken:
                self.rests_on[claim.name, number] = frozenset({claim.name})
                continue
            self.solver.push()
            for expr in command.guard:
                self.solver.add(self._z3(expr))
            self.solver.add(self.z3.Or(*(self._z3(expr) for expr, _ in broken)))
            answer = self.solver.check(*(self.assumed[name] for name in sorted(kept)))
            model = self.solver.model() if answer == self.z3.sat else None
            core = frozenset(map(str, self.solver.unsat_core())) if answer == self.z3.unsat else None
            self.solver.pop()
            if model is not None:
                return self._told(model, command, broken, kept)
            if core is None:
                return Obstacle(command, "", {}, why="Z3 does not know")
            self.rests_on[claim.name, number] = core
        return None

    def _told(self, model: Any, command: Command, broken: list[tuple[Expr, str]], kept: frozenset[str]) -> Obstacle:
        state = [model.eval(self.names[cell.name], model_completion=True).as_long() for cell in self.system.cells]
        wrong, binding = next((expr, where) for expr, where in broken if self.system.function(expr)(tuple(state)))
        needed = [expr for name in self.claims if name in kept for expr in self.claims[name].exprs]
        state = self._plainer(state, [*command.guard, wrong, *needed])
        told = tuple(
            f"{cell.name} = {cell.shown(value)}" for cell, value in zip(self.system.cells, state, strict=True) if value
        )
        before = {cell.name: value for cell, value in zip(self.system.cells, state, strict=True)}
        return Obstacle(command, binding, before, told)

    def _plainer(self, state: list[int], needed: list[Expr]) -> list[int]:
        """The state with each cell 0, or as small as it can be, while all that is needed still holds."""
        readers: dict[str, list[Callable[[State], int]]] = {}
        for expr in needed:
            holds = self.system.function(expr)
            for name in {name.name for name in names_in(expr)}:
                readers.setdefault(name, []).append(holds)
        changed = True
        while changed:
            changed = False
            for place, cell in enumerate(self.system.cells):
                for value in range(min(state[place], 16)):
                    trial = (*state[:place], value, *state[place + 1 :])
                    if all(holds(trial) for holds in readers.get(cell.name, ())):
                        state, changed = list(trial), True
                        break
        return state

    def _z3(self, expr: Expr) -> Any:
        return to_z3(expr, self.names, self.z3)


def _is_first(command: Command, alike: tuple[SlotClass, ...]) -> bool:
    """Whether a command stands for all that differ from it by numbers of slots: it names them in ascending order.

    What is alike among many slots is so among those of them that there are in a smaller size.
    """
    for part in alike:
        pointers = {pointer.cell for pointer in part.pointers}
        named = [fired.slot for fired in command.fired if fired.instance in part.instances]
        named += [value for name, value in command.choices if f"{command.actor}[{command.copy}].{name}" in pointers]
        named += [value for name, value in required(command.guard) if name in pointers]
        first = [slot for slot in dict.fromkeys(named) if slot in part.numbers]
        if first != list(part.numbers[: len(first)]):
            return False
    return True
