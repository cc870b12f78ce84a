"""Which SVGs a spec has, what each is drawn from, and which of those on disk are out of date.

Every SVG stands beside its source, ``x.dot`` or ``x.mmd``, and names that source's digest; ``svg.py`` judges it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..spec.language.load import Spec
from . import emit_dot, sequence_svg
from .emit_mermaid import sequence_diagram
from .sequence import sequence
from .svg import Renderer, is_ours, render, sign, svg_is_current


@dataclass(frozen=True, slots=True)
class Drawing:
    """One SVG to draw: its path from the repository's root, the text that its digest is of, and how to draw it."""

    path: str
    source: str
    draw: Callable[[Renderer], str]


def drawings(spec: Spec) -> tuple[Drawing, ...]:
    """Every SVG of a spec, machines first. Pure: nothing is drawn yet."""
    states = [_state(path, source) for path, source in emit_dot.emit(spec).items()]
    return (*states, *(_sequence(spec, place) for place in range(len(spec.protocols))))


def stale(root: Path, planned: dict[str, str], missing: bool) -> list[str]:
    """SVGs below ``root`` that are drawn from another source than ``planned`` has, or were changed since.

    ``planned``: path -> text of all generated files, in which the sources of SVGs are found by their names.
    ``missing``: whether one that is not there at all counts too.
    """
    sources = {svg_path(path): text for path, text in planned.items() if _is_source(path)}
    judged = (path for path in sources if missing or (root / path).exists())
    return [path for path in judged if not is_current(root / path, sources[path])]


def is_current(svg: Path, source: str) -> bool:
    """Whether the file is there, drawn from ``source``, and unchanged."""
    try:
        return svg_is_current(svg.read_text("utf-8"), source)
    except (FileNotFoundError, UnicodeDecodeError):
        return False


def orphans(folder: Path, kept: set[Path]) -> list[Path]:
    """SVGs of ours in a folder that no machine or protocol asks for any more, by name."""
    found = sorted([*folder.glob("*.svg"), *(folder / "protocols").glob("*.svg")])
    return [path for path in found if path not in kept and is_ours(path.read_text("utf-8", errors="replace"))]


def svg_path(source_path: str) -> str:
    """The SVG that stands beside a source."""
    return str(PurePosixPath(source_path).with_suffix(".svg"))


def _is_source(path: str) -> bool:
    """State diagrams are drawn from Graphviz source; a sequence diagram's Mermaid text says all that its SVG shows."""
    return path.endswith(".dot") or (path.endswith(".mmd") and "/protocols/" in path)


def _state(path: str, source: str) -> Drawing:
    return Drawing(svg_path(path), source, lambda renderer: render(source, renderer))


def _sequence(spec: Spec, place: int) -> Drawing:
    picture = sequence(spec.protocols[place])
    source = sequence_diagram(picture)
    path = f"diagrams/protocols/{picture.name}.svg"
    return Drawing(path, source, lambda renderer: sign(sequence_svg.draw(picture), source))
