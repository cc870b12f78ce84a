"""Explore every interleaving of protocols, and tell how a claim breaks.

  kvfsm check                                every protocol of the shipped spec, in its own bounds
  kvfsm check read evict                     these two
  kvfsm check toctou --bound slots=3         in other bounds; --deep takes the greater ones of the file
  kvfsm check --spec my_spec -o broken       and write each counterexample as text, JSON, Mermaid, SVG and a test
       --package my_cache                    whose tests import what `kvfsm gen --out my_cache` wrote
  kvfsm check --mutants                      also make every small fault, and see that a claim notices; with
                                             protocols named, faults of their own steps and those they declare
  kvfsm check --prove                        also prove what can be proved for any number of slots and actors
  kvfsm check --mutants --prove --table CHECKED.md     and write what was found as a page
  kvfsm check --json                         {"ok": ..., "protocols": [{"protocol", "states", "properties", ...}]},
                                             and "problems", as `kvfsm lint --json` has them, of a spec that is wrong

A claim is proved (for all sizes), explored (holds in every state within the bounds), or, when the search ended early,
unknown unless it broke before. A search that does not end within its memory is incomplete, and that is no pass.
Faults are looked for with NumPy in up to 1,000,000 states each, whatever --engine, --states and --symmetry say.
Of several counterexamples the shortest is printed whole, the others a line each; -v prints all.
Exit codes: 0 all hold; 1 a claim is violated or unknown, or the disk does not take what is written; 2 used wrongly;
130 stopped, after a report of what is known.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from ...spec.checking.check import check_protocol, too_large, with_proofs
from ...spec.checking.fairness import NeedsScipy
from ...spec.checking.hunt import TooLargeError
from ...spec.checking.limits import Ending, Limits, Progress
from ...spec.checking.proof import prove
from ...spec.language.load import Spec, resized
from ...spec.language.problems import Problem, as_json, closest, render_all
from ...spec.language.protocol import Protocol
from .. import write
from ..story_pytest import RUNTIME, model_only
from . import check_mutants
from .check_mutants import Mutant
from .check_report import Row, Table, counterexamples, data, details, shortest, stale, story_of, verdict
from .check_table import page
from .lint import add_spec, loaded_spec, print_notes
from .stopping import answered

_GIB = 1 << 30
_TICK_SECONDS = 0.2  # between two lines of progress on a terminal; elsewhere a line stands for itself
_LINE_SECONDS = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's options."""
    parser.add_argument("protocols", nargs="*", metavar="PROTOCOL", help="which ones (default: all)")
    parser.add_argument("--deep", action="store_true", help="take the greater bounds of each file (its 'deep:')")
    parser.add_argument("--bound", action="append", default=[], metavar="NAME=N", help="change a bound")
    parser.add_argument(
        "--engine",
        choices=("auto", "numpy", "c", "cupy"),
        default="auto",
        help="default: the fastest; cupy has not run on a GPU yet",
    )
    parser.add_argument(
        "--symmetry", choices=("on", "off"), default="off", help="on: count states that differ only by numbers once"
    )
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="cores for the engine c (default: 1)")
    parser.add_argument("--states", type=int, metavar="N", help="end a search, incomplete, at so many states")
    parser.add_argument("--memory", type=float, metavar="GIB", help="memory of a search (default: half of the free)")
    parser.add_argument("--mutants", action="store_true", help="make every small fault, and see it noticed")
    parser.add_argument("--prove", action="store_true", help="prove claims for any number of slots and actors")
    add_spec(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="print every counterexample whole")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--table", type=Path, metavar="FILE", help="write what was found as a page of Markdown")
    parser.add_argument("-o", "--out", type=Path, metavar="DIR", help="write each counterexample into a folder")
    parser.add_argument(
        "--package", metavar="NAME", help="package that `kvfsm gen --out` wrote, for the tests of -o (default: kvfsm)"
    )


