"""The parity tests of all families once more, on the device: the same functions, collected from their modules."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

from .device import missing

KERNELS = Path(__file__).parents[1] / "kernels"


def parity_modules() -> list[ModuleType]:
    """Of tests/kernels, in the order of their names."""
    names = sorted(path.stem for path in KERNELS.glob("test_*_parity.py"))
    return [importlib.import_module(f"..kernels.{name}", __package__) for name in names]


def collected() -> dict[str, Any]:
    """Tests of all modules by a name that tells the family, and the fixtures that they take."""
    found: dict[str, Any] = {}
    for module in parity_modules():
        family = module.__name__.rpartition(".")[2].removesuffix("_parity")
        for name, value in vars(module).items():
            is_test = name.startswith("test_") and callable(value)
            # By pytest 8.4 and newer, and by those before.
            is_fixture = hasattr(value, "_fixture_function_marker") or hasattr(value, "_pytestfixturefunction")
            if is_test or is_fixture:
                named = f"{family}_{name.removeprefix('test_')}" if is_test else name
                assert found.setdefault(named, value) is value, f"two modules have a fixture {name!r}; rename one"
    return found


if missing() is None:
    globals().update(collected())
else:

    def test_all_parity_tests_of_the_host() -> None:
        """One that is skipped, instead of a thousand."""
