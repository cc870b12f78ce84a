"""Live requests: blocks, tail and window follow the tokens, and nothing is left when they end."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.answers import Reason
from kvfsm.runtime.coverage import gaps
from kvfsm.runtime.errors import Broken, Refused
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.requests import GUARD

NAMES = ("tiny_deepseek_v4", "tiny_deepseek_v32", "tiny_gpt_oss", "tiny_gemma3", "llama")


def make(name: str, slots: int = 64, rows: int = 16) -> Manager:
    profile = PROFILES[name]
    return Manager(profile, dict.fromkeys(profile.kinds, slots), NumpyBackend(), rows=rows)


def small() -> list[str]:
    return [name for name in NAMES if name in PROFILES and name.startswith("tiny")]


def audited(manager: Manager) -> None:
    assert manager.audit().violations == ()


def all_free(manager: Manager) -> bool:
    return all(pool.free == pool.hot for pool in manager.core.pools.values())


@pytest.mark.parametrize("name", small())
def test_every_token_is_covered_at_every_step(name: str) -> None:
    manager = make(name)
    row = manager.requests.admit(5)
    for n in range(6, 150):
        manager.requests.step([row])
        covered = manager.requests.coverage(row)
        assert (covered.tokens, covered.gaps) == (n, ())
        for ratio, count in covered.entries.items():
            assert count == n // ratio
        if n % 25 == 0:
            audited(manager)
    manager.requests.finish(row)
    audited(manager)
    assert all_free(manager)


def test_tails_are_found_by_row_in_any_order() -> None:
    manager = make("tiny_deepseek_v4")
    rows = [manager.requests.admit(5), manager.requests.admit(6)]
    tails = manager.requests.tail_table(rows).tolist()
    assert sorted(tails) == sorted(manager.requests.slots("uncompressed_tail").tolist())
    assert manager.requests.tail_table(rows[::-1]).tolist() == tails[::-1]
    plain = make("tiny_gpt_oss")
    assert plain.requests.tail_table([plain.requests.admit(5)]).tolist() == [GUARD]


def test_a_missing_emission_is_noticed() -> None:
    manager = make("tiny_deepseek_v4")
    row = manager.requests.admit(32)
    manager.requests._words.advance = lambda rows: None  # type: ignore[method-assign]  # decode forgets to compress
    for _ in range(20):
        manager.requests.step([row])
    with pytest.raises(Broken, match=r"S13 .*FULL"):  # no room in the tail's word for rows that should be entries
        manager.requests.coverage(row)
    assert gaps(10, (range(0, 4), range(6, 9))) == (range(4, 6), range(9, 10))


@pytest.mark.parametrize("name", small())
def test_a_batch_decodes_as_its_rows_would(name: str) -> None:
    together, apart = make(name, slots=200), make(name, slots=200)
    lengths = [1, 7, 15, 16, 31, 32, 40]
    for manager in (together, apart):
        for length in lengths:
            manager.requests.admit(length)
    rows = np.arange(len(lengths))
    for _ in range(50):
        together.requests.step(rows)
        for row in rows:
            apart.requests.step([row])
    for row in rows:
        assert together.requests.coverage(row) == apart.requests.coverage(row)
    assert together.audit().counts == apart.audit().counts
    audited(together)


def test_a_step_that_does_not_fit_moves_no_row() -> None:
    manager = make("tiny_deepseek_v4", slots=3)
    rows = [manager.requests.admit(32), manager.requests.admit(30)]
    manager.requests.admit(5)
    with pytest.raises(Refused) as full:
        manager.requests.step(rows)
    assert full.value.refusal is Reason.POOL_FULL
    assert manager.requests.tokens[rows].tolist() == [32, 30]
    audited(manager)


@pytest.mark.parametrize("length", [5, 31, 32])  # within a stride, before its end, at a block's end
def test_a_row_named_twice_is_refused_and_no_row_moves(length: int) -> None:
    manager = make("tiny_deepseek_v4")
    rows = [manager.requests.admit(length), manager.requests.admit(length)]
    with pytest.raises(ValueError, match=r"rows \[1\] are named more than once"):
        manager.requests.step([rows[1], rows[0], rows[1]])
    assert manager.requests.tokens[rows].tolist() == [length, length]
    manager.requests.step(rows)
    assert manager.requests.coverage(rows[0]) == manager.requests.coverage(rows[1])
    audited(manager)


@pytest.mark.parametrize("name", small())
def test_a_decoded_turn_is_found_by_the_next(name: str) -> None:
    manager = make(name)
    granule = manager.profile.granule
    prompt = np.random.default_rng(3).integers(0, 200, 6 * granule + 1)
    row = manager.requests.admit(granule + 3)
    while manager.requests.tokens[row] < 5 * granule:
        manager.requests.step([row])
    keys = manager.keys(prompt)
    assert manager.requests.publish(row, keys) == 5
    audited(manager)
    answer = manager.match(keys, at_most=5 * granule)
    assert answer.length == 5 * granule
    lease = manager.acquire(answer)
    other = manager.requests.admit(6 * granule, lease=lease)
    audited(manager)
    with pytest.raises(Refused, match="released already"):
        manager.release(lease)
    for _ in range(granule + 2):
        manager.requests.step([row, other])
    audited(manager)
    assert manager.evict("compressed_kv", 99) == 0
    manager.requests.finish(row)
    manager.requests.finish(other)
    audited(manager)
    for kind in manager.profile.kinds:
        manager.evict(kind, 99)
    assert all_free(manager)
    audited(manager)


def test_two_rows_that_publish_the_same_share_one_copy() -> None:
    manager = make("tiny_deepseek_v4")
    keys = manager.keys(np.arange(96))
    rows = [manager.requests.admit(96), manager.requests.admit(40)]
    for _ in range(56):
        manager.requests.step(rows[1:])
    for row in rows:
        assert manager.requests.publish(row, keys) == 3
        audited(manager)
    tables = manager.requests.table("compressed_kv", rows)
    assert (tables[0, :3] == tables[1, :3]).all()
    assert manager.match(keys, at_most=64).length == 0  # no boundary but the last was kept
    assert manager.match(manager.keys(np.arange(97))).length == 96
    for row in rows:
        manager.requests.finish(row)
    audited(manager)


def test_a_rollback_that_would_need_rows_that_are_gone_is_refused() -> None:
    manager = make("tiny_deepseek_v4")
    row, twin = manager.requests.admit(5), manager.requests.admit(5)
    for _ in range(3):
        manager.requests.step([row, twin])
    for _ in range(5):
        manager.requests.step([row])
    manager.requests.rollback(row, 8)  # the ring of 19 rows still holds all of [0, 13)
    assert manager.requests.coverage(row) == manager.requests.coverage(twin)
    for _ in range(30):
        manager.requests.step([row])
    with pytest.raises(Refused, match="window rows before"):
        manager.requests.rollback(row, 33)
    assert manager.requests.tokens[row] == 38
    audited(manager)


@pytest.mark.parametrize("name", ["tiny_gpt_oss", "tiny_gemma3", "tiny_deepseek_v32"])
def test_a_rolled_back_row_equals_one_that_never_went_ahead(name: str) -> None:
    manager = make(name)
    row, twin = manager.requests.admit(20), manager.requests.admit(20)
    for _ in range(3):
        manager.requests.step([row, twin])
    for _ in range(4):
        manager.requests.step([row])
    manager.requests.rollback(row, 23)
    assert manager.requests.coverage(row) == manager.requests.coverage(twin)
    audited(manager)
    for _ in range(40):
        manager.requests.step([row, twin])
    assert manager.requests.coverage(row) == manager.requests.coverage(twin)
    audited(manager)


def test_compressed_rows_are_not_rolled_back() -> None:
    manager = make("tiny_deepseek_v4")
    row = manager.requests.admit(33)
    for _ in range(20):
        manager.requests.step([row])
    with pytest.raises(Refused, match="were compressed") as gone:
        manager.requests.rollback(row, 40)
    assert gone.value.refusal is Reason.GAP


@pytest.mark.parametrize("seed", range(4))
def test_random_lives_leave_nothing_behind(seed: int) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    name = small()[seed % len(small())]
    manager = make(name, slots=24, rows=6)
    granule, live = manager.profile.granule, {}
    for n in range(400):
        roll = chance.random()
        try:
            if roll < 0.15:
                prompt = np.random.default_rng(chance.randrange(3)).integers(0, 99, 12 * granule)
                keys = manager.keys(prompt)
                length = chance.randint(1, 4 * granule)
                answer = manager.match(keys, length)
                lease = manager.acquire(answer) if answer.now else None
                try:
                    live[manager.requests.admit(length, lease=lease)] = keys
                except Refused:
                    if lease is not None:
                        manager.release(lease)
            elif roll < 0.7 and live:
                rows = chance.sample(sorted(live), chance.randint(1, len(live)))
                rows = [row for row in rows if manager.requests.tokens[row] < 11 * granule]
                for _ in range(chance.randint(1, granule)):
                    manager.requests.step(np.array(rows, np.intp))
            elif roll < 0.8 and live:
                row = chance.choice(sorted(live))
                manager.requests.rollback(row, max(1, int(manager.requests.tokens[row]) - chance.randint(0, 5)))
            elif roll < 0.9 and live:
                row = chance.choice(sorted(live))
                manager.requests.publish(row, live[row])
            elif live:
                row = chance.choice(sorted(live))
                manager.requests.finish(row)
                del live[row]
        except Refused:
            pass
        if n % 10 == 0:
            audited(manager)
    for row in live:
        manager.requests.finish(row)
    for kind in manager.profile.kinds:
        manager.evict(kind, 99)
    audited(manager)
    assert all_free(manager)


@pytest.mark.parametrize("name", small())
def test_what_a_step_in_flight_may_use_is_nobodys_until_it_ends(name: str) -> None:
    manager = make(name, slots=32)
    granule, requests = manager.profile.granule, manager.requests
    tokens = list(range(4 * granule))
    keys = manager.keys(tokens)
    ended: list[bool] = []

    def done() -> bool:
        return bool(ended)

    used = {kind: pool.hot - pool.free for kind, pool in manager.core.pools.items()}
    assert not any(used.values())
    first, twin = requests.admit(granule), requests.admit(granule)
    held: dict[str, set[int]] = {kind: set() for kind in manager.core.pools}
    while requests.tokens[twin] < 3 * granule:  # blocks of windows slide out
        for kind in manager.core.pools:
            held[kind] |= set(requests.slots(kind).tolist())
        requests.step([first, twin], done=done)
        audited(manager)
    assert requests.publish(first, keys, done=done) == 3
    for kind in manager.core.pools:
        held[kind] |= set(requests.slots(kind).tolist())
    requests.publish(twin, keys, done=done)  # changes over to the blocks of the first
    requests.finish(twin, done=done)
    fill = manager.reserve(keys, 3, 4)
    for kind, slots in fill.slots.items():
        held[kind] |= set(slots.tolist())
    manager.abandon(fill, done=done)
    requests.finish(first, done=done)
    audited(manager)
    for kind, pool in manager.core.pools.items():
        free = set(pool.free_slots.tolist())
        assert held[kind] and not held[kind] & free, f"{kind}: {held[kind] & free} could be given to others"
        assert not set(pool.eligible(np.array(sorted(held[kind]), np.intp)).tolist()) & held[kind]
    ended.append(True)
    for kind in manager.core.pools:
        manager.evict(kind, 99)
    audited(manager)
    assert all_free(manager) and not manager.given_up and not manager.parked


def test_rejected_blocks_wait_for_the_step_that_wrote_them() -> None:
    manager = make("tiny_gpt_oss")
    granule, ended = manager.profile.granule, []
    row = manager.requests.admit(granule)
    manager.requests.step([row])
    kept = {kind: pool.free for kind, pool in manager.core.pools.items()}
    manager.requests.rollback(row, granule, done=lambda: bool(ended))
    assert manager.given_up and {kind: pool.free for kind, pool in manager.core.pools.items()} == kept
    audited(manager)
    manager.requests.step([row], done=lambda: bool(ended))  # takes other slots
    audited(manager)
    ended.append(True)
    manager.requests.finish(row)
    audited(manager)
    assert all_free(manager)


def test_a_device_query_that_raises_changes_nothing() -> None:
    manager = make("tiny_gpt_oss")
    granule = manager.profile.granule
    row, other = manager.requests.admit(granule), manager.requests.admit(granule)
    answers: list[bool] = []

    def done() -> bool:
        return answers[0]  # raises while there is no answer

    with pytest.raises(IndexError):
        manager.requests.finish(other, done=done)
    assert manager.requests.active[other] and manager.audit().ok
    answers.append(False)
    manager.requests.finish(other, done=done)
    del answers[0]
    before = {kind: pool.table.words.tolist() for kind, pool in manager.core.pools.items()}
    for call in (
        lambda: manager.requests.admit(granule),
        lambda: manager.requests.step([row]),
        lambda: manager.requests.finish(row),
    ):
        with pytest.raises(IndexError):
            call()
        assert {kind: pool.table.words.tolist() for kind, pool in manager.core.pools.items()} == before
        assert manager.requests.tokens[row] == granule and manager.audit().ok
    answers.append(True)
    manager.requests.finish(row)
    assert all_free(manager) and manager.audit().ok


def test_a_full_window_turns_in_the_slots_that_it_has() -> None:
    manager = make("tiny_gpt_oss", slots=64)
    width, block = manager.requests.window_width, manager.profile.window_block
    assert block is not None
    row = manager.requests.admit(width * block)
    pool = manager.core.pools["swa_window"]
    keys = manager.keys(list(range(64 * manager.profile.granule)))
    while pool.free:
        manager.reserve(keys, 0, 1, kinds=("swa_window",))
    for _ in range(3 * width * block):
        manager.requests.step([row])
    held = set(manager.requests.slots("swa_window").tolist())
    assert len(held) == width and pool.free == 0
    audited(manager)
    before = pool.table.words.tolist()
    with pytest.raises(Refused) as refused:  # what the device still reads can't be written
        manager.requests.step([row], done=lambda: False)
    assert refused.value.refusal is Reason.POOL_FULL and pool.table.words.tolist() == before
    audited(manager)
    manager.requests.step([row])
    audited(manager)
