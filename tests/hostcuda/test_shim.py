"""CUDA's own functions do on the host what its documentation says of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kvfsm.kernels.launch import Argument, Kernel, LaunchPlan

from .building import Build
from .host import HostLauncher
from .planted import planted_source
from .schedules import EVERY_DAY, FORWARD, Schedule

Array = npt.NDArray[Any]
BUILDS = pytest.mark.parametrize("build", [Build.FAST, Build.CHECK])


def ran(
    name: str, types: tuple[str, ...], *arrays: Array, build: Build, schedule: Schedule = FORWARD, blocks: int = 1
) -> list[Array]:
    """The arrays after a launch."""
    launcher = HostLauncher(build, schedule, planted_source)
    buffers = [launcher.upload(array) for array in arrays]
    arguments = tuple(Argument(f"array_{i}", type) for i, type in enumerate(types))
    kernel = Kernel(name, "intrinsics.cu", arguments, threads=64)
    launcher.launch(LaunchPlan(kernel, (blocks, 1, 1), tuple(buffer.pointer for buffer in buffers)))
    return [buffer.download() for buffer in buffers]


def lowest_set(number: int) -> int:
    """Its place counted from 1; 0 if there is none."""
    return (number & -number).bit_length()


@BUILDS
def test_bits_are_counted(build: Build) -> None:
    numbers = np.random.default_rng(3).integers(0, 2**64, 64, np.uint64)
    numbers[:6] = [0, 1, 2**32, 2**63, 2**31, 2**64 - 1]
    results = ran("bits", ("const u64*", "u64*"), numbers, np.zeros(9 * 64, np.uint64), build=build)[1]
    for number, got in zip(numbers.tolist(), results.reshape(64, 9).tolist(), strict=True):
        low = number % 2**32
        assert got == [
            low.bit_count(),
            number.bit_count(),
            lowest_set(low),
            lowest_set(number),
            32 - low.bit_length(),
            64 - number.bit_length(),
            low * 0x9E3779B9 >> 32,
            number * 0x9E3779B97F4A7C15 >> 64,
            min(low, 1000) << 32 | max(low, 1000),
        ]


@BUILDS
def test_floats_become_the_nearest_integer(build: Build) -> None:
    numbers = np.zeros(64, np.float32)
    numbers[:9] = [0.5, 1.5, -2.5, 3e9, -3e9, np.nan, np.inf, -np.inf, 1e-40]
    results = ran("converts", ("const float*", "i32*"), numbers, np.zeros(128, np.int32), build=build)[1]
    expected = [0, 2, -2, 2**31 - 1, -(2**31), 0, 2**31 - 1, -(2**31), 0]
    assert results.reshape(64, 2)[:9, 0].tolist() == expected


@BUILDS
@pytest.mark.parametrize("schedule", EVERY_DAY, ids=str)
def test_lanes_exchange_what_they_hold(build: Build, schedule: Schedule) -> None:
    numbers = np.random.default_rng(4).integers(0, 100, 64).astype(np.uint32)
    numbers[40] = 7
    given = (numbers, np.zeros(9 * 64, np.uint32))
    results = ran("exchanges", ("const u32*", "u32*"), *given, build=build, schedule=schedule)[1]
    for first, lanes in ((0, 32), (32, 31)):
        held = numbers[first : first + lanes].tolist()
        for lane in range(lanes):
            got = results.reshape(64, 9)[first + lane].tolist()
            following, higher = (lane + 1) % 32, lane + 3 if lane + 3 < 32 else lane
            assert got[0] == held[5]
            assert following >= lanes or got[1] == held[following]
            assert got[2] == held[lane - 3 if lane >= 3 else lane]
            assert higher >= lanes or got[3] == held[higher]
            assert lane ^ 1 >= lanes or got[4] == held[lane ^ 1]
            assert got[5] == sum(1 << i for i, number in enumerate(held) if number % 2)
            assert got[6:8] == [int(7 in held), 1]
            assert got[8] == held[2], "a shuffle of 8 bytes carries all 8"


@BUILDS
def test_barriers_count_and_vote(build: Build) -> None:
    numbers = np.random.default_rng(5).integers(0, 100, 64).astype(np.uint32)
    results = ran("votes", ("const u32*", "u32*"), numbers, np.zeros(3 * 64, np.uint32), build=build)[1]
    expected = [int((numbers > 50).sum()), int((numbers == 7).any()), 1]
    assert results.reshape(64, 3).tolist() == [expected] * 64


@BUILDS
@pytest.mark.parametrize("schedule", EVERY_DAY, ids=str)
def test_atomics_lose_nothing(build: Build, schedule: Schedule) -> None:
    words = np.array([0, 0, 0xFFFF_FFFF, 0, 5000, 0, 0, 0], np.uint32)
    after, total = ran(
        "changes", ("u32*", "u64*"), words, np.zeros(1, np.uint64), build=build, schedule=schedule, blocks=3
    )
    mine = np.arange(192)
    assert after[:7].tolist() == [
        int(mine.sum()),
        0xFFFF_FFFF,
        0xFFFF_0000,
        int(np.bitwise_xor.reduce(mine)),
        1000 - 191,
        191,
        192,
    ]
    assert int(total[0]) + int(after[7]) == int((mine + 1).sum()), "each exchanged value came out once"
