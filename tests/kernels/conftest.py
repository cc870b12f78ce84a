"""Fixtures of parity tests. ``tests/gpu`` runs the same tests with a launcher of its own.

Each schedule runs with a seed of its own, and so each seed under one schedule. All pairs of both run with ``-m long``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvfsm.kernels.launch import Launcher
from kvfsm.runtime.graphs import HostRecorder, Recorder

from ..hostcuda.building import Build
from ..hostcuda.host import HostLauncher
from ..hostcuda.schedules import EVERY_DAY

HERE = Path(__file__).parent
SEEDS = (1, 2, None)
"""None is another one each time."""


@pytest.hookimpl(tryfirst=True)  # before those that are long are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the pairs of a schedule with another's seed as long."""
    own = dict(zip(EVERY_DAY, SEEDS, strict=True))
    for item in items:
        if HERE in item.path.parents and isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            found = item.callspec.params
            if {"launcher", "rng"} <= found.keys() and own[found["launcher"]] != found["rng"]:
                item.add_marker(pytest.mark.long)


@pytest.fixture(params=EVERY_DAY, ids=str)
def launcher(request: pytest.FixtureRequest) -> Launcher:
    """Runs kernels on the host with all checks on."""
    return HostLauncher(Build.CHECK, request.param)


@pytest.fixture(params=SEEDS, ids=["seed 1", "seed 2", "fresh seed"])
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers; a fresh seed is printed, so that a failure can be repeated."""
    seed = request.param if request.param is not None else int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {seed}")
    return np.random.default_rng(seed)


@pytest.fixture
def recorder() -> Recorder:
    """Captures launches on the host."""
    return HostRecorder()
