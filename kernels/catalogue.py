"""Every kernel there is, found in the modules of this package."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from pathlib import Path

from .launch import Kernel


@cache
def catalogue() -> dict[str, Kernel]:
    """All kernels by their names, in the order of their files and definitions."""
    found: dict[str, Kernel] = {}
    for module in sorted(pkgutil.iter_modules([str(Path(__file__).parent)]), key=lambda each: each.name):
        members = vars(importlib.import_module(f".{module.name}", __package__))
        for kernel in members.values():
            if isinstance(kernel, Kernel):
                other = found.setdefault(kernel.name, kernel)
                assert other == kernel, f"two kernels have the name {kernel.name!r}"
    return found
