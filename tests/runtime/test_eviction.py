"""Victims go in the spec's order: of all ends of chains that nobody holds, always the least recently used one."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.answers import Reason
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.pool import Pool, Slots

KV = "compressed_kv"
SLOTS = 48
FAN = 3  # prompts that share a beginning


def make() -> Manager:
    return Manager(PROFILES["llama"], {KV: SLOTS}, NumpyBackend())


def chain(manager: Manager, family: int, branch: int, shared: int, granules: int) -> Keys:
    """A prompt of ``granules`` granules, the first ``shared`` of which are those of its family."""
    granule = manager.profile.granule
    tokens = [family * 1000 + at for at in range(shared * granule)]
    tokens += [500_000 + (family * FAN + branch) * 1000 + at for at in range((granules - shared) * granule)]
    return manager.keys(tokens)


def fill_and_use(manager: Manager, chance: random.Random) -> list[Keys]:
    """Chains that share beginnings, some of them used again, most of them up to a point inside a segment."""
    chains, room = [], SLOTS
    for family in range(4):
        shared = chance.randint(1, 3)
        for branch in range(FAN):
            keys = chain(manager, family, branch, shared, shared + chance.randint(1, 4))
            room -= len(keys)
            if room < 0:
                break
            manager.publish(manager.reserve(keys, 0, len(keys)))
            chains.append(keys)
    for _ in range(chance.randint(0, 8)):
        keys = chance.choice(chains)
        granule = manager.profile.granule
        answer = manager.match(keys, len(keys) * granule + 1, at_most=chance.randint(1, len(keys)) * granule)
        if answer.now:
            manager.release(manager.acquire(answer))
    return chains


def in_order(manager: Manager, chains: list[Keys]) -> list[int]:
    """What must go, by what the index says and the stamps alone."""
    core = manager.core
    table: dict[bytes, tuple[int, bytes | None]] = {}
    for keys in chains:
        spot = core.index.locate(keys.digests, len(keys))
        slots = core.index.slots(0, spot, 0, core.index.live(0, spot)).tolist()
        before = None
        for digest, slot in zip(keys.digests, slots, strict=False):
            table[digest] = (slot, before)
            before = digest
    used, gone = core.pools[KV].meta["last_use"], []
    while table:
        ends = set(table) - {before for _, before in table.values() if before is not None}
        first = min(ends, key=lambda digest: int(used[table[digest][0]]))
        gone.append(table.pop(first)[0])
    return gone


@pytest.mark.parametrize("step", [1, 2, 3, 7, SLOTS])
def test_victims_are_the_least_recently_used_ends(step: int) -> None:
    for seed in range(20):
        manager = make()
        chains = fill_and_use(manager, random.Random(seed))
        expected = in_order(manager, chains)
        used = manager.core.pools[KV].meta["last_use"].copy()
        pool, gone = manager.core.pools[KV], []
        while True:
            before = set(pool.free_slots.tolist())
            if not manager.evict(KV, step):
                break
            gone.append(set(pool.free_slots.tolist()) - before)
        cuts = np.cumsum([0, *map(len, gone)]).tolist()
        for (low, high), went in zip(pairwise(cuts), gone, strict=True):
            # equal stamps may go in either order: what went was used no later than what should have gone
            assert sorted(used[list(went)]) == sorted(used[expected[low:high]]), f"seed {seed}, from {low}"
        assert cuts[-1] == len(expected)
        assert manager.audit().ok


def test_what_a_later_request_used_stays_when_many_go_at_once() -> None:
    manager = make()
    granule = manager.profile.granule
    old, other = chain(manager, 0, 0, 0, 5), chain(manager, 1, 0, 0, 3)
    for keys in (old, other):
        manager.publish(manager.reserve(keys, 0, len(keys)))
    manager.release(manager.acquire(manager.match(old, 2 * granule + 1)))  # the first two granules, used last of all
    assert manager.evict(KV, 6) == 6
    assert manager.match(old).now == 2 * granule
    assert manager.match(other).now == 0


@pytest.mark.parametrize("name", ["tiny_deepseek_v4", "tiny_deepseek_v32", "tiny_gpt_oss"])
def test_a_refusal_evicts_nothing_of_any_kind(name: str) -> None:
    profile = PROFILES[name]
    for full in profile.kinds:
        manager = Manager(profile, dict.fromkeys(profile.kinds, 6), NumpyBackend())
        granule = profile.granule
        cached = manager.keys(list(range(6 * granule + 1)))
        manager.publish(manager.reserve(cached, 0, 3))
        blocker = manager.keys(list(range(900, 900 + 6 * granule)))
        while manager.core.pools[full].free:  # this kind's free slots are all being filled
            manager.reserve(blocker, 0, 1, kinds=(full,))
        if not manager.evict(full, 6):  # the slots that are cached go, and are being filled too
            continue
        while manager.core.pools[full].free:
            manager.reserve(blocker, 0, 1, kinds=(full,))
        before = {kind: pool.table.words.tolist() for kind, pool in manager.core.pools.items()}
        with pytest.raises(Refused) as refused:
            manager.reserve(manager.keys(list(range(500, 500 + 6 * granule))), 0, 6)
        assert refused.value.refusal is Reason.POOL_FULL and full in refused.value.detail
        assert {kind: pool.table.words.tolist() for kind, pool in manager.core.pools.items()} == before
        assert manager.audit().ok


def test_what_stands_before_a_held_slot_does_not_count_as_room() -> None:
    """A transfer reads the end of a chain, which protects all of it, though the beginning is nobody's."""
    manager = Manager(PROFILES["llama"], {KV: 6}, NumpyBackend())
    granule = manager.profile.granule
    keys, other = chain(manager, 0, 0, 0, 4), chain(manager, 1, 0, 0, 2)
    for one in (keys, other):
        manager.publish(manager.reserve(one, 0, len(one)))
    pool, spot = manager.core.pools[KV], manager.core.index.locate(keys.digests, 4)
    end = manager.core.index.slots(0, spot, 3, 4).astype(np.intp)
    pool.must("hold", end, "publish", expected=pool.generations(end))
    with pytest.raises(Refused) as refused:
        manager.reserve(chain(manager, 2, 0, 0, 3), 0, 3)
    assert "0 free, 2 evictable, of 6" in refused.value.detail
    assert [manager.match(one, 9 * granule).now for one in (keys, other)] == [4 * granule, 2 * granule]
    pool.must("unhold", end, "publish", expected=pool.generations(end))
    manager.core.offer(spot.segment, spot.at)
    assert len(manager.reserve(chain(manager, 2, 0, 0, 3), 0, 3).slots[KV]) == 3
    assert manager.audit().ok


