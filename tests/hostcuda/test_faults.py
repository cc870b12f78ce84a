"""Each thing that a kernel may not do is found by the checker meant for it, at its line; sound kernels pass."""

from __future__ import annotations

import numpy as np
import pytest

from kvfsm.kernels.launch import Argument, Kernel, LaunchPlan, Pointer

from .building import Build
from .faults import HostFault
from .host import HostBuffer, HostLauncher
from .planted import line_of, planted_source
from .schedules import EVERY_DAY, FORWARD, Random, Schedule

COPY = (Argument("from", "const u32*"), Argument("to", "u32*"))


def memory_kernel(name: str) -> Kernel:
    return Kernel(name, "memory.cu", (*COPY, Argument("count", "u32")), threads=32, shared_bytes=128)


def memory_plan(launcher: HostLauncher, name: str, count: int = 16) -> LaunchPlan:
    """Over 16 numbers there and 16 that nobody wrote."""
    numbers, target = launcher.upload(np.arange(16, dtype=np.uint32)), launcher.empty((16,), np.uint32)
    return LaunchPlan(memory_kernel(name), (1, 1, 1), (numbers.pointer, target.pointer, count))


def fault_of(launcher: HostLauncher, *plans: LaunchPlan) -> HostFault:
    with pytest.raises(HostFault) as caught:
        launcher.launch_together(plans)
    fault = caught.value
    assert fault.kernel == plans[0].kernel.name
    assert fault.line == line_of(plans[0].kernel), str(fault)
    return fault


@pytest.mark.parametrize(
    ("name", "kind", "thread", "message"),
    [
        ("off_by_one", "out_of_bounds", 16, "reads 4 bytes at byte 64 of 'from', which has 64: out of bounds"),
        ("before_begin", "out_of_bounds", 0, "writes 4 bytes at byte -4 of 'to', which has 64: out of bounds"),
        ("null", "out_of_bounds", 3, "writes 4 bytes at 0x4: no argument points there"),
        ("const_write", "const_write", 0, "writes 4 bytes at byte 0 of 'from', which has 64: the argument is const"),
        ("misaligned", "misaligned", 0, "reads 16 bytes at byte 4 of 'from', which has 64: its address must be"),
        ("unwritten_output", "uninitialised", 0, "at byte 0 of 'to', which has 64: nobody has written byte 0"),
        ("unwritten_scratch", "uninitialised", 8, "at byte 32 of shared memory, which has 128: nobody has written"),
        ("scratch_overrun", "out_of_bounds", 31, "writes 4 bytes at"),
        ("keeps_a_variable", "out_of_bounds", 0, "that is a variable of the module"),
    ],
)
def test_a_bad_access_is_found(name: str, kind: str, thread: int, message: str) -> None:
    launcher = HostLauncher(Build.CHECK, FORWARD, planted_source)
    fault = fault_of(launcher, memory_plan(launcher, name))
    assert (fault.kind, fault.thread) == (kind, thread)
    assert message in str(fault)
    assert str(fault).startswith(
        f"tests/hostcuda/planted/memory.cu:{fault.line}: {kind} in kv_{name}: thread {thread} of"
    )


def test_a_sound_copy_is_no_fault() -> None:
    launcher = HostLauncher(Build.CHECK, FORWARD, planted_source)
    plan = memory_plan(launcher, "copies")
    launcher.launch(plan)
    assert buffer_of(launcher, plan, "to").download().tolist() == list(range(16))


def test_a_table_of_the_module_may_be_read() -> None:
    launcher = HostLauncher(Build.CHECK, FORWARD, planted_source)
    plan = memory_plan(launcher, "reads_a_table")
    launcher.launch(plan)
    assert buffer_of(launcher, plan, "to").download().tolist() == [3, 1, 4, 1] * 4


def buffer_of(launcher: HostLauncher, plan: LaunchPlan, name: str) -> HostBuffer:
    pointer = plan.value(name)
    buffer = launcher.buffer_at(pointer)  # type: ignore[arg-type]
    assert buffer is not None
    return buffer


def test_a_buffer_that_was_freed_is_not_read() -> None:
    launcher = HostLauncher(Build.CHECK, FORWARD, planted_source)
    plan = memory_plan(launcher, "copies")
    buffer_of(launcher, plan, "from").free()
    with pytest.raises(
        HostFault, match=r"thread 0 of block 0 reads 4 bytes .* of 'from', .* the buffer was freed"
    ) as caught:
        launcher.launch(plan)
    assert caught.value.kind == "use_after_free"


