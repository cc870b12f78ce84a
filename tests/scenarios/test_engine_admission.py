"""Conformance scenarios of serving engines: admission, and release while steps are in flight.

The cases S21 and S24; how an engine's words map onto the manager's is said in ``engine.py``, and besides:

* A chunk of a prompt is admitted, or extends a row, whole or not at all. Where the engine keeps the rows of a chunk in
  flight in its own workspace, a row begins with the window that the chunk leaves, and one token is in flight. Where it
  writes them into the window's blocks, the profile *retains* as many tokens, and the ring is as wide as the cap says.
* *Asked to fit whole*: ``need`` of the whole prompt against the pools, before its first chunk is admitted.
* *Reserved for others* are slots that a fill holds.

Chunked-local attention is no object of ours. Its cap, "chunk 1,024: 128 and 192", is that of a window that begins at
multiples of 1,024 and ends in whole blocks: the chunk and the tokens in flight, in blocks, and none more. Its releases
have no test.
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


def in_flight(bench: Any, window: int, flight: int, kv: int, windows: int) -> Engine:
    """The same, with blocks for so many tokens in flight beside those that a query reads."""
    profile = bench.profile(
        16, bench.group("full", KV, 16, 16), bench.window(16, 16),
        window=window, window_policy="blocks", window_block=16, retained=flight,
    )  # fmt: skip
    return Engine(bench.manager(profile, {KV: kv, WINDOW: windows}))


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
    assert refused.value.refusal is Reason.CAPACITY and WINDOW in refused.value.detail
    assert few.free() == 132
    bench.audited(few.manager)


@pytest.mark.parametrize(("flight", "cap"), [(1024, 129), (2048, 193)])
def test_S21_tokens_in_flight_widen_the_cap(bench: Any, flight: int, cap: int) -> None:
    """A window of 1024 in blocks of 16: a chunk in flight has blocks beside those that its first token reads.

    Prompts of chunks that end anywhere never hold more, and while a chunk is in flight every row that its first token
    reads is there. With one block less in the pool, no prompt of that length is admitted.
    """
    engine = in_flight(bench, 1024, flight, 512, cap)
    manager, requests = engine.manager, engine.manager.requests
    assert requests.window_width == cap == -(-(1023 + flight) // 16) + 1
    row = requests.admit(100)
    held = 0
    while requests.tokens[row] + flight <= 8192:
        start = int(requests.tokens[row])
        requests.extend(row, flight)
        for position in range(max(0, start - 1023), start + flight, 16):
            requests.resolve_entry(row, position // 16 % cap)
            assert requests.window_blocks([row])[0, position // 16 % cap] == position // 16
        held = max(held, int((requests.window_table([row]) != GUARD).sum()))
    assert held == cap and manager.core.pools[WINDOW].free == 0
    bench.audited(manager)
    few = in_flight(bench, 1024, flight, 512, cap - 1)
    with pytest.raises(Refused) as refused:
        few.manager.requests.admit(8192)
    assert refused.value.refusal is Reason.CAPACITY


@pytest.mark.parametrize(("flight", "cap"), [(1024, 128), (2048, 192)])
def test_S21_a_chunk_that_begins_in_a_block_of_its_own_needs_none_more(bench: Any, flight: int, cap: int) -> None:
    """What chunked-local groups of 1,024 hold at most: blocks from the start of a chunk to the end of those in flight.

    Our window holds one block more, since it begins within a block; over chunks that begin at multiples of 1,024 it
    resolves exactly these, and the one before is never asked for.
    """
    engine = in_flight(bench, 1024, flight, 512, cap + 1)
    requests = engine.manager.requests
    row = requests.admit(1024)
    for _ in range(2):
        start = int(requests.tokens[row])
        requests.extend(row, flight)
        first = (start - 1) // 1024 * 1024  # of the chunk before, which is in flight as well
        asked = {position // 16 for position in range(first, start + flight)}
        assert len(asked) == cap
        assert {int(requests.window_blocks([row])[0, block % (cap + 1)]) for block in asked} == asked
    bench.audited(engine.manager)


def test_S21_a_prompt_that_fits_whole_is_admitted_for_its_first_chunk(bench: Any) -> None:
    """A window of 64, at most 128 tokens in flight: 512 tokens need 32 full blocks and 13 of the window, not 32.

    Admitted for the first 16, the prompt is then computed in chunks of 128 and never needs more than it was asked for.
    """
    engine = in_flight(bench, 64, 128, 32, 13)
    manager, requests = engine.manager, engine.manager.requests
    whole = requests.need(512, 0)
    assert whole == {KV: 32, WINDOW: 13}
    assert all(count <= manager.core.capacity(kind) for kind, count in whole.items())
    row = requests.admit(16)
    assert (engine.free(KV), engine.free(WINDOW)) == (31, 12)
    for chunk in (112, 128, 128, 128):
        requests.extend(row, chunk)
        bench.audited(manager)
    assert requests.tokens[row] == 512 and (engine.free(KV), engine.free(WINDOW)) == (0, 0)
    with pytest.raises(Refused) as refused:
        requests.extend(row, 1)
    assert refused.value.refusal is Reason.CAPACITY


def test_S21_a_first_chunk_counts_what_is_reserved_for_others(bench: Any) -> None:
    """A prompt of 128 tokens, its first 16 of a pool of 10: with 4 reserved for others admitted, with 10 refused.

    The rest waits until they are back, and keeps its first block meanwhile.
    """
    profile = bench.profile(16, bench.group("full", KV, 16, 16))
    engine = Engine(bench.manager(profile, 10))
    manager, requests = engine.manager, engine.manager.requests
    others = manager.keys(list(range(1000, 1160)))
    fill, rest = manager.reserve(others, 0, 4), manager.reserve(others, 4, 10)
    with pytest.raises(Refused) as refused:
        requests.admit(16)
    assert refused.value.refusal is Reason.POOL_FULL
    manager.abandon(rest)
    row = requests.admit(16)
    first = requests.table(KV, [row]).tolist()
    with pytest.raises(Refused) as refused:
        requests.extend(row, 112)  # seven more, and five are free
    assert refused.value.refusal is Reason.POOL_FULL
    assert (requests.tokens[row], requests.table(KV, [row]).tolist(), engine.free()) == (16, first, 5)
    manager.abandon(fill)
    requests.extend(row, 112)
    assert (requests.tokens[row], engine.free()) == (128, 2)
    bench.audited(manager)


def test_S21_a_short_prompt_counts_its_own_blocks(bench: Any) -> None:
    """What a window can hold is no minimum: 20 tokens have two blocks of a window of 64."""
    engine = with_window(bench, 64, 8, 8)
    engine.start(list(range(20)))
    assert {kind: pool.hot - pool.free for kind, pool in engine.manager.core.pools.items()} == {KV: 2, WINDOW: 2}
    bench.audited(engine.manager)


def test_S21_a_prompt_that_can_never_fit_is_refused_for_good(bench: Any) -> None:
    """256 tokens are 16 full blocks, and there are 4: CAPACITY says that waiting won't help."""
    engine = with_window(bench, 64, 4, 4)
    before = engine.words()
    with pytest.raises(Refused) as refused:
        engine.start(list(range(256)))
    assert refused.value.refusal is Reason.CAPACITY and "16 slots of compressed_kv" in refused.value.detail
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