def wear(pool: Pool, slots: Slots, left: int) -> None:
    """Free slots can be taken so often still."""
    generation = pool.table.LAYOUT.field("generation")
    assert pool.in_state(slots, "free").all()
    pool.table.words[slots] = generation.high - left << generation.shift


@pytest.mark.plants_words
@pytest.mark.parametrize("kind", PROFILES["tiny_deepseek_v4"].kinds)
def test_what_is_never_taken_again_is_not_evicted_for_room(kind: str) -> None:
    """Three of four slots are at their last generation: what was published in them makes way for nobody."""
    profile = PROFILES["tiny_deepseek_v4"]
    manager = Manager(profile, dict.fromkeys(profile.kinds, 4), NumpyBackend())
    pool = manager.core.pools[kind]
    wear(pool, np.arange(3), left=1)
    cached = manager.keys([1] * 3 * profile.granule + [0])
    for granule in range(3):
        manager.publish(manager.reserve(cached, granule, granule + 1))
    assert manager.match(cached).now == 3 * profile.granule

    def refused() -> str:
        with pytest.raises(Refused) as error:
            manager.core.make_room({kind: 2})
        return error.value.refusal.name

    assert refused() == "POOL_FULL" and manager.match(cached).now == 3 * profile.granule
    assert manager.evict(kind, 4) == 3 and pool.free == 1
    assert refused() == "CAPACITY", "they never come back"
    assert manager.audit().ok


@pytest.mark.plants_words
def test_packed_copies_that_are_never_taken_again_are_no_room() -> None:
    profile = PROFILES["tiny_deepseek_v4"]
    manager = Manager(profile, dict.fromkeys(profile.kinds, 4), NumpyBackend(), cold=2)
    wear(manager.core.pools[KV], np.arange(4, 6), left=1)
    keys = manager.keys([1] * 2 * profile.granule + [0])
    for _ in range(2):
        manager.publish(manager.reserve(keys, 0, 2))
        if manager.core.pools[KV].free_cold:
            assert manager.pack(keys) == 2 and manager.expand(keys).now == 2 * profile.granule
    with pytest.raises(Refused) as error:
        manager.pack(keys)
    assert error.value.refusal is Reason.CAPACITY and manager.audit().ok
