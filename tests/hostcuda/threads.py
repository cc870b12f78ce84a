"""Kernels side by side in threads of the operating system, watched by ThreadSanitizer: for the order of memory.

Two accesses that no acquire and release order are a race, whatever really happened. Searches say the same by rules of
our own (runtime/order.cpp); this is a tool that others made.
"""

from __future__ import annotations

import platform
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from kvfsm.kernels.launch import LaunchPlan, Pointer

from .building import Build, DoesNotCompile, program, translation_unit
from .engine import load_kernel
from .host import HostBuffer, HostLauncher

RACE_EXIT = 66
STARTS_MAX = 10
"""Where addresses stay random, ThreadSanitizer's memory is sometimes in use already, and the next start goes well."""


class ThreadRace(AssertionError):
    """ThreadSanitizer's report; ``places`` are the lines of the two accesses, in files as the source names them."""

    def __init__(self, report: str) -> None:
        super().__init__(report)
        self.places: tuple[str, ...] = tuple(re.findall(r"#0 .*? (\S+:\d+)(?::\d+)? \(", report)[:2])


def run_threads(
    launcher: HostLauncher,
    plans: Sequence[LaunchPlan],
    at_end: Callable[[], None] | None = None,
    rounds: int = 200,
    threads: int | None = None,
) -> int:
    """Run the plans side by side for some rounds, each from the buffers as they are, which they are afterwards too.

    at_end   raises AssertionError if the buffers are wrong after a round
    threads  of each block that exist, if not all: each is a thread of the operating system

    Returns:
        How many different ends there were.

    Raises:
        ThreadRace: two accesses that nothing orders.
        AssertionError: of ``at_end``.
    """
    plans = [plan for plan in plans if not plan.is_empty]
    buffers = _buffers(launcher, plans)
    before = [buffer.download() for buffer in buffers]
    binary = _program(launcher, plans)
    with tempfile.TemporaryDirectory() as folder:
        job, ends = Path(folder, "job"), Path(folder, "ends")
        job.write_bytes(_job(launcher, plans, buffers, rounds, threads))
        done = _run([*_without_random_addresses(), str(binary), str(job), str(ends)])
        if done.returncode == RACE_EXIT:
            raise ThreadRace(done.stderr)
        assert done.returncode == 0, f"exit {done.returncode}\n{done.stderr[-2000:]}"
        found = ends.read_bytes()
    size = 8 + sum(buffer.pointer.bytes for buffer in buffers)
    assert len(found) % size == 0
    try:
        for start in range(0, len(found), size):
            at = start + 8
            for buffer in buffers:
                part = found[at : at + buffer.pointer.bytes]
                buffer.write(np.frombuffer(part, buffer.dtype).reshape(buffer.array.shape))
                at += len(part)
            if at_end is not None:
                at_end()
    finally:
        for buffer, array in zip(buffers, before, strict=True):
            buffer.write(array)
    return len(found) // size


def _buffers(launcher: HostLauncher, plans: Sequence[LaunchPlan]) -> list[HostBuffer]:
    found: dict[int, HostBuffer] = {}
    for plan in plans:
        for value in plan.values:
            if isinstance(value, Pointer):
                buffer = launcher.buffer_at(value)
                assert buffer is not None, "threads run over buffers of the launcher only"
                found.setdefault(id(buffer), buffer)
    return list(found.values())


def _program(launcher: HostLauncher, plans: Sequence[LaunchPlan]) -> Path:
    units = []
    for position, plan in enumerate(plans):
        text = launcher.sources(plan.kernel)
        load_kernel(plan.kernel, text, Build.FAST)  # which compares spec and C function
        source, symbols = translation_unit(text)
        for symbol in symbols:
            source = re.sub(rf"\b{symbol}\b", f"{symbol}_{position}", source)
        units.append(source)
    _require_sanitizer()
    return program(units)


def _job(
    launcher: HostLauncher,
    plans: Sequence[LaunchPlan],
    buffers: Sequence[HostBuffer],
    rounds: int,
    threads: int | None,
) -> bytes:
    """As ``read_job`` in runtime/threads.cpp reads it: numbers of 8 bytes, and bytes behind their count."""
    parts = [_numbers(rounds, len(buffers))]
    for buffer in buffers:
        parts += [_numbers(buffer.pointer.bytes), buffer.array.tobytes()]
    parts.append(_numbers(len(plans)))
    for position, plan in enumerate(plans):
        name = f"{plan.kernel.symbol}_{position}".encode()
        parts += [_numbers(len(name)), name]
        parts.append(_numbers(*plan.grid, threads or plan.kernel.threads, plan.kernel.shared_bytes, len(plan.values)))
        for argument, value in zip(plan.kernel.arguments, plan.values, strict=True):
            if isinstance(value, Pointer):
                target = launcher.buffer_at(value)
                assert target is not None
                number = next(i for i, other in enumerate(buffers) if other is target)
                parts.append(_numbers(1, number, value.address - target.pointer.address))
            else:
                raw = argument.dtype.type(value or 0).tobytes().ljust(8, b"\0") if not argument.is_pointer else bytes(8)
                parts += [_numbers(0), raw, _numbers(0)]
    return b"".join(parts)


def _numbers(*numbers: int) -> bytes:
    return struct.pack(f"={len(numbers)}Q", *numbers)


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    options = f"halt_on_error=1 exitcode={RACE_EXIT} report_thread_leaks=0"
    for _ in range(STARTS_MAX):
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=300, env={"TSAN_OPTIONS": options}
        )
        if "unexpected memory mapping" not in done.stderr:
            break
    return done


@cache
def _without_random_addresses() -> tuple[str, ...]:
    """ThreadSanitizer wants its shadow at fixed addresses, and with random ones some kernels leave it no room."""
    found = shutil.which("setarch")
    if found is None:
        return ()
    command = (found, platform.machine(), "-R")
    return command if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0 else ()


@cache
def _require_sanitizer() -> None:
    """Skip the test where g++ has no ThreadSanitizer, or it doesn't run."""
    try:
        binary = program(())
    except DoesNotCompile as error:
        if "tsan" not in str(error):
            raise
        pytest.skip("needs libtsan, which comes with g++")
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder, "job")
        job.write_bytes(_numbers(0, 0, 0))
        done = _run([*_without_random_addresses(), str(binary), str(job), str(Path(folder, "ends"))])
    if done.returncode != 0:
        pytest.skip(f"needs a kernel on which ThreadSanitizer runs: {done.stderr.strip()[:200]}")
