"""Conformance scenarios of serving engines: one full-attention group, 16 tokens a block.

The cases S01 to S06, S08 and S10; how an engine's words map onto the manager's is said in ``engine.py``. Of the groups
that engines know, chunked-local attention and linear-attention state are no objects of ours: cases about these alone
have no test here.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvfsm.runtime.answers import Reason
from kvfsm.runtime.errors import Refused

from .engine import KV, Engine, runs


@pytest.fixture
def make(bench: Any) -> Any:
    """Makes an engine with one pool of so many blocks."""

    def made(blocks: int, **options: Any) -> Engine:
        profile = bench.profile(16, bench.group("full", KV, 16, 16))
        return Engine(bench.manager(profile, blocks, **options))

    return made


def test_S01_a_hit_in_use_and_a_hit_after_free(make: Any, bench: Any) -> None:
    """A and B share three blocks; each has the next one to itself. What either frees can be hit until it is reused."""
    engine = make(10)
    a = engine.start(runs(3, 7))
    assert (a.hit, len(engine.table(a))) == (0, 4)
    b = engine.start(runs(3, 5))
    assert b.hit == 48
    assert engine.table(b)[:3] == engine.table(a)[:3] and engine.table(b)[3] != engine.table(a)[3]
    assert engine.references([*engine.table(a), engine.table(b)[3]]) == [2, 2, 2, 1, 1]
    assert engine.free() == 5

    shared = engine.table(a)[:3]
    engine.end(a, b)
    c = engine.start([*runs(3), *[3] * 5])
    assert c.hit == 48 and engine.table(c)[:3] == shared and len(engine.table(c)) == 4
    engine.end(c)
    assert engine.free() == 10
    d = engine.start([1000 + at for at in range(160)])
    assert d.hit == 0 and sorted(engine.table(d)) == list(range(10))
    assert engine.hit(runs(3, 6)) == 0
    bench.audited(engine.manager)


def test_S01_unfinished_blocks_go_before_cached_ones_and_the_ends_of_prompts_first(make: Any, bench: Any) -> None:
    """Our order: a block that was never whole is free at once. Of the cached ones a prompt's last goes first.

    An engine with one queue orders them in the same way; ours is a stack of free slots beside the order of eviction.
    """
    engine = make(10)
    a, b = engine.start(runs(3, 7)), engine.start(runs(3, 5))
    first, second, third = engine.table(a)[:3]
    engine.end(a, b)
    pool = engine.manager.core.pools[KV]
    assert (pool.free, engine.cached()) == (7, 3)
    other = engine.start([1000 + at for at in range(112)])  # 7 blocks: all that are free, and no cached one
    assert engine.hit(runs(3, 6)) == 48
    engine.end(other)
    for gone, left in ((third, 32), (second, 16), (first, 0)):
        before = set(pool.free_slots.tolist())
        assert engine.manager.evict(KV, 1) == 1
        assert set(pool.free_slots.tolist()) - before == {gone}
        assert engine.hit(runs(3, 6)) == left
    bench.audited(engine.manager)


def test_S02_a_block_is_cached_when_full_and_not_before(make: Any, bench: Any) -> None:
    """55 tokens fill three of four blocks. Four more change nothing; nineteen more take one and fill the fourth."""
    engine = make(10)
    a = engine.start(runs(3, 7))
    assert engine.cached() == 3
    assert engine.decode(a, [3] * 4) == 3
    assert (len(engine.table(a)), engine.cached()) == (4, 3)
    assert engine.hit([*runs(4), 9]) == 48  # the fourth block holds 11 tokens
    assert engine.decode(a, [3] * 5 + [4] * 14) == 4
    assert (len(engine.table(a)), engine.cached()) == (5, 4)
    assert engine.hit([*runs(4), 9]) == 64
    bench.audited(engine.manager)


def test_S03_a_hit_takes_blocks_out_of_the_order_of_eviction(make: Any, bench: Any) -> None:
    """Two prompts end, the longer first; a third hits the longer one's first two blocks and takes one more."""
    engine = make(10)
    a, b = engine.start(list(range(87))), engine.start(list(range(87, 135)))
    assert (len(engine.table(a)), len(engine.table(b)), engine.free()) == (6, 3, 1)
    long, short = engine.table(a), engine.table(b)
    engine.end(a, b)
    c = engine.start(list(range(35)))
    assert c.hit == 32 and engine.table(c)[:2] == long[:2] and len(engine.table(c)) == 3
    assert engine.free() == 7
    assert engine.table(c)[2] not in [*long[:5], *short]  # a block that is not cached was to be had
    # our order, and that of an engine's queue: least recently used first, each prompt from its end
    assert engine.victims() == [long[4], long[3], long[2], short[2], short[1], short[0]]
    assert engine.hit(list(range(35))) == 32
    bench.audited(engine.manager)


