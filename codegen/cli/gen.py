"""Write all generated files, or compare them with what is on disk.

  kvfsm gen                                  this repository: runtime, kernels, diagrams, tests
  kvfsm gen --check                          print what differs, and write nothing; exit 1 if anything does
  kvfsm gen --spec my_spec --out my_package  into a package of one's own: my_package/{runtime,kernels,diagrams,tests},
                                             and the JSON Schemas beside the spec
  kvfsm gen --json                           {"ok": ..., "files": [{"path", "status"}]}

A file that is as it should be is left alone; one that no machine asks for any more is removed. Nothing is written
unless the whole spec is sound.
"""

from __future__ import annotations

import argparse
import json
import keyword
import sys
from pathlib import Path

from ...spec.language.load import Spec
from ...spec.language.problems import render_all
from .. import write
from ..drawings import stale
from ..plan import plan, plan_beside, plan_package
from .lint import add_spec, loaded_spec

REPOSITORY = ("runtime/generated", "kernels/generated", "diagrams", "tests/generated")
PACKAGE = ("runtime", "kernels", "diagrams", "tests")
DRAWN = frozenset({".svg"})  # `kvfsm draw` owns these


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's options."""
    add_spec(parser)
    parser.add_argument("--out", type=Path, metavar="PKG", help="package to write into (default: this repository)")
    parser.add_argument("--check", action="store_true", help="compare and write nothing; exit 1 if anything differs")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Generate or compare: 0 done or equal, 1 the spec is wrong or files differ, 2 no place to write to."""
    loaded = loaded_spec(args.spec)
    if loaded is None:
        return 2
    if loaded.spec is None:
        print(render_all(loaded.problems, loaded.sources), file=sys.stderr)
        if args.json:
            print(json.dumps({"ok": False, "files": []}))
        return 1
    if args.out is None:
        root = repository(loaded.spec)
        if root is None:
            return 2
        planned, folders = plan(loaded.spec), REPOSITORY
    else:
        name = package_name(args.out)
        if name is None:
            return 2
        root, planned, folders = args.out, plan_package(loaded.spec, name), PACKAGE
    try:
        changes = write.compare(root, planned, folders, DRAWN)
        if not args.check:
            write.apply(root, changes)
        if args.out is not None and args.spec is not None:
            changes += _beside(loaded.spec, args.check)
        old_pictures = stale(root, planned, missing=args.out is None)
    except write.WriteError as error:
        print(f"kvfsm gen: {error}", file=sys.stderr)
        if args.json:
            print(json.dumps({"ok": False, "files": []}))
        return 1
    _report(args, changes, old_pictures)
    differs = bool(old_pictures) or any(change.status != "same" for change in changes)
    return 1 if args.check and differs else 0


def repository(spec: Spec) -> Path | None:
    """The repository that a spec lies in, known by its ``runtime/generated``; None with a line why not."""
    root = spec.root.resolve().parent
    if (root / "runtime" / "generated").is_dir() and (root / "kernels").is_dir():
        return root
    print(
        f"kvfsm gen: '{spec.root}' does not lie in a kvfsm repository, so say where to write: "
        f"kvfsm gen --spec {spec.root} --out PKG",
        file=sys.stderr,
    )
    return None


def _beside(spec: Spec, check: bool) -> list[write.Change]:
    """Compare the schemas beside a spec of one's own; write them too, unless only checking."""
    above = spec.root.resolve().parent
    planned = {f"{spec.root.resolve().name}/{name}": text for name, text in plan_beside(spec).items()}
    changes = write.compare(above, planned, ())
    if not check:
        write.apply(above, changes)
    return changes


def package_name(folder: Path) -> str | None:
    """The dotted name of the package in ``folder``: from the outermost folder above it that has ``__init__.py``."""
    full = folder.resolve()
    names = [full.name]
    while (full.parent / "__init__.py").is_file():
        full = full.parent
        names.insert(0, full.name)
    if all(name.isidentifier() and not keyword.iskeyword(name) for name in names):
        return ".".join(names)
    why = f"'{folder}' cannot be a Python package: '{'.'.join(names)}' is no name; use letters, digits and _"
    print(f"kvfsm gen: {why}", file=sys.stderr)
    return None


def _report(args: argparse.Namespace, changes: list[write.Change], old_pictures: list[str]) -> None:
    differing = [change for change in changes if change.status != "same"]
    if args.json:
        files = [{"path": change.path, "status": change.status} for change in changes]
        files += [{"path": path, "status": "redraw"} for path in old_pictures]
        print(json.dumps({"ok": not (args.check and (differing or old_pictures)), "files": files}))
        return
    if old_pictures:
        where = f" --spec {args.spec} -o {args.out / 'diagrams'}" if args.out else ""
        print(f"out of date: {', '.join(old_pictures)}; `kvfsm draw{where}` draws them anew", file=sys.stderr)
    if args.check:
        for change in differing:
            print(change.diff(), end="")
        if differing:
            again = " ".join(["kvfsm gen", *(["--spec", str(args.spec)] if args.spec else []),
                              *(["--out", str(args.out)] if args.out else [])])
            print(f"{len(differing)} of {len(changes)} generated files differ; `{again}` writes them", file=sys.stderr)
        elif not old_pictures:
            print(f"all {len(changes)} generated files are current")
        return
    verbs = {"new": "wrote", "changed": "wrote", "stale": "removed"}
    for change in differing:
        print(f"{verbs[change.status]} {change.path}")
    print(f"{len(changes) - len(differing)} of {len(changes)} files were current already")
    if args.out is not None and differing:
        print(_next_steps(args))


def _next_steps(args: argparse.Namespace) -> str:
    spec = f" --spec {args.spec}" if args.spec else ""
    return (
        f"next:  python -m pytest -q {args.out / 'tests'}    drive every transition and refusal\n"
        f"       kvfsm draw{spec} -o {args.out / 'diagrams'}    draw the pictures that its pages show"
    )
