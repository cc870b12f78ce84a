"""Launches through CuPy, without a GPU: what CuPy is handed, recorded and held against plans and C signatures.

CuPy itself is the real one. Only what asks for a driver is replaced: the device, the stream, and ``get_function``.
"""

from __future__ import annotations

import math
import re
import subprocess
import sys
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kvfsm.kernels.catalogue import catalogue
from kvfsm.kernels.cupy_launcher import CupyLauncher, NoDevice, typed
from kvfsm.kernels.launch import SCALARS, Argument, Kernel, LaunchPlan, LaunchRefused, Pointer, Value
from kvfsm.kernels.source import OPTIONS, source_of

from .signatures import declared

cupy = pytest.importorskip("cupy", reason="the package cupy-cuda13x is not installed")

KERNELS = list(catalogue().values())


@dataclass
class Recorder:
    """What a launcher did with CuPy, in order."""

    did: list[str] = field(default_factory=list)
    launches: list[tuple[str, tuple[int, ...], tuple[int, ...], tuple[Any, ...], int]] = field(default_factory=list)
    modules: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    streams: list[int] = field(default_factory=list)  # current ones, the innermost last
    launched_on: list[int | None] = field(default_factory=list)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Real CuPy, but for device, streams and functions."""
    made = Recorder()

    class Function:
        def __init__(self, symbol: str) -> None:
            self.symbol = symbol

        def compile(self) -> None:
            made.did.append(f"load {self.symbol}")

        def __call__(self, grid: Any, block: Any, args: Any, *, shared_mem: int = 0) -> None:
            made.did.append(f"launch {self.symbol}")
            made.launches.append((self.symbol, grid, block, args, shared_mem))
            made.launched_on.append(made.streams[-1] if made.streams else None)

    class Module:
        def __init__(self, **given: Any) -> None:
            made.modules.append((given["code"], given["options"]))
            raw(**given)  # the real one takes these arguments, and needs no driver for that

        def get_function(self, symbol: str) -> Function:
            return Function(symbol)

    class Device:
        def __init__(self, number: int) -> None:
            self.number = number

        def __enter__(self) -> None:
            made.did.append(f"device {self.number}")

        def __exit__(self, *_: object) -> None: ...

        def synchronize(self) -> None:
            made.did.append("synchronize")

    class Entering:
        def __init__(self, address: int) -> None:
            made.did.append(f"wrap {address}")
            self._address = address

        def __enter__(self) -> None:
            made.streams.append(self._address)

        def __exit__(self, *_: object) -> None:
            made.streams.pop()

    class Stream:
        @staticmethod
        def from_external(given: Any) -> Entering:
            return Entering(external(given).ptr)

    raw, external = cupy.RawModule, cupy.cuda.Stream.from_external
    monkeypatch.setattr(cupy, "RawModule", Module)
    monkeypatch.setattr(cupy.cuda, "Device", Device)
    monkeypatch.setattr(cupy.cuda, "Stream", Stream)
    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", lambda: 2)
    return made


def some_value(argument: Argument, n: int) -> Value:
    """A value that is not any other argument's, but for flags."""
    if argument.is_pointer:
        return None if argument.nullable and n % 2 else Pointer(4096 * (n + 1), 64)
    if argument.is_flag:
        return n % 2 == 0
    return n + 0.25 if argument.type == "float" else n + 1


def plan_of(kernel: Kernel, grid: tuple[int, int, int] = (3, 1, 1)) -> LaunchPlan:
    return LaunchPlan(kernel, grid, tuple(some_value(argument, n) for n, argument in enumerate(kernel.arguments)))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_cupy_gets_what_the_plan_says_in_the_widths_of_the_c_function(recorder: Recorder, kernel: Kernel) -> None:
    launcher = CupyLauncher(kernels=[kernel])
    plan = plan_of(kernel)
    launcher.launch(plan)
    ((symbol, grid, block, given, shared),) = recorder.launches
    assert (symbol, grid, block, shared) == (kernel.symbol, plan.grid, (kernel.threads, 1, 1), kernel.shared_bytes)
    signature = declared(source_of(kernel))[kernel.name].arguments
    assert len(given) == len(signature) == len(plan.values)
    for passed, (_, kind), value in zip(given, signature, plan.values, strict=True):
        if kind.endswith("*"):
            assert type(passed) is np.uint64
            assert passed == (0 if value is None else value.address)
        else:
            assert passed.dtype == SCALARS[kind] and passed == value


