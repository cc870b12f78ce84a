"""The demo's first step: whether the shipped spec is sound, and what was generated from it is current."""

from __future__ import annotations

from typing import Any

from ...spec.language.load import load_spec
from ...spec.language.problems import render_all
from .. import write
from ..plan import plan
from .gen import DRAWN, REPOSITORY

INSTALLED = ("runtime/", "kernels/")
"""Generated files that an installed package has; diagrams and tests stay in the repository."""


def spec_report() -> dict[str, Any]:
    """``ok``, a line of ``text``, and counts."""
    loaded = load_spec()
    if loaded.spec is None:
        return {"ok": False, "text": f"the spec has problems\n{render_all(loaded.problems, loaded.sources)}"}
    spec = loaded.spec
    root = spec.root.resolve().parent
    planned = plan(spec)
    folders: tuple[str, ...] = REPOSITORY
    if not (root / "diagrams").is_dir():
        planned = {path: text for path, text in planned.items() if path.startswith(INSTALLED)}
        folders = tuple(folder for folder in REPOSITORY if folder.startswith(INSTALLED))
    differing = [change.path for change in write.compare(root, planned, folders, DRAWN) if change.status != "same"]
    counts = f"{len(spec.machines)} machines, {len(spec.protocols)} protocols, {len(spec.profiles)} model profiles"
    if differing:
        state = (
            f"{len(differing)} of {len(planned)} generated files are not current, {differing[0]} first: run `kvfsm gen`"
        )
    else:
        state = f"all {len(planned)} generated files are current"
    return {
        "ok": not differing,
        "text": f"the spec is sound ({counts}); {state}",
        "machines": len(spec.machines),
        "protocols": len(spec.protocols),
        "profiles": len(spec.profiles),
        "generated": len(planned),
        "differing": differing,
    }
