"""Conformance scenarios of serving engines: admission, and release while steps are in flight.

The cases S21 and S24; how an engine's words map onto the manager's is said in ``engine.py``, and besides:

* A request is admitted whole or not at all: the engine that computes a prompt in chunks keeps the rows of a chunk in
  flight in its own workspace, and a row of ours begins with the window that the chunk leaves. One token is in flight.
* *Reserved for others* are slots that a fill holds.

Of the groups that engines know, chunked-local attention is no object of ours, so its caps and releases have no test.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvfsm.runtime.answers import Reason
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.requests import GUARD

from .engine import KV, WINDOW, Engine


def with_window(bench: Any, window: int, kv: int, windows: int, **options: Any) -> Engine:
    """Full attention and a window group, both in blocks of 16 tokens."""
    profile = bench.profile(
        16, bench.group("full", KV, 16, 16), bench.window(16, 16),
        window=window, window_policy="blocks", window_block=16,
    )  # fmt: skip
    return Engine(bench.manager(profile, {KV: kv, WINDOW: windows}, **options))


@pytest.mark.parametrize(("window", "cap"), [(16, 2), (17, 2), (18, 3), (33, 3), (64, 5), (1024, 65)])
def test_S21_admission_counts_what_a_window_can_hold_at_once(bench: Any, window: int, cap: int) -> None:
    """A prompt of 2048 tokens needs 128 full blocks, and of window blocks only those that it can hold at once.

    With exactly these it is admitted, and decodes on without ever needing more; with one less it is refused. The number
    is ceil((window - 1) / 16) + 1: an engine with more tokens than one in flight adds these to the window.
    """
    engine = with_window(bench, window, 132, cap)
    manager = engine.manager
    one = engine.start(list(range(2048)), publish=False)
    for _ in range(64):
        assert int((manager.requests.window_table([one.row]) != GUARD).sum()) == cap
        manager.requests.step([one.row])
    few = with_window(bench, window, 132, cap - 1)
    with pytest.raises(Refused) as refused:
        few.start(list(range(2048)))
    assert refused.value.refusal is Reason.ADMISSION and WINDOW in refused.value.detail
    assert few.free() == 132
    bench.audited(few.manager)


def test_S21_a_short_prompt_counts_its_own_blocks(bench: Any) -> None:
    """What a window can hold is no minimum: 20 tokens have two blocks of a window of 64."""
    engine = with_window(bench, 64, 8, 8)
    engine.start(list(range(20)))
    assert {kind: pool.hot - pool.free for kind, pool in engine.manager.core.pools.items()} == {KV: 2, WINDOW: 2}
    bench.audited(engine.manager)


def test_S21_a_prompt_that_can_never_fit_is_refused_for_good(bench: Any) -> None:
    """256 tokens are 16 full blocks, and there are 4: ADMISSION says that waiting won't help."""
    engine = with_window(bench, 64, 4, 4)
    before = engine.words()
    with pytest.raises(Refused) as refused:
        engine.start(list(range(256)))
    assert refused.value.refusal is Reason.ADMISSION and "16 slots of compressed_kv" in refused.value.detail
    assert engine.words() == before
    bench.audited(engine.manager)


def test_S21_blocks_that_are_reserved_for_others_are_not_there(bench: Any) -> None:
    """One block is asked for, of 10: with 4 reserved for others it is admitted, with 10 refused until they are back."""
    profile = bench.profile(16, bench.group("full", KV, 16, 16))
    engine = Engine(bench.manager(profile, 10))
    manager = engine.manager
    others = manager.keys(list(range(1000, 1160)))
    fill = manager.reserve(others, 0, 4)
    prompt = list(range(16))
    engine.end(engine.start(prompt, publish=False))
    rest = manager.reserve(others, 4, 10)
    with pytest.raises(Refused) as refused:
        engine.start(prompt)
    assert refused.value.refusal is Reason.POOL_FULL
    manager.abandon(rest)
    one = engine.start(prompt, publish=False)
    assert (engine.free(), len(engine.table(one))) == (5, 1)
    manager.abandon(fill)
    bench.audited(manager)


def test_S21_a_step_that_finds_no_block_moves_no_row(bench: Any) -> None:
    """Ours besides: two rows need a block each, and one is free."""
    profile = bench.profile(16, bench.group("full", KV, 16, 16))
    engine = Engine(bench.manager(profile, 3))
    rows = [engine.start(list(range(at, at + 16)), publish=False).row for at in (0, 100)]
    before = engine.words()
    with pytest.raises(Refused) as refused:
        engine.manager.requests.step(rows)
    assert refused.value.refusal is Reason.POOL_FULL
    assert engine.words() == before and engine.manager.requests.tokens[rows].tolist() == [16, 16]
    engine.manager.requests.step(rows[:1])
    bench.audited(engine.manager)


