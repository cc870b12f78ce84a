"""The kernels themselves side by side: requests of several references, the host's words, pins that go back.

Of each block only as many threads are there as have something to do, and every interleaving is run. Invariants are
looked at between any two steps; what a kernel promises, at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from kvfsm.kernels import words as family
from kvfsm.kernels.call_refusal import CallRefusal
from kvfsm.kernels.launch import LaunchPlan, Pointer
from kvfsm.kernels.reading import MACHINES
from kvfsm.kernels.words import first_places
from kvfsm.runtime.generated import KINDS, Refusal

from ..hostcuda.building import Build
from ..hostcuda.exploring import ScheduleFailure, explore, replay
from ..hostcuda.host import HostBuffer, HostLauncher, edited

KV = "compressed_kv"
LAYOUT, STATES = KINDS[KV].LAYOUT, KINDS[KV].STATES
THREADS = 2
"""Of each block. No scenario has more references."""


def word(state: str = "RESIDENT", generation: int = 1, pins: int = 0, landed: int = 1, form: int = 0) -> int:
    if state == "FREE":
        landed = 0
    return LAYOUT.pack(state=STATES[state], generation=generation, pins=pins, landed=landed, form=form)


class Pool:
    """Slots of one machine in a launcher's memory, and launches over them."""

    def __init__(self, words: list[int], *edits: tuple[str, str]) -> None:
        self.launcher = HostLauncher(Build.CHECK, sources=edited(*edits), races=not edits)
        self.words = self.launcher.upload(np.array(words, np.uint64))
        self.first = self.up(first_places({KV: len(words)}))

    def up(self, array: np.ndarray) -> Pointer:
        return self.launcher.upload(array).pointer

    def fields(self, slot: int) -> Mapping[str, int]:
        return LAYOUT.unpack(int(self.words.array[slot]))

    @property
    def pins(self) -> list[int]:
        return [self.fields(slot)["pins"] for slot in range(len(self.words.array))]

    def references(self, *slots: int) -> dict[str, object]:
        n = len(slots)
        arguments = np.zeros((family.width_of("validate_pin"), n), np.int64)
        arguments[0] = 1  # the generation; the layout is 0
        return {
            "words": self.words.pointer,
            "first": self.first,
            "references": n,
            "machines": self.up(np.full(n, MACHINES.index(KV), np.uint8)),
            "slots": self.up(np.array(slots, np.uint32)),
            "arguments": self.up(arguments),
        }

    def request(self, *slots: int) -> Request:
        """Pins these slots in generation 1, all or none."""
        leases = self.launcher.upload(np.full(len(slots), 99, np.uint8))
        verdicts = self.launcher.upload(np.full(1, 99, np.uint8))
        plan = family.validate_pin_plan(
            **self.references(*slots),  # type: ignore[arg-type]
            starts=self.up(np.array([0, len(slots)], np.uint32)),
            count=self.up(np.array([1], np.uint32)),
            requests=1,
            leases=leases.pointer,
            verdicts=verdicts.pointer,
        )
        return Request(plan, leases, verdicts)

    def release(self, *slots: int) -> tuple[LaunchPlan, HostBuffer]:
        """Gives back a pin of each slot."""
        leases = self.launcher.upload(np.zeros(len(slots), np.uint8))
        count = self.up(np.array([len(slots)], np.uint32))
        plan = family.unpin_plan(**self.references(*slots), count=count, leases=leases.pointer)  # type: ignore[arg-type]
        return plan, leases

    def fire(self, event: str, slot: int, **given: int) -> tuple[LaunchPlan, HostBuffer]:
        about = KINDS[KV].EVENTS[event].given
        refusals = self.launcher.upload(np.full(1, 99, np.uint8))
        arguments = np.array([[given[each.name]] for each in about], np.int64)
        plan = family.apply_event_plan(
            KV,
            event,
            words=self.words.pointer,
            slot_count=len(self.words.array),
            count=self.up(np.ones(1, np.uint32)),
            firings=1,
            slots=self.up(np.array([slot], np.uint32)),
            arguments=self.up(arguments) if about else None,
            refusals=refusals.pointer,
        )
        return plan, refusals

    def put(self, slot: int, value: int) -> tuple[LaunchPlan, HostBuffer]:
        """Copies the host's word of a slot."""
        refusals = self.launcher.upload(np.full(1, 99, np.uint8))
        plan = family.put_words_plan(
            KV,
            words=self.words.pointer,
            slot_count=len(self.words.array),
            count=self.up(np.ones(1, np.uint32)),
            values_max=1,
            slots=self.up(np.array([slot], np.uint32)),
            values=self.up(np.array([value], np.uint64)),
            refusals=refusals.pointer,
        )
        return plan, refusals

    def lease_protects(self) -> None:
        """S3, as the machine claims it."""
        for slot in range(len(self.words.array)):
            fields = self.fields(slot)
            state = STATES(fields["state"]).name
            assert not fields["pins"] or state in ("RESIDENT", "EXPIRED"), (
                f"slot {slot} is {state} under {fields['pins']} pins"
            )