def test_S04_the_last_token_is_always_computed(make: Any, bench: Any) -> None:
    """48 tokens are cached. The same 48 hit two blocks, for the last token is needed; with one more they hit three."""
    engine = make(10)
    engine.end(engine.start(list(range(48))))
    assert engine.hit(list(range(48))) == 32
    assert engine.hit(list(range(49))) == 48
    bench.audited(engine.manager)


def test_S04_a_hit_is_not_its_own_victim(make: Any, bench: Any) -> None:
    """Two blocks are cached, the hit's is the older one: its request takes the other."""
    engine = make(2)
    a, b = engine.start(list(range(16))), None
    old = engine.table(a)
    b = engine.start(list(range(16, 32)))
    young = engine.table(b)
    engine.end(a, b)
    c = engine.start(list(range(32)))
    assert (c.hit, engine.table(c)) == (16, old + young)
    bench.audited(engine.manager)


def test_S04_an_answer_that_was_not_acquired_protects_nothing_and_says_so(make: Any, bench: Any) -> None:
    """Ours besides: a look-up is a hint. Reusing its blocks afterwards is refused, and no other's bytes are read."""
    engine = make(2)
    engine.end(engine.start(list(range(16))))
    answer = engine.match(list(range(32)))
    engine.start(list(range(100, 132)))
    with pytest.raises(Refused) as refused:
        engine.manager.acquire(answer)
    assert answer.now == 16 and refused.value.refusal is Reason.STALE
    bench.audited(engine.manager)


def test_S05_a_refused_allocation_changes_nothing(make: Any, bench: Any) -> None:
    """D hits six blocks, three of which nobody else holds, and needs three more where two are left besides those."""
    engine = make(10)
    a = engine.start(runs(3))
    b = engine.start(runs(3) * 2)
    assert b.hit == 48
    six = engine.table(b)
    assert six[:3] == engine.table(a)
    engine.end(b)
    c = engine.start([7] * 32)
    assert (c.hit, engine.free()) == (0, 5)
    before, rows = engine.words(), int(engine.manager.requests.active.sum())
    prompt = runs(3) * 3
    assert engine.hit(prompt) == 96
    with pytest.raises(Refused) as refused:
        engine.start(prompt)
    assert (refused.value.refusal, refused.value.layer) == (Reason.POOL_FULL, "pool")
    assert engine.words() == before
    assert engine.references(six) == [1, 1, 1, 0, 0, 0] and engine.free() == 5
    assert int(engine.manager.requests.active.sum()) == rows and not engine.manager.receipts
    assert engine.hit(prompt) == 96
    bench.audited(engine.manager)


def test_S06_a_block_that_is_reused_is_forgotten(make: Any, bench: Any) -> None:
    """One block: 16 tokens are cached in it, then 15 others come, which are never whole. The 16 are not found again."""
    engine = make(1)
    engine.end(engine.start(list(range(16))))
    assert engine.hit(list(range(17))) == 16
    b = engine.start(list(range(100, 115)))
    assert engine.cached() == 0
    engine.end(b)
    assert (engine.hit(list(range(17))), engine.hit(list(range(100, 116)))) == (0, 0)
    c = engine.start(list(range(15)))  # the first 15 of the same tokens
    engine.end(c)
    assert engine.hit(list(range(17))) == 0
    bench.audited(engine.manager)


def test_S06_twins_are_merged_and_the_second_outlives_the_first(make: Any, bench: Any) -> None:
    """Two requests computed the same 32 tokens, each before the other's were cached.

    Ours merges: who publishes second changes over to what is cached already, and its own blocks are free. So the end of
    the first takes nothing from the second, nor from a third that hits.
    """
    engine = make(10)
    prompt = list(range(32))
    one, two = engine.start(prompt, publish=False), engine.start(prompt, publish=False)
    assert not set(engine.table(one)) & set(engine.table(two))
    kept, own = engine.table(one), engine.table(two)
    assert engine.manager.requests.publish(one.row, one.keys) == 2
    assert engine.manager.requests.publish(two.row, two.keys) == 2
    assert engine.table(two) == kept
    assert engine.references(kept) == [2, 2] and engine.references(own) == [0, 0]
    assert set(own) <= set(engine.manager.core.pools[KV].free_slots.tolist())
    engine.end(one)
    assert engine.manager.evict(KV, 10) == 0
    assert engine.hit([*prompt, 99]) == 32
    bench.audited(engine.manager)


