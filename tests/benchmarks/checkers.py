"""The explorer beside SPIN, Rumur and TLC: the same protocol in one run, one thread, parents kept, exact counts."""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from kvfsm.spec.checking.engines.canonical import Renumbering
from kvfsm.spec.checking.engines.compiling import compiler
from kvfsm.spec.checking.exploration import Exploration
from kvfsm.spec.checking.explore import explore
from kvfsm.spec.checking.exports import murphi, promela, tla
from kvfsm.spec.checking.exports.peers import Missing, Outcome, run_rumur, run_spin, run_tlc
from kvfsm.spec.checking.grounding import ground
from kvfsm.spec.checking.layout import Layout
from kvfsm.spec.checking.limits import Progress
from kvfsm.spec.checking.symmetry import symmetry_of
from kvfsm.spec.checking.system import System
from kvfsm.spec.language.load import load_spec
from kvfsm.spec.language.protocol import Protocol

HAND_WRITTEN = Path(__file__).parent / "peers"
TLC_SECONDS = 75.0  # then it is stopped, and what it had told last is taken
LONG_RUN = ("-XX:+UseParallelGC", "-XX:ParallelGCThreads=1")  # options of Java that suit runs of minutes
SMALL = 2_000_000  # states; up to here each of ours is measured three times
SHORT = 10.0  # seconds; a peer that takes less is measured three times


@dataclass(frozen=True, slots=True)
class Subject:
    """A protocol in bounds of its own; ``aims`` are held against ours over a peer, such as ("c", "SPIN") -> 25.

    SPIN gets a table of 2^``table`` places, about as many as there are states: fewer or far more would slow it down.
    """

    protocol: str
    bounds: tuple[tuple[str, int], ...]
    table: int
    aims: tuple[tuple[tuple[str, str], float], ...] = ()

    @property
    def title(self) -> str:
        """Such as "toctou, slots=3 readers=2"."""
        return f"{self.protocol}, {' '.join(f'{name}={value}' for name, value in self.bounds)}"


AIMS = (
    (("numpy", "SPIN"), 5.0),
    (("c", "SPIN"), 25.0),
    (("c", "TLC"), 100.0),
    (("c + symmetry", "Rumur + scalarsets"), 20.0),
)
QUICK = (
    Subject("toctou", (("slots", 3), ("readers", 2)), 20),
    Subject("publish", (("slots", 1), ("writers", 3)), 19),
    Subject("read", (("slots", 1), ("readers", 2)), 18),
)
FULL = (
    Subject("toctou", (("slots", 3), ("readers", 3)), 24, AIMS),
    Subject("publish", (("slots", 1), ("writers", 3)), 19),
    Subject("pack", (("slots", 3),), 20),
)


@dataclass(frozen=True, slots=True)
class Run:
    """One program on one subject; a peer has a version. ``states`` are those kept where it reduces by symmetry."""

    program: str
    version: str
    states: int
    seconds: float
    note: str = ""
    complete: bool = True

    @property
    def rate(self) -> float:
        """States a second."""
        return self.states / self.seconds

    @property
    def reduced(self) -> bool:
        """Whether it keeps only one of all states that are alike."""
        return " + " in self.program


Job = tuple[str, Callable[[], Run]]
Way = Callable[[Path], Outcome]


def measure(subject: Subject) -> Iterator[Run]:
    """Ours first, then the peers that are installed.

    Raises AssertionError when two that explore everything count differently: then no rate means anything.
    """
    spec = load_spec(bounds={subject.protocol: dict(subject.bounds)}).required()
    protocol = spec.protocol(subject.protocol)
    system = ground(protocol)
    counted: int | None = None
    for program, run in itertools.chain(_ours(protocol, system), _peers(subject, system)):
        print(f"\r{subject.title}: {program}".ljust(78), end="", file=sys.stderr, flush=True)
        try:
            found = run()
        except Missing as problem:
            print(f"\r{program} is left out: {problem}", file=sys.stderr)
            continue
        if found.complete and not found.reduced:
            counted = found.states if counted is None else counted
            assert found.states == counted, f"{program} counts {found.states:,} states, others {counted:,}"
        yield found


def _ours(protocol: Protocol, system: System) -> Iterator[Job]:
    engines = ["numpy"] if compiler() is None else ["numpy", "c"]
    for engine in engines:
        yield engine, partial(_explored, engine, partial(explore, system, engine=engine))
    symmetry = symmetry_of(protocol, system)
    if not symmetry.trivial:
        alike = Renumbering(symmetry, Layout(system))
        for engine in engines:
            name = f"{engine} + symmetry"
            yield name, partial(_explored, name, partial(explore, system, engine=engine, symmetry=alike))


def _explored(program: str, search: Callable[..., Exploration]) -> Run:
    """The best of three searches, or one where there are many states; writing and compiling text is not counted."""
    best = float("inf")
    for _ in range(3):
        told: list[Progress] = []
        found = search(on_progress=told.append)
        best = min(best, told[-1].seconds)
        assert found.complete and not found.violations, f"{program}: {found.why_incomplete or found.violations}"
        states = found.states
        del found
        if states > SMALL:
            break
    return Run(program, "", states, best)


