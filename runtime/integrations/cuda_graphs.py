"""CUDA graphs: a ``Recorder`` over ``torch.cuda.CUDAGraph``, for ``GraphRunner`` on a GPU.

    runner = GraphRunner(manager, step, [1, 2, 4, 8], CudaGraphs())

What a step launches must be capturable: no allocation outside the graph's pool, no ``.item()``, no event query, each
kernel compiled and loaded by the first warm-up. Counts and slots come from the tables, which are on the device. Tensors
over the manager's slots are the step's own affair: a manager whose arenas are host memory serves kernels that can read
that, such as pinned memory given as ``Manager(buffers=...)``.

No GPU is among the machines that test this. Its tests run it with a torch of their own making, which holds each call to
the order that CUDA asks for; that a driver takes it so is to be seen on one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from ..graphs import Launch
from ..lease import Done
from ..static_tables import Host


class CudaGraph:
    """One captured graph."""

    def __init__(self, torch: Any, graph: Any, device: str) -> None:
        self._torch, self._graph, self._device = torch, graph, device

    def replay(self) -> Done:
        """Launch it on the device's current stream; what is returned asks an event, and does not wait."""
        with self._torch.cuda.device(self._device):
            self._graph.replay()
            event = self._torch.cuda.Event()
            event.record()
        ended: Done = event.query
        return ended


class CudaGraphs:
    """Captures on one device; its graphs share a memory pool, and run one after another on the caller's stream.

    Args:
        device: of the tables, captures and replays, whichever is torch's current one then.
        warmups: runs before a capture; each really writes, to scratch.
        staged: uploads that may be under way at once. One more waits for the first of them.
        torch: the module; imported at the first use by default.

    Raises:
        ValueError: fewer than 1 warm-up or staged upload.
        ImportError: torch is not installed.
    """

    def __init__(self, device: str = "cuda", *, warmups: int = 3, staged: int = 3, torch: Any = None) -> None:
        if warmups < 1 or staged < 1:
            raise ValueError(f"warmups={warmups}, staged={staged}; give at least 1")
        if torch is None:
            import torch
        self._torch, self._device, self._warmups, self._staged = torch, device, warmups, staged
        self._pool: Any = None
        self._under_way: deque[tuple[Any, list[Any]]] = deque()  # event after the copies, pinned memory they read

    def place(self, name: str, host: Host) -> Any:
        """A tensor on the device with the same shape and dtype."""
        return self._torch.from_numpy(host).to(self._device, copy=True)

    def address(self, placed: Any) -> int:
        """Address on the device."""
        return int(placed.data_ptr())

    def upload(self, changed: Mapping[str, tuple[Host, Any]]) -> None:
        """Copy what changed on the device's current stream, ahead of what comes next there; the host goes on at once.

        The tables may be filled again at once, too: what is copied is a pinned duplicate of them, which lives until its
        copy has ended.
        """
        torch = self._torch
        while self._under_way and self._under_way[0][0].query():
            self._under_way.popleft()
        if len(self._under_way) >= self._staged:
            self._under_way.popleft()[0].synchronize()
        duplicates = []
        with torch.cuda.device(self._device):
            for host, placed in changed.values():
                pinned = torch.empty(host.shape, dtype=placed.dtype, pin_memory=True)
                pinned.copy_(torch.from_numpy(host))
                placed.copy_(pinned, non_blocking=True)
                duplicates.append(pinned)
            event = torch.cuda.Event()
            event.record()
        self._under_way.append((event, duplicates))

    def record(self, step: Callable[[Launch], None]) -> CudaGraph:
        """Warm up on a side stream, capture, and wait for the device: a capture may take that time.

        Other threads go on meanwhile: load workers ask events and allocate. In torch's own mode, ``global``, any such
        call of theirs would end the capture; ``thread_local`` forbids them to the capturing thread alone.
        Source: CUDA Runtime API, cudaThreadExchangeStreamCaptureMode.
        """
        torch = self._torch
        with torch.cuda.device(self._device):
            current, side = torch.cuda.current_stream(), torch.cuda.Stream()
            side.wait_stream(current)
            with torch.cuda.stream(side):
                for _ in range(self._warmups):
                    step(_launch)
            current.wait_stream(side)
            torch.cuda.synchronize()
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                step(_launch)
        return CudaGraph(torch, graph, self._device)


def _launch(kernel: Callable[..., object], *arguments: Any) -> None:
    kernel(*arguments)
