"""Many threads over small pools: readers only ever see the bytes of their own prefix, and nothing is lost."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.audit import audit
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.stores.memory import MemoryStore
from kvfsm.runtime.stores.store import Found, ObjectId, Verdict

from .tagged import write, wrong_bytes

PROFILE = PROFILES["tiny_deepseek_v4"]
A = PROFILE.granule
GRANULES = 5

pytestmark = pytest.mark.usefixtures("short_slices")


class FlakyStore(MemoryStore):
    """Loses a read now and then."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._chance = random.Random(seed)

    def get(self, id: ObjectId, into: Any) -> Found:
        return Found(Verdict.INTEGRITY) if self._chance.random() < 0.05 else super().get(id, into)


def prompts(granule: int = A) -> list[np.ndarray]:
    """Six prompts in a tree: they share one, two or three granules."""
    chance = np.random.default_rng(5)
    trunk = chance.integers(0, 256, 3 * granule)
    return [np.concatenate((trunk[: shared * granule], chance.integers(0, 256, (GRANULES - shared) * granule + 1)))
            for shared in (0, 1, 2, 2, 3, 3)]  # fmt: skip


def one_turn(manager: Manager, chance: random.Random, wrong: list[str]) -> None:
    keys = manager.keys(chance.choice(prompts()))
    answer = manager.match(keys)
    if answer.plan is not None and chance.random() < 0.7:
        answer = manager.load(answer.plan)
    lease = manager.acquire(answer) if answer.now else None
    start = 0 if lease is None else lease.length // A
    try:
        if lease is not None:
            wrong += wrong_bytes(keys, lease)
        stop = min(GRANULES, start + chance.randint(1, 2))
        if stop > start:
            fill = manager.reserve(keys, start, stop, lease=lease)
            try:
                write(keys, fill)
                if chance.random() < 0.15:
                    manager.abandon(fill)
                else:
                    manager.publish(fill)
            except Refused:
                manager.abandon(fill)
        if lease is not None:
            wrong += wrong_bytes(keys, lease)
    finally:
        if lease is not None:
            manager.release(lease)


def other_turn(manager: Manager, chance: random.Random) -> None:
    roll = chance.random()
    if roll < 0.5:
        manager.evict(chance.choice(PROFILE.kinds), chance.randint(1, 4))
    elif roll < 0.7:
        manager.pack(manager.keys(chance.choice(prompts())), chance.randint(0, 3))
    elif roll < 0.8:
        manager.expire(manager.keys(chance.choice(prompts())), chance.randint(0, 4))
    elif roll < 0.85:
        manager.reset()
    else:
        row = manager.requests.admit(chance.randint(1, 2 * A))
        try:
            for _ in range(chance.randint(0, A)):
                manager.requests.step([row])
        finally:
            manager.requests.finish(row)


def run(manager: Manager, seed: int, turns: int, threads: int) -> tuple[list[str], list[BaseException]]:
    wrong: list[str] = []
    errors: list[BaseException] = []
    done = threading.Barrier(threads)

    def work(number: int) -> None:
        chance = random.Random(seed * 100 + number)
        done.wait()
        for _ in range(turns):
            try:
                if chance.random() < 0.75:
                    one_turn(manager, chance, wrong)
                else:
                    other_turn(manager, chance)
            except Refused:
                continue
            except BaseException as error:
                errors.append(error)
                return

    workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return wrong, errors


@pytest.mark.parametrize(("seed", "stored"), [(1, False), (2, True), (3, True)])
def test_threads_see_their_own_bytes_only(seed: int, stored: bool) -> None:
    print(f"seed {seed}")
    slots = {"compressed_kv": 14, "indexer_state": 13, "uncompressed_tail": 10, "swa_window": 9}
    store = FlakyStore(seed) if stored else None
    manager = Manager(PROFILE, slots, NumpyBackend(), store=store, cold=8, rows=4)
    wrong, errors = run(manager, seed, 120, 4)
    assert errors == []
    assert wrong == []
    audit = manager.audit()
    assert (audit.violations, audit.dropped) == ((), ())
    assert not manager.fills and not manager.tickets and not manager.receipts
    for kind in PROFILE.kinds:
        manager.evict(kind, 99)
        assert manager.core.pools[kind].free == slots[kind]
    assert manager.audit().ok


def test_a_pin_that_is_left_out_is_noticed() -> None:
    """Negative control: without pins, evicted slots are rewritten under their readers."""
    slots = {"compressed_kv": 8, "indexer_state": 8, "uncompressed_tail": 8, "swa_window": 8}
    manager = Manager(PROFILE, slots, NumpyBackend(), rows=4)
    keys = [manager.keys(prompt) for prompt in prompts()]
    fill = manager.reserve(keys[0], 0, 5)
    write(keys[0], fill)
    manager.publish(fill)
    lease = manager.acquire(manager.match(keys[0]))
    assert wrong_bytes(keys[0], lease) == []
    receipt, _ = manager.receipts[lease.lease_id]
    for kind, held in receipt.slots.items():
        pool = manager.core.pools[kind]
        pool.must("unpin", held, "lease", expected=pool.generations(held))
    assert any("S3" in text for text in audit(manager).violations)  # not the manager's, which would end it here
    manager.core.offer(receipt.segment, receipt.boundary)
    other = manager.reserve(keys[1], 0, 5)
    write(keys[1], other)
    manager.publish(other)
    assert wrong_bytes(keys[0], lease) != []
