"""Runs ``tests/gpu/test_parity.py`` as on a device, with the host in the place of CuPy and of captured graphs.

    python tests/kernels/rehearsal.py [options of pytest]

So the collected tests are known to run with a launcher and a recorder that they are given, whatever these are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).parents[2]


def main() -> int:
    """What pytest returns."""
    sys.path.insert(0, str(REPO))
    from kvfsm.kernels import cupy_launcher
    from kvfsm.runtime.graphs import HostRecorder
    from kvfsm.runtime.integrations import cuda_graphs
    from tests.gpu import device
    from tests.hostcuda.building import Build
    from tests.hostcuda.host import HostLauncher

    def launcher(kernels: Any = (), sources: Callable[..., str] | None = None) -> HostLauncher:
        assert sources is not None
        return HostLauncher(Build.FAST, sources=sources)

    replaced: list[tuple[Any, str, Any]] = [
        (cupy_launcher, "CupyLauncher", launcher),
        (cuda_graphs, "CudaGraphs", HostRecorder),
        (device, "missing", lambda: None),
    ]
    for module, name, value in replaced:
        setattr(module, name, value)
    import torch

    torch.cuda.is_available = lambda: True
    return int(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:], str(REPO / "tests/gpu/test_parity.py")]))


if __name__ == "__main__":
    sys.exit(main())
