"""Copies without a pin, while a slot is evicted, taken anew, written and sealed: in every schedule, and in threads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from kvfsm.kernels.checks import page_checksum_plan
from kvfsm.kernels.copies import gather_plan, indexer_gather_plan, window_gather_plan
from kvfsm.kernels.entries import Entries
from kvfsm.kernels.launch import Kernel, LaunchPlan, Value
from kvfsm.kernels.reading import MACHINES, Check
from kvfsm.kernels.words import event_number
from kvfsm.runtime.generated import KINDS, Refusal

from ..gpu.programs import PATTERN, PUBLISH, REWRITE, program_source
from ..hostcuda.building import Build
from ..hostcuda.exploring import ScheduleFailure, explore
from ..hostcuda.host import HostBuffer, HostLauncher, Sources, edited
from ..hostcuda.threads import ThreadRace, run_threads
from .pools import PINNED

UNTOUCHED = 0xEEEEEEEE


@dataclass
class Moving:
    """A slot of 16 bytes a lane, sealed in generation 1 with its pattern, a reader of it, and a rewriter."""

    launcher: HostLauncher
    kind: str
    reader: str
    lanes: int = 1
    outcomes: Counter[tuple[int, str]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        layout, states = KINDS[self.kind].LAYOUT, KINDS[self.kind].STATES
        up = self.launcher.upload
        self.words = up(np.array([layout.pack(state=states["RESIDENT"], generation=1)], np.uint64))
        self.arena = up(np.full((1, 4 * self.lanes), PATTERN, np.uint32).view(np.uint8))
        self.refusals = up(np.zeros(1, np.uint8))
        shape, dtype = ((1,), np.uint64) if self.reader == "page_checksum" else ((1, 4 * self.lanes), np.uint32)
        self.out: HostBuffer = up(np.full(shape, UNTOUCHED, dtype))
        self._kept = [up(np.array(one)) for one in self._inputs()]
        self.taken = up(np.zeros(1, np.uint32))
        self.right = [PATTERN] * 4 * self.lanes

    def alone(self) -> list[int]:
        """What the reader's first thread makes of the slot when nobody disturbs it."""
        found = list[int]()
        explore(self.launcher, self.plans[:1], lambda: found.extend(self.out.array.reshape(-1).tolist()), threads=1)
        self.out.write(np.full_like(self.out.array, UNTOUCHED))
        self.refusals.write(np.zeros(1, np.uint8))
        return found

    events = ("evict", "take", "seal")
    arguments = (0,) * 8

    def _inputs(self) -> list[np.ndarray]:
        numbers = [event_number(self.kind, name) for name in self.events]
        ones = ("layers", "ok", "kv_version") if self.events[-1] == "rebuild_done" else ("layers",)
        seal = [int(given.name in ones) for given in KINDS[self.kind].EVENTS[self.events[-1]].given]
        return [np.zeros(1, np.int32), np.ones(1, np.uint32), np.array(numbers, np.uint32), np.array(seal, np.int64),
                np.zeros(1, np.int64), np.array([0, 1], np.uint32), np.zeros(1, np.uint32),
                np.array(self.arguments, np.int64)]  # fmt: skip

    @property
    def plans(self) -> list[LaunchPlan]:
        ids, expected, events, seal, positions, starts, versions, arguments = (one.pointer for one in self._kept)
        check = Check(self.kind, self.words.pointer, expected, self.refusals.pointer)
        arena, out, size = self.arena.pointer, self.out.pointer, 16 * self.lanes
        readers: dict[str, Callable[[], LaunchPlan]] = {
            "gather": lambda: gather_plan(Entries(arena, size, 1, ids, 1), size, out, check=check),
            "window_gather": lambda: window_gather_plan(
                arena, 16, 1, ids, 1, 1, positions, 1, 1, 16, out, check=check
            ),
            "indexer_gather": lambda: indexer_gather_plan(
                arena, None, 16, 1, ids, starts, 1, 1, 16, 0, out, None, 1,
                check=Check(self.kind, check.words, expected, check.refusals, versions=versions),
            ),
            "page_checksum": lambda: page_checksum_plan(Entries(arena, 16, 1, ids, 1), 16, out, check=check),
        }  # fmt: skip
        rewrite = (
            MACHINES.index(self.kind), events, arguments, seal, seal.bytes // 8, self.words.pointer, arena, size, 1,
            self.taken.pointer,
        )  # fmt: skip
        return [readers[self.reader](), LaunchPlan(REWRITE, (1, 1, 1), rewrite)]

    def check(self) -> None:
        """The right bytes, or a refusal whose reason was true; foreign bytes never."""
        code, found = int(self.refusals.array[0]), self.out.array.reshape(-1).tolist()
        right = self.right
        told = {tuple(right): "right", (UNTOUCHED,) * len(right): "untouched", (0,) * len(right): "cleared"}
        what = told.get(tuple(found), "foreign")
        assert what == "right" or (code and what != "foreign"), f"refusal {code}, bytes {what}"
        assert code in (0, Refusal.STALE, Refusal.ILLEGAL), f"refused as {code}"
        self.outcomes[code, what] += 1


