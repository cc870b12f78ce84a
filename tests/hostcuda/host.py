"""A launcher that runs kernels on the host, and stops at the first thing that a kernel may not do."""

from __future__ import annotations

import bisect
import ctypes
import mmap
import re
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvfsm.kernels.launch import Kernel, LaunchPlan, LaunchRefused, Mark, Pointer, element_name, shown
from kvfsm.kernels.source import source_of

from . import engine as native
from .building import Build
from .engine import POISON, engine, load_kernel
from .faults import KINDS, HostFault
from .places import SourcePlace, place_at
from .schedules import FORWARD, Random, Schedule
from .traffic import SiteTraffic, Traffic

REDZONE_BYTES = 256
ALIGNMENT = 256
"""Of buffers' addresses, as cudaMalloc gives them."""

Sources = Callable[[Kernel], str]

_DEFINITION = re.compile(r'^extern "C" __global__ void[^{]*?\b(?P<name>kv_\w+)\(.*?^\}\n', re.M | re.S)
"""Of one kernel, from line to line."""

_MS_ASYNC = 1

one_run = threading.Lock()  # there is one engine


class HostBuffer:
    """An array in emulated device memory, between redzones.

    array  its bytes; tests may look at them between launches
    """

    def __init__(self, shape: tuple[int, ...], dtype: npt.DTypeLike, initialised: bool) -> None:
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64)) * self.dtype.itemsize
        self._memory = np.full(count + 2 * REDZONE_BYTES + ALIGNMENT, POISON, np.uint8)
        at = REDZONE_BYTES + -(self._memory.ctypes.data + REDZONE_BYTES) % ALIGNMENT
        self._begin, self._end = at, at + count
        self.array: npt.NDArray[Any] = self._memory[at : at + count].view(self.dtype).reshape(shape)
        # Of an empty array CuPy and torch give no address.
        address = self._memory.ctypes.data + at if count else 0
        self.pointer = Pointer(address, count, element_name(self.dtype))
        self.shadow: int = engine().new_shadow(self.pointer.address, count, initialised)
        self.is_freed = False

    def download(self, length: int | None = None) -> npt.NDArray[Any]:
        """A copy of the first elements, or of all; bytes that nobody wrote are poison."""
        return self.array[:length].copy()

    def write(self, array: npt.NDArray[Any]) -> None:
        """Overwrite its first elements, or all.

        Raises:
            ValueError: another dtype, another shape but for the first axis, or more elements.
        """
        like = array.shape[1:] == self.array.shape[1:] and len(array) <= len(self.array)
        if not like or array.dtype != self.dtype:
            raise ValueError(
                f"a buffer {self.dtype} {list(self.array.shape)} is given {array.dtype} {list(array.shape)}; "
                "fix: write an array like it"
            )
        self.array[: len(array)] = array
        engine().initialise(self.shadow, 0, array.nbytes)

    def free(self) -> None:
        """Who touches it from now on, in a module built with checks, is at fault. Its memory isn't used again."""
        self.is_freed = True
        engine().mark_freed(self.shadow)

    @property
    def is_intact_around(self) -> bool:
        """Nobody wrote just before or behind it."""
        around = (self._memory[: self._begin], self._memory[self._end :])
        return all(bool((part == POISON).all()) for part in around)

    def __del__(self) -> None:
        if hasattr(self, "shadow"):
            engine().delete_shadow(self.shadow)


class Ended:
    """A mark of this launcher."""

    def ended(self) -> bool:
        """Always."""
        return True


