"""Faults at every step of load, store, compress and publish: nothing leaks, nothing wrong is read, and all goes on."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from kvfsm.runtime.answers import Reason
from kvfsm.runtime.errors import Poisoned, Refused
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.stores.local import LocalStore
from kvfsm.runtime.stores.store import Found, ObjectId, StoreError
from kvfsm.runtime.ticket import Ticket

from ..stores.faulty_files import Survival, everything, nothing, some
from .injecting import (
    NAMESPACE,
    PROFILE,
    ROOT,
    SLOTS,
    A,
    Backend,
    Crash,
    Files,
    Inner,
    Steps,
    World,
    complaints,
    fault,
    leftovers,
    write,
    wrong_bytes,
)
from .rows import exactly, in_blocks


@dataclass(frozen=True, slots=True)
class Operation:
    """``prepare`` returns what is then run and has its steps counted. ``least``: steps that it has at the least."""

    prepare: Callable[[World], Callable[[], object]]
    least: int


def publish(world: World) -> Callable[[], object]:
    others = [world.manager.reserve(world.r, granule, granule + 1) for granule in range(4)]
    for other in (3, 1, 0):
        world.manager.abandon(others[other])
    fill = world.manager.reserve(world.p, 0, 3)  # slots 0, 1 and 3: views are staged
    write(world.p, fill)
    world.manager.abandon(others[2])

    def run() -> None:
        try:
            world.manager.publish(fill)
        finally:
            world.give_up(fill)

    return run


def persist(world: World) -> Callable[[], object]:
    world.manager.writes_through = False
    world.publish(world.p)
    world.manager.writes_through = True
    return lambda: world.manager.persist(world.p)


def load(world: World) -> Callable[[], object]:
    world.publish(world.p)
    world.empty()
    plan = world.manager.match(world.p).plan
    assert plan is not None and not plan.expand
    return lambda: world.manager.load(plan)


def load_and_expand(world: World) -> Callable[[], object]:
    world.publish(world.p)
    world.manager.pack(world.p, 2)
    world.empty("swa_window", "uncompressed_tail", "indexer_state")
    plan = world.manager.match(world.p).plan
    assert plan is not None and plan.expand and plan.wanted
    return lambda: world.manager.load(plan)


def pack(world: World) -> Callable[[], object]:
    world.publish(world.p)
    return lambda: world.manager.pack(world.p, 1)


def pack_lossy(world: World) -> Callable[[], object]:
    world.publish(world.p)
    return lambda: world.manager.pack(world.p, 1, lossy=True)


def expand(world: World) -> Callable[[], object]:
    world.publish(world.p)
    world.manager.pack(world.p)
    return lambda: world.manager.expand(world.p)


def lease(world: World) -> Callable[[], object]:
    world.publish(world.r, 0, 2)
    world.publish(world.p, 0, 2)
    world.publish(world.q, 2)
    world.publish(world.p, 2)
    world.manager.expire(world.r)

    def run() -> None:
        taken = world.manager.acquire(world.manager.match(world.p))
        try:
            assert wrong_bytes(world.p, taken) == []
        finally:
            again(lambda: world.manager.release(taken))

    return run


def again(call: Callable[[], object]) -> None:
    """What failed has changed nothing, and can be done again."""
    try:
        call()
    except RuntimeError:
        call()
        raise


def parked(world: World) -> Callable[[], object]:
    world.publish(world.p)
    ended: list[int] = []
    taken = world.manager.acquire(world.manager.match(world.p))
    world.manager.release(taken, done=lambda: bool(ended))
    ended.append(1)

    return lambda: again(lambda: world.manager.evict("swa_window", 1))


def reset(world: World) -> Callable[[], object]:
    world.publish(world.p)
    return lambda: world.manager.reset(scrub=True)


def live_row(world: World) -> Callable[[], object]:
    world.publish(world.p)
    world.empty("swa_window", "uncompressed_tail")
    world.publish(world.q, 2)

    def run() -> None:
        taken = world.manager.acquire(world.manager.match(world.q))
        try:
            row = world.manager.requests.admit(taken.length, lease=taken)
        except BaseException:
            world.manager.release(taken)
            raise
        try:
            world.manager.requests.publish(row, world.q)
        finally:
            again(lambda: world.manager.requests.finish(row))

    return run


def apart(world: World) -> None:
    """Tenants are told apart, and one left its bytes in most of the slots."""
    world.manager.keys([1], salt=b"another")
    others = [world.manager.requests.admit(4 * A) for _ in range(2)]
    for row in others:
        world.manager.requests.finish(row)


def row_published(world: World) -> Callable[[], object]:
    apart(world)
    row = world.manager.requests.admit(4 * A)
    return lambda: ended(world, row, lambda: world.manager.requests.publish(row, world.r))


def row_preempted(world: World) -> Callable[[], object]:
    apart(world)
    row = world.manager.requests.admit(4 * A)
    world.manager.requests.propose([row], 2)

    def run() -> None:
        left = []
        again(lambda: left.append(world.manager.requests.preempt(row, world.r)))
        assert left[0].rejected == 2

    return run


def row_extended(world: World) -> Callable[[], object]:
    apart(world)
    row = world.manager.requests.admit(A)
    return lambda: ended(world, row, lambda: world.manager.requests.extend(row, 3 * A))


def row_stepped(world: World) -> Callable[[], object]:
    apart(world)
    row = world.manager.requests.admit(2 * A)
    return lambda: ended(world, row, lambda: world.manager.requests.step([row]))


def row_drafted(world: World) -> Callable[[], object]:
    apart(world)
    row = world.manager.requests.admit(2 * A)

    def run() -> None:
        world.manager.requests.propose([row], 3)
        world.manager.requests.accept([row], 2)

    return lambda: ended(world, row, run)


def ended(world: World, row: int, call: Callable[[], object]) -> None:
    """The call, twice if it fails, and the row's end."""
    try:
        again(call)
    finally:
        again(lambda: world.manager.requests.finish(row))


