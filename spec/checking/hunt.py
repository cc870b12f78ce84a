"""Which property notices each fault: every mutant is explored until one does.

A fault of a machine is looked for in every protocol that fires the event, the smallest first; a fault of a protocol in
that protocol. It is *killed* by the first property that breaks: an ``always``, a deadlock, a ``sometimes`` that is no
longer met, a promise; what fails without a fault notices none. One that changes no state anywhere is *without effect*:
the part that it took away decides nothing that a run meets. One that changes states and breaks nothing in any
*survives*. Both are holes in the properties, unless the spec lists them under ``equivalent:`` with a reason. With too
many states to look at, a fault is *undecided*.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..language.model import Equivalent, Machine
from ..language.protocol import Protocol
from .exploration import VIOLATED, Exploration
from .explore import explore
from .fairness import check_promises
from .grounding import ground
from .layout import Words
from .limits import Limits
from .mutants import MachineFault, ProtocolFault
from .system import System

KILLED, SAME, SURVIVES, UNDECIDED = "killed", "without effect", "survives", "undecided"
STATES_MAX = 1_000_000  # a mutant that has more is not decided


@dataclass(frozen=True, slots=True)
class Catch:
    """What became of one fault: by which property of which protocol it was noticed, and in how many steps.

    ``depth`` is None where no run shows it: a situation that never arises, or a run for ever.
    """

    name: str
    outcome: str  # KILLED | SAME | SURVIVES | UNDECIDED
    protocol: str | None
    by: str | None
    depth: int | None


def hunt(protocols: Sequence[Protocol], faults: Iterable[MachineFault | ProtocolFault]) -> Iterator[Catch]:
    """Look for faults, one after the other; each result is given as soon as it is known.

    Args:
        protocols: all that may notice a fault of a machine, and those that the faults of protocols are in.
        faults: what to look for.

    Raises:
        TooLargeError: a protocol has more states than a mutant may have.
        NeedsScipy: scipy is missing, and a fault is left to a promise.

    """
    search = _Hunt(protocols)
    for fault in faults:
        yield search.of_machine(fault) if isinstance(fault, MachineFault) else search.of_protocol(fault)


def equivalents(machines: Iterable[Machine], protocols: Iterable[Protocol]) -> dict[str, Equivalent]:
    """What the spec says is no fault, by the names that faults have in a hunt."""
    found = {f"{machine.name}.{item.fault}": item for machine in machines for item in machine.equivalent}
    return found | {f"{protocol.name} {item.fault}": item for protocol in protocols for item in protocol.equivalent}


class TooLargeError(Exception):
    """A protocol is not explored in full within the bounds of a hunt."""


class _Hunt:
    def __init__(self, protocols: Sequence[Protocol]) -> None:
        self.right = {protocol.name: _Right.of(protocol) for protocol in protocols}
        self.protocols = sorted(protocols, key=lambda protocol: self.right[protocol.name].found.states)

    def of_machine(self, fault: MachineFault) -> Catch:
        worst = Catch(fault.name, SAME, None, None, None)
        for protocol in self.protocols:
            faulty = fault.made_in(protocol)
            if faulty is not None:
                catch = self._look(fault.name, faulty)
                if catch.outcome == KILLED:
                    return catch
                if worst.outcome == SAME or catch.outcome == UNDECIDED:
                    worst = catch
        return worst

    def of_protocol(self, fault: ProtocolFault) -> Catch:
        return self._look(fault.name, fault.protocol)

    def _look(self, name: str, protocol: Protocol) -> Catch:
        """What became of a fault in one protocol, which has it."""

        def caught(by: str, depth: int | None = None) -> Catch:
            return Catch(name, KILLED, protocol.name, by, depth)

        def missed(outcome: str) -> Catch:
            return Catch(name, outcome, protocol.name, None, None)

        right = self.right[protocol.name]
        system = ground(protocol)
        if right.is_same(system):
            return missed(SAME)
        sound = replace(system, claims=tuple(claim for claim in system.claims if claim.name not in right.broken))
        found = explore(sound, engine="numpy", limits=Limits(states=STATES_MAX), stop_at_first=True)
        if found.violations:
            claim, index = min(found.violations.items(), key=lambda item: item[1])
            return caught(claim, len(found.path(index)))
        if not found.complete:
            return missed(UNDECIDED)
        unmet = [claim for claim, verdict in found.verdicts().items() if verdict == VIOLATED]
        if unmet:
            return caught(unmet[0])
        broken = [promise for promise, lasso in check_promises(found).items() if lasso is not None]
        broken = [promise for promise in broken if promise not in right.broken_promises]
        if broken:
            return caught(broken[0])
        return missed(SAME if right.reaches_the_same(found) else SURVIVES)


@dataclass(frozen=True)
class _Right:
    """A protocol without fault, and what it reaches."""

    found: Exploration

    @cached_property
    def broken(self) -> frozenset[str]:
        """The claims about states that fail all the same."""
        return frozenset(claim for claim, verdict in self.found.verdicts().items() if verdict == VIOLATED)

    @cached_property
    def broken_promises(self) -> frozenset[str]:
        """The promises that do; only asked for where a fault breaks one, as it takes long."""
        return frozenset(promise for promise, lasso in check_promises(self.found).items() if lasso is not None)

    @classmethod
    def of(cls, protocol: Protocol) -> _Right:
        found = explore(ground(protocol), engine="numpy", limits=Limits(states=STATES_MAX))
        if not found.complete:
            raise TooLargeError(f"'{protocol.name}' is too large to look for faults in: {found.why_incomplete}")
        return cls(found)

    def is_same(self, other: System) -> bool:
        """Whether a system has the very same cells and commands."""
        mine = self.found.system
        return mine.cells == other.cells and mine.commands == other.commands

    def reaches_the_same(self, other: Exploration) -> bool:
        """Whether another search found the same states and transitions, so that the fault decided nothing."""
        mine = self.found
        if (mine.states, mine.transitions, mine.depth) != (other.states, other.transitions, other.depth):
            return False
        if mine.system.cells != other.system.cells:
            return False
        return np.array_equal(_in_order(mine.words), _in_order(other.words))


def _in_order(states: Words) -> Words:
    """States, which are rows of words, in an order of their own; each stays whole."""
    return states[np.lexsort(states.T)]
