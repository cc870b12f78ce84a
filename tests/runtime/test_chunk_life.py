"""Whoever is put back at any point of a chunk's life keeps all that was computed by then, and nothing else is found.

A chunk is granted, handed to the engine, computed and shared. Work that was granted and not handed out is computed by
nobody: it goes, and what was computed before it stays, shared or not.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.scheduler import Live, Scheduler

from .indexer_keys import prompt
from .rows import audited, compute, contents, make
from .serving import ByHand, leaks

NAMES = ("tiny_llama", "tiny_deepseek_v4", "tiny_deepseek_v32", "tiny_gpt_oss", "tiny_gemma3")
GRANULES = 3
POINTS = [(chunk, point) for chunk in range(GRANULES) for point in ("granted", "handed", "computed", "shared")]


def begin(name: str) -> tuple[Manager, Scheduler, Live]:
    """A request of three granules and a token, that are computed granule by granule."""
    profile = PROFILES[name]
    manager = make(profile)
    scheduler = Scheduler(manager, ByHand(), chunk=profile.granule)
    return manager, scheduler, scheduler.submit(prompt(manager, GRANULES))


def step(scheduler: Scheduler, live: Live, *, share: bool) -> int:
    """A chunk from its turn to its end; returns where it began."""
    (work,) = scheduler.schedule()
    assert work.row is not None
    compute(scheduler.manager, work.row, work.start)
    if share:
        scheduler.publish(live)
    return work.start


def grant(scheduler: Scheduler) -> None:
    """A turn is granted, and the round broken off before the engine hears of it."""
    scheduler._turns.round()
    assert scheduler._requests.granted


def brought_to(scheduler: Scheduler, live: Live, chunk: int, point: str, *, share: bool) -> int:
    """The request at a point of a chunk's life; returns the tokens that are computed."""
    for _ in range(chunk):
        step(scheduler, live, share=share)
    granule = scheduler.manager.profile.granule
    if point == "granted":
        grant(scheduler)
        return chunk * granule
    if point == "handed":
        scheduler.schedule()
        assert live.row is not None
        compute(scheduler.manager, live.row, chunk * granule)  # it is launched by now
    else:
        step(scheduler, live, share=point == "shared")
    return (chunk + 1) * granule


def undisturbed(name: str) -> dict[str, list[int | None]]:
    """What a row holds whose request was never put back."""
    manager, scheduler, live = begin(name)
    for _ in range(GRANULES + 1):
        step(scheduler, live, share=True)
    assert live.row is not None
    return contents(manager, live.row)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("share", [False, True], ids=["unshared", "shared"])
@pytest.mark.parametrize(("chunk", "point"), POINTS)
def test_all_that_was_computed_is_kept(name: str, chunk: int, point: str, share: bool) -> None:
    manager, scheduler, live = begin(name)
    computed = brought_to(scheduler, live, chunk, point, share=share)
    assert live.computed == computed
    scheduler.preempt(live)
    audited(manager)
    answer = manager.match(live.keys)
    assert answer.objects["compressed_kv"].length == computed
    assert answer.now == computed
    starts = []
    while live.row is None or live.computed < live.tokens:
        starts.append(step(scheduler, live, share=True))
    assert starts[0] == computed and starts == sorted(starts)
    assert contents(manager, live.row) == undisturbed(name)
    scheduler.finish(live)
    assert leaks(scheduler) == []


@pytest.mark.parametrize("name", NAMES)
def test_the_publisher_keeps_to_what_is_computed(name: str) -> None:
    """The same without going back: a granted chunk is found by nobody, and the one before it by all."""
    manager, scheduler, live = begin(name)
    computed = brought_to(scheduler, live, 1, "granted", share=False)
    assert scheduler.publish(live) == 1
    assert manager.match(live.keys).objects["compressed_kv"].length == computed
    (work,) = scheduler.schedule()
    assert (work.start, work.stop) == (computed, 2 * computed) and live.computed == 2 * computed
    assert scheduler.publish(live) == 2
    scheduler.cancel(live)
    assert leaks(scheduler) == []


def test_a_window_of_blocks_that_slid_out_for_a_granted_chunk_is_gone() -> None:
    """What is given up, and only where nobody shared the chunk before: its entries stay, its window doesn't."""
    profile = PROFILES["tiny_gpt_oss"]
    for share in (False, True):
        manager = make(profile)
        scheduler = Scheduler(manager, ByHand(), chunk=2 * profile.granule)
        live = scheduler.submit(prompt(manager, 6))
        step(scheduler, live, share=share)
        grant(scheduler)
        scheduler.preempt(live)
        answer = manager.match(live.keys)
        assert answer.objects["compressed_kv"].length == 2 * profile.granule
        assert answer.now == (2 * profile.granule if share else 0)
        audited(manager)


def test_an_engine_that_sleeps_keeps_it_too() -> None:
    manager, scheduler, live = begin("tiny_deepseek_v4")
    computed = brought_to(scheduler, live, 2, "granted", share=False)
    assert scheduler.preempt_all()
    assert manager.match(live.keys).now == computed
    audited(manager)


@pytest.mark.parametrize("computed", [-1, 65])
def test_no_more_is_computed_than_there_is_room_for(computed: int) -> None:
    manager = make(PROFILES["tiny_llama"])
    row = manager.requests.admit(64)
    keys: Any = prompt(manager, 2)
    for call in (manager.requests.publish, manager.requests.preempt):
        with pytest.raises(ValueError, match="holds 64 tokens"):
            call(row, keys, computed=computed)
    assert manager.requests.preempt(row, keys, computed=40).tokens == 40
    assert manager.match(keys).now == 40 // manager.profile.granule * manager.profile.granule
    audited(manager)