def test_every_kernel_is_compiled_and_loaded_before_the_first_launch(recorder: Recorder) -> None:
    launcher = CupyLauncher()
    loaded = [done for done in recorder.did if done.startswith("load ")]
    assert loaded == [f"load {kernel.symbol}" for kernel in KERNELS]
    assert len(recorder.modules) == len({kernel.file for kernel in KERNELS})  # one a file, not one a kernel
    assert {options for _, options in recorder.modules} <= {OPTIONS}
    recorder.did.clear()
    for kernel in KERNELS:
        launcher.launch(plan_of(kernel))
    assert {done.split()[0] for done in recorder.did} <= {"device", "launch"}


TOY = Kernel(
    "toy",
    "toy.cu",
    (
        Argument("source", "const u8*", alignment=16),
        Argument("order", "const u32*", nullable=True),
        Argument("flag", "u8"),
        Argument("half", "u16"),
        Argument("rows", "u32"),
        Argument("key", "u64"),
        Argument("step", "i32"),
        Argument("shift", "i64"),
        Argument("scale", "float"),
    ),
    threads=64,
    shared_bytes=512,
)
VALUES = (Pointer(2**47, 64), None, 255, 65535, 2**32 - 1, 2**64 - 1, -(2**31), -(2**63), math.inf)


@pytest.fixture
def launcher(recorder: Recorder) -> CupyLauncher:
    return CupyLauncher(1, [TOY], lambda kernel: f"// {kernel.file}")


def test_numbers_keep_their_value_and_width(recorder: Recorder, launcher: CupyLauncher) -> None:
    launcher.launch(LaunchPlan(TOY, (5, 2, 3), VALUES))
    ((symbol, grid, block, given, shared),) = recorder.launches
    assert (symbol, grid, block, shared) == ("kv_toy", (5, 2, 3), (64, 1, 1), 512)
    assert [passed.dtype.name for passed in given] == [
        "uint64", "uint64", "uint8", "uint16", "uint32", "uint64", "int32", "int64", "float32",
    ]  # fmt: skip
    assert [passed.item() for passed in given] == [2**47, 0, *VALUES[2:]]
    assert "device 1" in recorder.did


def test_a_plain_int_would_have_another_width() -> None:
    assert typed(Argument("rows", "u32"), 7).nbytes == 4 and np.asarray(7).nbytes == 8


def test_an_empty_launch_is_left_out(recorder: Recorder, launcher: CupyLauncher) -> None:
    launcher.launch(LaunchPlan(TOY, (0, 1, 1), (Pointer(0, 0), *VALUES[1:])))
    assert recorder.launches == []


def test_a_kernel_that_was_not_loaded_is_refused(recorder: Recorder, launcher: CupyLauncher) -> None:
    other = Kernel("other", "toy.cu", ())
    with pytest.raises(LaunchRefused, match=r"kv_other is not loaded; fix: name it in kernels= of the launcher"):
        launcher.launch(LaunchPlan(other, (1, 1, 1), ()))


def test_waiting_waits_for_the_device(recorder: Recorder, launcher: CupyLauncher) -> None:
    launcher.synchronise()
    assert recorder.did[-1] == "synchronize"


class Torch(types.ModuleType):
    """As much of torch as a launcher asks: whether it uses CUDA, and its stream now."""

    def __init__(self, initialised: bool) -> None:
        super().__init__("torch")
        self.stream = 0
        self.cuda = types.SimpleNamespace(
            is_initialized=lambda: initialised,
            current_stream=lambda device: types.SimpleNamespace(cuda_stream=self.stream + device),
        )


