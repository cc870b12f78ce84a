"""Pools of a few slots, many requests, loads that fail or come late: everybody ends, and nothing is left.

One thread; which step comes next, what fails and who gives up follow from the seed. After each step under the lock the
queues are compared with the words, reservations with needs, and what is under way with its limits; after each seventh
the manager is audited. The trace of each run is a path of the model.
"""

from __future__ import annotations

import random

import pytest

from kvfsm.runtime.admission import Limits
from kvfsm.runtime.answers import Reason
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.queues import Queue, Queues
from kvfsm.runtime.scheduler import Live, Scheduler

from .serving import ByHand, Engine, Shelf, Watched, leaks, make, prompt, run, stored, watch

REQUESTS = 48
FAMILIES = 8  # of prompts that begin alike


def begin(seed: int, name: str, slots: int) -> tuple[random.Random, list[list[int]], Scheduler, ByHand]:
    """A scheduler over pools of so many slots, and prompts of which the longest fit nowhere."""
    chance, profile = random.Random(seed), PROFILES[name]
    granule = profile.granule
    prompts = [prompt(n % FAMILIES, chance.randrange(1, (slots + 1) * granule + 1)) for n in range(REQUESTS)]
    store = Shelf()
    stored(store, [one for one in prompts if len(one) >= granule and chance.random() < 0.2], profile)
    store.fails = lambda: chance.random() < 0.2
    lock, executor = Watched(), ByHand()
    counts = dict.fromkeys(profile.kinds, slots) | dict.fromkeys(("uncompressed_tail", "swa_window"), slots + 3)
    pools = {kind: counts[kind] for kind in profile.kinds}
    manager = make(pools, profile, store, lock=lambda: lock, rows=chance.randrange(1, 6), writes="none", cold=slots)
    scheduler = Scheduler(
        manager,
        executor,
        limits=Limits(
            requests=chance.choice([None, 1, 3]),
            blocks={"store": chance.randrange(1, 4 * slots + 2)} if chance.random() < 0.5 else {},
        ),
        chunk=chance.choice([None, granule, 2 * granule]),
        attempts=chance.randrange(3),
        requests=REQUESTS,
        queues=Queues(patience=chance.randrange(4)),
        budgets={Queue.DISK: 1e5} if chance.random() < 0.3 else {},
        clock=lambda: float(lock.times),
    )
    watch(scheduler, lock, every=7)
    return chance, prompts, scheduler, executor


def disturb(chance: random.Random, scheduler: Scheduler, keys: Keys) -> None:
    """What others do beside the scheduler."""
    manager = scheduler.manager
    running = [live for live in scheduler.live.values() if live.row is not None]
    what = chance.choice(["reset", "evict", "preempt", "pack", "expire", "read"])
    if what == "reset" and chance.random() < 0.3:
        manager.reset()
    elif what == "evict":
        manager.evict(chance.choice(manager.profile.kinds), chance.randrange(4))
    elif what == "preempt" and running:
        scheduler.preempt(chance.choice(running))
    elif what == "expire":
        manager.expire(keys, chance.randrange(2))
    elif what == "read":
        answer = manager.match(keys)
        if answer.now:
            manager.release(manager.acquire(answer))
    elif what == "pack":
        try:
            manager.pack(keys)
        except Refused as refused:
            assert refused.refusal is Reason.POOL_FULL


def trial(seed: int, name: str, slots: int) -> None:
    print(f"seed {seed}, {name}, pools of {slots}")
    chance, prompts, scheduler, executor = begin(seed, name, slots)
    manager: Manager = scheduler.manager
    engine, everybody = Engine(scheduler, decode=chance.randrange(4)), list[Live]()

    def while_bytes_arrive() -> None:
        """A load takes long: others go on meanwhile, or it breaks."""
        draw = chance.random()
        if draw < 0.1:
            raise OSError("the disk has gone")
        if draw < 0.3 and scheduler.live:
            scheduler.cancel(chance.choice(list(scheduler.live.values())))
        elif draw < 0.5:
            disturb(chance, scheduler, chance.choice(everybody).keys)
        elif draw < 0.7:
            engine.step()

    assert isinstance(manager.store, Shelf)
    manager.store.during = while_bytes_arrive
    while prompts:
        for _ in range(min(len(prompts), chance.randrange(4))):
            everybody.append(scheduler.submit(manager.keys(prompts.pop()), owner=chance.choice("ab")))
        if scheduler.live and chance.random() < 0.15:
            scheduler.cancel(chance.choice(list(scheduler.live.values())))
        if everybody and chance.random() < 0.3:
            disturb(chance, scheduler, chance.choice(everybody).keys)
        if executor.jobs and chance.random() < 0.4:
            executor.run(chance.randrange(len(executor.jobs)))
        engine.step()
    run(scheduler, executor, engine, seed=chance.randrange(1 << 30))
    executor.run_all()
    assert [scheduler.state(live) for live in everybody] == ["absent"] * REQUESTS
    assert all(live.begun.done() for live in everybody)
    assert any(not live.begun.cancelled() and live.begun.exception() is None for live in everybody)
    assert leaks(scheduler) == []


@pytest.mark.parametrize("name", ["tiny_llama", "tiny_deepseek_v4", "tiny_gemma3"])
@pytest.mark.parametrize("slots", [1, 2, 4, 8])
def test_everybody_ends_and_nothing_is_left(name: str, slots: int) -> None:
    trial(slots * 31 + len(name), name, slots)


@pytest.mark.long
@pytest.mark.parametrize("name", ["tiny_llama", "tiny_deepseek_v4", "tiny_deepseek_v32", "tiny_gemma3", "tiny_gpt_oss"])
def test_many_seeds(name: str) -> None:
    for seed in range(40):
        trial(seed, name, 1 + seed % 8)