class HostLauncher:
    """Carries out launch plans by running their kernels' sources on the host.

    build     ``Build.CHECK`` finds what a kernel may not do, ``Build.FAST`` is for large inputs
    schedule  who runs when
    sources   what is compiled for a kernel; see ``edited``
    races     whether CHECK reports them. A launch doesn't know what acquire and release order, so that a protocol looks
              like a race to it; a search (exploring.py) does know
    traffic   of the last launch, in a CHECK build
    launches  how many of each kernel there were, by name
    """

    def __init__(
        self,
        build: Build = Build.FAST,
        schedule: Schedule = FORWARD,
        sources: Sources = source_of,
        races: bool = True,
    ) -> None:
        self.build = build
        self.schedule = schedule
        self.sources = sources
        self.races = races
        self.traffic: Traffic | None = None
        self.launches: Counter[str] = Counter()
        self._buffers: list[HostBuffer] = []  # by address
        self._addresses: list[int] = []

    def upload(self, array: npt.NDArray[Any]) -> HostBuffer:
        """A new buffer with these bytes."""
        buffer = self._new(array.shape, array.dtype, initialised=True)
        buffer.array[...] = array
        return buffer

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> HostBuffer:
        """A new buffer that a kernel must write before it reads."""
        return self._new(shape, dtype, initialised=False)

    def pointer(self, array: Any) -> Pointer:
        """Memory of a NumPy array, or of a torch tensor on the CPU, for the values of a plan. Keep it until then.

        Raises:
            LaunchRefused: it is neither, or not contiguous.
        """
        if isinstance(array, np.ndarray):
            address, size, dtype = array.ctypes.data, array.nbytes, element_name(array.dtype)
            is_contiguous = array.flags.c_contiguous
        elif hasattr(array, "data_ptr") and array.device.type == "cpu":
            address, size = array.data_ptr(), array.numel() * array.element_size()
            dtype, is_contiguous = str(array.dtype).removeprefix("torch."), array.is_contiguous()
        else:
            raise LaunchRefused(f"{shown(array)} is no array of the host; fix: pass a NumPy array, or a tensor on cpu")
        if not is_contiguous:
            raise LaunchRefused(f"{shown(array)} is not contiguous; fix: pass a contiguous copy")
        return Pointer(address if size else 0, size, dtype)

    def launch(self, plan: LaunchPlan) -> None:
        """Run it.

        Raises:
            LaunchRefused: it points to memory that this process doesn't have.
            HostFault: a thread did what none may do; other threads stopped where they were.
            NotTheKernel: the spec doesn't describe the C function.
            DoesNotCompile: its source.
        """
        self.launch_together([plan])

    def launch_together(self, plans: Sequence[LaunchPlan]) -> None:
        """Run several at a time, as on several streams; nothing orders one with another.

        Raises:
            As ``launch``.
        """
        plans = [plan for plan in plans if not plan.is_empty]
        if not plans:
            return
        with one_run, PreparedLaunches(self, plans) as prepared:
            went_well = engine().run(prepared.array, len(plans), self.options())
            if not went_well:
                raise fault_of(plans)
            self.traffic = traffic_of_run() if self.build is Build.CHECK else None
        for plan in plans:
            self.launches[plan.kernel.name] += 1
            self._check_redzones(plan)

    def mark(self) -> Ended:
        """A launch ends before ``launch`` returns."""
        return Ended()

    def wait(self, mark: Mark) -> None:
        """There is nothing to wait for."""

    def options(self) -> native.Options:
        """How it runs, for the engine."""
        return native.Options(
            is_random=isinstance(self.schedule, Random),
            checked=self.build is Build.CHECK,
            races=self.races,
            seed=self.schedule.seed if isinstance(self.schedule, Random) else 0,
            resident=self.schedule.resident if isinstance(self.schedule, Random) else 1,
        )

    def synchronise(self) -> None:
        """The same."""

    def buffer_at(self, pointer: Pointer) -> HostBuffer | None:
        """The buffer that a pointer points into, or None if that is other memory of the process.

        Raises:
            ValueError: it claims more bytes than the buffer has there.
        """
        position = bisect.bisect_right(self._addresses, pointer.address) - 1
        if position < 0:
            return None
        buffer = self._buffers[position]
        end = buffer.pointer.address + buffer.pointer.bytes
        if pointer.address > end or (pointer.address == end and pointer.bytes == 0 and buffer.pointer.bytes):
            return None
        if pointer.address + pointer.bytes > end:
            raise ValueError(
                f"{pointer} is said to have bytes behind its buffer, which ends at {end:#x}; fix: say fewer"
            )
        return buffer

    def _new(self, shape: tuple[int, ...], dtype: npt.DTypeLike, initialised: bool) -> HostBuffer:
        buffer = HostBuffer(shape, dtype, initialised)
        position = bisect.bisect(self._addresses, buffer.pointer.address)
        self._addresses.insert(position, buffer.pointer.address)
        self._buffers.insert(position, buffer)
        return buffer

    def _check_redzones(self, plan: LaunchPlan) -> None:
        for argument, value in zip(plan.kernel.arguments, plan.values, strict=True):
            buffer = self.buffer_at(value) if isinstance(value, Pointer) else None
            if buffer is not None and not buffer.is_intact_around:
                text = f"wrote outside of '{argument.name}' ({buffer.pointer}); build with Build.CHECK to see where"
                raise HostFault("out_of_bounds", plan.kernel.name, None, (0, 0, 0), None, text)


