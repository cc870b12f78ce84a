"""check_topology: what its plan refuses, what a launch moves, what its ring keeps, and that planted bugs are found."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvfsm.kernels.launch import LaunchPlan, LaunchRefused, Pointer
from kvfsm.kernels.source import source_of
from kvfsm.kernels.topology_check import (
    CHECK_TOPOLOGY,
    RECORD,
    WIDEST,
    Ring,
    Rows,
    Violations,
    What,
    check_topology_plan,
)

from ..hostcuda.building import Build
from ..hostcuda.faults import HostFault
from ..hostcuda.host import HostLauncher, edited
from ..hostcuda.schedules import Random
from .pools import Uploaded, sound_check

WASTE = 1.05


# ---- plans ----------------------------------------------------------------------------------------------------------


def pointer(size: int) -> Pointer:
    return Pointer(4096, size)


def a_topology(**changed: Any) -> LaunchPlan:
    rows = Rows(pointer(160), pointer(8), pointer(64), changed.pop("span", 16), False, -1, 3)
    ring = Ring(pointer(32 * 4), pointer(8), pointer(8), changed.pop("capacity", 4))
    sound: dict[str, Any] = {
        "rows": rows, "count": 8, "width": 5, "captured": pointer(80), "present": pointer(80), "numbers": 10,
        "epoch": pointer(8), "captured_epoch": 3, "refused": pointer(8), "ring": ring, "kind": "compressed_kv",
        "slots": 4, "words": pointer(32), "expected": pointer(160),
    }  # fmt: skip
    return check_topology_plan(**sound | changed)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"span": 0}, "'span' .* is 0; fix: pass at least 1"),
        ({"capacity": 0}, "'capacity' .* is 0; fix: pass at least 1"),
        ({"capacity": 5}, "'records' .* the plan needs 160 bytes there"),
        ({"width": WIDEST}, f"'width' .* is {WIDEST}; fix: use fewer than {WIDEST} entries"),
        ({"count": 9}, "'table' .* the plan needs 180 bytes there"),
        ({"numbers": 11}, "'captured' .* the plan needs 88 bytes there"),
        ({"refused": pointer(7)}, "'refused' .* the plan needs 8 bytes there"),
        ({"words": pointer(31)}, "'words' .* the plan needs 32 bytes there"),
        ({"expected": pointer(159)}, "'expected' .* the plan needs 160 bytes there"),
        ({"words": None}, "'expected' .*; fix: pass the words too, which have the generations"),
        ({"kind": "block"}, "'machine' .* is of kind 'block'; fix: pass one of compressed_kv, "),
    ],
)
def test_a_bad_topology_check_is_refused_with_its_fix(changed: dict[str, Any], said: str) -> None:
    assert a_topology().grid == (8, 1, 1)
    with pytest.raises(LaunchRefused, match=said):
        a_topology(**changed)


# ---- meanings -------------------------------------------------------------------------------------------------------


def test_violations_are_those_of_the_source() -> None:
    text = source_of(CHECK_TOPOLOGY)
    declared = text[text.index("namespace kv_violation") : text.index("}  // namespace kv_violation")]
    named = {name.upper(): int(code) for name, code in re.findall(r"k(\w+) = (\d+)", declared)}
    assert named == {what.name: int(what) for what in What}


def test_a_ring_gives_what_came_in_order_and_says_what_it_lost() -> None:
    ring = Violations.of(3)
    ring.add([(1, 0, number, 11, 5, 6) for number in range(2)])
    assert ring.take()["column"].tolist() == [0, 1]
    ring.add([(1, 0, number, 11, 5, 6) for number in range(2, 7)])
    assert (ring.lost, ring.take()["column"].tolist(), ring.lost) == (2, [2, 3, 4], 0)
    ring.add([(1, 0, 7, 11, 5, 6)])
    assert ring.take()["column"].tolist() == [7]


# ---- what launches move ---------------------------------------------------------------------------------------------


def launched(plan: Callable[[Uploaded], LaunchPlan], build: Build = Build.CHECK, **options: Any) -> HostLauncher:
    launcher = HostLauncher(build, **options)
    launcher.launch(plan(Uploaded(launcher)))
    return launcher


def a_batch(up: Uploaded, wrong: int = 0) -> LaunchPlan:
    """Four rows of three entries, two rows live; so many numbers of the signature are wrong."""
    table = np.array([[0, 1, -1], [2, 3, 4], [7, 7, 7], [7, 7, -1]], np.int32)
    captured = np.arange(300, dtype=np.int64)
    present = captured + (captured < wrong)
    check = sound_check("compressed_kv", 8, 12)
    rows = Rows(up(table), up(np.array([2])), up(np.array([20, 47, 0, 0])), 16, False, -1, 7)
    ring = Ring(up(np.zeros((64, 8), np.uint32)), up(np.zeros(1, np.uint64)), up(np.zeros(1, np.uint64)), 64)
    return check_topology_plan(
        rows, 4, 3, up(captured), up(present), 300, up(np.array([5])), 5, up(np.zeros(4, np.uint8)), ring,
        kind="compressed_kv", slots=8, words=up(check.words), expected=up(check.expected.reshape(4, 3)),
    )  # fmt: skip


def test_a_topology_check_reads_the_signature_once_a_row() -> None:
    traffic = launched(a_batch).traffic
    assert traffic is not None
    least = 4 * (300 * 16 + 3 * 8)
    assert traffic.bytes_read <= WASTE * least
    assert traffic.bytes_written <= 4 * (1 + 8)  # a code a row, and what its block shares


# ---- planted bugs ---------------------------------------------------------------------------------------------------


def two_wrong_numbers(up: Uploaded) -> LaunchPlan:
    return a_batch(up, wrong=40)


PLANTED = {
    "a cursor that is read and written back": (
        two_wrong_numbers,
        "const kv_u64 ticket = atomicAdd(ring.cursor, 1ULL);",
        "const kv_u64 ticket = *ring.cursor; *ring.cursor = ticket + 1;",
        "race",
    ),
    "records past the ring": (
        two_wrong_numbers, "ticket % ring.capacity * 8", "(ticket + 30) * 8", "out_of_bounds",
    ),
    "a row's verdict without a barrier": (
        two_wrong_numbers, "  __syncthreads();\n  if (threadIdx.x != 0) return;\n  const kv_u8 code = first",
        "  if (threadIdx.x != 0) return;\n  const kv_u8 code = first", "race",
    ),
    "a verdict that nobody has begun": (
        a_batch, "  if (threadIdx.x == 0) first = kNobody;\n", "", "uninitialised",
    ),
    "a refusal by plain store": (
        two_wrong_numbers, "atomicMin(first, rank << 8 | code);", "if (*first > code) *first = rank << 8 | code;",
        "race",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found_by_what_is_meant_for_it(name: str) -> None:
    plan, find, replace, kind = PLANTED[name]
    launched(plan, schedule=Random(3))  # sound as it is
    with pytest.raises(HostFault) as caught:
        launched(plan, sources=edited((find, replace)), schedule=Random(3))
    assert caught.value.kind == kind


@pytest.mark.parametrize("plan", [a_batch, two_wrong_numbers], ids=lambda one: one.__name__)
def test_nothing_is_left_undefined(plan: Callable[[Uploaded], LaunchPlan]) -> None:
    launched(plan, Build.UNDEFINED)


def test_a_ring_that_overwrites_what_is_unread_is_no_parity() -> None:
    def records(launcher: HostLauncher) -> int:
        up, kept = Uploaded(launcher), np.zeros((4, 8), np.uint32)
        plan = a_batch(up, wrong=9)
        values = dict(plan.named()) | {"records": up(kept), "capacity": 4}
        launcher.launch(LaunchPlan(plan.kernel, plan.grid, tuple(values.values())))
        return len(np.unique(up.now(kept).view(RECORD)["column"] // 4))

    assert records(HostLauncher()) == 1  # the first four
    bug = edited(("if (ticket - *ring.consumed >= ring.capacity) return;", "if (ring.consumed == nullptr) return;"))
    assert records(HostLauncher(sources=bug)) > 1
