"""Time of each kernel over its floor, beside a copy from device to device of the same bytes and what torch makes of it.

Launches are captured twenty at a time in a CUDA graph, so that what is timed is the device and not Python; torch is
launched as a user would. The floor is the bytes of the workload at the rate of that copy, which is measured here, on
this device. A workload has its memory while it is timed, and no longer.
"""

from __future__ import annotations

import importlib
import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvfsm.kernels.cupy_launcher import CupyLauncher

from .device import current
from .workloads import LAUNCHES, Workload, workloads

REPEATS = 9
HEADER = (
    "| kernel | MB | us | GB/s | copy us | over floor | torch us | torch leaves out |\n"
    "|---|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True, slots=True)
class Row:
    """Microseconds of one launch. ``torch`` says what it leaves out, or why it has no time."""

    name: str
    bytes: int
    kernel_us: float
    copy_us: float
    torch: str
    torch_us: float | None

    @property
    def over_floor(self) -> float:
        """How many times the copy's time."""
        return self.kernel_us / self.copy_us

    def line(self) -> str:
        """Of the table, under ``HEADER``."""
        torch = "" if self.torch_us is None else f"{self.torch_us:.1f}"
        return (
            f"| {self.name} | {self.bytes / 1e6:.1f} | {self.kernel_us:.1f} | {self.bytes / self.kernel_us / 1e3:.0f} "
            f"| {self.copy_us:.1f} | {self.over_floor:.2f} | {torch} | {self.torch} |"
        )


def measured(launcher: CupyLauncher, scale: int = 1, device: str = "cuda") -> Iterator[Row]:
    """A row for every kernel, one after the other; ``scale`` divides sizes, ``device`` is torch's."""
    import cupy

    torch, lacks = torch_or_why()
    stream = cupy.cuda.Stream(non_blocking=True)
    for job in workloads(launcher, scale):
        launcher.synchronise()  # its uploads went to another stream
        kernel = captured_us(stream, launches_of(launcher, job), job.again)
        copy = copy_us(stream, job.bytes)
        told, taken = (lacks, None) if torch is None else torch_us(torch, job, device)
        yield Row(job.name, job.bytes, kernel, copy, told, taken)
        del job
        cupy.get_default_memory_pool().free_all_blocks()
        if torch is not None:
            torch.cuda.empty_cache()


def launches_of(launcher: CupyLauncher, job: Workload) -> Sequence[Callable[[], None]]:
    """Twenty launches, of its plans in turn."""
    plans = itertools.islice(itertools.cycle(job.plans), LAUNCHES)
    return [lambda plan=plan: launcher.launch(plan) for plan in plans]  # type: ignore[misc]


def captured_us(stream: Any, launches: Sequence[Callable[[], None]], again: Callable[[], None] = lambda: None) -> float:
    """One launch, of all in a graph, at the median of some runs of it. ``again`` runs before each, and is not timed."""
    import cupy

    with current(stream):
        again()
        launches[0]()
        stream.synchronize()
        stream.begin_capture()
        for launch in launches:
            launch()
        graph = stream.end_capture()
        times = []
        for _ in range(REPEATS):
            again()
            begin, end = cupy.cuda.Event(), cupy.cuda.Event()
            begin.record(stream)
            graph.launch(stream)
            end.record(stream)
            end.synchronize()
            times.append(1000 * cupy.cuda.get_elapsed_time(begin, end) / len(launches))
    return statistics.median(times[2:])


def copy_us(stream: Any, moved: int) -> float:
    """A copy from device to device that reads and writes so many bytes together."""
    import cupy

    half = max(1, moved // 2)
    source, target = cupy.zeros(half, cupy.uint8), cupy.zeros(half, cupy.uint8)
    cupy.cuda.Device().synchronize()

    def copy() -> None:
        runtime = cupy.cuda.runtime
        runtime.memcpyAsync(target.data.ptr, source.data.ptr, half, runtime.memcpyDeviceToDevice, stream.ptr)

    return captured_us(stream, [copy] * LAUNCHES)


def torch_or_why() -> tuple[Any, str]:
    """Torch with CUDA, or None and what is missing."""
    try:
        import torch
    except ImportError:
        return None, "torch is not installed"
    return (torch, "") if torch.cuda.is_available() else (None, f"torch {torch.__version__} has no CUDA")


def torch_us(torch: Any, job: Workload, device: str) -> tuple[str, float | None]:
    """What torch leaves out of a kernel's job, and its time for the rest; or why it has none."""
    way = getattr(importlib.import_module(".in_torch", __package__), job.name)
    try:
        given = tensors(torch, job.given, device)
        times = []
        for _ in range(REPEATS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(LAUNCHES):
                way(**given)
            end.record()
            end.synchronize()
            times.append(1000 * begin.elapsed_time(end) / LAUNCHES)
    except RuntimeError as error:  # such as torch.OutOfMemoryError: the other rows are wanted all the same
        return f"failed: {str(error).splitlines()[0]}", None
    return leaves_out(way), statistics.median(times[2:])


def leaves_out(way: Callable[..., Any]) -> str:
    """The first line of its docstring."""
    return (way.__doc__ or "").partition("\n")[0].strip().rstrip(".")


def tensors(torch: Any, given: Any, device: str) -> Any:
    """The same with tensors for arrays; 16 bits of an array are bfloat16."""
    if isinstance(given, dict):
        return {name: tensors(torch, each, device) for name, each in given.items()}
    if isinstance(given, list):
        return [tensors(torch, each, device) for each in given]
    if not isinstance(given, np.ndarray):
        return given
    made = torch.from_numpy(given.view(np.int16) if given.dtype == np.uint16 else given).to(device)
    return made.view(torch.bfloat16) if given.dtype == np.uint16 else made


def main() -> None:
    """Print the table, a row as it is measured."""
    launcher = CupyLauncher()
    print(HEADER, flush=True)
    for row in measured(launcher):
        print(row.line(), flush=True)


if __name__ == "__main__":
    main()