def reallocated(world: World) -> Callable[[], object]:
    apart(world)
    world.manager.set_aside()
    world.publish(world.p)
    slots = dict.fromkeys(PROFILE.kinds, SLOTS + 1)  # the one that is set aside, and as many as a world has
    dirty = {kind: np.ones((SLOTS + 1) * PROFILE.layouts[kind].slot_bytes, np.uint8) for kind in PROFILE.kinds}

    def call() -> None:
        before = world.manager.memory.epoch, dict(world.manager.core.pools)
        try:
            world.manager.reallocate(slots, buffers=dirty)
        except RuntimeError:
            assert (world.manager.memory.epoch, world.manager.core.pools) == before
            assert world.read(world.p, load=False) == 4
            raise

    return lambda: again(call)


OPERATIONS = {
    "row published": Operation(row_published, 6),
    "row preempted": Operation(row_preempted, 6),
    "row extended": Operation(row_extended, 4),
    "row stepped": Operation(row_stepped, 2),
    "row drafted": Operation(row_drafted, 2),
    "reallocated": Operation(reallocated, 8),
    "publish": Operation(publish, 12),
    "persist": Operation(persist, 6),
    "load": Operation(load, 10),
    "load and expand": Operation(load_and_expand, 10),
    "pack": Operation(pack, 2),
    "pack with loss": Operation(pack_lossy, 2),
    "expand": Operation(expand, 5),
    "lease": Operation(lease, 8),
    "parked": Operation(parked, 1),
    "reset": Operation(reset, 10),
    "live row": Operation(live_row, 5),
}


def steps_of(operation: Operation) -> list[str]:
    """The steps of an operation when nothing goes wrong."""
    world = World()
    run = operation.prepare(world)
    with world.steps.counted():
        run()
    assert complaints(world) == []
    assert len(world.steps.names) >= operation.least, world.steps.names
    return world.steps.names


def at_each_step(operation: Operation, act: Callable[[World, str], None], check: Callable[[World, str], None]) -> int:
    """Run the operation once for each of its steps, and do ``act`` there; returns the number of steps."""
    names = steps_of(operation)
    for number, name in enumerate(names):
        world = World()
        run = operation.prepare(world)
        world.steps.plan(number, lambda at, world=world: act(world, at))
        with world.steps.counted():
            try:
                run()
            except (Refused, StoreError, OSError, RuntimeError, Crash, Poisoned) as problem:
                print(f"step {number}, {name}: {problem!r}")
        assert world.steps.reached, f"step {number}, {name}, was not reached"
        assert world.steps.names[number] == name
        check(world, f"step {number}, {name}")
    return len(names)


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_error_at_any_step_leaves_everything_whole(name: str) -> None:
    def raise_it(world: World, at: str) -> None:
        raise fault(at)

    def check(world: World, where: str) -> None:
        world.local._log.broken = None
        assert complaints(world) == [], where

    print(at_each_step(OPERATIONS[name], raise_it, check), "steps")