def test_torchs_stream_is_asked_for_at_every_launch(
    recorder: Recorder, launcher: CupyLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = Torch(initialised=True)
    monkeypatch.setitem(sys.modules, "torch", torch)
    plan = LaunchPlan(TOY, (1, 1, 1), VALUES)
    for torch.stream in (1000, 2000, 1000):
        launcher.launch(plan)
    assert recorder.launched_on == [1001, 2001, 1001]
    assert [done for done in recorder.did if done.startswith("wrap")] == ["wrap 1001", "wrap 2001"]
    assert recorder.streams == []


def test_a_torch_that_does_not_use_cuda_changes_nothing(
    recorder: Recorder, launcher: CupyLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", Torch(initialised=False))
    launcher.launch(LaunchPlan(TOY, (1, 1, 1), VALUES))
    assert recorder.launched_on == [None]


@dataclass
class Tensor:
    """As much of a torch tensor as a launcher asks."""

    kind: str = "cuda"
    index: int | None = 1
    contiguous: bool = True
    shape: tuple[int, ...] = (4, 8)
    dtype: str = "torch.bfloat16"

    @property
    def device(self) -> Any:
        shown = self.kind if self.index is None else f"{self.kind}:{self.index}"
        return type("Device", (), {"type": self.kind, "index": self.index, "__str__": lambda _: shown})()

    def is_contiguous(self) -> bool:
        return self.contiguous

    def stride(self) -> tuple[int, ...]:
        return (1, 4)

    def numel(self) -> int:
        return 32

    def element_size(self) -> int:
        return 2

    def data_ptr(self) -> int:
        return 8192


def test_tensors_are_passed_by_their_memory(launcher: CupyLauncher) -> None:
    found = launcher.pointer(Tensor())
    assert found == Pointer(8192, 64) and found.dtype == "bfloat16"


def test_an_array_of_the_host_is_no_tensor(launcher: CupyLauncher) -> None:
    told = r"ndarray of int32 \(2,\) is no torch tensor; fix: pass one, or launcher.upload\(array\).pointer"
    with pytest.raises(LaunchRefused, match=told):
        launcher.pointer(np.array([1, 2], np.int32))


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (Tensor(kind="cpu", index=None), "the tensor is on cpu; fix: move it to cuda:1"),
        (Tensor(index=0), "the tensor is on cuda:0; fix: move it to cuda:1"),
        (
            Tensor(contiguous=False),
            r"not contiguous: shape \(4, 8\) with strides \(1, 4\); fix: pass tensor.contiguous",
        ),
    ],
)
def test_tensors_that_a_kernel_can_not_read_are_refused(launcher: CupyLauncher, tensor: Tensor, message: str) -> None:
    with pytest.raises(LaunchRefused, match=message):
        launcher.pointer(tensor)


def test_a_real_tensor_on_the_host_is_refused(launcher: CupyLauncher) -> None:
    torch = pytest.importorskip("torch", reason="the package torch is not installed")
    with pytest.raises(LaunchRefused, match="the tensor is on cpu; fix: move it to cuda:1"):
        launcher.pointer(torch.zeros(4))


def test_without_a_driver_it_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> int:
        raise cupy.cuda.runtime.CUDARuntimeError(35)  # cudaErrorInsufficientDriver

    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", fails)
    told = r"finds no CUDA device: cudaErrorInsufficientDriver: .*; fix: look at nvidia-smi$"
    with pytest.raises(NoDevice, match=told):
        CupyLauncher()


@pytest.mark.parametrize(("device", "count", "there"), [(0, 0, r"\(none\)"), (2, 2, r"\(0, 1\)"), (-1, 2, r"\(0, 1\)")])
def test_a_device_that_there_is_not_is_told(
    monkeypatch: pytest.MonkeyPatch, device: int, count: int, there: str
) -> None:
    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", lambda: count)
    with pytest.raises(NoDevice, match=f"finds no CUDA device {device}; fix: use one of those that there are {there}"):
        CupyLauncher(device)


