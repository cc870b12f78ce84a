"""FP8 by arithmetic and FP8 by the instruction are the same, for every float there is."""

from __future__ import annotations

import pytest

from kvfsm.kernels.cupy_launcher import CupyLauncher

from .differences import all_floats, differences


def test_every_float_becomes_the_same_code(launcher: CupyLauncher) -> None:
    import cupy

    capability = int(cupy.cuda.Device(launcher.device).compute_capability)
    if capability < 89:
        pytest.skip(f"compute capability {capability / 10} has no FP8 instruction; 8.9 has")
    assert differences(launcher, *all_floats()) == (0, None)
