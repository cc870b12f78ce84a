"""A machine of three states and all its outputs, byte for byte: what the generator writes, to be read in one sitting.

After a wanted change, accept the new outputs with: python tests/golden/test_toy.py
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kvfsm.codegen.plan import plan_package
from kvfsm.codegen.write import apply, compare
from kvfsm.spec.language.load import load_spec

TOY = Path(__file__).parent / "toy"
EXPECTED = TOY / "expected"
SUFFIX = ".txt"  # so that no tool takes them for sources


def outputs() -> dict[str, str]:
    spec = load_spec(TOY / "spec").required()
    return {path + SUFFIX: text for path, text in plan_package(spec, "toy").items()}


PATHS = tuple(outputs())


@pytest.mark.parametrize("path", PATHS)
def test_the_toy_comes_out_as_committed(path: str) -> None:
    (change,) = compare(EXPECTED, {path: outputs()[path]}, ())
    assert change.status == "same", f"{change.diff()}\nto accept: python tests/golden/test_toy.py"


def test_nothing_else_is_committed() -> None:
    committed = {path.relative_to(EXPECTED).as_posix() for path in EXPECTED.rglob("*") if path.is_file()}
    assert committed == set(PATHS)


if __name__ == "__main__":
    for old in [path for path in EXPECTED.rglob("*") if path.is_file()]:
        old.unlink()
    apply(EXPECTED, compare(EXPECTED, outputs(), ()))
