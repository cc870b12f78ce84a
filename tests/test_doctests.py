"""Every docstring example runs."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

REPO = Path(__file__).parent.parent
MODULES = sorted(
    ".".join(("kvfsm", *path.relative_to(REPO).with_suffix("").parts)).removesuffix(".__init__")
    for folder in ("spec", "codegen", "runtime", "kernels")
    for path in (REPO / folder).rglob("*.py")
    if path.name != "__main__.py" and ">>>" in path.read_text("utf-8")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str) -> None:
    outcome = doctest.testmod(importlib.import_module(name))
    assert outcome.attempted > 0
    assert outcome.failed == 0


def test_a_wrong_example_is_seen() -> None:
    example = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "planted", None, 0)
    assert doctest.DocTestRunner(verbose=False).run(example, out=lambda text: None).failed == 1