class Request:
    def __init__(self, plan: LaunchPlan, leases: HostBuffer, verdicts: HostBuffer) -> None:
        self.plan, self.leases, self.verdicts = plan, leases, verdicts

    @property
    def verdict(self) -> int:
        return int(self.verdicts.array[0])

    @property
    def held(self) -> list[int]:
        """1 for each reference that holds a pin."""
        return [int(code == 0) for code in self.leases.array]


Scenario = Callable[..., "tuple[Pool, list[LaunchPlan], Callable[[], None]]"]


def published_in_between(*edits: tuple[str, str]) -> tuple[Pool, list[LaunchPlan], Callable[[], None]]:
    """A request for two slots, of which the second is still being loaded."""
    pool = Pool([word(), word("LOADING")], *edits)
    request = pool.request(0, 1)
    load, refusals = pool.fire("load_done", 1, expected=1, ok=1, layers=1, is_lossy=0)

    def at_end() -> None:
        assert refusals.array.tolist() == [0]
        assert request.verdict in (0, Refusal.PENDING)
        assert request.held == ([1, 1] if request.verdict == 0 else [0, 0])
        assert pool.pins == request.held

    return pool, [request.plan, load], at_end


def evicted_in_between(*edits: tuple[str, str]) -> tuple[Pool, list[LaunchPlan], Callable[[], None]]:
    """A request for two slots, of which the second is evicted."""
    pool = Pool([word(), word()], *edits)
    request = pool.request(0, 1)
    evict, refusals = pool.fire("evict", 1)

    def at_end() -> None:
        (refused,) = refusals.array.tolist()
        assert (request.verdict, refused) in ((0, Refusal.PINNED), (Refusal.ILLEGAL, 0))
        assert pool.pins == request.held == ([1, 1] if request.verdict == 0 else [0, 0])

    return pool, [request.plan, evict], at_end


def two_requests_for_the_last_pins(*edits: tuple[str, str]) -> tuple[Pool, list[LaunchPlan], Callable[[], None]]:
    """Two requests for two slots in opposite order, each of which has room for one pin."""
    most = LAYOUT.field("pins").high
    pool = Pool([word(pins=most - 1), word(pins=most - 1)], *edits)
    requests = [pool.request(0, 1), pool.request(1, 0)]

    def at_end() -> None:
        for request in requests:
            assert request.held == ([1, 1] if request.verdict == 0 else [0, 0])
            assert request.verdict in (0, Refusal.TOO_MANY_READERS)
        held = sum(request.held[0] for request in requests)
        assert held <= 1 and pool.pins == [most - 1 + held] * 2

    return pool, [request.plan for request in requests], at_end


def given_back_while_evicted(*edits: tuple[str, str]) -> tuple[Pool, list[LaunchPlan], Callable[[], None]]:
    pool = Pool([word(pins=1)], *edits)
    release, leases = pool.release(0)
    evict, refusals = pool.fire("evict", 0)

    def at_end() -> None:
        assert leases.array.tolist() == [CallRefusal.RELEASED] and pool.pins == [0]
        assert refusals.array.tolist() == [0 if pool.fields(0)["state"] == STATES.FREE else Refusal.PINNED]

    return pool, [release, evict], at_end


