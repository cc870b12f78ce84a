"""Conformance scenarios of serving engines: full attention beside sliding windows, of equal and of unequal blocks.

The cases S11, S16, S17 and S13; how an engine's words map onto the manager's is said in ``engine.py``, and besides:

* Several window groups are layers of one object: one slot holds the rows of one block in all of them. That a block is
  resident in one window group and gone in another can't come about; where a case says so, the test takes the block from
  all window groups, and the law is that any kind lowers the joint hit.
* Engines let a running request go on in the cached window blocks. Ours gives a row window blocks of its own, a ring
  into which the reused ones are copied; cached windows are published by fills, as prefill writes them.
* Along a chain of full-attention blocks the end goes first, so "block 0 alone was evicted" is "all of them were".

Of the groups that engines know, chunked-local attention and linear-attention state are no objects of ours: cases about
these alone have no test here.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from kvfsm.runtime.manager import Manager
from kvfsm.runtime.requests import GUARD

from .engine import KV, WINDOW, Engine, runs


def full_and_windows(bench: Any, block: int, window: int, *, span: int | None = None, groups: int = 1) -> Any:
    """Full attention in blocks of ``span`` tokens, and window groups in blocks of ``block``."""
    granule = span or block
    return bench.profile(
        granule, bench.group("full", KV, granule, granule), bench.window(block, block, tuple(range(groups))),
        window=window, window_policy="blocks", window_block=block,
    )  # fmt: skip


def resident(manager: Manager, prompt: list[int]) -> list[int]:
    """Window blocks of a prompt that the index holds."""
    keys, index = manager.keys(prompt), manager.core.index
    trail = manager.core.trailing.index(WINDOW)
    spot = index.locate(keys.digests, len(keys))
    blocks = range(spot.at * index.specs[trail].per)
    return [block for block in blocks if index.find(trail, spot, block) is not None]


def evict_outside(manager: Manager, prompt: list[int], *tokens: int) -> None:
    """Evict every window block but those of the hits at these lengths."""
    keys = manager.keys(prompt)
    leases = [manager.acquire(manager.match(keys, len(prompt), at_most=length)) for length in tokens]
    manager.evict(WINDOW, 1000)
    for lease in leases:
        manager.release(lease)


def lose(manager: Manager, prompt: list[int], *blocks: int) -> None:
    """Let single cached window blocks go, as if their turn had come."""
    core, keys = manager.core, manager.keys(prompt)
    trail = core.trailing.index(WINDOW)
    spot = core.index.locate(keys.digests, len(keys))
    slots = np.array([core.index.find(trail, spot, block) for block in blocks], np.intp)
    core.flat[WINDOW].drop_all(slots)
    core.retire(WINDOW, slots)


@pytest.fixture
def three_groups(bench: Any) -> Engine:
    """Full attention and two window groups: blocks of 16 tokens, windows of 32; three blocks of runs(3) are cached."""
    engine = Engine(bench.manager(full_and_windows(bench, 16, 32, groups=2), 20))
    fill = bench.put(engine.manager, engine.manager.keys(runs(3, 7)), 0, 3)
    assert {kind: len(slots) for kind, slots in fill.slots.items()} == {KV: 3, WINDOW: 3}
    return engine


def test_S11_a_hit_reads_all_full_blocks_and_the_last_window_blocks(three_groups: Engine, bench: Any) -> None:
    """53 tokens hit 48: full blocks 0 to 2, and window blocks 1 and 2; block 0 is outside the window at 48.

    The request needs one full block more. Its windows are a ring of three blocks of its own.
    """
    manager = three_groups.manager
    keys = manager.keys(runs(3, 5))
    with manager.acquire(manager.match(keys, 53)) as lease:
        assert lease.length == 48
        spot = manager.core.index.locate(keys.digests, 3)
        window = [manager.core.index.find(0, spot, block) for block in (1, 2)]
        assert lease.slots[WINDOW].tolist() == window
        assert lease.slots[KV].tolist() == bench.slots(manager, KV, keys, 0, 3)
        assert {(part.kind, part.layer): len(part.slots) for part in lease.state_data_ptrs} == {
            (KV, 0): 3, (WINDOW, 0): 2, (WINDOW, 1): 2,
        }  # fmt: skip
    before = {kind: pool.free for kind, pool in manager.core.pools.items()}
    b = three_groups.start(runs(3, 5))
    assert b.hit == 48 and three_groups.table(b)[:3] == bench.slots(manager, KV, keys, 0, 3)
    after = {kind: pool.free for kind, pool in manager.core.pools.items()}
    assert (before[KV] - after[KV], before[WINDOW] - after[WINDOW]) == (1, 3)
    for layer in (0, 1):
        rows = manager.read(WINDOW, "rows", layer, manager.requests.window_table([b.row])[0])
        assert [int(block[0, 0]) for block in rows].count(1) == 2  # blocks 1 and 2 came along, in every group
    bench.audited(manager)


@pytest.mark.parametrize(
    ("gone", "hit"),
    [
        ({WINDOW: (0,)}, 48),  # outside the window at 48
        ({KV: (0, 1, 2)}, 0),  # full attention is a run from 0
        ({KV: (2,), WINDOW: (2,)}, 32),
        ({KV: (2,)}, 32),  # the windows still hold 0 and 1
        ({WINDOW: (2,)}, 32),  # any one kind lowers all
        ({WINDOW: (1,)}, 16),  # 48 and 32 need it; at 16 a run from 0 is enough
        ({KV: (2,), WINDOW: (0,)}, 0),  # full attention allows 32, and the window at 32 needs block 0
    ],
)
def test_S11_what_is_left_after_eviction(
    three_groups: Engine, bench: Any, gone: dict[str, tuple[int, ...]], hit: int
) -> None:
    """Each kind alone loses some blocks; the joint hit is the greatest length that all can serve."""
    manager = three_groups.manager
    lose(manager, runs(3, 5), *gone.get(WINDOW, ()))
    assert manager.evict(KV, len(gone.get(KV, ()))) == len(gone.get(KV, ()))
    assert three_groups.hit(runs(3, 5)) == hit
    bench.audited(manager)
    if hit:
        with manager.acquire(three_groups.match(runs(3, 5))) as lease:
            assert lease.length == hit and (lease.view(WINDOW, "rows", 1) == 1).all()
    bench.audited(manager)


def test_S11_eviction_itself_takes_the_blocks_outside_all_windows_in_use(three_groups: Engine, bench: Any) -> None:
    """With a lease on 48 tokens, window block 0 is all that eviction can have; with one on 32, block 2."""
    manager = three_groups.manager
    evict_outside(manager, runs(3, 5), 48)
    assert (resident(manager, runs(3, 5)), three_groups.hit(runs(3, 5))) == ([1, 2], 48)
    bench.put(manager, manager.keys(runs(3, 5)), 0, 1, kinds=(WINDOW,))
    evict_outside(manager, runs(3, 5), 32)
    assert (resident(manager, runs(3, 5)), three_groups.hit(runs(3, 5))) == ([0, 1], 32)
    bench.audited(manager)


def by_hand(pattern: str, need: int) -> int:
    """Blocks of the longest hit: ``need`` cached blocks in a row that end there, or all of them from block 0."""
    return max(end for end in range(len(pattern) + 1) if "0" not in pattern[max(0, end - need) : end])


def window_hit(bench: Any, manager: Manager, pattern: str, base: int) -> int:
    """Cache the blocks with a 1 of a prompt of its own; the blocks that a look-up then finds."""
    prompt = [base, *range(1, 2 * len(pattern) + 1)]
    keys = manager.keys(prompt)
    bench.put(manager, keys, 0, len(pattern), kinds=(KV,))
    for block, cached in enumerate(pattern):
        if cached == "1":
            bench.put(manager, keys, block, block + 1, kinds=(WINDOW,))
    return manager.match(keys, len(prompt)).now // 2


@pytest.mark.parametrize(
    ("pattern", "blocks"),
    [
        ("0000000000", 0), ("1", 1), ("10", 1), ("11", 2), ("110", 2), ("111", 3), ("1110", 3), ("110100110111", 12),
        ("11010011000", 8), ("110100110001", 8), ("011", 3), ("01", 0),
    ],
)  # fmt: skip
def test_S16_a_window_hit_by_pattern(bench: Any, pattern: str, blocks: int) -> None:
    """Blocks of 2 tokens, a window of 4: two cached blocks in a row that end at the hit, or a run from token 0."""
    manager = bench.manager(full_and_windows(bench, 2, 4), 16)
    assert window_hit(bench, manager, pattern, 0) == blocks == by_hand(pattern, 2)
    bench.audited(manager)


@pytest.mark.parametrize(("window", "need"), [(2, 1), (3, 1), (4, 2), (5, 2), (6, 3)])
def test_S16_every_pattern_of_six_blocks(bench: Any, window: int, need: int) -> None:
    """Ours besides: windows that need one to three blocks, and every pattern."""
    manager = bench.manager(full_and_windows(bench, 2, window), 64 * 6)
    for base, bits in enumerate(product("01", repeat=6)):
        pattern = "".join(bits)
        assert window_hit(bench, manager, pattern, base) == by_hand(pattern, need), pattern
    bench.audited(manager)


@pytest.mark.parametrize(("processed", "outside"), [(1, 0), (4, 0), (5, 1), (6, 1), (7, 2), (11, 4), (22, 9)])
def test_S17_a_running_request_holds_no_more_than_its_window(bench: Any, processed: int, outside: int) -> None:
    """Blocks of 2 tokens, a window of 4: once so many tokens are processed, so many blocks lie before the window.

    Every block that the next query reads is held, and never more than the window's and the one that is being filled.
    Engines release a block with the step that leaves it. Ours does so when the next block begins, which needs no visit
    between blocks and allows to take back a token: at most one block that lies before the window is held, while the
    most that is held at any time is the same.
    """
    manager = bench.manager(full_and_windows(bench, 2, 4), 99)
    row = manager.requests.admit(1)
    for _ in range(processed - 1):
        manager.requests.step([row])
    ring = manager.requests.window_table([row])[0]
    assert len(ring) == 3
    begun = -(-processed // 2)
    held = int((ring != GUARD).sum())
    assert outside - 1 <= begun - held <= outside
    for position in range(max(0, processed - 3), processed):
        assert manager.requests.resolve(row, position)[0] in ring
    assert len(manager.requests.slots(WINDOW)) == held == 99 - manager.core.pools[WINDOW].free
    bench.audited(manager)


def test_S17_a_request_that_ends_gives_every_block_back(bench: Any) -> None:
    """22 tokens. None of what comes back is padding, and nothing comes back twice."""
    manager = bench.manager(full_and_windows(bench, 2, 4), 99)
    row = manager.requests.admit(22)
    assert int((manager.requests.window_table([row]) != GUARD).sum()) == 3
    for _ in range(7):
        manager.requests.step([row])
    manager.requests.finish(row)
    for pool in manager.core.pools.values():
        assert sorted(pool.free_slots.tolist()) == list(range(99))
    with pytest.raises(ValueError, match="holds no request"):
        manager.requests.finish(row)
    bench.audited(manager)


@pytest.mark.parametrize(("settled", "outside"), [(0, 0), (4, 0), (5, 0), (6, 1), (7, 1), (10, 3), (11, 3), (22, 9)])
def test_S17_cached_blocks_before_the_window_of_the_last_boundary_go(bench: Any, settled: int, outside: int) -> None:
    """The same of what is cached: a request published 11 blocks and says how far it is settled.

    Ours counts from the last whole block at or before that, so that a hit there stays whole: what goes is never more
    than lies before the window, and exactly that where a block ends. A lease at that length protects what is left.
    """
    manager = bench.manager(full_and_windows(bench, 2, 4), 99)
    keys = manager.keys(list(range(22)))
    bench.put(manager, keys, 0, 11)
    assert outside <= max(0, settled - 3) // 2
    boundary = settled - settled % 2
    assert manager.free_out_of_window(keys, settled) == outside == max(0, boundary - 3) // 2
    assert resident(manager, list(range(22))) == list(range(outside, 11))
    assert manager.match(keys, 23, at_most=settled).now == boundary
    if boundary:
        evict_outside(manager, list(range(23)), boundary)
        assert resident(manager, list(range(22))) == list(range(outside, boundary // 2))
    bench.audited(manager)


@pytest.fixture
def unequal(bench: Any) -> Engine:
    """Full attention in blocks of 32 tokens, windows of 32 in blocks of 16; 112 tokens of runs(10) are allocated."""
    engine = Engine(bench.manager(full_and_windows(bench, 16, 32, span=32), 99))
    keys = engine.manager.keys(runs(10)[:112])
    bench.put(engine.manager, keys, 0, len(keys))
    return engine


def test_S13_hits_end_where_blocks_of_all_kinds_end(unequal: Engine, bench: Any) -> None:
    """Multiples of 32, the least common multiple, and one token is left to compute."""
    manager = unequal.manager
    assert [unequal.hit(runs(10)[:length]) for length in (113, 97, 96)] == [96, 96, 64]
    with manager.acquire(unequal.match(runs(10)[:113])) as lease:
        assert {kind: len(slots) for kind, slots in lease.slots.items()} == {KV: 3, WINDOW: 2}
    bench.audited(manager)


@pytest.mark.parametrize("gone", [(5,), (4,), (4, 5)])
def test_S13_without_the_last_window_block_the_hit_is_a_common_multiple_shorter(
    unequal: Engine, bench: Any, gone: tuple[int, ...]
) -> None:
    """64, not 80: the window alone could serve 80, but no full-attention block ends there."""
    lose(unequal.manager, runs(10), *gone)
    answer = unequal.match(runs(10)[:113])
    assert (answer.now, answer.objects[KV].length, answer.objects[WINDOW].length) == (64, 96, 64)
    bench.audited(unequal.manager)


def test_S13_what_no_hit_can_use_is_not_kept(unequal: Engine, bench: Any) -> None:
    """Of 112 tokens the first 96 are cached: full blocks 0 to 2 and window blocks 0 to 5, never 6."""
    manager = unequal.manager
    assert (unequal.cached(KV), unequal.cached(WINDOW)) == (3, 6)
    assert resident(manager, runs(10)) == [0, 1, 2, 3, 4, 5]
    row = manager.requests.admit(112)  # a live request holds its seventh window block, and publishes none of it
    assert manager.requests.publish(row, manager.keys(runs(10)[:112])) == 3
    assert (unequal.cached(KV), unequal.cached(WINDOW)) == (3, 6)
    manager.requests.finish(row)
    with pytest.raises(ValueError, match="granules"):
        manager.reserve(manager.keys(runs(10)[:112]), 3, 4)
    bench.audited(manager)
