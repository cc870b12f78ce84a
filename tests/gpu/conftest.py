"""Every test here needs a CUDA device and CuPy; without them it is skipped, and says what is missing."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from kvfsm.kernels.catalogue import catalogue
from kvfsm.kernels.cupy_launcher import CupyLauncher
from kvfsm.runtime.graphs import Recorder
from kvfsm.runtime.integrations.cuda_graphs import CudaGraphs

from ..kernels.conftest import rng  # noqa: F401
from .device import missing, without_pool
from .programs import PROGRAMS, program_source

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them, and skip them where there is no device."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.needs_gpu)
            if (why := missing()) is not None:
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session")
def launcher() -> CupyLauncher:
    """Runs kernels on the device: those of the project, and the programs of these tests."""
    if os.environ.get("KVFSM_UNDER_SANITIZER"):
        without_pool()
    return CupyLauncher(kernels=[*catalogue().values(), *PROGRAMS], sources=program_source)


@pytest.fixture
def recorder() -> Recorder:
    """Captures CUDA graphs, by torch."""
    torch = pytest.importorskip("torch", reason="graphs are captured by torch; install a CUDA build of it")
    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} has no CUDA; graphs are captured by a CUDA build of it")
    gc.collect()  # now, for memory of an earlier test must not be freed while this one captures
    return CudaGraphs()
