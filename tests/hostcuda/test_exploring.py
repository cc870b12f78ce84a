"""Every schedule of a protocol is run, each wrong protocol is caught, and what is left out was run in another order."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pytest

from kvfsm.kernels.launch import Argument, Kernel, LaunchPlan

from .building import Build
from .exploring import Explored, ScheduleFailure, SearchEndsEarly, explore, replay
from .faults import HostFault
from .host import HostBuffer, HostLauncher, Sources, edited
from .planted import planted_source

READER = (
    Argument("word", "u64*"),
    Argument("page", "const u64*"),
    Argument("generation", "u32"),
    Argument("out", "u64*"),
)
EVICTOR = (Argument("word", "u64*"), Argument("page", "u64*"))
READY, ONE_PIN, ONE_GENERATION = 1, 1 << 16, 1 << 32


@dataclass(frozen=True, slots=True)
class World:
    """A page of two words of 1 in generation 1, readers that look for a generation, an evictor that writes the next."""

    generation: int
    launcher: HostLauncher
    word: HostBuffer
    page: HostBuffer
    out: HostBuffer
    plans: tuple[LaunchPlan, ...]

    def check(self) -> None:
        for was_read, *page in self.out.array.reshape(-1, 3).tolist():
            assert not was_read or page == [self.generation] * 2, "a reader got bytes that are not of its generation"
        assert int(self.word.array[0]) in (ONE_GENERATION + READY, 2 * ONE_GENERATION + READY), "a pin is left, or lost"

    def pins_are_sane(self) -> None:
        assert int(self.word.array[0]) >> 16 & 0xFFFF <= len(self.out.array) // 3, "more pins than readers"


def world(
    readers: int = 1,
    reader: str = "reader",
    evictor: str = "evictor",
    races: bool = False,
    generation: int = 1,
    sources: Sources = planted_source,
) -> World:
    launcher = HostLauncher(Build.CHECK, sources=sources, races=races)
    word = launcher.upload(np.array([ONE_GENERATION + READY], np.uint64))
    page = launcher.upload(np.ones(2, np.uint64))
    out = launcher.upload(np.full(3 * readers, 99, np.uint64))
    reads = Kernel(reader, "protocol.cu", READER, threads=32)
    evicts = Kernel(evictor, "protocol.cu", EVICTOR, threads=32)
    plans = (
        LaunchPlan(reads, (readers, 1, 1), (word.pointer, page.pointer, generation, out.pointer)),
        LaunchPlan(evicts, (1, 1, 1), (word.pointer, page.pointer)),
    )
    return World(generation, launcher, word, page, out, plans)


def test_the_right_protocol_holds_in_every_schedule() -> None:
    made = world(readers=2)
    explored = explore(made.launcher, made.plans, made.check, made.pins_are_sane)
    assert explored == Explored(executions=240, cut_short=813, steps_max=23)
    # Without the 31 threads that return at once it is the same search.
    assert explore(made.launcher, made.plans, made.check, made.pins_are_sane, threads=1) == explored
    assert int(made.word.array[0]) == ONE_GENERATION + READY, "the buffers are as they were"


def test_three_readers_and_an_evictor_in_every_order() -> None:
    made = world(readers=3, races=True)
    explored = explore(made.launcher, made.plans, made.check, threads=1)
    assert (explored.executions, explored.cut_short) == (61_232, 0)


def ends(made: World, preemptions: int | None) -> tuple[set[bytes], Explored]:
    """States in which executions end."""
    found: set[bytes] = set()

    def look() -> None:
        found.add(made.word.array.tobytes() + made.page.array.tobytes() + made.out.array.tobytes())

    explored = explore(made.launcher, made.plans, look, preemptions=preemptions, threads=1)
    return found, explored


@pytest.mark.parametrize(("reader", "evictor"), [("reader", "evictor"), ("reader_by_store", "evictor_ignores_pins")])
def test_leaving_out_independent_orders_loses_no_end(reader: str, evictor: str) -> None:
    made = world(1, reader, evictor)
    reduced, few = ends(made, None)
    everything, many = ends(made, 20)
    assert few.steps_max <= 20, "so that no schedule has more preemptions"
    assert reduced == everything and len(everything) > 2
    assert few.executions < many.executions and many.cut_short == 0


@pytest.mark.parametrize("meeting", [0, 1, 2], ids=["no meeting", "barrier", "shuffle"])
@pytest.mark.parametrize("seed", range(12))
def test_what_is_left_out_loses_no_state(seed: int, meeting: int) -> None:
    """Random programs of three threads over three words: states between steps, and ends, as without any reduction."""
    program = np.random.default_rng(seed).integers(0, (4, 3, 8), (3, 2, 3)).astype(np.uint32)
    print(program.tolist())
    launcher = HostLauncher(Build.CHECK, sources=planted_source, races=False)
    given = launcher.upload(program)
    words, results = launcher.upload(np.zeros(3, np.uint32)), launcher.upload(np.zeros(3, np.uint32))
    types = {"program": "const u32*", "meeting": "u32", "words": "u32*", "results": "u32*"}
    arguments = tuple(Argument(name, type) for name, type in types.items())
    kernel = Kernel("runs_a_program", "programs.cu", arguments, threads=32)
    plans = [LaunchPlan(kernel, (1, 1, 1), (given.pointer, meeting, words.pointer, results.pointer))]

    def states(preemptions: int | None, looks_between: bool) -> tuple[set[bytes], set[bytes], Explored]:
        between: set[bytes] = set()
        ends: set[bytes] = set()

        def look(into: set[bytes]) -> None:
            into.add(words.array.tobytes() + results.array.tobytes())

        at_each_step = (lambda: look(between)) if looks_between else None
        explored = explore(launcher, plans, lambda: look(ends), at_each_step, preemptions, threads=3)
        return between, ends, explored

    all_between, all_ends, everything = states(100, True)
    between, ends, explored = states(None, True)
    assert (between, ends) == (all_between, all_ends)
    assert explored.executions < everything.executions
    if meeting == 0:
        assert everything.executions == 1680, "which is 9! / (3!)^3: three steps a thread"

    _, ends, without_looking = states(None, False)
    assert ends == all_ends
    assert without_looking.executions == explored.executions
    assert without_looking.cut_short < explored.cut_short


def test_threads_that_share_nothing_have_one_schedule() -> None:
    launcher = HostLauncher(Build.CHECK, sources=planted_source)
    numbers, target = launcher.upload(np.arange(32, dtype=np.uint32)), launcher.empty((32,), np.uint32)
    arguments = (Argument("from", "const u32*"), Argument("to", "u32*"), Argument("count", "u32"))
    kernel = Kernel("copies", "memory.cu", arguments, threads=32)
    plan = LaunchPlan(kernel, (1, 1, 1), (numbers.pointer, target.pointer, 32))
    assert explore(launcher, [plan]) == Explored(executions=1, cut_short=0, steps_max=32)


def test_more_preemptions_find_more() -> None:
    made = world(readers=2)
    counts = [ends(made, preemptions)[1].executions for preemptions in range(4)]
    assert counts == sorted(set(counts)) and counts[0] == 3 * 2, "without preemption: whoever is first, second, third"


@pytest.mark.parametrize(
    ("reader", "evictor", "message"),
    [
        ("reader_without_pin", "evictor", "bytes that are not of its generation"),
        ("reader_unpins_early", "evictor", "bytes that are not of its generation"),
        ("reader_by_store", "evictor", "a pin is left, or lost|not of its generation"),
        ("reader", "evictor_ignores_pins", "bytes that are not of its generation"),
    ],
)
def test_a_wrong_protocol_is_caught_with_a_schedule_that_replays(reader: str, evictor: str, message: str) -> None:
    made = world(1, reader, evictor)
    before = made.out.download()
    with pytest.raises(ScheduleFailure, match=message) as caught:
        explore(made.launcher, made.plans, made.check)
    text = str(caught.value)
    assert caught.value.fault is None
    assert f"kv_{reader} (plan 0, block 0, thread 0): tests/hostcuda/planted/protocol.cu:" in text
    assert f"kv_{evictor} (plan 1, block 0, thread 0): tests/hostcuda/planted/protocol.cu:" in text
    with pytest.raises(AssertionError, match=message):
        made.check()

    again = world(1, reader, evictor)
    np.testing.assert_array_equal(again.out.array, before)
    replay(again.launcher, again.plans, caught.value.schedule)
    with pytest.raises(AssertionError, match=message):
        again.check()
    turns = len(re.findall(r"^  kv_", text, re.M))
    assert turns <= 3, "shown with one preemption, which is enough for each of these"


def test_a_schedule_of_other_plans_is_refused() -> None:
    made = world()
    with pytest.raises(HostFault, match="thread 5 can't go on at step 1") as caught:
        replay(made.launcher, made.plans, (0, 5))
    assert caught.value.kind == "not_deterministic"


def test_a_state_between_two_steps_is_checked() -> None:
    made = world()

    def never_evicting() -> None:
        assert int(made.word.array[0]) & 0xFFFF == READY

    explore(made.launcher, made.plans, at_end=never_evicting, threads=1)
    with pytest.raises(ScheduleFailure, match="AssertionError"):
        explore(made.launcher, made.plans, at_each_step=never_evicting, threads=1)


RELAXED = {
    "pin": ("kv_cas_acq_rel(word, seen, seen + kOnePin);", "atomicCAS(word, seen, seen + kOnePin);"),
    "unpin": ("kv_add_release(word, 0 - kOnePin);", "atomicAdd(word, 0 - kOnePin);"),
    "take": (
        "kv_cas_acq_rel(word, seen, seen - kReady + kEvicting) != seen) return;  // the CAS of take",
        "atomicCAS(word, seen, seen - kReady + kEvicting) != seen) return;",
    ),
    "publish": (
        "kv_host::store(word, seen + kOneGeneration, __ATOMIC_RELEASE);  // the release of publish",
        "atomicExch(word, seen + kOneGeneration);",
    ),
}
"""Of each ordered operation of the protocol, the same as CUDA's own relaxed one."""