def run(args: argparse.Namespace) -> int:
    """Check: 0 all hold, 1 something is violated or unknown, 2 used wrongly, 130 stopped."""
    loaded = loaded_spec(args.spec, for_checking=not args.mutants)
    if loaded is None:
        return 2
    if loaded.spec is None:
        print(render_all(loaded.problems, loaded.sources), file=sys.stderr)
        if args.json:
            wrong = [as_json(problem) for problem in loaded.problems]
            print(json.dumps({"ok": False, "problems": wrong, "protocols": []}))
        return 1
    print_notes(loaded.notes)
    try:
        protocols = chosen(loaded.spec, args.protocols, args.bound, deep=args.deep)
        settings = _Settings.of(args)
    except Misuse as error:
        print(error, file=sys.stderr)
        return 2
    try:
        _see_that_it_can_be_written(args)
        with answered("kvfsm check"):
            return _check(args, loaded.spec, protocols, settings, loaded.sources)
    except write.WriteError as error:
        print(f"kvfsm check: {error}", file=sys.stderr)
        return 1


class Misuse(Exception):
    """The command line asks for what there is not; the message says what there is."""


@dataclass(frozen=True, slots=True)
class _Settings:
    engine: str
    limits: Limits
    xp: ModuleType
    symmetry: bool
    threads: int
    prove: bool

    @classmethod
    def of(cls, args: argparse.Namespace) -> _Settings:
        for name in ("states", "threads", "memory"):
            if getattr(args, name) is not None and getattr(args, name) <= 0:
                raise Misuse(f"kvfsm check: --{name} must be more than 0")
        if args.package is not None and not all(part.isidentifier() for part in args.package.split(".")):
            raise Misuse(f"kvfsm check: --package takes a name to import, such as my_cache, not '{args.package}'")
        if args.prove and find_spec("z3") is None:
            raise Misuse("kvfsm check: --prove needs Z3\n  fix: pip install 'kvfsm[proofs]'")
        limits = Limits(args.states) if args.memory is None else Limits(args.states, int(args.memory * _GIB))
        engine = "numpy" if args.engine == "cupy" else args.engine
        xp = import_module("numpy") if args.engine != "cupy" else _cupy()
        return cls(engine, limits, xp, args.symmetry == "on", args.threads, args.prove)


def _cupy() -> ModuleType:
    try:
        cupy = import_module("cupy")
        cupy.cuda.runtime.getDeviceCount()
    except ImportError as error:
        why = "the engine cupy needs the package 'cupy' and a GPU"
        fix = "pip install 'kvfsm[cuda13]' or 'kvfsm[cuda12]', or --engine c"
        raise Misuse(f"kvfsm check: {why}\n  fix: {fix}") from error
    except RuntimeError as error:
        raise Misuse(f"kvfsm check: the engine cupy finds no GPU ({error})\n  fix: --engine c") from error
    return cupy


# What to check.


def chosen(spec: Spec, wanted: Sequence[str], asked: Sequence[str], *, deep: bool) -> list[Protocol]:
    """The protocols that were named, or all, in the bounds that were asked for as NAME=N.

    Raises:
        Misuse: there is no such protocol or bound.

    """
    known = {protocol.name: protocol for protocol in spec.protocols}
    for name in wanted:
        if name not in known:
            raise Misuse(f"kvfsm: there is no protocol '{name}'; {closest(name, known)}")
    names = list(dict.fromkeys(wanted)) or list(known)
    bounds = dict(_bound(text) for text in asked)
    unused = set(bounds) - {bound.name for name in names for bound in known[name].bounds}
    if unused and len(names) > 1:
        name = sorted(unused)[0]
        have = sorted({bound.name for each in names for bound in known[each].bounds})
        raise Misuse(f"kvfsm: no protocol has a bound '{name}'; {closest(name, have)}")
    return [_sized(spec, known[name], bounds, deep=deep, only=len(names) == 1) for name in names]


