"""Floats that the two conversions to FP8 make different codes of."""

from __future__ import annotations

import numpy as np

from kvfsm.kernels.launch import Launcher, LaunchPlan

from .programs import E4M3_DIFFERENCES

PER_THREAD = 256


def all_floats() -> tuple[int, int]:
    """First, and how many."""
    return 0, 2**32


def differences(launcher: Launcher, first: int, count: int) -> tuple[int, int | None]:
    """(how many, bits of the least) of ``count`` floats from the bits ``first`` on; a multiple of 65536."""
    assert count % (256 * PER_THREAD) == 0
    differing = launcher.upload(np.zeros(1, np.uint64))
    example = launcher.upload(np.array([2**32 - 1], np.uint32))
    grid = (count // (256 * PER_THREAD), 1, 1)
    launcher.launch(LaunchPlan(E4M3_DIFFERENCES, grid, (first, PER_THREAD, differing.pointer, example.pointer)))
    found = int(differing.download()[0])
    return found, int(example.download()[0]) if found else None