@pytest.mark.parametrize(("generation", "executions"), [(1, 240), (2, 24)])
def test_the_right_protocol_orders_all_that_it_touches(generation: int, executions: int) -> None:
    made = world(readers=2, generation=generation, races=True)
    explored = explore(made.launcher, made.plans, made.check, threads=1)
    assert explored.executions == executions


@pytest.mark.parametrize(("which", "generation"), [("pin", 2), ("unpin", 1), ("take", 1), ("publish", 2)])
def test_a_relaxed_atomic_is_too_weak(which: str, generation: int) -> None:
    sources = edited(RELAXED[which], sources=planted_source)
    made = world(generation=generation, races=True, sources=sources)
    with pytest.raises(ScheduleFailure, match="race in kv_") as caught:
        explore(made.launcher, made.plans, made.check, threads=1)
    assert caught.value.fault is not None and caught.value.fault.kind == "race"
    unaware = world(generation=generation, sources=sources)
    explore(unaware.launcher, unaware.plans, unaware.check, threads=1)


def handover(consumer: str, third: str | None = None) -> tuple[HostLauncher, list[LaunchPlan], HostBuffer]:
    launcher = HostLauncher(Build.CHECK, sources=planted_source)
    flag, data = launcher.upload(np.zeros(1, np.uint64)), launcher.upload(np.zeros(1, np.uint64))
    out = launcher.upload(np.full(2, 99, np.uint64))

    def plan(name: str, types: tuple[str, ...], *buffers: HostBuffer) -> LaunchPlan:
        arguments = tuple(Argument(f"array_{i}", type) for i, type in enumerate(types))
        values = tuple(buffer.pointer for buffer in buffers)
        return LaunchPlan(Kernel(name, "handover.cu", arguments, threads=32), (1, 1, 1), values)

    plans = [
        plan("publishes", ("u64*", "u64*"), flag, data),
        plan(consumer, ("const u64*", "const u64*", "u64*"), flag, data, out),
    ]
    if third is not None:
        plans.append(plan(third, ("u64*",), flag))
    return launcher, plans, out


