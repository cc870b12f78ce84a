"""Captured graphs: what they have baked in, when they may be replayed, and where padding and captures write."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.arena import Arena
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.graphs import GraphRunner, HostRecorder, Inputs, Launch
from kvfsm.runtime.lease import Done
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.requests import GUARD
from kvfsm.runtime.static_tables import StaticTables
from kvfsm.runtime.topology import Signature
from kvfsm.runtime.trace import EventTrace
from kvfsm.spec.checking.traces.validate import Validator

from .machine_of_graphs import Graphs

PROFILE = PROFILES["tiny_deepseek_v4"]
A = PROFILE.granule
SETTINGS = settings(
    max_examples=60, stateful_step_count=30, deadline=None, derandomize=True, database=None, print_blob=True,
    phases=[Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck),
)  # fmt: skip


def make(profile: str = "tiny_deepseek_v4", slots: int = 16, **options: Any) -> Manager:
    made = PROFILES[profile]
    return Manager(made, dict.fromkeys(made.kinds, slots), NumpyBackend(), **options)


def nothing(launch: Launch, inputs: Inputs) -> None:
    """A step that launches nothing."""


def refusal(call: Callable[..., object], *arguments: Any, **named: Any) -> tuple[str, str]:
    with pytest.raises(Refused) as error:
        call(*arguments, **named)
    return error.value.refusal.name, error.value.detail


# ---- signatures -----------------------------------------------------------------------------------------------------


def test_a_signature_has_every_tensor_in_the_order_of_the_groups() -> None:
    manager = make()
    signature = GraphRunner(manager, nothing, [2]).capture(2)
    listed = manager.components({})
    assert [(one.kind, one.layer, one.part, one.base, one.stride, one.item_bytes) for one in signature.tensors] == [
        (one.kind, one.layer, one.part, one.base, one.stride, one.item_bytes) for one in listed
    ]
    assert {one.kind for one in signature.tensors} == set(PROFILE.kinds)
    assert len(signature.digest) == 64 and signature.guard == GUARD


@pytest.mark.parametrize("name", list(PROFILES))
def test_tables_have_the_extremes_of_every_profile(name: str) -> None:
    manager = make(name, 8)
    tables = GraphRunner(manager, nothing, [1, 4]).tables
    assert set(tables.widths) == set(manager.profile.kinds)
    for kind, width in tables.widths.items():
        assert tables.tables[kind].host.shape == (4, width)
        if kind in manager.core.paged:
            assert width == 7  # one is set aside
            with pytest.raises(Refused, match="CAPACITY"):
                manager.reserve(manager.keys(np.arange(9 * manager.profile.granule)), 0, 8, kinds=[kind])
    assert tables.widths.get("swa_window", 0) == manager.requests.window_width


def other_signatures(signature: Signature) -> list[tuple[Signature, str]]:
    first, second = signature.tensors[:2]
    table, scratch = signature.tables[0], signature.scratch[0]
    rest, digest = signature.tensors[1:], "0" * 64
    return [
        (replace(signature, bucket=9), "bucket: 2, not 9"),
        (replace(signature, guard=0), "guard: -1, not 0"),
        (replace(signature, window=7), f"window: {signature.window}, not 7"),
        (replace(signature, tensors=(second, first, *signature.tensors[2:])), f"0 is {first}, not {second}"),
        (replace(signature, tensors=rest), f"{len(rest) + 1} tensors, not {len(rest)}"),
        (replace(signature, tensors=(replace(first, base=64), *rest)), f"{first} base: {first.base:#x}, not 0x40"),
        (replace(signature, tensors=(replace(first, stride=7), *rest)), f"{first} stride: {first.stride}, not 7"),
        (replace(signature, tensors=(replace(first, slots=15), *rest)), f"{first} slots: 16, not 15"),
        (replace(signature, tables=(replace(table, width=3), *signature.tables[1:])), f"{table} width: 15, not 3"),
        (replace(signature, tables=(replace(table, address=8), *signature.tables[1:])), "not 0x8"),
        (replace(signature, scratch=(replace(scratch, slot=5), *signature.scratch[1:])), f"{scratch} slot: 0, not 5"),
        (replace(signature, layouts=(("compressed_kv", digest), *signature.layouts[1:])), "layout of compressed_kv"),
    ]


def test_what_differs_is_named() -> None:
    signature = GraphRunner(make(), nothing, [2]).capture(2)
    assert signature.differences(signature) == ()
    changed = other_signatures(signature)
    for other, text in changed:
        assert text in "\n".join(signature.differences(other)) and other != signature
    assert len({signature.digest, *(other.digest for other, _ in changed)}) == 1 + len(changed)


def test_memory_that_was_exchanged_behind_the_managers_back_is_refused() -> None:
    manager = make()
    runner = GraphRunner(manager, nothing, [2])
    runner.capture(2)
    runner.replay([])
    pool = manager.core.pools["indexer_state"]
    pool.arena = Arena(pool.arena.layout, 16)
    word, text = refusal(runner.replay, [])
    assert word == "LAYOUT" and "indexer_state layer" in text and "base: 0x" in text and "more; capture(2) anew" in text
    runner.capture(2)
    runner.replay([])


# ---- buckets and the life of a graph --------------------------------------------------------------------------------


def test_a_batch_runs_in_the_least_bucket_that_holds_it() -> None:
    runner = GraphRunner(make(), nothing, [8, 1, 4, 4])
    assert runner.buckets == (1, 4, 8)
    assert [runner.bucket_of(rows) for rows in (0, 1, 2, 4, 5, 8)] == [1, 1, 4, 4, 8, 8]
    with pytest.raises(ValueError, match="9 rows, and the largest bucket has 8"):
        runner.bucket_of(9)
    for buckets in ([], [0, 2]):
        with pytest.raises(ValueError, match="at least 1"):
            GraphRunner(make(), nothing, buckets)
    with pytest.raises(ValueError, match="no bucket of 5 rows; there are 1, 4, 8"):
        runner.capture(5)


def test_what_was_not_captured_or_was_dropped_is_not_replayed() -> None:
    runner = GraphRunner(make(), nothing, [1])
    assert refusal(runner.replay, [])[0] == "ILLEGAL" and runner.signature(1) is None
    signature = runner.capture(1)
    runner.replay([])
    assert runner.signature(1) == signature
    runner.drop(1)
    runner.drop(1)
    assert refusal(runner.replay, [])[0] == "ILLEGAL"


def test_rows_that_cannot_be_stepped_are_named() -> None:
    manager = make()
    runner = GraphRunner(manager, nothing, [4])
    runner.capture(4)
    row = manager.requests.admit(2 * A)
    for rows, text in (([row, 1], "do not all hold"), ([-1], "do not all hold"), ([row, row], "more than once")):
        with pytest.raises(ValueError, match=text):
            runner.replay(rows)
    runner.replay([row])
    manager.requests.publish(row, manager.keys(range(2 * A)))
    with pytest.raises(ValueError, match="is published; step them first"):
        runner.replay([row])
    manager.requests.step([row])
    runner.replay([row])


def test_a_step_that_fails_leaves_no_graph_and_the_memory_free_to_move() -> None:
    manager, fails = make(), [True]

    def step(launch: Launch, inputs: Inputs) -> None:
        if fails:
            raise RuntimeError("no such kernel")

    runner = GraphRunner(manager, step, [1])
    with pytest.raises(RuntimeError, match="no such kernel"):
        runner.capture(1)
    assert refusal(runner.replay, [])[0] == "ILLEGAL"
    assert not manager.memory.running and manager.reallocate() == 2
    fails.clear()
    runner.capture(1)
    runner.replay([])


def test_whoever_is_told_before_a_capture_is_told_before_the_step_runs() -> None:
    manager, told = make(), []
    runner = GraphRunner(manager, lambda launch, inputs: told.append("step"), [1])
    signature = runner.capture(1, before=told.append)
    assert told[:2] == [signature, "step"] and told.count(signature) == 1 and runner.manager is manager

    def fail(signature: Signature) -> None:
        raise RuntimeError("the device is full")

    with pytest.raises(RuntimeError, match="the device is full"):
        runner.capture(1, before=fail)
    assert refusal(runner.replay, [])[0] == "ILLEGAL" and manager.reallocate() == 2


def test_a_replay_runs_the_launches_that_were_recorded_and_not_the_step() -> None:
    manager, calls = make(), []

    def step(launch: Launch, inputs: Inputs) -> None:
        calls.append("step")
        launch(calls.append, len(calls))

    runner = GraphRunner(manager, step, [1])
    runner.capture(1)
    assert calls == ["step", 1, "step"]
    runner.replay([])
    runner.replay([])
    assert calls[3:] == [3, 3]  # what was baked in when it was recorded


# ---- launches that have not ended -----------------------------------------------------------------------------------


class Slow(HostRecorder):
    """Replays that end when the test says so."""

    def __init__(self) -> None:
        self.ended: list[bool] = []

    def record(self, step: Callable[[Launch], None]) -> Any:
        super().record(step)
        return self

    def replay(self) -> Done:
        self.ended.append(False)
        number = len(self.ended) - 1
        return lambda: self.ended[number]


def test_memory_stays_while_a_launch_has_not_ended() -> None:
    manager, device = make(), Slow()
    runner = GraphRunner(manager, nothing, [1], device)
    runner.capture(1)
    runner.replay([])
    runner.replay([])
    assert refusal(manager.reallocate, void=True)[0] == "PINNED"
    device.ended[1] = True
    assert refusal(manager.reallocate, void=True)[0] == "PINNED" and manager.memory.epoch == 1
    device.ended[0] = True
    assert manager.reallocate() == 2 and not manager.memory.running


def test_slots_wait_for_the_launches_that_were_begun_and_for_no_later_one() -> None:
    manager, device = make(), Slow()
    runner = GraphRunner(manager, nothing, [1], device)
    runner.capture(1)
    row = manager.requests.admit(5)
    free = manager.core.pools["compressed_kv"].free
    runner.replay([row])
    manager.requests.finish(row, done=runner.begun())
    assert manager.given_up and manager.core.pools["compressed_kv"].free == free
    assert refusal(manager.reallocate, void=True)[0] == "PINNED"
    runner.replay([])
    device.ended[0] = True
    manager.evict("compressed_kv", 0)
    assert not manager.given_up and manager.core.pools["compressed_kv"].free == free + 1
    device.ended[1] = True
    assert runner.begun()()


def test_slots_wait_for_a_launch_that_begins_while_they_are_about_to_be_given_back() -> None:
    """One thread asks for ``begun`` and waits for a lock to end a row; the engine launches the next step first."""
    manager, device = make(), Slow()
    runner = GraphRunner(manager, nothing, [1], device)
    runner.capture(1)
    row = manager.requests.admit(5)
    begun = runner.begun()
    runner.replay([row])
    manager.requests.finish(row, done=begun)
    assert manager.given_up
    runner.replay([])
    device.ended[0] = True
    manager.evict("compressed_kv", 0)
    assert not manager.given_up and not runner.begun()(), "that one counts, and no later one"
    device.ended[1] = True
    assert begun() and runner.begun()()


# ---- memory that moves ----------------------------------------------------------------------------------------------


def test_slots_are_set_aside_once_and_again_after_the_pools_were_made_anew() -> None:
    manager = make()
    first = manager.set_aside()
    assert set(first) == set(PROFILE.kinds) and manager.set_aside() == first
    assert all(pool.free == 15 for pool in manager.core.pools.values())
    manager.reallocate(dict.fromkeys(PROFILE.kinds, 4))
    assert all(pool.free == 3 for pool in manager.core.pools.values())
    assert manager.audit().ok


def test_without_scratch_nothing_is_set_aside() -> None:
    manager = make()
    manager.reallocate(dict.fromkeys(PROFILE.kinds, 4))
    assert all(pool.free == 4 for pool in manager.core.pools.values())


def test_a_full_pool_has_no_scratch() -> None:
    manager = make(slots=2)
    fill = manager.reserve(manager.keys(range(2 * A)), 0, 2)
    assert refusal(GraphRunner, manager, nothing, [1])[0] == "POOL_FULL"
    assert manager.core.scratch == {}
    manager.abandon(fill)
    GraphRunner(manager, nothing, [1])


def test_scratch_is_neither_evicted_nor_reset_nor_expired() -> None:
    manager = make()
    scratch = manager.set_aside()
    keys = manager.keys(range(3 * A))
    manager.publish(manager.reserve(keys, 0, 3))
    for kind in PROFILE.kinds:
        manager.evict(kind, 99)
    manager.expire(keys)
    manager.reset(scrub=True)
    assert manager.set_aside() == scratch and manager.audit().ok
    for kind, slot in scratch.items():
        assert slot not in manager.core.pools[kind].free_slots


def test_what_is_cached_goes_along_or_is_gone() -> None:
    manager = make(cold=4)
    keys = manager.keys(range(3 * A + 1))
    fill = manager.reserve(keys, 0, 3)
    fill.view("compressed_kv", "entries", 2)[:] = 7
    manager.publish(fill)
    assert manager.pack(manager.keys(range(3 * A + 1)), 2) == 1
    bases = {kind: pool.arena.base for kind, pool in manager.core.pools.items()}
    assert manager.reallocate() == 2
    assert all(pool.arena.base != bases[kind] for kind, pool in manager.core.pools.items())
    answer = manager.expand(keys)
    assert answer.now == 3 * A
    with manager.acquire(answer) as lease:
        assert (lease.view("compressed_kv", "entries", 2) == 7).all()
        assert lease.state_data_ptrs[0].base != bases[lease.state_data_ptrs[0].kind]
    assert manager.reallocate(dict.fromkeys(PROFILE.kinds, 5)) == 3
    assert manager.match(keys).now == 0
    assert all(pool.free == 5 for pool in manager.core.pools.values()) and manager.audit().ok


def test_what_was_held_is_void() -> None:
    manager = make()
    keys = manager.keys(range(2 * A + 1))
    manager.publish(manager.reserve(keys, 0, 2))
    lease, fill = manager.acquire(manager.match(keys)), manager.reserve(manager.keys(range(9, 9 + A)), 0, 1)
    row = manager.requests.admit(3)
    word, text = refusal(manager.reallocate)
    assert word == "PINNED" and text.startswith("the memory can't move under 1 leases, 1 fills, 1 live requests: lease")
    manager.reallocate(void=True)
    for call in (lambda: manager.release(lease), lambda: lease.view("compressed_kv", "entries", 2),
                 lambda: manager.publish(fill), lambda: manager.abandon(fill),
                 lambda: manager.requests.admit(2 * A, lease=lease)):  # fmt: skip
        assert refusal(call)[0] == "STALE"
    with pytest.raises(ValueError, match="hold no request"):
        manager.requests.step([row])
    with manager.acquire(manager.match(keys)) as again:
        assert again.length == 2 * A
    assert manager.audit().ok


def test_memory_does_not_move_under_an_open_load() -> None:
    manager = make()
    keys = manager.keys(range(2 * A + 1))
    manager.publish(manager.reserve(keys, 0, 2))
    held = manager.storer.hold({"compressed_kv": (np.array([0]), np.array([0]))})
    assert "1 transfers" in refusal(manager.reallocate, void=True)[1]
    spot = manager.core.index.locate(keys.digests, 2)
    manager.storer.unhold(held, spot.segment, 2)
    assert manager.reallocate() == 2


def test_a_reallocation_that_cannot_be_changes_nothing() -> None:
    manager = make()
    keys = manager.keys(range(2 * A + 1))
    manager.publish(manager.reserve(keys, 0, 2))
    arena = manager.core.pools["swa_window"].arena.bytes
    shared = np.zeros(1 << 22, np.uint8)
    calls: list[tuple[Any, dict[str, Any], str]] = [
        ({"compressed_kv": 4}, {}, "slots are given for"),
        (dict.fromkeys(PROFILE.kinds, 0), {}, "compressed_kv slots is 0; give a whole number of at least 1"),
        (None, {"buffers": {"compressed_kv": np.zeros(8, np.uint8)}}, "writable bytes"),
        (None, {"buffers": {"ondisk_prefix": shared}}, "buffers are given for"),
        (None, {"buffers": {"compressed_kv": shared, "indexer_state": shared}}, "share memory"),
        (None, {"buffers": {"uncompressed_tail": arena.reshape(-1)}}, "is memory of swa_window|writable bytes"),
        (None, {"buffers": {"swa_window": "rows"}}, "the buffer of swa_window is a str: .*; give contiguous memory of"),
        (None, {"buffers": {"swa_window": shared[::2]}}, "the buffer of swa_window is a ndarray: .*; give contiguous"),
        (None, {"buffers": [shared]}, r"buffers=\[array.*; give a mapping whose keys are kinds"),
        (None, {"buffers": 0}, "buffers=0; give a mapping"),
        (None, {"void": "x"}, "void='x'; give True or False"),
        (5, {}, "slots=5; give a mapping"),
        (dict.fromkeys(PROFILE.kinds, 1.5), {}, "compressed_kv slots is 1.5; give a whole number of at least 1"),
        (dict.fromkeys(PROFILE.kinds, "4"), {}, "compressed_kv slots is '4'; give a whole number"),
        (dict.fromkeys(PROFILE.kinds, True), {}, "compressed_kv slots is True; give a whole number"),
    ]
    for slots, options, text in calls:
        with pytest.raises(Exception, match=text):
            manager.reallocate(slots, **options)
    assert manager.memory.epoch == 1 and manager.match(keys).now == 2 * A and manager.audit().ok


def test_alignment_is_judged_anew() -> None:
    profile = PROFILES["tiny_llama"]
    size = 4 * profile.layouts["compressed_kv"].slot_bytes
    off, fit = np.zeros(size + 8192, np.uint8), np.zeros(size + 8192, np.uint8)
    start = -off.ctypes.data % 4096
    manager = Manager(profile, {"compressed_kv": 4}, NumpyBackend(), copy_bytes=64,
                      buffers={"compressed_kv": off[start + 1 :]})  # fmt: skip
    keys = manager.keys(range(2 * profile.granule + 1))
    manager.publish(manager.reserve(keys, 0, 2))
    assert manager.match(keys).reason == "ALIGN"
    manager.reallocate(buffers={"compressed_kv": fit[-fit.ctypes.data % 4096 :]})
    assert manager.match(keys).kind == "HIT"


@pytest.mark.plants_words
def test_the_last_epoch_is_the_last() -> None:
    manager = make()
    manager.reallocate()
    manager.memory.table.words[:] |= np.uint64(0xFFFF << 2)
    assert refusal(manager.reallocate) == ("RETIRED", "epoch 65535 is the last one")


def test_the_life_of_graphs_and_memory_is_in_the_trace(validator: Validator) -> None:
    trace = EventTrace()
    manager = make(trace=trace)
    runners = [GraphRunner(manager, nothing, [1, 2]), GraphRunner(manager, nothing, [2])]
    for runner in runners:
        runner.capture(2)
    row = manager.requests.admit(3)
    runners[1].replay([row])
    manager.reallocate(dict.fromkeys(PROFILE.kinds, 6), void=True)
    assert refusal(runners[1].replay, [])[0] == "EPOCH"
    runners[1].capture(2)
    runners[1].replay([])
    verdict = validator.validate(trace.lines())
    assert verdict.ok, verdict.first_illegal
    taken = Counter((machine, event) for machine, event, _ in verdict.taken.elements())
    assert taken["graph_pool", "launch"] == taken["graph_pool", "retire"] == 5
    assert (taken["captured_graph", "begin"], taken["captured_graph", "drop"]) == (3, 1)
    assert taken["captured_graph", "replay"] == 3 and taken["graph_pool", "sleep"] == 1


def test_memory_never_moves_under_a_replay_of_another_thread() -> None:
    manager, stop, moved = make("tiny_llama", 8), threading.Event(), []
    seen: Counter[str] = Counter()

    def kernel(table: Any, arena: Any) -> None:
        for _ in range(20):
            assert manager.core.pools["compressed_kv"].arena.base == arena.ctypes.data
        arena[table[:, 0]] = 1
        seen["launched"] += 1

    def step(launch: Launch, inputs: Inputs) -> None:
        launch(kernel, inputs.tables["compressed_kv"], manager.core.pools["compressed_kv"].arena.bytes)

    def mover() -> None:
        while not stop.is_set():
            try:
                moved.append(manager.reallocate(void=True))
            except Refused as refused:
                assert refused.refusal.name == "PINNED"
                seen["PINNED"] += 1

    runner = GraphRunner(manager, step, [2])
    thread = threading.Thread(target=mover)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread.start()
    try:
        for _ in range(150):
            runner.capture(2)
            try:
                runner.replay([])
            except Refused as refused:
                seen[refused.refusal.name] += 1
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(before)
    print(seen)
    assert set(seen) <= {"launched", "PINNED", "EPOCH"} and seen["launched"] >= 150 and moved == sorted(moved)
    assert manager.audit().ok and not manager.memory.running


# ---- any order ------------------------------------------------------------------------------------------------------


class AllKinds(Graphs):
    profile = "tiny_deepseek_v4"
    reached: ClassVar[Counter[str]] = Counter()


class Blocks(Graphs):
    profile = "tiny_gpt_oss"
    reached: ClassVar[Counter[str]] = Counter()


WANTED = {"captured", "padded", "whole", "EPOCH", "ILLEGAL", "PINNED", "STALE", "kept", "moved", "leased", "published"}


def test_a_replay_writes_the_right_bytes_in_the_right_slots_or_is_refused() -> None:
    for machine in (AllKinds, Blocks):
        run_state_machine_as_test(machine, settings=SETTINGS)
    reached = AllKinds.reached + Blocks.reached
    print(reached)
    assert WANTED - set(reached) == set(), "steps that come to nothing show nothing"


class Unchecked(GraphRunner):
    """Replays whatever was captured."""

    def _check(self, number: int) -> None:
        if number not in self._captured:
            super()._check(number)


def leftover_padding(self: StaticTables, manager: Manager, rows: Any) -> None:
    """Fills the batch's rows, and leaves those after them as they are."""
    before = {name: table.host.copy() for name, table in self.tables.items()}
    filled(self, manager, rows)
    for name, table in self.tables.items():
        if name != "live":
            table.host[len(rows) :] = before[name][len(rows) :]


