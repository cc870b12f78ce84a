"""The mutants of `kvfsm check`: which faults are made, and what became of each."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...spec.checking.hunt import KILLED, SAME, SURVIVES, UNDECIDED, Catch, equivalents, hunt
from ...spec.checking.mutants import MachineFault, ProtocolFault, machine_faults, protocol_faults
from ...spec.language.load import Spec
from ...spec.language.model import Equivalent
from ...spec.language.narrowing import with_faulty
from ...spec.language.problems import Problem, closest
from ...spec.language.protocol import Protocol, ProtocolMutant

_MEANINGS = {
    SURVIVES: "runs change, and every claim holds all the same",
    SAME: "no run changes: what was taken away decides nothing within these bounds",
    UNDECIDED: "too many states to look at; lower a bound with --bound",
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault and what became of it; ``owner`` is the protocol that it is in, or None: it is in a machine."""

    owner: str | None
    declared: bool  # a protocol names it itself, and then it must be killed
    catch: Catch
    equivalent: Equivalent | None  # what the spec says of it

    @property
    def is_hole(self) -> bool:
        """Whether no property notices it, although it is a fault."""
        excused = self.equivalent is not None and not self.declared and self.catch.outcome in (SAME, SURVIVES)
        return self.catch.outcome != KILLED and not excused


def hunted(spec: Spec, chosen: Sequence[Protocol], whole: bool) -> Iterator[Mutant]:
    """Every fault, one after the other, with a line of progress.

    Args:
        spec: whose machines are broken.
        chosen: the protocols that look, and whose own faults are made.
        whole: whether faults of machines are made too; they may need any protocol to be noticed.

    """
    made: list[tuple[str | None, bool, MachineFault | ProtocolFault]] = []
    for protocol in chosen:
        made += [(protocol.name, True, _declared(protocol, mutant)) for mutant in protocol.mutants]
        made += [(protocol.name, False, fault) for fault in protocol_faults(protocol)]
    if whole:
        made += [(None, False, fault) for machine in spec.all_machines
                 for fault in machine_faults(machine)]
    said = _said(spec, chosen, whole)
    catches = hunt(chosen, [fault for _, _, fault in made])
    try:
        for number, ((owner, declared, fault), catch) in enumerate(zip(made, catches, strict=True), 1):
            if sys.stderr.isatty():
                print(f"\r\x1b[K[{number}/{len(made)}] {fault.name}", end="", file=sys.stderr, flush=True)
            yield Mutant(owner, declared, catch, said.get(fault.name))
    finally:
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def wrong_marks(spec: Spec, chosen: Sequence[Protocol], whole: bool, mutants: Sequence[Mutant]) -> list[Problem]:
    """Entries of ``equivalent:`` that name no fault, or one that a property does notice."""
    outcomes = {mutant.catch.name: mutant.catch for mutant in mutants if not mutant.declared}
    problems = []
    for name, mark in _said(spec, chosen, whole).items():
        catch = outcomes.get(name)
        if catch is None:
            known = [other.removeprefix(name.removesuffix(mark.fault)) for other in outcomes]
            text = f"'equivalent' names '{mark.fault}', which is no fault that a hunt makes"
            problems.append(Problem("E423", mark.at, text, closest(mark.fault, known, "remove it, or name one")))
        elif catch.outcome == KILLED:
            text = f"'{mark.fault}' is called equivalent, but {catch.protocol}.{catch.by} notices it"
            problems.append(Problem("E423", mark.at, text, "remove it: it is a fault, and it is caught"))
    return problems


def _said(spec: Spec, chosen: Sequence[Protocol], whole: bool) -> dict[str, Equivalent]:
    return equivalents(spec.all_machines if whole else (), chosen)


def lines(mutants: Sequence[Mutant]) -> Iterable[str]:
    """A line for each fault, and how many were killed."""
    width = max(len(mutant.catch.name) for mutant in mutants)
    for mutant in mutants:
        yield f"{mutant.catch.name:{width}}  {_outcome(mutant)}"
    killed = sum(mutant.catch.outcome == KILLED for mutant in mutants)
    holes = sum(mutant.is_hole for mutant in mutants)
    excused = len(mutants) - killed - holes
    yield f"{len(mutants)} mutants: {killed} killed, {excused} equivalent, {holes} not noticed"
    missed = {mutant.catch.outcome for mutant in mutants if mutant.is_hole}
    yield from (f"  {outcome}: {meaning}" for outcome, meaning in _MEANINGS.items() if outcome in missed)
    if missed & {SAME, SURVIVES}:
        yield "  add a claim that breaks with it; or, if it is no fault, list it under 'equivalent:' with the reason"


def data(mutant: Mutant) -> dict[str, Any]:
    """One fault of ``--json``."""
    catch = mutant.catch
    return {
        "name": catch.name.partition(": ")[2] if mutant.declared else catch.name,
        "declared": mutant.declared,
        "outcome": catch.outcome,
        "killed": catch.outcome == KILLED,
        "by": catch.by,
        "protocol": catch.protocol,
        "depth": catch.depth,
        "equivalent": mutant.equivalent.reason if mutant.equivalent is not None else None,
    }


def _outcome(mutant: Mutant) -> str:
    catch = mutant.catch
    if catch.outcome == KILLED:
        steps = f" in {catch.depth} steps" if catch.depth is not None else ""
        return f"killed by {catch.protocol}.{catch.by}{steps}"
    if mutant.is_hole or mutant.equivalent is None:
        return f"NOT NOTICED, {catch.outcome}"
    return f"equivalent, {catch.outcome}: {mutant.equivalent.reason}"


def _declared(protocol: Protocol, mutant: ProtocolMutant) -> ProtocolFault:
    """A mutant that the protocol names, as a protocol of its own."""
    return ProtocolFault(f"{protocol.name}: {mutant.name}", with_faulty(protocol, mutant.faulty))