def put_while_pinned(*edits: tuple[str, str]) -> tuple[Pool, list[LaunchPlan], Callable[[], None]]:
    """The host has evicted the slot; its word comes while a launch pins it."""
    pool = Pool([word()], *edits)
    request = pool.request(0)
    put, refusals = pool.put(0, word("FREE"))

    def at_end() -> None:
        (refused,) = refusals.array.tolist()
        assert (request.verdict, refused) in ((0, Refusal.PINNED), (Refusal.ILLEGAL, 0))
        assert pool.pins == request.held

    return pool, [request.plan, put], at_end


def put_while_given_back(*edits: tuple[str, str]) -> tuple[Pool, list[LaunchPlan], Callable[[], None]]:
    """The host has expired the slot, and leases of its own; that may come under pins, which are given back."""
    pool = Pool([word(pins=1)], *edits)
    release, leases = pool.release(0)
    put, refusals = pool.put(0, word("EXPIRED", pins=3))

    def at_end() -> None:
        assert (leases.array.tolist(), refusals.array.tolist()) == ([CallRefusal.RELEASED], [0])
        assert int(pool.words.array[0]) == word("EXPIRED")

    return pool, [release, put], at_end


SCENARIOS: dict[str, Scenario] = {
    scenario.__name__: scenario
    for scenario in (
        published_in_between,
        evicted_in_between,
        two_requests_for_the_last_pins,
        given_back_while_evicted,
        put_while_pinned,
        put_while_given_back,
    )
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_interleaving_keeps_what_the_kernels_promise(name: str) -> None:
    pool, plans, at_end = SCENARIOS[name]()
    explored = explore(pool.launcher, plans, at_end, pool.lease_protects, threads=THREADS)
    print(explored)
    assert explored.executions >= 2


UNDO = "    if (leases[i] != kv_refusal::kApplied) continue;\n    const kv_u32 machine = machines[i];"
LOOKED_AT_AGAIN = """    const kv_u32 machine = machines[i];
    kv_u64 again;
    const kv_u64 now = kv_load_acquire(words + first[machine] + slots[i]);
    if (kv_events::on_validate_pin(machine, now, arguments + i, references, &again) != 0) continue;"""
BROKEN: dict[str, tuple[Scenario, str, str]] = {
    "undone by what the word says now": (published_in_between, UNDO, LOOKED_AT_AGAIN),
    "undone without looking what was pinned": (
        published_in_between,
        "    if (leases[i] != kv_refusal::kApplied) continue;\n",
        "",
    ),
    "not undone": (evicted_in_between, "kv_add_release(words + first[machine] + slots[i], 0 - one);", "(void)one;"),
    "pinned by a plain store": (
        two_requests_for_the_last_pins,
        "const kv_u64 found = kv_cas_acq_rel(word, seen, next);",
        "const kv_u64 found = seen;\n    kv_host::store(word, next, __ATOMIC_RELEASE);",
    ),
    "put under any pins": (put_while_pinned, "if (kept == 0) return", "if (kept <= pins) return"),
    "put over the pins": (
        put_while_pinned,
        "const kv_u64 kept = word & pins;",
        "const kv_u64 kept = 0;",
    ),
    "put with the pins of the host": (
        put_while_given_back,
        "const kv_u64 wanted = (value & ~pins) | kept;",
        "const kv_u64 wanted = kept == 0 ? value : (value & ~pins) | kept;",
    ),
}


@pytest.mark.parametrize("bug", BROKEN)
def test_what_a_kernel_leaves_out_is_caught_with_its_schedule(bug: str) -> None:
    scenario, find, put = BROKEN[bug]
    pool, plans, at_end = scenario((find, put))
    with pytest.raises(ScheduleFailure) as caught:
        explore(pool.launcher, plans, at_end, pool.lease_protects, threads=THREADS)
    print(caught.value)
    assert caught.value.fault is None and "(plan 0, block 0, thread 0)" in str(caught.value)
    pool, plans, at_end = scenario((find, put))
    replay(pool.launcher, plans, caught.value.schedule, THREADS)
    with pytest.raises(AssertionError):
        pool.lease_protects()
        at_end()