def only_when_made(self: StaticTables) -> None:
    """Points at scratch, but not for a capture."""
    if not hasattr(self, "made"):
        point_at_scratch(self)
    self.made = True  # type: ignore[attr-defined]


def scratch_for_all(self: Manager) -> Any:
    """Sets slots aside that stay on the free stack."""
    found = set_aside(self)
    for kind, pool in self.core.pools.items():
        if found[kind] not in pool.free_slots:
            pool.give_back(np.array([found[kind]]))
    return found


FAULTS = {
    "no epoch": "None, not EPOCH",
    "no scratch at capture": "were written",
    "padding is left over": "were written",
    "scratch is free": "S1",
}
filled, point_at_scratch, set_aside = StaticTables.fill, StaticTables.point_at_scratch, Manager.set_aside


@pytest.mark.parametrize("fault", FAULTS)
def test_control_a_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Planted(Graphs):
        profile = "tiny_gpt_oss"
        reached: ClassVar[Counter[str]] = Counter()
        runner_class = Unchecked if fault == "no epoch" else GraphRunner

    if fault == "no scratch at capture":
        monkeypatch.setattr(StaticTables, "point_at_scratch", only_when_made)
    elif fault == "padding is left over":
        monkeypatch.setattr(StaticTables, "fill", leftover_padding)
    elif fault == "scratch is free":
        monkeypatch.setattr(Manager, "set_aside", scratch_for_all)
    with pytest.raises(AssertionError, match=FAULTS[fault]):
        run_state_machine_as_test(Planted, settings=settings(SETTINGS, max_examples=200, phases=[Phase.generate]))