def _bound(text: str) -> tuple[str, int]:
    name, sign, value = text.partition("=")
    if not sign or not name or not value.strip().isdecimal():
        raise Misuse(f"kvfsm: --bound takes NAME=N, such as slots=3, not '{text}'")
    return name.strip(), int(value)


def _sized(spec: Spec, protocol: Protocol, asked: Mapping[str, int], *, deep: bool, only: bool) -> Protocol:
    """The protocol in the bounds that were asked for; of several protocols, each takes those that it has."""
    own = {bound.name for bound in protocol.bounds}
    bounds = {bound.name: bound.value for bound in protocol.deep} if deep else {}
    bounds |= {name: value for name, value in asked.items() if only or name in own}
    if not bounds:
        return protocol
    found, problems = resized(spec, protocol.name, bounds)
    if found is None:
        raise Misuse(render_all(problems.sorted(), problems.sources))
    return found


# Checking.


def _check(
    args: argparse.Namespace,
    spec: Spec,
    protocols: Sequence[Protocol],
    settings: _Settings,
    sources: Mapping[str, str],
) -> int:
    table = Table(protocols)
    rows: list[Row] = []
    mutants: list[Mutant] = []
    wrong: list[Problem] = []
    stopped = False
    if not args.json:
        print(table.head())
    try:
        for protocol in protocols:
            rows.append(_checked(spec, protocol, settings))
            if not args.json:
                print(table.row(rows[-1]), flush=True)
            if rows[-1].report.interrupted:
                raise KeyboardInterrupt
        if args.mutants:
            mutants.extend(check_mutants.hunted(spec, protocols, whole=not args.protocols))
            wrong = check_mutants.wrong_marks(spec, protocols, not args.protocols, mutants)
    except KeyboardInterrupt:
        stopped = True
    except TooLargeError as error:
        print(f"kvfsm check: {error}\n  fix: lower its bounds for the hunt, with --bound", file=sys.stderr)
        return 1
    except NeedsScipy as missing:
        print(f"kvfsm check: {missing}", file=sys.stderr)
        return 1
    runtime = RUNTIME if args.package is None else f"{args.package}.runtime"
    written = _write(args.out, rows, spec, runtime) if args.out is not None else []
    caught = not wrong and not any(mutant.is_hole for mutant in mutants)
    ok = not stopped and caught and all(row.report.ok for row in rows)
    if args.json:
        print(
            json.dumps(
                {
                    "ok": ok,
                    "protocols": [data(row, _of(row.protocol, mutants)) for row in rows],
                    "machine_mutants": _of(None, mutants),
                }
            )
        )
    else:
        _print_details(rows, spec, args.verbose)
        if mutants:
            print("\n" + "\n".join(check_mutants.lines(mutants)))
        if rows:
            print(f"\n{verdict(rows)}")
    if wrong:
        print("\n" + render_all(wrong, sources), file=sys.stderr)
    if args.table is not None and not stopped:
        write.put(args.table, page(spec, rows, mutants))
        written.append(f"wrote {args.table}")
    for line in written:
        print(line, file=sys.stderr)
    if stopped:
        left = [protocol.name for protocol in protocols[len(rows) :]]
        ending = f"; not looked at: {', '.join(left)}" if left else ""
        print(f"kvfsm check: stopped{ending}", file=sys.stderr)
        return 130
    return 0 if ok else 1


def _of(protocol: Protocol | None, mutants: Sequence[Mutant]) -> list[dict[str, Any]]:
    """The faults of one protocol, or of the machines, as data."""
    owner = protocol.name if protocol is not None else None
    return [check_mutants.data(mutant) for mutant in mutants if mutant.owner == owner]


