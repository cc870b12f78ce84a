"""Launches on a CUDA device through CuPy. The only module here that imports CuPy, and only when a launcher is made.

Kernels are compiled and loaded when the launcher is made, so that none is while a graph is captured; they stay loaded
as long as it lives. A launch allocates nothing. It goes to torch's current stream when torch uses CUDA, else to CuPy's;
the stream is asked for at every launch, because a captured graph holds only what went to the stream of its capture.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from .catalogue import catalogue
from .launch import (
    SCALARS,
    Argument,
    Kernel,
    LaunchPlan,
    LaunchRefused,
    Mark,
    Pointer,
    Value,
    element_name,
    shown,
)
from .source import OPTIONS, source_of

_ADDRESS = np.dtype(np.uint64)


class NoDevice(RuntimeError):
    """CuPy is not installed, or finds no CUDA device of that number; the message says what to do.

    Where no device is to be had, ``NumpyBackend`` of ``reference.py`` serves a manager.
    """


class CupyBuffer:
    """A CuPy array, as a launcher's buffer.

    Args:
        launcher: orders copies after what it launched.
        array: contiguous, on the launcher's device.
    """

    __slots__ = ("_launcher", "array")

    def __init__(self, launcher: CupyLauncher, array: Any) -> None:
        self._launcher = launcher
        self.array = array

    @property
    def pointer(self) -> Pointer:
        """All of it; the memory lives as long as the buffer."""
        return Pointer(int(self.array.data.ptr), int(self.array.nbytes), element_name(self.array.dtype))

    def download(self, length: int | None = None) -> npt.NDArray[Any]:
        """A copy on the host of the first elements, or of all, once what was launched before has ended."""
        with self._launcher.stream():
            copied: npt.NDArray[Any] = self.array[:length].get()
        return copied

    def write(self, array: npt.NDArray[Any]) -> None:
        """Overwrite its first elements, or all, after what was launched before.

        Ordinary memory may be changed afterwards; pinned memory once the copy has ended, for CUDA reads it then.

        Raises:
            LaunchRefused: another dtype, another shape but for the first axis, or more elements.
        """
        like = array.shape[1:] == self.array.shape[1:] and len(array) <= len(self.array)
        if not like or array.dtype != self.array.dtype:
            what = f"{array.dtype} {array.shape} into a buffer of {self.array.dtype} {self.array.shape}"
            raise LaunchRefused(f"can't write {what}; fix: write an array like it, or a shorter one")
        with self._launcher.stream():
            self.array[: len(array)].set(np.ascontiguousarray(array))


class CupyMark:
    """A CUDA event, recorded behind some launches."""

    __slots__ = ("event",)

    def __init__(self, event: Any) -> None:
        self.event = event

    def ended(self) -> bool:
        """Whether they have ended."""
        return bool(self.event.done)


class CupyLauncher:
    """Carries launch plans out on one CUDA device.

    Args:
        device: its number.
        kernels: to compile and load now; all there are by default. Others can't be launched.
        sources: what is compiled for a kernel.

    Raises:
        NoDevice: CuPy or a driver is missing, or there is no such device.
    """

    def __init__(
        self,
        device: int = 0,
        kernels: Iterable[Kernel] | None = None,
        sources: Callable[[Kernel], str] = source_of,
    ) -> None:
        self._cupy = _cupy(device)
        self._sources = sources
        self.device = device
        self._device = self._cupy.cuda.Device(device)
        self._modules: dict[str, Any] = {}  # by source text; never emptied, as a graph may hold what is in them
        self._functions: dict[str, Any] = {}  # by the kernels' names
        self._streams: dict[int, Any] = {}
        with self._device:
            for kernel in catalogue().values() if kernels is None else kernels:
                self._load(kernel)

    def upload(self, array: npt.NDArray[Any]) -> CupyBuffer:
        """A new buffer with these bytes."""
        with self.stream():
            return CupyBuffer(self, self._cupy.asarray(np.ascontiguousarray(array), blocking=True))

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> CupyBuffer:
        """A new buffer with any bytes at all."""
        with self.stream():
            return CupyBuffer(self, self._cupy.empty(shape, dtype))

    def launch(self, plan: LaunchPlan) -> None:
        """Carry it out on the current stream; returns before it ends. An empty plan does nothing.

        Raises:
            LaunchRefused: a kernel that was not loaded when the launcher was made.
        """
        if plan.is_empty:  # CuPy would launch one block
            return
        function = self._functions.get(plan.kernel.name)
        if function is None:
            raise LaunchRefused(f"{plan.kernel.symbol} is not loaded; fix: name it in kernels= of the launcher")
        pairs = zip(plan.kernel.arguments, plan.values, strict=True)
        arguments = tuple(typed(argument, value) for argument, value in pairs)
        with self.stream():
            function(plan.grid, plan.block, arguments, shared_mem=plan.kernel.shared_bytes)

    def mark(self) -> CupyMark:
        """The place behind all that was launched on the current stream so far."""
        with self.stream():
            event = self._cupy.cuda.Event(disable_timing=True)
            event.record(self._cupy.cuda.get_current_stream())
            return CupyMark(event)

    def wait(self, mark: Mark) -> None:
        """Let what is launched on the current stream from now on begin after a mark of this launcher."""
        assert isinstance(mark, CupyMark)
        with self.stream():
            self._cupy.cuda.get_current_stream().wait_event(mark.event)

    def synchronise(self) -> None:
        """Return when all that was launched on the device has ended. Not while a graph is captured."""
        self._device.synchronize()

    def pointer(self, tensor: Any) -> Pointer:
        """Memory of a torch tensor, for the values of a plan. Keep the tensor until the launch has ended.

        Raises:
            LaunchRefused: it is no tensor, not on the launcher's device, or not contiguous.
        """
        if not hasattr(tensor, "data_ptr"):
            raise LaunchRefused(f"{shown(tensor)} is no torch tensor; fix: pass one, or launcher.upload(array).pointer")
        where = tensor.device
        if where.type != "cuda" or where.index != self.device:
            raise LaunchRefused(f"the tensor is on {where}; fix: move it to cuda:{self.device}")
        if not tensor.is_contiguous():
            what = f"shape {tuple(tensor.shape)} with strides {tuple(tensor.stride())}"
            raise LaunchRefused(f"the tensor is not contiguous: {what}; fix: pass tensor.contiguous()")
        size = int(tensor.numel()) * int(tensor.element_size())
        return Pointer(int(tensor.data_ptr()), size, str(tensor.dtype).removeprefix("torch."))

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Make the launcher's device and the stream that torch uses there current for CuPy."""
        # A Device remembers which one to go back to, so that threads can't share one.
        with self._cupy.cuda.Device(self.device):
            torch = sys.modules.get("torch")
            if torch is None or not torch.cuda.is_initialized():
                yield  # CuPy's own current stream
                return
            address = int(torch.cuda.current_stream(self.device).cuda_stream)
            if address not in self._streams:
                self._streams[address] = self._cupy.cuda.Stream.from_external(_Stream(address))
            with self._streams[address]:
                yield

    def _load(self, kernel: Kernel) -> None:
        source = self._sources(kernel)
        if source not in self._modules:
            self._modules[source] = self._cupy.RawModule(code=source, options=OPTIONS)
        function = self._modules[source].get_function(kernel.symbol)
        function.compile()  # and loads it on the current device
        self._functions[kernel.name] = function


