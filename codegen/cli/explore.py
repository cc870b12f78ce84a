"""Write a page to step through a protocol: one HTML file, which opens in any browser and fetches nothing.

  kvfsm explore evict                        evict.html in this folder
  kvfsm explore evict -o pages/evict.html    or somewhere else
  kvfsm explore toctou --bound slots=3       in other bounds
  kvfsm explore ring --spec my_spec

A person takes any step of any copy, goes back, and sees each machine's states with those lit that slots are in,
which claims hold, which window between check and use is open, and why a step cannot be taken. The runs by which the
protocol's mutants break are there to step through; so is any that `kvfsm check --json` or `check -o DIR` wrote.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from ...spec.checking.check import BITS_MAX, state_bits
from ...spec.checking.explore import explore
from ...spec.checking.grounding import ground
from ...spec.checking.limits import Limits
from ...spec.checking.stories.story import Story, tell
from ...spec.language.narrowing import with_faulty
from ...spec.language.problems import Problem, render_all
from ...spec.language.protocol import Protocol
from .. import write
from ..explore_page import page, pictures_of
from ..svg import NoRenderer, RenderFailed, find_renderer
from .check import Misuse, chosen
from .lint import add_spec, loaded_spec, print_notes

_STATES_MAX = 300_000  # of a mutant; one that breaks nothing within so many is left out


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's options."""
    parser.add_argument("protocol", metavar="PROTOCOL", help="which one")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="where to write (default: PROTOCOL.html)")
    parser.add_argument("--bound", action="append", default=[], metavar="NAME=N", help="change a bound")
    add_spec(parser)


def run(args: argparse.Namespace) -> int:
    """Write the page: 0 done, 1 the spec is wrong or the disk does not take it, 2 used wrongly."""
    loaded = loaded_spec(args.spec, for_checking=True)
    if loaded is None:
        return 2
    if loaded.spec is None:
        print(render_all(loaded.problems, loaded.sources), file=sys.stderr)
        return 1
    print_notes(loaded.notes)
    try:
        (protocol,) = chosen(loaded.spec, [args.protocol], args.bound, deep=False)
    except Misuse as error:
        print(error, file=sys.stderr)
        return 2
    if state_bits(protocol) > BITS_MAX:
        print(render_all([_too_large(protocol)], loaded.sources), file=sys.stderr)
        return 1
    target: Path = args.out if args.out is not None else Path(f"{protocol.name}.html")
    if target.is_dir():
        name = target / f"{protocol.name}.html"
        print(f"kvfsm explore: '{target}' is a folder; name a file, such as {name}", file=sys.stderr)
        return 2
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write.put(target, page(protocol, ground(protocol), mutant_runs(protocol), _pictures(protocol)))
    except OSError as error:
        print(f"kvfsm explore: cannot write {target}: {error.strerror or error}", file=sys.stderr)
        return 1
    except write.WriteError as error:
        print(f"kvfsm explore: {error}", file=sys.stderr)
        return 1
    print(f"wrote {target}")
    return 0


def _too_large(protocol: Protocol) -> Problem:
    """A protocol that no page can hold, at the first of its bounds."""
    bounds = " or ".join(f"'{bound.name}', now {bound.value}" for bound in protocol.bounds)
    return Problem(
        "E422",
        replace(protocol.bounds[0].at, length=len(protocol.bounds[0].name)) if protocol.bounds else protocol.at,
        f"'{protocol.name}' is too large to step through: "
        f"a state has {state_bits(protocol):,} bits, and a page takes {BITS_MAX}",
        f"lower bound {bounds}" if bounds else "narrow the fields of its machines",
    )


def mutant_runs(protocol: Protocol) -> list[tuple[str, Story]]:
    """The shortest run by which each mutant of a protocol breaks an ``always``."""
    runs = []
    for mutant in protocol.mutants:
        faulty = with_faulty(protocol, mutant.faulty)
        system = ground(faulty)
        found = explore(system, limits=Limits(states=_STATES_MAX), stop_at_first=True)
        if not found.violations:
            continue
        name, index = min(found.violations.items(), key=lambda item: item[1])
        claim = next(claim for claim in system.claims if claim.name == name)
        runs.append((f"{mutant.name}: {name}", tell(faulty, system, found.path(index), claim)))
    return runs


def _pictures(protocol: Protocol) -> dict[str, str]:
    """The machines' pictures; none, and a line that says so, where nothing draws them."""
    try:
        return pictures_of(protocol, find_renderer())
    except (NoRenderer, RenderFailed) as error:
        print(f"kvfsm explore: the page shows states without arrows: {error}", file=sys.stderr)
        return {}