def test_only_what_a_kernel_wrote_is_initialised_afterwards() -> None:
    launcher = HostLauncher(Build.CHECK, FORWARD, planted_source)
    first = memory_plan(launcher, "copies", count=8)
    target = buffer_of(launcher, first, "to")
    launcher.launch(first)
    onwards = launcher.empty((16,), np.uint32)
    launcher.launch(LaunchPlan(memory_kernel("copies"), (1, 1, 1), (target.pointer, onwards.pointer, 8)))
    with pytest.raises(HostFault, match="nobody has written byte 32") as caught:
        launcher.launch(LaunchPlan(memory_kernel("copies"), (1, 1, 1), (target.pointer, onwards.pointer, 9)))
    assert caught.value.thread == 8


def test_a_view_of_a_buffer_ends_where_it_is_said_to() -> None:
    launcher = HostLauncher(Build.CHECK, FORWARD, planted_source)
    plan = memory_plan(launcher, "copies")
    source, target = buffer_of(launcher, plan, "from").pointer, buffer_of(launcher, plan, "to").pointer
    view = Pointer(source.address, 32)
    with pytest.raises(HostFault, match="at byte 32 of 'from', which has 32: out of bounds"):
        launcher.launch(LaunchPlan(plan.kernel, (1, 1, 1), (view, target, 16)))
    with pytest.raises(ValueError, match="have bytes behind its buffer"):
        launcher.launch(LaunchPlan(plan.kernel, (1, 1, 1), (Pointer(source.address, 68), target, 16)))


def test_memory_of_the_process_counts_as_written() -> None:
    launcher = HostLauncher(Build.CHECK, FORWARD, planted_source)
    plan = memory_plan(launcher, "copies")
    numbers = np.arange(16, dtype=np.uint32)
    outside = Pointer(numbers.ctypes.data, numbers.nbytes)
    launcher.launch(LaunchPlan(plan.kernel, (1, 1, 1), (outside, *plan.values[1:])))
    assert buffer_of(launcher, plan, "to").download().tolist() == list(range(16))


def test_fast_builds_see_a_touched_redzone_and_a_crash() -> None:
    launcher = HostLauncher(Build.FAST, FORWARD, planted_source)
    with pytest.raises(HostFault, match="wrote outside of 'to'") as caught:
        launcher.launch(memory_plan(launcher, "before_begin"))
    assert caught.value.kind == "out_of_bounds"
    assert fault_of(launcher, memory_plan(launcher, "null")).kind == "crash"


def test_after_a_fault_the_next_launch_is_as_if_nothing_had_been() -> None:
    launcher = HostLauncher(Build.CHECK, Random(3), planted_source)
    for name in ("off_by_one", "null", "unwritten_scratch"):
        fault_of(launcher, memory_plan(launcher, name))
        launcher.launch(plan := memory_plan(launcher, "copies"))
        assert buffer_of(launcher, plan, "to").download().tolist() == list(range(16))


def meeting_plan(launcher: HostLauncher, name: str) -> LaunchPlan:
    kernel = Kernel(name, "meetings.cu", (Argument("to", "u32*"),), threads=64)
    return LaunchPlan(kernel, (1, 1, 1), (launcher.empty((64,), np.uint32).pointer,))


@pytest.mark.parametrize("build", [Build.FAST, Build.CHECK])
@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        (
            "divergent_barrier",
            "barrier_divergence",
            "while others of its block wait at tests/hostcuda/planted/meetings.cu:",
        ),
        ("left_before_barrier", "barrier_after_exit", "another thread of its block returned"),
        ("left_others_waiting", "barrier_after_exit", "another thread of its block returned"),
        (
            "divergent_warp",
            "warp_divergence",
            "with mask 0xffffffff while other lanes are in one at tests/hostcuda/planted/",
        ),
        ("outside_mask", "lane_outside_mask", "is lane 16 and calls an operation of its warp whose mask 0x0000ffff"),
        ("absent_lanes", "deadlock", "waits for ever for lanes that its mask names"),
        ("traps", "trap", "thread 5 of block 0 calls __trap"),
    ],
)
def test_threads_that_do_not_meet_are_found(build: Build, name: str, kind: str, message: str) -> None:
    launcher = HostLauncher(build, FORWARD, planted_source)
    fault = fault_of(launcher, meeting_plan(launcher, name))
    assert fault.kind == kind
    assert message in str(fault)