@pytest.mark.parametrize("consumer", ["by_barrier", "by_syncwarp"])
@pytest.mark.parametrize("third", [None, "adds"])
def test_what_one_thread_acquired_its_block_may_read(consumer: str, third: str | None) -> None:
    launcher, plans, out = handover(consumer, third)
    seen = set()

    def check() -> None:
        seen.add(tuple(out.array.tolist()))

    explore(launcher, plans, check, threads=2)
    assert seen == {(99, 99), (7, 7)}


def test_a_shuffle_hands_over_nothing() -> None:
    launcher, plans, _ = handover("by_shuffle_alone")
    with pytest.raises(ScheduleFailure, match="race in kv_by_shuffle_alone: thread 1 of block 0 reads 8 bytes"):
        explore(launcher, plans, threads=2)


def test_a_relaxed_store_ends_what_was_published() -> None:
    launcher, plans, _ = handover("by_barrier", "overwrites")
    with pytest.raises(ScheduleFailure, match="race in kv_by_barrier"):
        explore(launcher, plans, threads=2)


def test_what_one_execution_wrote_is_not_initialised_for_the_next() -> None:
    """The second actor reads what the first one writes: a fault in the schedules in which it comes first."""
    launcher = HostLauncher(Build.CHECK, sources=planted_source, races=False)
    kernel = Kernel(
        "copies",
        "memory.cu",
        (Argument("from", "const u32*"), Argument("to", "u32*"), Argument("count", "u32")),
        threads=32,
    )
    numbers, between, last = (
        launcher.upload(np.ones(1, np.uint32)),
        launcher.empty((1,), np.uint32),
        launcher.empty((1,), np.uint32),
    )
    plans = [
        LaunchPlan(kernel, (1, 1, 1), (numbers.pointer, between.pointer, 1)),
        LaunchPlan(kernel, (1, 1, 1), (between.pointer, last.pointer, 1)),
    ]
    with pytest.raises(ScheduleFailure, match="uninitialised in kv_copies") as caught:
        explore(launcher, plans, threads=1)
    assert caught.value.fault is not None and caught.value.fault.place is not None


def test_a_search_that_does_not_end_is_no_answer() -> None:
    made = world(readers=2)
    with pytest.raises(SearchEndsEarly, match="100 executions are not all; fix: raise the limit"):
        explore(made.launcher, made.plans, made.check, limit=100)


def test_a_thread_that_never_ends_is_a_fault() -> None:
    launcher = HostLauncher(Build.CHECK, sources=planted_source)
    word = launcher.upload(np.ones(1, np.uint64))
    plan = LaunchPlan(
        Kernel("waits_for_the_word", "protocol.cu", (Argument("word", "u64*"),), threads=32), (1, 1, 1), (word.pointer,)
    )
    with pytest.raises(ScheduleFailure, match="endless in kv_waits_for_the_word"):
        explore(launcher, [plan])
