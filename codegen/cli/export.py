"""Write a protocol for another checker: Promela for SPIN, TLA+ for TLC, Murphi for Rumur, SMT-LIB for Z3.

  kvfsm export promela toctou -o toctou.pml      the head of each text says how to run it
  kvfsm export tla toctou -o toctou.tla          writes toctou.cfg beside it; without -o it follows after a line of #
  kvfsm export murphi toctou --bound slots=3     in other bounds than the spec's; may be repeated
  kvfsm export smt toctou --steps 12             asks whether a claim is violated after at most so many steps
  kvfsm export promela toctou --mutant unchecked_pin     with one of the protocol's deliberate faults in it
  kvfsm export promela toctou --run              runs the checker here, and compares its count of states with ours

Cells become variables ("block[0].pins" is block_0_pins), each command is written out, with who does what as a comment.
With --run, 1 is also the exit code of a violation that both found.
All but SMT give a checker the very states that `kvfsm check` explores; `--run` needs SPIN, TLC or Rumur installed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ...spec.checking.explore import explore
from ...spec.checking.exports import murphi, promela, smt, tla
from ...spec.checking.exports.peers import PEERS, Failed, Missing
from ...spec.checking.grounding import ground
from ...spec.checking.system import System
from ...spec.language.load import Spec
from ...spec.language.narrowing import with_faulty
from ...spec.language.problems import closest, render_all
from .. import write
from .check import Misuse, chosen
from .lint import add_spec, loaded_spec

_CHECKERS = {"promela": "SPIN", "tla": "TLC", "murphi": "Rumur"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's options."""
    parser.add_argument("language", choices=("promela", "tla", "murphi", "smt"), help="what to write")
    parser.add_argument("protocol", metavar="PROTOCOL", help="which protocol")
    parser.add_argument("--bound", action="append", default=[], metavar="NAME=N", help="a size other than the spec's")
    parser.add_argument("--mutant", metavar="NAME", help="with this fault of the protocol in it")
    parser.add_argument("--steps", type=int, default=smt.STEPS, metavar="K", help="of smt: most steps of a run")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="where to write (default: standard output)")
    parser.add_argument("--run", action="store_true", dest="peer", help="run SPIN, TLC or Rumur on it instead")
    add_spec(parser)


def run(args: argparse.Namespace) -> int:
    """Write the text: 0 done or counts agree, 1 a wrong spec, a full disk, a violation or counts that differ."""
    loaded = loaded_spec(args.spec)
    if loaded is None:
        return 2
    if loaded.spec is None:
        print(render_all(loaded.problems, loaded.sources), file=sys.stderr)
        return 1
    try:
        system = _system(args, loaded.spec)
        if args.peer:
            return _compare(args.language, system)
        _write(_texts(args.language, system, args.out, args.steps), args.out)
    except Misuse as error:
        print(error, file=sys.stderr)
        return 2
    except write.WriteError as error:
        print(f"kvfsm export: {error}", file=sys.stderr)
        return 1
    return 0


def _system(args: argparse.Namespace, spec: Spec) -> System:
    """What was asked for: a protocol in some bounds, with one of its faults perhaps; raises Misuse."""
    (protocol,) = chosen(spec, [args.protocol], args.bound, deep=False)
    faulty = {mutant.name: with_faulty(protocol, mutant.faulty) for mutant in protocol.mutants}
    if args.mutant is not None and args.mutant not in faulty:
        raise Misuse(f"kvfsm: '{protocol.name}' has no mutant '{args.mutant}'; {closest(args.mutant, faulty)}")
    if args.steps < 0:
        raise Misuse(f"kvfsm export: a run has 0 steps or more, not {args.steps}")
    if args.language == "tla" and args.out is not None and not args.out.stem.isidentifier():
        raise Misuse(f"kvfsm export: TLC wants a module named as its file, and '{args.out.stem}' cannot name one")
    return ground(faulty.get(args.mutant, protocol))


def _texts(language: str, system: System, out: Path | None, steps: int) -> dict[str, str]:
    """Ending -> text; the first is what was asked for, and a second belongs beside it."""
    match language:
        case "promela":
            return {"": promela.export(system)}
        case "murphi":
            return {"": murphi.export(system)}
        case "smt":
            return {"": smt.export(system, steps)}
        case _:
            module = system.name if out is None else out.stem
            return {"": tla.export(system, module), ".cfg": tla.configuration(system)}


def _write(texts: Mapping[str, str], out: Path | None) -> None:
    if out is None:
        print(f"{'#' * 20} the .cfg file:\n".join(texts.values()), end="")
        return
    for ending, text in texts.items():
        path = out.with_suffix(ending) if ending else out
        write.put(path, text)
        print(f"wrote {path}", file=sys.stderr)


def _compare(language: str, system: System) -> int:
    """Let the other checker explore the system, and set what it found beside what we find."""
    if language == "smt":
        raise Misuse("kvfsm export: --run is for promela, tla and murphi; give smt's text to Z3: z3 FILE")
    name = _CHECKERS[language]
    ours = explore(system)
    try:
        with tempfile.TemporaryDirectory() as folder:
            outcome = PEERS[name](system, Path(folder))
    except Missing as problem:
        raise Misuse(f"kvfsm export: {problem}") from problem
    except Failed as problem:
        print(f"kvfsm export: {name} did not take the text\n{problem}", file=sys.stderr)
        return 1
    violated = bool(ours.violations)
    print(f"{name} {outcome.version}: {_found(outcome.states, outcome.violated)}")
    print(f"kvfsm: {_found(ours.states, violated)}")
    print("".join(f"  {claim} does not hold\n" for claim in ours.violations), end="")
    agree = outcome.violated == violated and (violated or outcome.states == ours.states)
    print("they agree" if agree else "they differ")
    return 0 if agree and not violated else 1


def _found(states: int, violated: bool) -> str:
    return "a claim is violated" if violated else f"{states:,} states, all claims hold"