def after_a_power_cut(world: World, survives: Survival) -> list[str]:
    """What is wrong with a new manager over what the store has after the machine went off."""
    store = LocalStore(ROOT, NAMESPACE, world.files.power_cut(survives))
    found = [] if store.usage().corrupt == 0 else [f"{store.usage().corrupt} objects are corrupt"]
    return found + [f"a new manager: {one}" for one in complaints(World(store))]


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_crash_at_any_step_leaves_a_store_that_a_new_manager_reads(name: str) -> None:
    """The thread ends at the step. The manager is whole, or says that it does nothing more; the store is whole."""
    survivals = itertools.cycle([nothing, everything, some(3)])

    def crash(world: World, at: str) -> None:
        raise Crash

    def check(world: World, where: str) -> None:
        survives = next(survivals)
        assert after_a_power_cut(world, survives) == [], where
        if world.manager.lock.reason is None:
            world.give_up_all()
            assert complaints(world) == [], where

    print(at_each_step(OPERATIONS[name], crash, check), "steps")


def test_what_was_published_before_a_crash_is_there_after_it() -> None:
    """At each step of the next publication, with nothing surviving that was not synced."""

    def prepare(world: World) -> Callable[[], object]:
        world.publish(world.p)
        return lambda: world.publish(world.q, 2)

    def crash(world: World, at: str) -> None:
        raise Crash

    def check(world: World, where: str) -> None:
        for survives in (nothing, everything, some(5)):
            again = World(LocalStore(ROOT, NAMESPACE, world.files.power_cut(survives)))
            assert again.read(again.p) == 4, where
            assert again.read(again.q) in (2, 4), where

    assert at_each_step(Operation(prepare, 5), crash, check) >= 5


MEANWHILE: dict[str, Callable[[World], object]] = {
    "evict": World.empty,
    "expire": lambda world: world.manager.expire(world.p, 1),
    "reset": lambda world: world.manager.reset(),
    "publish": lambda world: world.publish(world.p),
    "publish a branch": lambda world: world.publish(world.q),
    "read": lambda world: world.read(world.p),
    "pack": lambda world: world.manager.pack(world.p),
    "persist": lambda world: world.manager.persist(world.p),
}


def meanwhile(world: World, call: Callable[[World], object], running: list[threading.Thread]) -> None:
    """Another thread does something; goes on when it has ended, or when it has to wait for the manager's lock."""
    moved = world.contended
    moved.clear()

    def work() -> None:
        try:
            call(world)
        except (Refused, StoreError) as problem:
            print(f"meanwhile: {problem!r}")
        except BaseException as problem:
            world.wrong.append(f"meanwhile: {problem!r}")
        finally:
            moved.set()

    running.append(threading.Thread(target=work))
    running[-1].start()
    assert moved.wait(60), "neither ended nor waiting"


def delayed(name: str, others: Iterator[str]) -> int:
    """The step takes as long as the other thread's call. Steps on files hold the store's lock, and are left out."""
    running: list[threading.Thread] = []

    def delay(world: World, at: str) -> None:
        if not at.startswith("file"):
            meanwhile(world, MEANWHILE[next(others)], running)

    def check(world: World, where: str) -> None:
        while running:
            running.pop().join()
        world.give_up_all()
        assert [*world.wrong, *complaints(world)] == [], where

    return at_each_step(OPERATIONS[name], delay, check)


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_delay_at_any_step_while_another_thread_works(name: str) -> None:
    """Each step has another call meanwhile, in turn."""
    print(delayed(name, itertools.cycle(MEANWHILE)), "steps")


@pytest.mark.long
@pytest.mark.parametrize("other", MEANWHILE)
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_delay_at_any_step_while_another_thread_does_anything(name: str, other: str) -> None:
    delayed(name, itertools.repeat(other))


def opened(world: World, *prompts: Keys) -> list[Ticket]:
    """Open loads of prompts that only the store has."""
    for keys in prompts:
        world.publish(keys)
        world.empty()
    plans = [world.manager.match(keys).plan for keys in prompts]
    return [world.manager.load_begin(plan) for plan in plans if plan is not None]


