"""A launch with a bug, to see that compute-sanitizer reports it: ``python -m tests.gpu.faults memcheck``."""

from __future__ import annotations

import sys

import numpy as np

from kvfsm.kernels.launch import Launcher, LaunchPlan

from .programs import FAULTY, program_source

COUNT = 48
"""Numbers of each buffer: 192 bytes, which no pool's block ends with."""


def launch(launcher: Launcher, tool: str) -> None:
    """Run the kernel with the bug that a tool is for."""
    numbers, target = launcher.upload(np.arange(COUNT, dtype=np.uint32)), launcher.empty((COUNT,), np.uint32)
    launcher.launch(LaunchPlan(FAULTY[tool], (1, 1, 1), (numbers.pointer, target.pointer, COUNT)))
    launcher.synchronise()


if __name__ == "__main__":
    from kvfsm.kernels.cupy_launcher import CupyLauncher

    from .device import without_pool

    without_pool()
    launch(CupyLauncher(kernels=[FAULTY[sys.argv[1]]], sources=program_source), sys.argv[1])