def test_S24_a_block_that_a_step_in_flight_may_read_is_not_released(bench: Any) -> None:
    """A window of 16 in blocks of 16; 100 tokens, whose step is not reported done while the next ones are scheduled.

    The row itself holds blocks 5 and 6. At token 113 block 5 slides out: it stays nobody's, and not free, until the
    steps that may read it are done, and then comes back with the next call, once.
    """
    engine = with_window(bench, 16, 20, 3)
    manager, pool = engine.manager, engine.manager.core.pools[WINDOW]
    ended: list[bool] = []

    def done() -> bool:
        return bool(ended)

    row = manager.requests.admit(100)
    old = manager.requests.window_table([row])[0][5 % 2]
    for _ in range(13):
        manager.requests.step([row], done=done)
    assert manager.requests.resolve(row, 112)[0] != old and manager.requests.tokens[row] == 113
    assert pool.free == 0 and pool.in_state(np.array([old]), "filling").all()
    assert [given_up.slots[WINDOW].tolist() for given_up in manager.given_up] == [[old]]
    with pytest.raises(Refused) as refused:
        manager.requests.admit(1)
    assert refused.value.refusal is Reason.POOL_FULL
    with pytest.raises(Refused):
        manager.reserve(manager.keys(list(range(500, 516))), 0, 1)
    bench.audited(manager)

    ended.append(True)
    assert pool.free == 0  # nobody has asked yet
    other = manager.requests.admit(1)
    assert manager.requests.resolve(other, 0)[0] == old
    assert not manager.given_up and pool.free == 0
    manager.requests.finish(other)
    for _ in range(15):
        manager.requests.step([row], done=done)
    assert pool.free_slots.tolist() == [old]  # once
    bench.audited(manager)


def test_S24_blocks_of_several_steps_come_back_together_and_none_twice(bench: Any) -> None:
    """Five blocks slide out while the first step is still running; when it is done, all five are there."""
    engine = with_window(bench, 16, 20, 8)
    manager, pool = engine.manager, engine.manager.core.pools[WINDOW]
    ended: list[bool] = []
    row = manager.requests.admit(20)
    gone: list[int] = []
    for _ in range(80):
        before = set(manager.requests.slots(WINDOW).tolist())
        manager.requests.step([row], done=lambda: bool(ended))
        gone += before - set(manager.requests.slots(WINDOW).tolist())
    assert len(gone) == len(set(gone)) == 5 and pool.free == 8 - 2 - 5
    assert not set(gone) & set(pool.free_slots.tolist())
    bench.audited(manager)
    ended.append(True)
    manager.evict(WINDOW, 0)
    assert sorted(pool.free_slots.tolist()) == sorted(set(range(8)) - set(manager.requests.slots(WINDOW).tolist()))
    manager.evict(WINDOW, 0)
    assert pool.free == 6
    bench.audited(manager)


def test_S24_a_request_that_ends_in_flight_keeps_what_it_shares_and_owns(bench: Any) -> None:
    """The device still runs its last step: neither the cached blocks that it reads nor its own are to be had."""
    engine = with_window(bench, 16, 4, 3)
    manager = engine.manager
    bench.put(manager, manager.keys(list(range(32))), 0, 2)
    ended: list[bool] = []
    one = engine.start(list(range(40)))
    assert one.hit == 32
    shared, own = engine.table(one)[:2], engine.table(one)[2:]
    manager.requests.finish(one.row, done=lambda: bool(ended))
    assert manager.evict(KV, 10) == 0
    assert engine.references(shared) == [1, 1] and engine.references(own) == [1]
    assert engine.hit(list(range(33))) == 32  # others may read them all the same
    bench.audited(manager)
    ended.append(True)
    assert manager.evict(KV, 10) == 2
    assert manager.core.pools[KV].free == 4 and not manager.parked and not manager.given_up
    bench.audited(manager)


def test_S24_a_lease_that_the_device_still_reads_is_released_later(bench: Any) -> None:
    """The same of a lease, which is how prefill reads: its window block 6 of 100 tokens and all its full blocks."""
    engine = with_window(bench, 16, 7, 7)
    manager = engine.manager
    keys = manager.keys(list(range(112)))
    bench.put(manager, keys, 0, 7)
    lease = manager.acquire(manager.match(keys, at_most=96))
    assert (lease.length, len(lease.slots[WINDOW])) == (96, 1)
    ended: list[bool] = []
    manager.release(lease, done=lambda: bool(ended))
    assert (manager.evict(KV, 10), manager.evict(WINDOW, 10)) == (1, 6)
    assert (manager.evict(KV, 10), manager.evict(WINDOW, 10)) == (0, 0)
    ended.append(True)
    assert (manager.evict(KV, 10), manager.evict(WINDOW, 10)) == (6, 1)
    assert (manager.evict(KV, 10), manager.evict(WINDOW, 10)) == (0, 0)
    bench.audited(manager)