def _peers(subject: Subject, system: System) -> Iterator[Job]:
    spin, rumur = partial(_spin, promela.export(system), subject.table), partial(_rumur, murphi.export(system))
    module, configuration = tla.export(system), tla.configuration(system)
    tlc = partial(_run, "TLC", lambda folder: run_tlc(module, configuration, folder, TLC_SECONDS, LONG_RUN))
    if subject.protocol != "toctou":
        yield "SPIN", partial(_run, "SPIN", spin)
        yield "Rumur", partial(_run, "Rumur", rumur)
        yield "TLC", tlc
        return
    sizes = dict(subject.bounds)
    options = (f"-DSLOTS={sizes['slots']}", f"-DREADERS={sizes['readers']}")
    text = (HAND_WRITTEN / "toctou.pml").read_text("utf-8")
    yield "SPIN", partial(_better, "SPIN", spin, partial(_spin, text, subject.table, options=options))
    yield "Rumur", partial(_better, "Rumur", rumur, partial(_rumur, _toctou_in_murphi(sizes, symmetric=False)))
    yield "TLC", tlc
    scalarsets = partial(_rumur, _toctou_in_murphi(sizes, symmetric=True))
    yield "Rumur + scalarsets", partial(_run, "Rumur + scalarsets", scalarsets)


def _toctou_in_murphi(sizes: Mapping[str, int], symmetric: bool) -> str:
    text = (HAND_WRITTEN / "toctou.m").read_text("utf-8")
    for word, size in (("SLOTS", sizes["slots"]), ("READERS", sizes["readers"])):
        text = text.replace(f": {word};", f": {f'scalarset({size})' if symmetric else f'0 .. {size - 1}'};")
    return text.replace("FORGET;", "undefine slot[r];" if symmetric else "slot[r] := 0;")


def _spin(text: str, table: int, folder: Path, options: tuple[str, ...] = ()) -> Outcome:
    return run_spin(text, folder, level="-O3", options=options, table=table)


def _rumur(text: str, folder: Path) -> Outcome:
    return run_rumur(text, folder, level="-O3", options=("--value-type", "auto"))


def _better(program: str, exported: Way, by_hand: Way) -> Run:
    """The faster of an export and of what was written by hand, with a note how the other did."""
    first, second = _run(program, exported), _run(program, by_hand)
    assert first.states == second.states, f"{program}: {first.states:,} states of the export, {second.states:,} by hand"
    if first.seconds <= second.seconds:
        return replace(first, note=f"the export; by hand {second.rate:,.0f}/s")
    return replace(second, note=f"by hand; the export {first.rate:,.0f}/s")


def _run(program: str, way: Way) -> Run:
    """The best of three searches, or one where it takes long."""
    found = _outcome(way)
    if found.seconds < SHORT:
        found = min((found, _outcome(way), _outcome(way)), key=lambda each: each.seconds)
    note = "" if found.complete else f"stopped after {found.seconds:.0f} s"
    return Run(program, found.version, found.states, found.seconds, note, found.complete)


def _outcome(way: Way) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        found = way(Path(folder))
    assert not found.violated, found.story
    return found


def rows_of(subject: Subject, runs: Sequence[Run]) -> list[dict[str, object]]:
    """One row for each of ours beside each peer: states a second, or 1 / seconds where each reduces in its own way."""
    aims = dict(subject.aims)
    rows: list[dict[str, object]] = []
    ours = [run for run in runs if not run.version]
    for run, peer in itertools.product(ours, [run for run in runs if run.version]):
        if run.reduced != peer.reduced:
            continue
        mine, other = (1 / run.seconds, 1 / peer.seconds) if run.reduced else (run.rate, peer.rate)
        aim = aims.get((run.program, peer.program))
        rows.append(
            {
                "work": f"explore {subject.title}: {run.program} / {peer.program} {peer.version}",
                "ours": mine,
                "peer": other,
                "ratio": round(mine / other, 2),
                "aim": aim,
                "met": None if aim is None else mine / other >= aim,
                "states": run.states,
            }
        )
    return rows


def print_runs(subject: Subject, runs: Sequence[Run], rows: Sequence[dict[str, object]]) -> None:
    """What each program did, then the ratios."""
    print(f"\nexplore {subject.title}: one thread, parents kept")
    print(f"  {'':34}{'states':>12}{'seconds':>10}{'states/s':>13}")
    for run in runs:
        name = f"{run.program} {run.version}".strip()
        print(f"  {name:34}{run.states:>12,}{run.seconds:>10.2f}{run.rate:>13,.0f}  {run.note}".rstrip())
    for row in rows:
        aim = "" if row["aim"] is None else f"   aim {row['aim']:g}{'' if row['met'] else ': MISSED'}"
        print(f"  {str(row['work']).split(': ', 1)[1]:52}{row['ratio']:>8,.2f} x{aim}", flush=True)
