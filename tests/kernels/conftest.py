"""Fixtures of parity tests. ``tests/gpu`` runs the same tests with a launcher of its own."""

from __future__ import annotations

import numpy as np
import pytest

from kvfsm.kernels.launch import Launcher
from kvfsm.runtime.graphs import HostRecorder, Recorder

from ..hostcuda.building import Build
from ..hostcuda.host import HostLauncher
from ..hostcuda.schedules import EVERY_DAY


@pytest.fixture(params=EVERY_DAY, ids=str)
def launcher(request: pytest.FixtureRequest) -> Launcher:
    """Runs kernels on the host with all checks on."""
    return HostLauncher(Build.CHECK, request.param)


@pytest.fixture(params=[1, 2, None], ids=["seed 1", "seed 2", "fresh seed"])
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers; a fresh seed is printed, so that a failure can be repeated."""
    seed = request.param if request.param is not None else int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {seed}")
    return np.random.default_rng(seed)


@pytest.fixture
def recorder() -> Recorder:
    """Captures launches on the host."""
    return HostRecorder()
