"""One protocol, checked: every claim with a verdict, how it was come by, and the story of each that fails.

``check_protocol`` lays the protocol flat, searches it, follows the promises, and tells what went wrong. A search that
ends early decides only what it has seen broken or met; everything else is ``unknown``, which is never a pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np

from ..language.expressions import Compare, Expr, Logic, Remote, Value
from ..language.problems import Place, Problem
from ..language.protocol import Protocol
from .engines.canonical import Renumbering
from .exploration import HOLDS, UNKNOWN, VIOLATED, Exploration
from .explore import explore
from .fairness import NeedsScipy, check_promises
from .grounding import ground
from .lasso import Lasso
from .layout import Layout
from .limits import Ending, Limits, Progress
from .proof import Obstacle, Proof
from .stories.story import Story, claim_text, tell
from .symmetry import symmetry_of
from .system import Claim, Promise, System

BITS_MAX = 512  # of a state; one that is wider has more states than any search sees, and takes long to lay flat
EXPLORED, PROVED, SAMPLED = "explored", "proved", "sampled"


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of one claim.

    ``how``: "explored" in every state within the bounds, "proved" for any of them, "sampled" in some states only.
    ``trace`` is how it breaks; None where there is nothing to tell, as for a ``sometimes`` that is never met.
    """

    name: str
    kind: str  # always | sometimes | deadlock | leads_to
    says: str | None
    that: str
    verdict: str  # holds | violated | unknown
    how: str
    trace: Story | None
    note: str
    at: Place