def test_without_cupy_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)  # as if it were not installed
    with pytest.raises(NoDevice, match=r"fix: pip install 'kvfsm\[cuda13\]' \(CUDA 13 drivers\) or 'kvfsm\[cuda12\]'"):
        CupyLauncher()


def test_nothing_imports_cupy_before_a_launcher_is_made() -> None:
    code = (
        "import sys, pkgutil, importlib, kvfsm.kernels;"
        "names = [module.name for module in pkgutil.iter_modules(kvfsm.kernels.__path__)];"
        "[importlib.import_module(f'kvfsm.kernels.{name}') for name in names];"
        "print(len(names) > 5, 'cupy' in sys.modules, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False", "False"]


def test_cupy_is_imported_in_one_place_here_and_in_one_of_the_checker() -> None:
    imports = re.compile(r"""^\s*(import|from) cupy\b|import_module\(["']cupy\b""", re.M)
    root = Path(__file__).parents[2]
    found = [
        str(path.relative_to(root))
        for folder in ("codegen", "kernels", "runtime", "spec")
        for path in sorted((root / folder).rglob("*.py"))
        if imports.search(path.read_text("utf-8"))
    ]
    assert found == ["codegen/cli/check.py", "kernels/cupy_launcher.py"]


# -- Memory and marks, with arrays of NumPy in place of CuPy's ---------------------------------------------------------


class FakeArray(np.ndarray[Any, Any]):
    """As much of a CuPy array as buffers ask."""

    def get(self) -> npt.NDArray[Any]:
        return np.array(self)

    def set(self, array: npt.NDArray[Any]) -> None:
        self[...] = array

    @property
    def data(self) -> Any:  # type: ignore[override]
        return types.SimpleNamespace(ptr=self.ctypes.data)


class Event:
    def __init__(self, disable_timing: bool = False) -> None:
        assert disable_timing
        self.done = False
        self.recorded: list[Any] = []

    def record(self, stream: Any) -> None:
        self.recorded.append(stream)


@pytest.fixture
def device(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Memory and events, too."""
    monkeypatch.setattr(cupy, "asarray", lambda array, blocking: np.array(array).view(FakeArray))
    monkeypatch.setattr(cupy, "empty", lambda shape, dtype: np.empty(shape, dtype).view(FakeArray))
    monkeypatch.setattr(cupy.cuda, "Event", Event)
    waiting = types.SimpleNamespace(wait_event=lambda event: recorder.did.append(f"wait {len(event.recorded)}"))
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda: waiting)
    return recorder


def test_a_buffer_holds_what_is_written(device: Recorder, launcher: CupyLauncher) -> None:
    given = np.arange(12, dtype=np.uint32).reshape(6, 2)
    buffer = launcher.upload(given)
    assert buffer.pointer == Pointer(buffer.array.ctypes.data, 48) and buffer.pointer.dtype == "uint32"
    assert buffer.download().tolist() == given.tolist()
    buffer.write(given[:2] + np.uint32(100))
    assert buffer.download(3).tolist() == [[100, 101], [102, 103], [4, 5]]
    empty = launcher.empty((3,), np.float32)
    assert empty.pointer.bytes == 12 and empty.download().dtype == np.float32


@pytest.mark.parametrize(
    "wrong",
    [np.zeros((7, 2), np.uint32), np.zeros((6, 3), np.uint32), np.zeros((6, 2), np.int32), np.zeros(6, np.uint32)],
)
def test_what_a_buffer_can_not_hold_is_refused(
    device: Recorder, launcher: CupyLauncher, wrong: npt.NDArray[Any]
) -> None:
    buffer = launcher.upload(np.zeros((6, 2), np.uint32))
    with pytest.raises(LaunchRefused, match=r"fix: write an array like it, or a shorter one"):
        buffer.write(wrong)


def test_a_mark_ends_with_what_was_launched_before_it(device: Recorder, launcher: CupyLauncher) -> None:
    mark = launcher.mark()
    assert not mark.ended() and mark.event.recorded == [cupy.cuda.get_current_stream()]
    launcher.wait(mark)
    assert device.did[-1] == "wait 1"
    mark.event.done = True
    assert mark.ended()