def test_S08_salts_and_adapters_have_blocks_of_their_own(make: Any, bench: Any) -> None:
    """The same 48 tokens: found with the same salt only; an adapter that is called like the salt is not the salt."""
    engine = make(10)
    engine.start(runs(3, 11), salt=b"one")
    asked = [*runs(3), 9]
    assert engine.hit(asked, salt=b"one") == 48
    for others in ({"salt": b"two"}, {}, {"adapter": "one"}, {"salt": b"one", "adapter": "one"}):
        assert engine.hit(asked, **others) == 0
    bench.audited(engine.manager)


def test_S08_an_adapter_is_its_content_and_not_its_name(make: Any) -> None:
    """Ours takes the name with a version or digest of what was loaded, so two adapters of one name can't meet.

    The fields are framed: moving a letter from one to the next makes other keys. Every block carries it on.
    """
    engine = make(10)
    prompt = runs(3)
    named = [
        {"adapter": "one@5ef1"}, {"adapter": "one@77aa"}, {"salt": b"one@5ef1"}, {"salt": b"o", "adapter": "ne@5ef1"},
        {},
    ]  # fmt: skip
    digests = [engine.manager.keys(prompt, **identity).digests for identity in named]
    for block in range(3):
        assert len({chain[block] for chain in digests}) == len(named)
    assert engine.manager.keys(prompt, **named[0]).digests == digests[0]


def test_S10_a_reset_interrupts_nobody_and_leaves_nothing_to_find(make: Any, bench: Any) -> None:
    """Two requests run, and the cache is reset.

    Other engines refuse that until both have ended. Ours does it at once: from then on nothing of the old epoch is
    found, what runs keeps its blocks and bytes until it ends, and none of it is published into the new epoch.
    """
    engine = make(10)
    a, b = engine.start(runs(3, 7)), engine.start([50 + token for token in runs(3, 7)])
    assert engine.hit(runs(3, 6)) == 48
    lease = engine.manager.acquire(engine.match(runs(3, 6)))
    held, epoch = [*engine.table(a), *engine.table(b)], engine.manager.epoch
    assert engine.manager.reset() == epoch + 1
    assert (engine.hit(runs(3, 6)), engine.cached()) == (0, 0)
    assert engine.references(held) == [2, 2, 2, 1, 1, 1, 1, 1] and engine.free() == 2
    with pytest.raises(Refused) as full:
        engine.start([1000 + at for at in range(48)])
    assert full.value.refusal is Reason.POOL_FULL
    with pytest.raises(Refused) as ended:
        engine.decode(a, [3] * 9)
    assert ended.value.refusal is Reason.EPOCH and engine.hit([*runs(4), 9]) == 0
    assert len(lease.view(KV, "rows", 0)) == 3

    engine.end(a, b)
    assert engine.free() == 7
    engine.manager.release(lease)
    assert engine.free() == engine.manager.core.pools[KV].free == 10
    assert engine.start(runs(3, 6)).hit == 0
    assert engine.hit(runs(3, 6)) == 48
    bench.audited(engine.manager)


def test_S10_a_reset_when_nobody_runs_frees_everything_at_once(make: Any, bench: Any) -> None:
    """One request ended, and its blocks are cached. The reset is seen as one event that names all of them."""
    seen: list[tuple[str, list[int]]] = []
    engine = make(10, on_event=lambda fired: seen.append((fired.event, fired.slots.tolist())))
    a = engine.start(runs(3, 7))
    held = engine.table(a)[:3]
    engine.end(a)
    seen.clear()
    engine.manager.reset()
    assert [(event, sorted(slots)) for event, slots in seen] == [("expire", held), ("evict", held)]
    assert engine.hit(runs(3, 6)) == 0 and engine.manager.core.pools[KV].free == 10
    bench.audited(engine.manager)


def test_S10_removal_is_told_before_reuse(make: Any, bench: Any) -> None:
    """Three blocks hold a prompt of 48 tokens: one event stores it. For 48 others they are first removed, then stored.

    ``on_event`` tells each event once, as it happens; there is no queue that a reader would have to empty.
    """
    seen: list[tuple[str, list[int]]] = []
    engine = make(3, on_event=lambda fired: seen.append((fired.event, sorted(fired.slots.tolist()))))
    a = engine.start(list(range(48)))
    every = engine.table(a)
    assert [event for event in seen if event[0] == "seal"] == [("seal", every)]
    engine.end(a)
    seen.clear()
    engine.start(list(range(100, 148)))
    removed = [at for at, (event, _) in enumerate(seen) if event == "evict"]
    assert sorted(slot for at in removed for slot in seen[at][1]) == every
    stored = [at for at, (event, _) in enumerate(seen) if event == "seal"]
    taken = [at for at, (event, _) in enumerate(seen) if event == "take"]
    assert [seen[at] for at in stored] == [("seal", every)]
    assert max(removed) < min(taken) < stored[0]
    bench.audited(engine.manager)
