"""Faults at every step of load, store, compress and publish: nothing leaks, nothing wrong is read, and all goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from kvfsm.runtime.errors import Refused
from kvfsm.runtime.stores.local import LocalStore
from kvfsm.runtime.stores.store import StoreError

from ..stores.faulty_files import everything, nothing
from .injecting import NAMESPACE, PROFILE, ROOT, A, Crash, Inner, World, complaints, fault, write, wrong_bytes


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
    world.manager._writes = "none"
    world.publish(world.p)
    world.manager._writes = "write_through"
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


OPERATIONS = {
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
            except (Refused, StoreError, OSError, RuntimeError, Crash) as problem:
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
