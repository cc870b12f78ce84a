"""Time of each kernel over its floor, beside a copy from device to device of the same bytes and torch's expression.

Launches are captured twenty at a time in a CUDA graph, so that what is timed is the device and not Python. The floor is
the bytes of the workload at the rate of that copy, which is measured here, on this device.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvfsm.kernels.cupy_launcher import CupyLauncher

from .workloads import Workload, workloads

LAUNCHES, REPEATS = 20, 9


@dataclass(frozen=True, slots=True)
class Row:
    """Microseconds of one launch; ``torch_us`` is None where no torch expression was timed."""

    name: str
    bytes: int
    kernel_us: float
    copy_us: float
    torch: str | None
    torch_us: float | None

    @property
    def over_floor(self) -> float:
        """How many times the copy's time."""
        return self.kernel_us / self.copy_us


def measured(launcher: CupyLauncher) -> list[Row]:
    """Every workload. Kernels come before torch, which takes over the current stream once it has begun."""
    import cupy

    jobs, sized = workloads(launcher)
    stream = cupy.cuda.Stream(non_blocking=True)
    kernels = [captured_us(stream, lambda one=one: launcher.launch(one.plan)) for one in jobs]  # type: ignore[misc]
    copies = [copy_us(stream, one.bytes) for one in jobs]
    torches = [torch_us(one) for one in jobs]
    del sized
    rows = zip(jobs, kernels, copies, torches, strict=True)
    return [Row(one.name, one.bytes, kernel, copy, one.torch, torch) for one, kernel, copy, torch in rows]


def captured_us(stream: Any, launch: Callable[[], None]) -> float:
    """One launch, of twenty in a graph, at the median of some runs of it."""
    import cupy

    with stream:
        launch()
        stream.synchronize()
        stream.begin_capture()
        for _ in range(LAUNCHES):
            launch()
        graph = stream.end_capture()
        times = []
        for _ in range(REPEATS):
            begin, end = cupy.cuda.Event(), cupy.cuda.Event()
            begin.record(stream)
            graph.launch(stream)
            end.record(stream)
            end.synchronize()
            times.append(1000 * cupy.cuda.get_elapsed_time(begin, end) / LAUNCHES)
    return statistics.median(times[2:])


def copy_us(stream: Any, moved: int) -> float:
    """A copy from device to device that reads and writes so many bytes together."""
    import cupy

    half = max(1, moved // 2)
    source, target = cupy.zeros(half, cupy.uint8), cupy.zeros(half, cupy.uint8)
    return captured_us(
        stream, lambda: cupy.cuda.runtime.memcpyAsync(
            target.data.ptr, source.data.ptr, half, cupy.cuda.runtime.memcpyDeviceToDevice, stream.ptr
        )
    )  # fmt: skip


def torch_us(job: Workload) -> float | None:
    """What a user would write, launched by torch as he would launch it."""
    if job.torch is None or job.tensors is None:
        return None
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    code, values = compile(job.torch, job.name, "eval"), {"torch": torch} | job.tensors(torch)
    times = []
    for _ in range(REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(LAUNCHES):
            eval(code, values)
        end.record()
        end.synchronize()
        times.append(1000 * begin.elapsed_time(end) / LAUNCHES)
    return statistics.median(times[2:])


def table(rows: list[Row]) -> str:
    """As Markdown."""
    lines = [
        "| kernel | MB | us | GB/s | copy us | over floor | torch us | torch |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        torch = "" if row.torch_us is None else f"{row.torch_us:.1f}"
        lines.append(
            f"| {row.name} | {row.bytes / 1e6:.1f} | {row.kernel_us:.1f} | {row.bytes / row.kernel_us / 1e3:.0f} | "
            f"{row.copy_us:.1f} | {row.over_floor:.2f} | {torch} | {f'`{row.torch}`' if torch else ''} |"
        )
    return "\n".join(lines) + "\n"