def bring(world: World, ticket: Ticket) -> None:
    """The bytes of a load arrive."""
    claim = ticket.plan.claim
    for kind, places in ticket.plan.wanted.items():
        arena = world.manager.core.pools[kind].arena.bytes
        names = world.manager.object_of(claim.digests, claim.salt, kind, places)
        for slot, name in zip(ticket.slots(kind).tolist(), names, strict=True):
            assert world.store.get(name, arena[slot]).verdict == 0
        if kind in world.manager.core.paged:
            for _ in PROFILE.layouts[kind].layers:
                ticket.land(kind)


COMPLETIONS: dict[str, Callable[[Ticket], object]] = {
    "done": lambda ticket: ticket.done(),
    "failed": lambda ticket: ticket.done(False),
    "failed, in part": lambda ticket: ticket.done(False, missing={"compressed_kv": [2]}),
    "abort": lambda ticket: ticket.abort(),
    "quiesce": lambda ticket: ticket.quiesce(),
}


@pytest.mark.parametrize(("between", "length"), [("nothing", 3), ("reset", 2), ("published", 2)])
def test_any_completions_of_one_load_in_any_order_act_once(between: str, length: int) -> None:
    """S27: all sequences, duplicates among them; a refused one changes nothing."""
    outcomes: Counter[str] = Counter()
    for sequence in itertools.product(COMPLETIONS, repeat=length):
        world = World()
        (ticket,) = opened(world, world.p)
        bring(world, ticket)
        told: list[str] = []
        for place, completion in enumerate(sequence):
            if place == 1 and between == "reset":
                world.manager.reset()
            elif place == 1 and between == "published":
                world.publish(world.p)
            before = words(world)
            try:
                COMPLETIONS[completion](ticket)
            except Refused as refused:
                assert refused.refusal is Reason.LEASE
                assert words(world) == before, sequence
            else:
                told.append(completion)
            assert world.manager.audit().violations == (), sequence
        assert len(told) <= 1 + (told[:1] == ["abort"]), f"{sequence}: {told} acted"
        if ticket.state == "open":
            ticket.abort()
        if not ticket.ended:
            ticket.quiesce()
        assert (leftovers if " ".join(told) in outcomes else complaints)(world) == [], sequence
        outcomes[" ".join(told)] += 1
    assert outcomes.keys() >= {"done", "failed", "abort done", "abort failed", "abort quiesce", "failed, in part"}


def words(world: World) -> list[bytes]:
    """Every state word."""
    return [pool.table.words.tobytes() for pool in world.manager.core.pools.values()]


def test_a_completion_by_another_manager_is_refused_and_changes_nothing() -> None:
    one, two = World(), World()
    ours, theirs = opened(one, one.p)[0], opened(two, two.p)[0]
    for state in ("open", "aborted"):
        before = words(one), words(two)
        for call in (one.manager.loader.done, one.manager.loader.abort, one.manager.loader.quiesce):
            with pytest.raises(Refused, match="LEASE"):
                call(*((theirs, True) if call == one.manager.loader.done else (theirs,)))
        assert (words(one), words(two)) == before, state
        if state == "open":
            theirs.abort()
    theirs.quiesce()
    ours.done(False)
    assert complaints(one) == complaints(two) == []


LIVES: dict[str, tuple[str, ...]] = {
    "done": ("bytes", "done"),
    "failed": ("failed",),
    "aborted": ("abort", "bytes late", "quiesce"),
    "late": ("abort", "done"),
}


def merges(one: Sequence[str], two: Sequence[str]) -> Iterator[list[tuple[int, str]]]:
    """All orders of two sequences of steps."""
    count = len(one) + len(two)
    for places in itertools.combinations(range(count), len(one)):
        first, second = iter(one), iter(two)
        yield [(0, next(first)) if place in places else (1, next(second)) for place in range(count)]


@pytest.mark.parametrize("shared", ["nothing", "two granules", "all"])
def test_completions_of_two_loads_in_any_order(shared: str) -> None:
    count = 0
    for one, two in itertools.product(LIVES, repeat=2):
        for order in merges(LIVES[one], LIVES[two]):
            world = World()
            prompts = {"nothing": (world.p, world.r), "two granules": (world.p, world.q), "all": (world.p, world.p)}
            tickets = opened(world, *prompts[shared])
            assert len(tickets) == 2
            for number, step in order:
                ticket = tickets[number]
                if step.startswith("bytes"):
                    if ticket.state == "open":
                        bring(world, ticket)
                else:
                    COMPLETIONS[step](ticket)
                assert world.manager.audit().violations == (), order
            states = [ticket.state for ticket in tickets]
            assert all(ticket.ended for ticket in tickets), states
            for number, life in enumerate((one, two)):
                if life == "done":
                    assert states[number] == "done", (order, states)
                    assert world.read(prompts[shared][number], load=False) == 4, order
            assert (complaints if count % 8 == 0 else leftovers)(world) == [], order
            count += 1
    print(count, "orders")