def moving(kind: str, reader: str, sources: Sources = program_source) -> Moving:
    made = Moving(HostLauncher(Build.CHECK, sources=sources, races=False), kind, reader)
    if reader == "page_checksum":
        made.right = made.alone()  # of a block of one thread the sum is another one
    return made


READERS = [(kind, "gather") for kind in PINNED] + [
    ("swa_window", "window_gather"), ("indexer_state", "indexer_gather"), ("compressed_kv", "page_checksum"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "reader"), READERS)
def test_no_schedule_gives_foreign_bytes(kind: str, reader: str) -> None:
    made = moving(kind, reader)
    explored = explore(made.launcher, made.plans, made.check, threads=1)
    print(explored, made.outcomes)
    late = "untouched" if reader == "page_checksum" else "cleared"  # a sum is written when all is known
    assert {(0, "right"), (Refusal.STALE, "untouched"), (Refusal.STALE, late)} <= set(made.outcomes)
    assert explored.executions >= 10


class Rebuilding(Moving):
    """Keys of an indexer are made anew in place: the generation stays, and their version is another one."""

    events = ("fall_behind", "rebuild_begin", "rebuild_done")
    arguments = (1,) + (0,) * 7

    def __post_init__(self) -> None:
        super().__post_init__()
        self.arena.write(np.full((1, 4), 7, np.uint32).view(np.uint8))
        self.right = [7] * 4

    def check(self) -> None:
        code, found = int(self.refusals.array[0]), self.out.array.reshape(-1).tolist()
        assert found == self.right or (code and found in ([UNTOUCHED] * 4, [0] * 4)), f"refusal {code}, foreign bytes"
        self.outcomes[code, "right" if found == self.right else ""] += 1


@pytest.mark.parametrize("reader", ["indexer_gather", "gather"])
def test_keys_that_are_rebuilt_in_their_generation_are_told_by_their_version_alone(reader: str) -> None:
    made = Rebuilding(HostLauncher(Build.CHECK, sources=program_source, races=False), "indexer_state", reader)
    if reader == "indexer_gather":
        explore(made.launcher, made.plans, made.check, threads=1)
        assert {0, Refusal.VERSION, Refusal.BUSY} <= {code for code, _ in made.outcomes}
    else:  # looks at no version
        with pytest.raises(ScheduleFailure, match="refusal 0, foreign bytes"):
            explore(made.launcher, made.plans, made.check, threads=1)


def test_two_readers_and_two_turns_of_the_rewriter() -> None:
    made = moving("swa_window", "gather")
    other = Moving(made.launcher, made.kind, made.reader)
    reads, rewrites = made.plans
    rewrites = with_values(rewrites, rounds=2)
    again = with_values(reads, out=other.out.pointer, refusals=other.refusals.pointer)

    def check() -> None:
        made.check()
        other.check()

    explored = explore(made.launcher, [reads, again, rewrites], check, threads=1)
    print(explored, made.outcomes)
    assert made.outcomes.keys() == other.outcomes.keys()
    assert explored.executions > 100


def with_values(plan: LaunchPlan, **changed: Value) -> LaunchPlan:
    return LaunchPlan(plan.kernel, plan.grid, tuple((plan.named() | changed).values()))


LOOK_AGAIN = "const kv_u8 code = kv_answer(check, kv_add_release(check.words + slot, 0), entry);"
BUGS = {
    "no second look": (LOOK_AGAIN, "const kv_u8 code = kv_refusal::kApplied; (void)slot;"),
    "a second look at the state alone": (
        LOOK_AGAIN,
        "const kv_u64 now = kv_add_release(check.words + slot, 0);\n"
        "  const kv_u8 code = kv_events::read(check.machine, now, kv_events::generation_of(check.machine, now));",
    ),
    "a second look before the copy": (
        "  copy16<false>(to, arena + (kv_u64)slot * stride + strip.begin, strip.bytes);\n"
        "  if (look_again(check, strip.item, slot) != kv_refusal::kApplied) fill16<false>(to, strip.bytes, 0);\n",
        "  const kv_u32 again = look_again(check, strip.item, slot);\n"
        "  copy16<false>(to, arena + (kv_u64)slot * stride + strip.begin, strip.bytes);\n"
        "  if (again != kv_refusal::kApplied) fill16<false>(to, strip.bytes, 0);\n",
    ),
    "a refused strip is left as it was read": (
        "kApplied) fill16<false>(to, strip.bytes, 0);", "kApplied) return;",
    ),
}  # fmt: skip


