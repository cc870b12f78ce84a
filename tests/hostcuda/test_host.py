"""The launcher runs kernels as a device would, under any schedule, and checks what it is given."""

from __future__ import annotations

import numpy as np
import pytest

from kvfsm.kernels.launch import Argument, Kernel, LaunchPlan, LaunchRefused, Pointer

from .building import Build
from .faults import HostFault
from .host import HostLauncher
from .planted import planted_source
from .schedules import EVERY_DAY, Schedule

SOUND = Kernel(
    "sound",
    "sound.cu",
    (
        Argument("rows", "const u32*", "uint32 [rows, 64], read"),
        Argument("row_count", "u32"),
        Argument("sums", "u32*", "uint32 [rows], written"),
        Argument("odd", "u32*", "uint32 [rows], written"),
        Argument("backwards", "u32*", "uint32 [rows, 64], written", alignment=16),
        Argument("done", "u64*", "uint64 [1], counted up"),
    ),
    threads=64,
    shared_bytes=256,
)


@pytest.mark.parametrize("build", [Build.FAST, Build.CHECK, Build.UNDEFINED])
@pytest.mark.parametrize("schedule", EVERY_DAY, ids=str)
def test_a_sound_kernel_computes_what_it_says(build: Build, schedule: Schedule) -> None:
    launcher = HostLauncher(build, schedule, planted_source)
    rows = np.random.default_rng(1).integers(0, 1000, (9, 64)).astype(np.uint32)
    given, done = launcher.upload(rows), launcher.upload(np.zeros(1, np.uint64))
    sums, odd = launcher.empty((9,), np.uint32), launcher.empty((9,), np.uint32)
    backwards = launcher.empty((9, 64), np.uint32)
    values = (given.pointer, 9, sums.pointer, odd.pointer, backwards.pointer, done.pointer)
    launcher.launch(LaunchPlan(SOUND, (12, 1, 1), values))
    np.testing.assert_array_equal(sums.download(), rows.sum(axis=1))
    np.testing.assert_array_equal(odd.download(), (rows % 2).sum(axis=1))
    np.testing.assert_array_equal(backwards.download(), rows[:, ::-1])
    assert done.download().tolist() == [9]
    assert launcher.launches == {"sound": 1}


@pytest.mark.parametrize("build", [Build.FAST, Build.CHECK, Build.UNDEFINED])
def test_empty_arrays_have_no_address_and_do_for_a_kernel_that_leaves_them_alone(build: Build) -> None:
    """As CuPy and torch have it. Every block of this launch is past the last row."""
    launcher = HostLauncher(build, sources=planted_source)
    rows, sums, odd = (launcher.upload(np.zeros(shape, np.uint32)) for shape in ((0, 64), 0, 0))
    backwards, done = launcher.empty((0, 64), np.uint32), launcher.upload(np.zeros(1, np.uint64))
    assert {one.pointer for one in (rows, sums, odd, backwards)} == {Pointer(0, 0)} and done.pointer.address
    values = (rows.pointer, 0, sums.pointer, odd.pointer, backwards.pointer, done.pointer)
    launcher.launch(LaunchPlan(SOUND, (2, 1, 1), values))
    assert done.download().tolist() == [0] and backwards.download().shape == (0, 64)
    with pytest.raises(HostFault):
        launcher.launch(LaunchPlan(SOUND, (2, 1, 1), (rows.pointer, 1, *values[2:])))


@pytest.mark.parametrize("shape", [(3, 64), (0, 64)], ids=str)
def test_arrays_of_the_host_are_passed_by_their_memory(shape: tuple[int, int]) -> None:
    torch = pytest.importorskip("torch", reason="the package torch is not installed")
    launcher, array = HostLauncher(), np.zeros(shape, np.uint32)
    address = array.ctypes.data if array.size else 0
    assert launcher.pointer(array) == Pointer(address, array.nbytes) and launcher.pointer(array).dtype == "uint32"
    tensor = torch.zeros(shape, dtype=torch.bfloat16)
    found = launcher.pointer(tensor)
    assert found == Pointer(tensor.data_ptr(), 2 * array.size) and found.dtype == "bfloat16"
    assert launcher.upload(array).pointer.dtype == launcher.empty((3,), np.uint32).pointer.dtype == "uint32"


def test_what_has_no_memory_of_the_host_is_refused() -> None:
    launcher = HostLauncher()
    for array in (np.zeros((3, 64))[:, ::2], np.zeros((3, 64)).T):
        with pytest.raises(
            LaunchRefused, match=r"ndarray of float64 .* is not contiguous; fix: pass a contiguous copy"
        ):
            launcher.pointer(array)
    with pytest.raises(LaunchRefused, match=r"list \[1, 2\] is no array of the host; fix: pass a NumPy array, or"):
        launcher.pointer([1, 2])


@pytest.mark.parametrize("build", [Build.FAST, Build.CHECK, Build.UNDEFINED])
def test_memory_that_the_process_does_not_have_is_refused_before_the_launch(build: Build) -> None:
    launcher = HostLauncher(build, sources=planted_source)
    rows, sums = launcher.upload(np.zeros((1, 64), np.uint32)), launcher.empty((1,), np.uint32)
    backwards, done = launcher.empty((1, 64), np.uint32), launcher.upload(np.zeros(1, np.uint64))
    values = (rows.pointer, 1, sums.pointer, Pointer(0x1000, 4), backwards.pointer, done.pointer)
    told = r"argument 3 'odd' \(u32\*\) is memory at 0x1000 of 4 bytes, which this launcher doesn't know; fix: pass a"
    with pytest.raises(LaunchRefused, match=told):
        launcher.launch(LaunchPlan(SOUND, (1, 1, 1), values))
    assert not launcher.launches
    array = np.zeros(1, np.uint32)  # of this process
    launcher.launch(LaunchPlan(SOUND, (1, 1, 1), (*values[:3], launcher.pointer(array), *values[4:])))
    assert done.download().tolist() == [1]