@pytest.mark.parametrize("count", [0, 2, 4])
def test_a_backend_that_packs_too_few_or_too_many_packs_nothing(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    run = pack(world)
    monkeypatch.setattr(world.manager.backend, "pack", lambda *_: [b"packed"] * count)
    with pytest.raises(ValueError, match=f"packed {count} of 3 slots"):
        run()
    monkeypatch.undo()
    assert world.read(world.p, load=False) == 4
    assert complaints(world) == []


class Unwritten(Inner):
    """A control: says that bytes are good which it did not write."""

    def get_many(self, ids: Sequence[ObjectId], into: Sequence[Any]) -> list[Found]:
        found = super().get_many(ids, into)
        into[0][:8] = 0
        return found


class Unsynced(Files):
    """A control: acknowledges before anything is durable."""

    def sync(self, handle: int) -> None:
        self._changes("sync", self.handles[handle][0])


def test_a_store_that_serves_what_is_wrong_is_seen() -> None:
    world = World()
    world.store = world.manager.store = Unwritten(world.local, world.steps)
    load(world)()
    assert any("bytes of something else" in one for one in complaints(world))


def test_a_store_that_acknowledges_before_it_has_synced_is_seen() -> None:
    for made, expected in ((Files, 4), (Unsynced, 0)):
        world = World(files=made)
        world.publish(world.p)
        again = World(LocalStore(ROOT, NAMESPACE, world.files.power_cut(nothing)))
        assert again.read(again.p) == expected


def test_a_load_that_forgets_its_failure_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control: nobody ends the ticket when its transfer fails."""
    world = World()
    run = load(world)
    monkeypatch.setattr(world.manager.loader, "done", lambda ticket, ok, **named: None)

    def raise_it(at: str) -> None:
        raise fault(at)

    world.steps.plan(0, raise_it)
    with world.steps.counted(), pytest.raises((StoreError, OSError)):
        run()
    assert "1 tickets are left" in complaints(world)


def test_a_store_that_fails_is_counted_and_the_fill_is_found_all_the_same() -> None:
    def prepare(world: World) -> Callable[[], object]:
        fill = world.manager.reserve(world.p, 0, 2)
        write(world.p, fill)
        return lambda: world.manager.publish(fill)

    def raise_it(world: World, at: str) -> None:
        if at != "clock":
            raise fault(at)

    def check(world: World, where: str) -> None:
        assert world.manager.store_failures == ("clock" not in where), where
        assert world.read(world.p, load=False) == 2, where

    assert at_each_step(Operation(prepare, 5), raise_it, check) >= 5


@pytest.mark.parametrize("slots", [5, 16])
def test_a_window_in_blocks_is_whole_whatever_slot_can_not_be_cleared(slots: int) -> None:
    """A pool of five has no slot but those in the ring: what leaves is taken again."""

    def steps_until(at: int | None) -> int:
        steps, profile = Steps(), in_blocks()
        pools = dict.fromkeys(profile.kinds, 32) | {"swa_window": slots}
        manager = Manager(profile, pools, Backend(steps), rows=2)
        manager.keys([1], salt=b"another")
        manager.requests.finish(manager.requests.admit(64))
        row = manager.requests.admit(20)
        assert manager.requests.window_width <= 5

        def fail(name: str) -> None:
            raise fault(name)

        def done(call: Callable[[], object]) -> None:
            before = exactly(manager, row), {kind: pool.free for kind, pool in manager.core.pools.items()}
            try:
                call()
            except RuntimeError:
                assert (exactly(manager, row), {kind: pool.free for kind, pool in manager.core.pools.items()}) == before
                call()

        if at is not None:
            steps.plan(at, fail)
        with steps.counted():
            for tokens in (30, 5, 9):
                done(lambda tokens=tokens: manager.requests.extend(row, tokens))
            for _ in range(30):
                done(lambda: manager.requests.step([row]))
        assert manager.audit().ok and steps.reached == (at is not None)
        manager.requests.finish(row)
        assert all(pool.free == pool.hot for pool in manager.core.pools.values())
        return len(steps.names)

    count = steps_until(None)
    assert count >= 4
    for at in range(count):
        steps_until(at)