def _checked(spec: Spec, protocol: Protocol, settings: _Settings) -> Row:
    ticker = _Ticker(protocol.name)
    report = check_protocol(
        protocol,
        engine=settings.engine,
        limits=settings.limits,
        symmetry=settings.symmetry,
        on_progress=ticker,
        on_stage=ticker.say,
        xp=settings.xp,
        threads=settings.threads,
    )
    ticker.clear()
    if settings.prove:
        report = with_proofs(report, prove(protocol, lambda bounds: resized(spec, protocol.name, bounds)[0]))
    problem = None
    if not report.complete and not report.interrupted:
        problem = too_large(report, protocol, lambda name, value: _smaller(spec, protocol, name, value))
        if report.why_incomplete == Ending.STATES.told(settings.limits, report.states):
            problem = replace(problem, fix=f"raise --states or leave it out; or {problem.fix}")
    return Row(protocol, report, problem)


def _smaller(spec: Spec, protocol: Protocol, name: str, value: int) -> Protocol | None:
    found, _ = resized(spec, protocol.name, {bound.name: bound.value for bound in protocol.bounds} | {name: value})
    return found


@dataclass(slots=True)
class _Ticker:
    """Progress on stderr: one line that is written over on a terminal, now and then a line elsewhere."""

    name: str
    last: float = field(default_factory=time.monotonic)
    dirty: bool = False
    told: bool = False

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        live = sys.stderr.isatty()
        if now - self.last < (_TICK_SECONDS if live else _LINE_SECONDS):
            return
        self.last = now
        rate = f"{progress.states:,} states, {progress.rate:,.0f} a second"
        self._print(f"{rate}, {progress.frontier:,} to go on from at depth {progress.depth}")

    def say(self, what: str) -> None:
        """Tell what is done next, if the search took long enough to be told of."""
        if sys.stderr.isatty() or self.told:
            self._print(what)

    def _print(self, what: str) -> None:
        live = sys.stderr.isatty()
        line = f"{self.name}: {what}"
        print(f"\r\x1b[K{line}" if live else line, end="" if live else "\n", file=sys.stderr, flush=True)
        self.dirty = live
        self.told = True

    def clear(self) -> None:
        """Take the line away."""
        if self.dirty:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


# Reporting.


def _print_details(rows: Sequence[Row], spec: Spec, verbose: bool) -> None:
    stories = sum(finding.trace is not None for row in rows for finding in row.report.broken)
    whole = verbose or stories == 1
    for row in rows:
        lines = (spec.root / "protocols" / f"{row.protocol.name}.yaml").read_text("utf-8").splitlines()
        place = row.problem.place.line if row.problem is not None else 0
        for paragraph in details(row, lines[place - 1] if 0 < place <= len(lines) else None, whole=whole):
            print(f"\n{paragraph}")
        missing = model_only(row.protocol, spec.machines)
        if missing and any(finding.trace is not None for finding in row.report.broken):
            print(f"\n{row.protocol.name}: model only, as the runtime has no {', '.join(missing)}: nothing to replay")
    if not whole and (best := shortest(rows)) is not None:
        print(f"\nThe shortest of {stories} counterexamples (-v prints all, -o DIR writes them):\n\n{story_of(best)}")


def _write(folder: Path, rows: Sequence[Row], spec: Spec, runtime: str) -> list[str]:
    lines = []
    for row in rows:
        for name in stale(row):
            if write.remove(folder / name):
                lines.append(f"removed {folder / name}, as the claim holds now")
        for name, text in counterexamples(row, spec.machines, runtime).items():
            write.put(folder / name, text)
            lines.append(f"wrote {folder / name}")
    return lines


def _see_that_it_can_be_written(args: argparse.Namespace) -> None:
    """Raise WriteError before the search rather than after it."""
    table: Path | None = args.table
    if args.out is not None:
        write.takes(args.out)
    if table is not None and table.is_dir():
        raise write.WriteError(f"cannot write {table}: it is a folder")
    if table is not None and (table.is_file() or not table.exists()):  # not a pipe, say
        write.takes(table.parent)