class _Stream:
    """A stream by its address, for CuPy: what torch before 2.13 doesn't say itself."""

    __slots__ = ("_address",)

    def __init__(self, address: int) -> None:
        self._address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self._address)


def typed(argument: Argument, value: Value) -> np.generic:
    """A value in the very width that the C function takes: a plain int would go as 8 bytes, whatever it takes."""
    if isinstance(value, Pointer):
        return _ADDRESS.type(value.address)
    if value is None:
        return _ADDRESS.type(0)
    scalar: np.generic = SCALARS[argument.type].type(value)
    return scalar


def _cupy(device: int) -> Any:
    """CuPy, which has a device of that number. Raises NoDevice."""
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        extras = "pip install 'kvfsm[cuda13]' (CUDA 13 drivers) or 'kvfsm[cuda12]'"
        raise NoDevice(f"kernels on a GPU need CuPy, which can't be imported: {error}; fix: {extras}") from error
    what = f"CuPy {cupy.__version__} finds no CUDA device"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except RuntimeError as error:  # no driver, one that is older than CuPy's CUDA, or no device
        raise NoDevice(f"{what}: {error}; fix: look at nvidia-smi") from error
    if not 0 <= device < count:
        there = ", ".join(map(str, range(count))) or "none"
        raise NoDevice(f"{what} {device}; fix: use one of those that there are ({there})")
    return cupy