@dataclass(frozen=True, slots=True)
class Report:
    """What is known of one protocol. With ``renumbered``, states that differ only by numbers are counted once."""

    protocol: str
    bounds: tuple[tuple[str, int], ...]
    engine: str
    renumbered: bool
    states: int
    transitions: int
    depth: int
    complete: bool
    why_incomplete: str | None
    interrupted: bool  # somebody stopped it
    seconds: float
    findings: tuple[Finding, ...]
    idle: tuple[str, ...]  # steps, as "actor.step", that no run takes; only when complete
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether everything was looked at, and all of it holds."""
        return self.complete and all(finding.verdict == HOLDS for finding in self.findings)

    @property
    def broken(self) -> tuple[Finding, ...]:
        """The claims that fail."""
        return tuple(finding for finding in self.findings if finding.verdict == VIOLATED)


def check_protocol(
    protocol: Protocol,
    *,
    engine: str = "auto",
    limits: Limits | None = None,
    symmetry: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
    on_stage: Callable[[str], None] | None = None,
    xp: ModuleType = np,
    threads: int = 1,
) -> Report:
    """Check every claim of a protocol within its bounds.

    Args:
        protocol: what to check.
        engine: as for ``explore``.
        limits: bounds of states and memory.
        symmetry: whether states that differ only by the numbers of slots and copies that are alike count once.
        on_progress: called now and then by the search.
        on_stage: called with what is done next, when that may take long.
        xp: the array module of the engine "numpy".
        threads: of the engine "c".

    Returns:
        The report; after Ctrl-C, what was known by then.

    """
    if state_bits(protocol) > BITS_MAX:
        return _unsearched(protocol, engine)
    started = time.perf_counter()
    system = ground(protocol)
    notes: list[str] = []
    alike = None
    if symmetry:
        found = symmetry_of(protocol, system)
        notes += found.unlike
        alike = None if found.trivial else Renumbering(found, Layout(system))

    def search(renumbered: bool) -> Exploration:
        return explore(
            system,
            engine=engine,
            limits=limits,
            symmetry=alike if renumbered else None,
            on_progress=on_progress,
            xp=xp,
            threads=threads,
        )

    exploration = search(renumbered=True)
    checker = _Checker(protocol, system, exploration)
    findings = [checker.claim(claim) for claim in system.claims]
    stopped = False
    if system.promises:
        everything = exploration
        if alike is not None and exploration.complete:
            everything = search(renumbered=False)  # a run for ever is one of these very states
            notes.append("leads_to was checked on all states, without renumbering")
        if on_stage is not None:
            on_stage(f"following leads_to through {everything.transitions:,} transitions")
        try:
            findings += checker.promises(everything)
        except KeyboardInterrupt:
            findings += checker.unknown_promises()
            stopped = True
    return Report(
        protocol=protocol.name,
        bounds=system.bounds,
        engine=exploration.engine,
        renumbered=alike is not None,
        states=exploration.states,
        transitions=exploration.transitions,
        depth=exploration.depth,
        complete=exploration.complete and not stopped,
        why_incomplete=Ending.INTERRUPTION.value if stopped else exploration.why_incomplete,
        interrupted=stopped or exploration.found.ending is Ending.INTERRUPTION,
        seconds=time.perf_counter() - started,
        findings=tuple(findings),
        idle=tuple(_idle(protocol, exploration)) if exploration.complete else (),
        notes=tuple(notes),
    )


def with_proofs(report: Report, proofs: Mapping[str, Proof]) -> Report:
    """The report with what was proved: it holds in any number of slots and copies, whatever the search saw of it."""
    findings = tuple(_with_proof(item, proofs.get(item.name)) for item in report.findings)
    claims = [proofs[item.name] for item in findings if item.name in proofs]
    notes = []
    if claims:
        proved = sum(proof.proved for proof in claims)
        sizes = f"for any number of {' and '.join(claims[0].sizes)}" if claims[0].sizes else "by induction"
        widths = "at the widths that fields have here"
        notes.append(f"{proved} of {len(claims)} claims about every state are proved {sizes}, {widths}")
    explored = {item.name for item in findings}
    for name, proof in proofs.items():
        if name not in explored and proof.obstacle is not None:
            notes.append(f"the lemma '{name}' is not proved, and helps no other claim: {_obstacle(proof.obstacle)}")
    return replace(report, findings=findings, notes=(*report.notes, *notes))


def _with_proof(finding: Finding, proof: Proof | None) -> Finding:
    if proof is None or finding.verdict == VIOLATED:
        return finding
    if proof.proved:
        return replace(finding, verdict=HOLDS, how=PROVED)
    if proof.obstacle is None:
        return replace(finding, note="")
    seen = "explored, " if finding.verdict == HOLDS else ""
    return replace(finding, note=f"{seen}not proved: {_obstacle(proof.obstacle)}")


def _obstacle(obstacle: Obstacle) -> str:
    """What keeps a claim from being proved by induction."""
    where = f" for {obstacle.binding}" if obstacle.binding else ""
    if obstacle.why is not None:
        return obstacle.why
    if obstacle.command is None:
        return f"it does not hold at first{where}"
    before = f"where {', '.join(obstacle.told)}" if obstacle.told else "in the first state"
    return f"'{obstacle.command.label}' would break it{where} {before}; if no run gets there, a lemma can say so"


def too_large(report: Report, protocol: Protocol, smaller: Callable[[str, int], Protocol | None]) -> Problem:
    """The problem of a search that ended at its limits, at the bound that is best lowered.

    Args:
        report: of that search.
        protocol: what was searched.
        smaller: the protocol with one bound changed: its name, and the value; None where that is no protocol.

    """
    bits = state_bits(protocol)
    saved = {}
    for bound in protocol.bounds:
        less = smaller(bound.name, bound.value // 2) if bound.value > 1 else None
        if less is not None:
            saved[bound.name] = bits - state_bits(less)
    at = protocol.at
    fix = "narrow fields of its machines (narrow:), or let `kvfsm check --symmetry on` count what is alike once"
    if saved:
        name = max(saved, key=lambda each: saved[each])
        bound = next(bound for bound in protocol.bounds if bound.name == name)
        at = replace(bound.at, length=len(name))
        least = f"half of it takes {saved[name]:,} of {bits:,} bits off a state"
        fix = f"lower bound '{name}', now {bound.value}: {least}; or {fix}"
    why = f"the search ended at {report.why_incomplete}" if report.states else report.why_incomplete
    text = f"'{protocol.name}' is too large to explore: {why}"
    return Problem("E422", at, text, fix)


def state_bits(protocol: Protocol) -> int:
    """Bits of a state, before what never happens is left out."""
    slots = sum(item.slots * item.machine.bits for item in protocol.instances)
    copies = sum(
        program.count * (sum(local.high.bit_length() for local in program.locals) + len(program.steps).bit_length())
        for program in protocol.programs
    )
    return slots + copies


class _Checker:
    """Turns what a search found into findings."""

    def __init__(self, protocol: Protocol, system: System, exploration: Exploration) -> None:
        self.protocol = protocol
        self.system = system
        self.exploration = exploration
        self.verdicts = exploration.verdicts()
        self.how = EXPLORED if exploration.complete else SAMPLED

    def claim(self, claim: Claim) -> Finding:
        """The finding about an ``always``, a ``sometimes``, or the deadlock check."""
        verdict = self.verdicts[claim.name]
        trace = None
        note = ""
        if claim.name in self.exploration.violations:
            path = self.exploration.path(self.exploration.violations[claim.name])
            trace = tell(self.protocol, self.system, path, claim)
        elif verdict == VIOLATED:
            note = "no state within the bounds is like that, so that what rests on it was never tried"
        how = EXPLORED if verdict == VIOLATED or (claim.kind == "sometimes" and verdict == HOLDS) else self.how
        return self._finding(claim, claim.kind, verdict, how, trace, note)

    def promises(self, exploration: Exploration) -> list[Finding]:
        """The findings about every ``leads_to``."""
        if not exploration.complete:
            return self.unknown_promises()
        try:
            lassos = check_promises(exploration)
        except NeedsScipy as missing:
            return self.unknown_promises(str(missing))
        return [self._promise(promise, lassos[promise.name], exploration) for promise in self.system.promises]

    def unknown_promises(self, why: str = "") -> list[Finding]:
        """Every ``leads_to``, undecided."""
        return [self._finding(item, "leads_to", UNKNOWN, SAMPLED, None, why) for item in self.system.promises]

    def _promise(self, promise: Promise, lasso: Lasso | None, exploration: Exploration) -> Finding:
        if lasso is None:
            return self._finding(promise, "leads_to", HOLDS, EXPLORED, None, "")
        links = [*lasso.path, *lasso.loop]
        path = [(command, exploration.state(index)) for command, index in links if command is not None]
        story = tell(
            self.protocol,
            self.system,
            path,
            promise,
            binding=lasso.binding,
            loop=len(path) - len(lasso.loop) + 1 if lasso.loop else None,
            stutters=not lasso.loop,
        )
        return self._finding(promise, "leads_to", VIOLATED, EXPLORED, story, "")

    def _finding(
        self, item: Claim | Promise, kind: str, verdict: str, how: str, trace: Story | None, note: str
    ) -> Finding:
        that = claim_text(self.protocol, item.name)
        return Finding(item.name, kind, item.says, that, verdict, how, trace, note, item.at)


def _unsearched(protocol: Protocol, engine: str) -> Report:
    """The report of a protocol that is too wide to begin with: everything is unknown."""
    claims = [
        *((f"{item.name}.{each.name}", each) for item in protocol.instances for each in item.machine.properties),
        *((each.name, each) for each in protocol.properties),
    ]
    findings = [
        Finding(name, item.kind, item.says, claim_text(protocol, name), UNKNOWN, SAMPLED, None, "", item.at)
        for name, item in claims
        if item.kind != "sometimes" or "." not in name
    ]
    findings += [
        Finding(item.name, "leads_to", item.says, claim_text(protocol, item.name), UNKNOWN, SAMPLED, None, "", item.at)
        for item in protocol.leads_to
    ]
    why = f"a state has {state_bits(protocol):,} bits, and no more than {BITS_MAX} are searched"
    bounds = tuple((bound.name, bound.value) for bound in protocol.bounds)
    return Report(protocol.name, bounds, engine, False, 0, 0, 0, False, why, False, 0.0, tuple(findings), (), ())


def _idle(protocol: Protocol, exploration: Exploration) -> list[str]:
    """Steps that nobody takes in any state, but for those of actors that a claim says never get on."""
    never = {name for item in protocol.properties if item.kind == "always" for name in _kept_in_place(item.that)}
    taken = {
        (command.actor, command.step)
        for command, count in zip(exploration.system.commands, exploration.taken.tolist(), strict=True)
        if count
    }
    return [
        f"{program.name}.{step.name}"
        for program in protocol.programs
        for step in program.steps
        if (program.name, step.name) not in taken and program.name not in never
    ]


def _kept_in_place(expr: Expr) -> Iterator[str]:
    """Actors that a claim says stay at one step: "late.at == attempt", alone or joined by ``and``."""
    match expr:
        case Logic("and", operands):
            for operand in operands:
                yield from _kept_in_place(operand)
        case Compare("==", Remote(owner=owner, index=None, field="at"), Value()):
            yield owner
