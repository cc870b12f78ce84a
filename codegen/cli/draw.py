"""Draw every machine as a state diagram and every protocol as a sequence diagram, as SVG.

  kvfsm draw                                 this repository: diagrams/*.svg and diagrams/protocols/*.svg
  kvfsm draw --check                         draw nothing; exit 1 if a picture is missing or out of date
  kvfsm draw -o pictures                     into a folder of one's own
  kvfsm draw --spec my_spec -o my_package/diagrams
  kvfsm draw --json                          {"ok": ..., "renderer": ..., "files": [{"path", "status"}]}

The program `dot` draws where it exists, else Graphviz as WebAssembly (pip install 'kvfsm[diagrams]'). Each SVG names
the digest of what it was drawn from; one that is up to date is left alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ...spec.language.load import Spec
from ...spec.language.problems import render_all
from .. import write
from ..drawings import Drawing, drawings, is_current, orphans
from ..plan import placed
from ..svg import NoRenderer, Renderer, RenderFailed, find_renderer, is_ours
from .lint import add_spec, loaded_spec

_FOLDER = "diagrams"


@dataclass(frozen=True, slots=True)
class _Result:
    """All planned pictures, those that are drawn anew (or would be), and those that nothing asks for any more."""

    planned: list[Path]
    touched: set[Path]
    old: list[Path]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's options."""
    add_spec(parser)
    parser.add_argument("-o", "--out", type=Path, metavar="DIR", help="folder for the SVGs (default: diagrams/ here)")
    parser.add_argument("--check", action="store_true", help="draw nothing; exit 1 if a picture is out of date")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Draw or compare: 0 done or current, 1 a wrong spec or old pictures, 2 nothing to draw with or no place for it."""
    loaded = loaded_spec(args.spec)
    if loaded is None:
        return 2
    if loaded.spec is None:
        print(render_all(loaded.problems, loaded.sources), file=sys.stderr)
        if args.json:
            print(json.dumps({"ok": False, "renderer": None, "files": []}))
        return 1
    folder = args.out if args.out is not None else _repository_folder(loaded.spec)
    if folder is None:
        return 2
    if folder.exists() and not folder.is_dir():
        print(f"kvfsm draw: '{folder}' is a file; name a folder, which is made when it is missing", file=sys.stderr)
        return 2
    planned = [(folder / PurePosixPath(item.path).relative_to(_FOLDER), item) for item in drawings(placed(loaded.spec))]
    waiting = [(path, item) for path, item in planned if not is_current(path, item.source)]
    foreign = [path for path, _ in waiting if path.exists() and not is_ours(path.read_text("utf-8", "replace"))]
    if foreign:
        fix = "move it away, or draw elsewhere with -o DIR"
        print(f"kvfsm draw: '{foreign[0]}' was not drawn by kvfsm and would be lost; {fix}", file=sys.stderr)
        return 2
    old = orphans(folder, {path for path, _ in planned})
    result = _Result([path for path, _ in planned], {path for path, _ in waiting}, old)
    if args.check or not (waiting or old):
        return _report(args, result, None)
    try:
        renderer = find_renderer()
        _draw(waiting, renderer)
        for path in old:
            path.unlink()
    except NoRenderer as error:
        print(f"kvfsm draw: {error}", file=sys.stderr)
        return 2
    except (RenderFailed, write.WriteError) as error:
        print(f"kvfsm draw: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"kvfsm draw: cannot remove {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    return _report(args, result, renderer.name)


def _repository_folder(spec: Spec) -> Path | None:
    """``diagrams/`` beside the spec; None, with a line why, when there is none."""
    folder = spec.root.resolve().parent / _FOLDER
    if folder.is_dir():
        return folder
    print(
        f"kvfsm draw: there is no '{_FOLDER}' beside '{spec.root}', so say where to draw: kvfsm draw -o DIR",
        file=sys.stderr,
    )
    return None


def _draw(waiting: list[tuple[Path, Drawing]], renderer: Renderer) -> None:
    for place, (path, item) in enumerate(waiting, 1):
        print(f"[{place}/{len(waiting)}] {path.name}", file=sys.stderr)
        write.put(path, item.draw(renderer))


def _report(args: argparse.Namespace, result: _Result, renderer: str | None) -> int:
    ok = not (args.check and (result.touched or result.old))
    drawn, removed = ("stale", "orphan") if args.check else ("drawn", "removed")
    files = [(path, drawn if path in result.touched else "same") for path in result.planned]
    files += [(path, removed) for path in result.old]
    if args.json:
        shown = [{"path": path.as_posix(), "status": status} for path, status in files]
        print(json.dumps({"ok": ok, "renderer": renderer, "files": shown}))
    else:
        for path, status in files:
            if status != "same":
                print(f"{status} {path}")
        print(f"{len(result.planned) - len(result.touched)} of {len(result.planned)} pictures were current already")
    if not ok:
        again = " ".join(["kvfsm draw", *(["--spec", str(args.spec)] if args.spec else []),
                          *(["-o", str(args.out)] if args.out else [])])
        print(f"some pictures are missing or out of date; `{again}` draws them", file=sys.stderr)
    return 0 if ok else 1
