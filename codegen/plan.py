"""A spec as all its generated files. Pure: no clock, no disk, no environment; the same spec gives the same texts."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import PurePosixPath

from ..spec.language.load import Spec
from .emit_python import Home
from .layout import header, source_of

# Modules of this package with ``emit(spec) -> {path: text}``, in the order in which ``gen`` lists their files.
EMITTERS = ("schema", "python", "models", "cuda", "dot", "mermaid", "markdown", "tests")
# Those whose texts depend on the package that they are written into.
AT_HOME = ("python", "markdown", "tests")
# Those whose files lie beside the spec, and so in no package.
BESIDE_SPEC = ("schema",)

Emit = Callable[..., dict[str, str]]


def plan(spec: Spec) -> dict[str, str]:
    """Every generated file of this repository: path from its root -> text."""
    spec = placed(spec)
    return _planned({name: _emitter(name)(spec) for name in EMITTERS})


def plan_package(spec: Spec, package: str) -> dict[str, str]:
    """Every generated file of a user's package: path from the package's folder -> text.

    Modules go to ``runtime/``, headers to ``kernels/``, pictures to ``diagrams/``, tests to ``tests/``; they import the
    base classes from ``kvfsm.runtime`` and each other from ``package``, a dotted name.
    """
    spec = placed(spec)
    home = Home(folder="runtime", base="kvfsm.runtime", tests="tests", package=f"{package}.runtime")
    names = [name for name in EMITTERS if name not in BESIDE_SPEC]
    texts = {name: _emitter(name)(spec, home) if name in AT_HOME else _emitter(name)(spec) for name in names}
    moved = dict(_moved(path, text) for path, text in _planned(texts).items())
    moved["__init__.py"] = f'"""{header(f"{spec.root.name}/")}"""\n'
    return moved


def plan_beside(spec: Spec) -> dict[str, str]:
    """The files that lie beside a spec of one's own, so that editors know its words: file name -> text."""
    texts = [_emitter(name)(spec) for name in BESIDE_SPEC]
    return {PurePosixPath(path).name: text for files in texts for path, text in files.items()}


def _moved(path: str, text: str) -> tuple[str, str]:
    """A file of this repository as one of a user's package."""
    if path.startswith("runtime/generated/"):
        text = re.sub(r"^from \.\.(\w+) import", r"from kvfsm.runtime.\1 import", text, flags=re.MULTILINE)
    if path.endswith(".md"):
        text = text.replace("/generated/", "/")
    return path.replace("/generated/", "/", 1), text


def placed(spec: Spec) -> Spec:
    """The spec with paths from its own folder on, so that texts don't depend on where it lies."""
    machines, safeguards = (
        tuple(replace(machine, path=source_of(machine)) for machine in group)
        for group in (spec.machines, spec.safeguards)
    )
    return replace(spec, machines=machines, safeguards=safeguards)


def _planned(texts: dict[str, dict[str, str]]) -> dict[str, str]:
    planned: dict[str, str] = {}
    for emitter, files in texts.items():
        for path, text in files.items():
            assert path not in planned, f"{path} is planned twice, the second time by emit_{emitter}"
            planned[path] = text
    return planned


def _emitter(name: str) -> Emit:
    emit: Emit = import_module(f"{__package__}.emit_{name}").emit
    return emit
