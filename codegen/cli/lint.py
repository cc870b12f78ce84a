"""Check a spec, and print every problem with its place and how to mend it.

  kvfsm lint                   the spec that is shipped with kvfsm
  kvfsm lint --spec my_spec    one's own
  kvfsm lint --json            {"ok": ..., "problems": [{"code", "file", "line", "column", "message", "fix"}]}

`kvfsm explain E204` says more about one code.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ...spec.language.load import Loaded, load_spec
from ...spec.language.problems import Problem, as_json, render_all


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's options."""
    add_spec(parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Check, report, and say how it went: 0 clean, 1 problems, 2 no such folder."""
    loaded = loaded_spec(args.spec)
    if loaded is None:
        return 2
    if args.json:
        print(json.dumps({"ok": not loaded.problems, "problems": [as_json(problem) for problem in loaded.problems]}))
        return 1 if loaded.problems else 0
    if loaded.problems:
        print(render_all(loaded.problems, loaded.sources))
        count = len(loaded.problems)
        print(f"\n{count} problem{'s' if count > 1 else ''}", file=sys.stderr)
        return 1
    spec = loaded.required()
    print(f"well: {len(spec.generated)} machines, {len(spec.protocols)} protocols, {len(spec.profiles)} model profiles")
    return 0


def add_spec(parser: argparse.ArgumentParser) -> None:
    """The option that names a spec's folder."""
    parser.add_argument("--spec", type=Path, metavar="DIR", help="folder of the spec (default: the shipped one)")


def loaded_spec(directory: Path | None, *, for_checking: bool = False) -> Loaded | None:
    """The spec in a folder; None, with a line on stderr, when it is no folder of a spec.

    ``for_checking``: go on without what a check does not need, such as a mutant that names no case any more.
    """
    if directory is not None and (why := _no_spec(directory)):
        print(f"kvfsm: {why}", file=sys.stderr)
        return None
    return load_spec(directory, for_checking=for_checking)


def print_notes(notes: Sequence[Problem]) -> None:
    """Tell on stderr, a line each, what a check went on without."""
    for note in notes:
        place = note.place
        print(f"note: {place.file}:{place.line}:{place.column}: {note.code} {note.text}", file=sys.stderr)
    if notes:
        print("note: checked all the same; `kvfsm lint` says more, and fails until these are mended", file=sys.stderr)


def _no_spec(directory: Path) -> str | None:
    """Why a path is no folder of a spec, and what to do; None when it may be one."""
    if not directory.exists():
        return f"there is no folder '{directory}'; `kvfsm init {directory}` makes one"
    folder = directory if directory.is_dir() else directory.parent
    above = [parent for parent in (folder, *folder.resolve().parents) if (parent / "vocabulary.yaml").is_file()]
    meant = f"; did you mean --spec {above[0]}?" if above else "; `kvfsm init DIR` makes one"
    if not directory.is_dir():
        return f"'{directory}' is a file, and a spec is a folder{meant}"
    if (directory / "vocabulary.yaml").is_file() or (directory / "objects").is_dir():
        return None
    return f"'{directory}' is no spec: it has neither vocabulary.yaml nor objects/{meant}"