def gather_with(*edits: tuple[str, str]) -> Sources:
    """The rewriter as it is, beside a gather with some edits."""
    changed = edited(*edits)

    def sources(kernel: Kernel) -> str:
        return changed(kernel) if kernel.name == "gather" else program_source(kernel)

    return sources


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_has_a_schedule_that_shows_it(name: str) -> None:
    made = moving("swa_window", "gather", gather_with(BUGS[name]))
    with pytest.raises(ScheduleFailure, match="foreign"):
        explore(made.launcher, made.plans, made.check, threads=1)


def two_lanes(sources: Sources) -> Moving:
    return Moving(HostLauncher(Build.CHECK, sources=sources, races=False), "swa_window", "gather", lanes=2)


def test_a_warp_looks_again_when_all_its_lanes_have_read() -> None:
    made = two_lanes(program_source)
    print(explore(made.launcher, made.plans, made.check, threads=2), made.outcomes)
    barrier = "  __syncwarp();  // the lanes' reads come before lane 0's second look\n"
    made = two_lanes(gather_with((barrier, "")))
    with pytest.raises(ScheduleFailure, match="foreign"):
        explore(made.launcher, made.plans, made.check, threads=2)


@pytest.mark.parametrize(("kind", "reader"), READERS)
def test_memory_order_holds_in_threads(kind: str, reader: str) -> None:
    made = moving(kind, reader)
    assert run_threads(made.launcher, made.plans, made.check, rounds=200, threads=1) >= 1


class Publishing(Moving):
    """The slot is being filled; its writer publishes it, by plain stores, while a gather looks for it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        layout, states = KINDS[self.kind].LAYOUT, KINDS[self.kind].STATES
        self.words.write(np.array([layout.pack(state=states["FILLING"], generation=1)], np.uint64))
        self.arena.write(np.zeros((1, 4 * self.lanes), np.uint32).view(np.uint8))
        self.seal = self.launcher.upload(np.array([1, 0, 0], np.int64))

    @property
    def plans(self) -> list[LaunchPlan]:
        reader, _ = super().plans
        numbers = MACHINES.index(self.kind), event_number(self.kind, "seal")
        values = (*numbers, self.seal.pointer, self.words.pointer, self.arena.pointer, PATTERN)
        return [reader, LaunchPlan(PUBLISH, (1, 1, 1), values)]

    def check(self) -> None:
        code, found = int(self.refusals.array[0]), set(self.out.array.reshape(-1).tolist())
        assert (code, found) in ((0, {PATTERN}), (Refusal.BUSY, {UNTOUCHED}))


PLAIN = "return kToSlots ? kv_load16(from + 16ULL * at) : kv_load16_relaxed(from + 16ULL * at);"
"""Relaxed loads are no race whatever orders them, and ThreadSanitizer says nothing. So here they are plain."""


ACQUIRE = "kv_answer(check, kv_load_acquire(check.words + slot), entry)"
HANDOVER = "  __syncwarp();  // the lanes' reads come after lane 0's acquire\n"
UNORDERED = {
    "a first look without acquire": (ACQUIRE, ACQUIRE.replace("kv_load_acquire", "kv_load_relaxed")),
    "lanes that do not wait for lane 0's look": (HANDOVER, ""),
}


def publishing(*edits: tuple[str, str], races: bool, lanes: int = 1) -> Publishing:
    launcher = HostLauncher(
        Build.CHECK, sources=gather_with((PLAIN, "return kv_load16(from + 16ULL * at);"), *edits), races=races
    )
    return Publishing(launcher, "swa_window", "gather", lanes=lanes)


def test_what_the_seal_released_is_read_by_every_lane() -> None:
    made = publishing(races=True, lanes=2)
    explore(made.launcher, made.plans, made.check, threads=2)
    made = publishing(races=False)
    assert run_threads(made.launcher, made.plans, made.check, rounds=1000, threads=1) >= 1


@pytest.mark.parametrize("name", UNORDERED)
def test_reads_that_nothing_orders_after_the_seal_are_a_race(name: str) -> None:
    made = publishing(UNORDERED[name], races=True, lanes=2)
    with pytest.raises(ScheduleFailure) as caught:
        explore(made.launcher, made.plans, made.check, threads=2)
    assert caught.value.fault is not None and caught.value.fault.kind == "race"
    if "acquire" in name:  # a thread alone shows it, too
        made = publishing(UNORDERED[name], races=False)
        with pytest.raises(ThreadRace):
            run_threads(made.launcher, made.plans, rounds=1000, threads=1)