@pytest.mark.parametrize("name", ["divergent_barrier", "divergent_warp"])
def test_meetings_are_checked_in_any_order(name: str) -> None:
    kinds = set()
    for seed in range(5):
        launcher = HostLauncher(Build.FAST, Random(seed), planted_source)
        with pytest.raises(HostFault) as caught:
            launcher.launch(meeting_plan(launcher, name))
        kinds.add(caught.value.kind)
    assert len(kinds) == 1


def test_a_lane_outside_the_mask_gives_anything() -> None:
    launcher = HostLauncher(Build.CHECK, FORWARD, planted_source)
    launcher.launch(plan := meeting_plan(launcher, "from_outside"))
    got = buffer_of(launcher, plan, "to").download()
    assert got[:8].tolist() == [4, 5, 6, 7, *[0xDEADBEEF] * 4]


def race_plan(launcher: HostLauncher, name: str, blocks: int = 1) -> LaunchPlan:
    numbers, target = np.arange(64, dtype=np.uint32), np.zeros(64, np.uint32)
    values = (launcher.upload(numbers).pointer, launcher.upload(target).pointer)
    return LaunchPlan(Kernel(name, "races.cu", COPY, threads=64), (blocks, 1, 1), values)


@pytest.mark.parametrize("schedule", EVERY_DAY, ids=str)
@pytest.mark.parametrize(("name", "expected"), [("tree", 2016), ("backwards", 31), ("counts_by_atomics", 2 * 2016)])
def test_what_is_ordered_is_no_race(name: str, expected: int, schedule: Schedule) -> None:
    launcher = HostLauncher(Build.CHECK, schedule, planted_source)
    launcher.launch(plan := race_plan(launcher, name, blocks=2 if name == "counts_by_atomics" else 1))
    assert buffer_of(launcher, plan, "to").download()[0] == expected


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        ("tree_without_barrier", 1),
        ("backwards_without_syncwarp", 1),
        ("half_a_syncwarp", 1),
        ("overwrites_what_others_read", 1),
        ("counts_between_blocks", 2),
        ("reads_an_atomic", 1),
    ],
)
def test_a_race_is_found(name: str, blocks: int) -> None:
    launcher = HostLauncher(Build.CHECK, FORWARD, planted_source)
    fault = fault_of(launcher, race_plan(launcher, name, blocks))
    assert fault.kind == "race"
    assert "tests/hostcuda/planted/races.cu:" in str(fault).split("at ", 1)[1], "the other place is named"


def test_launches_side_by_side_race_and_one_after_the_other_do_not() -> None:
    launcher = HostLauncher(Build.CHECK, FORWARD, planted_source)
    plan = race_plan(launcher, "counts_between_blocks")
    launcher.launch(plan)
    launcher.launch(plan)
    assert fault_of(launcher, plan, plan).kind == "race"
    without = HostLauncher(Build.CHECK, FORWARD, planted_source, races=False)
    plan = race_plan(without, "counts_between_blocks")
    without.launch_together([plan, plan])


def undefined_plan(launcher: HostLauncher, name: str, by: int) -> LaunchPlan:
    kernel = Kernel(name, "undefined.cu", (Argument("to", "u32*"), Argument("by", "u32")), threads=32)
    return LaunchPlan(kernel, (1, 1, 1), (launcher.upload(np.zeros(32, np.uint32)).pointer, by))


@pytest.mark.parametrize(
    ("name", "by", "thread"),
    [("shifts_too_far", 3, 29), ("divides_by_zero", 0, 0), ("indexes_past_an_array", 2, 2), ("loads_across", 1, 0)],
)
def test_what_is_undefined_stops_its_own_build(name: str, by: int, thread: int) -> None:
    launcher = HostLauncher(Build.UNDEFINED, FORWARD, planted_source)
    fault = fault_of(launcher, undefined_plan(launcher, name, by))
    assert (fault.kind, fault.thread) == ("undefined", thread)


@pytest.mark.parametrize("build", [Build.FAST, Build.CHECK, Build.UNDEFINED])
def test_a_stack_that_is_too_small_is_no_silent_damage(build: Build) -> None:
    launcher = HostLauncher(build, FORWARD, planted_source)
    with pytest.raises(HostFault, match="signal 11") as caught:
        launcher.launch(undefined_plan(launcher, "needs_a_large_stack", 3))
    assert caught.value.kind == "crash"


def test_what_is_defined_passes_the_same_build() -> None:
    launcher = HostLauncher(Build.UNDEFINED, FORWARD, planted_source)
    launcher.launch(plan := undefined_plan(launcher, "shifts_too_far", 0))
    assert buffer_of(launcher, plan, "to").download().tolist() == [1 << i for i in range(32)]