class PreparedLaunches:
    """Plans as the engine takes them. Memory of the process that is no buffer of the launcher counts as initialised.

    threads  of each block that exist; None: all
    """

    def __init__(self, launcher: HostLauncher, plans: Sequence[LaunchPlan], threads: int | None = None) -> None:
        self._launcher = launcher
        self._threads = threads
        self._kept: list[Any] = []
        self._borrowed: list[int] = []
        self._written = [
            value
            for plan in plans
            for argument, value in zip(plan.kernel.arguments, plan.values, strict=True)
            if isinstance(value, Pointer) and not argument.is_const
        ]
        self.array = (native.Launch * len(plans))(*(self._prepared(plan) for plan in plans))

    def __enter__(self) -> PreparedLaunches:
        return self

    def __exit__(self, *error: object) -> None:
        for shadow in self._borrowed:
            engine().delete_shadow(shadow)

    def _prepared(self, plan: LaunchPlan) -> native.Launch:
        launcher, kernel = self._launcher, plan.kernel
        record = load_kernel(kernel, launcher.sources(kernel), launcher.build).record
        cells, spans = [], []
        for position, (argument, value) in enumerate(zip(kernel.arguments, plan.values, strict=True)):
            if isinstance(value, Pointer):
                cells.append(np.array([value.address], np.uint64))
                spans.append(self._span(kernel, position, value))
            elif value is None:
                cells.append(np.array([0], np.uint64))
            else:
                cells.append(np.array([value], argument.dtype))
        values = (ctypes.c_void_p * max(1, len(cells)))(*(cell.ctypes.data for cell in cells))
        array = (native.Span * max(1, len(spans)))(*spans)
        self._kept += [cells, values, array]
        return native.Launch(
            entry=record.entry,
            values=values,
            grid=plan.grid,
            threads=self._threads or kernel.threads,
            dynamic_bytes=kernel.shared_bytes,
            shared_begin=record.shared_begin,
            shared_end=record.shared_end,
            spans=array,
            span_count=len(spans),
        )

    def _span(self, kernel: Kernel, position: int, pointer: Pointer) -> native.Span:
        argument, buffer = kernel.arguments[position], self._launcher.buffer_at(pointer)
        if buffer is not None:
            shadow = buffer.shadow
        elif not _is_mapped(pointer):
            fix = "pass a buffer's .pointer, or launcher.pointer(array)"
            raise kernel.refusal(argument.name, f"is {pointer}, which this launcher doesn't know; fix: {fix}")
        else:
            shadow = engine().new_shadow(pointer.address, pointer.bytes, True)
            self._borrowed.append(shadow)
        begin, end = pointer.address, pointer.address + pointer.bytes
        contended = any(begin < other.address + other.bytes and other.address < end for other in self._written)
        return native.Span(begin, end, shadow, position, not argument.is_const, contended)


def _is_mapped(pointer: Pointer) -> bool:
    """The process has memory there: msync, which does nothing to it, says so for every page."""
    if not pointer.bytes:
        return True
    begin = pointer.address // mmap.PAGESIZE * mmap.PAGESIZE
    length = pointer.address + pointer.bytes - begin
    return ctypes.CDLL(None).msync(ctypes.c_void_p(begin), ctypes.c_size_t(length), _MS_ASYNC) == 0


def edited(*edits: tuple[str, str], sources: Sources = source_of) -> Sources:
    """Sources with some text replaced, to plant bugs in kernels; each without the other kernels, so as to compile fast.

    edits  what to find, which must be there exactly once, and what to put there

    Raises:
        ValueError: when a source is asked for and a text isn't in it, or is in it more than once.
    """

    def changed(kernel: Kernel) -> str:
        text = sources(kernel)
        for find, replace in edits:
            if (count := text.count(find)) != 1:
                raise ValueError(
                    f"the source of kv_{kernel.name} has {count} times {find!r}; fix: name a text that it has once"
                )
            text = text.replace(find, replace)
        return _DEFINITION.sub(lambda one: one[0] if one["name"] == kernel.symbol else "\n" * one[0].count("\n"), text)

    return changed


def fault_of(plans: Sequence[LaunchPlan]) -> HostFault:
    """What stopped the last run."""
    found = engine().fault().contents
    plan = plans[max(found.launch, 0)]
    text = found.text.decode(errors="replace")
    if found.argument >= 0:
        text = text.replace("{argument}", f"'{plan.kernel.arguments[found.argument].name}'")
    text = text.replace("{argument}", "shared memory")
    text = text.replace("{other}", str(_told_or_found(found.other_file, found.other_line, found.other_code)))
    place = _told_or_found(found.file, found.line, found.code)
    thread = found.thread if found.thread >= 0 else None
    block = (found.block[0], found.block[1], found.block[2])
    return HostFault(KINDS[found.kind], plan.kernel.name, place, block, thread, text)


def _told_or_found(file: bytes | None, line: int, code: int) -> SourcePlace | None:
    return SourcePlace(file.decode(), line) if file is not None else place_at(code)


def traffic_of_run() -> Traffic:
    """What the last run moved."""
    array = ctypes.POINTER(native.SiteTraffic)()
    count = engine().sites(array)
    sites = tuple(
        SiteTraffic(
            site.code,
            bool(site.is_write),
            bool(site.is_atomic),
            site.width,
            site.requests,
            site.sectors,
            site.bytes,
        )
        for site in (array[i] for i in range(count))
        if site.requests
    )
    touched = engine().touched().contents
    return Traffic(sites, touched.read, touched.written)
