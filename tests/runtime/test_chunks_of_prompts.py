"""Prompts whose state is written chunk by chunk: what a row is afterwards depends on its tokens, not on the cuts."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest

from kvfsm.runtime.answers import Reason
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.row_words import RowWords

from .rows import PAGED, all_free, audited, exactly, in_blocks, make, roomy, seen, slots_of, words_of

SHIPPED = ("tiny_deepseek_v4", "tiny_gpt_oss", "tiny_gemma3", "tiny_llama", "tiny_deepseek_v32")
PROFILED = {name: PROFILES[name] for name in SHIPPED} | roomy()
NAMES = tuple(PROFILED)


def in_chunks(manager: Manager, *ends: int) -> int:
    """A row whose chunks end at these tokens."""
    row = manager.requests.admit(ends[0])
    for start, end in pairwise(ends):
        manager.requests.extend(row, end - start)
        audited(manager)
    return row


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stop", [1, 9, 31, 32, 33, 100, 128])
def test_whole_granules_at_a_time_are_the_same_as_all_at_once(name: str, stop: int) -> None:
    manager, twin = make(PROFILED[name]), make(PROFILED[name])
    granule = manager.profile.granule
    row = in_chunks(manager, *range(granule, stop, granule), stop)
    assert row == twin.requests.admit(stop)
    assert seen(manager, row) == seen(twin, row)
    for _ in range(2 * granule):
        manager.requests.step([row])
        twin.requests.step([row])
        assert seen(manager, row) == seen(twin, row)
    assert manager.audit().counts == twin.audit().counts
    manager.requests.finish(row)
    assert all_free(manager)


def batches(chunks: list[int], block: int, granule: int, stride: int) -> int:
    """Chunks that bring an entry of this block, counted by going through all entries."""
    found = set()
    for entry_end in range(block * granule + stride, (block + 1) * granule + 1, stride):
        found |= {next(n for n, end in enumerate(chunks) if end >= entry_end)} if entry_end <= chunks[-1] else set()
    return len(found)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(4))
def test_wherever_chunks_end_the_row_covers_the_same_and_versions_count_them(name: str, seed: int) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    manager, twin = make(PROFILED[name]), make(PROFILED[name])
    granule, requests = manager.profile.granule, manager.requests
    ends = sorted(chance.sample(range(1, 5 * granule), chance.randint(2, 9)))
    row = in_chunks(manager, *ends)
    twin.requests.admit(ends[-1])
    for _ in range(granule + 3):
        assert requests.coverage(row) == twin.requests.coverage(row)
        assert requests.window_blocks([row]).tolist() == twin.requests.window_blocks([row]).tolist()
        mine, others = words_of(manager, row), words_of(twin, row)
        for kind, words in mine.items():
            for block, (word, other) in enumerate(zip(words, others[kind], strict=True)):
                if kind in PAGED and (block + 1) * granule <= ends[-1]:
                    assert word is not None and other is not None
                    assert word == other | {"version": batches(ends, block, granule, requests.stride)}
                elif kind not in PAGED:
                    assert word == other
        requests.step([row])
        twin.requests.step([row])
    audited(manager)
    requests.finish(row)
    assert all_free(manager)


def test_a_chunk_that_forgets_its_entries_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    manager, twin = make(PROFILES["tiny_deepseek_v4"]), make(PROFILES["tiny_deepseek_v4"])
    row = manager.requests.admit(32)
    twin.requests.admit(64)
    monkeypatch.setattr(RowWords, "write", lambda *given: None)
    manager.requests.extend(row, 32)
    monkeypatch.undo()
    assert words_of(manager, row) != words_of(twin, row)


@pytest.mark.parametrize("name", NAMES)
def test_a_row_of_chunks_goes_back_as_one_that_was_admitted_whole(name: str) -> None:
    manager, twin = make(PROFILED[name]), make(PROFILED[name])
    row = in_chunks(manager, 7, 30, 41)
    twin.requests.admit(41)
    spare = 0 if name == "tiny_deepseek_v4" else 2  # rows of its window that no query reads
    for one in (manager, twin):
        for _ in range(3):
            one.requests.step([row])
        one.requests.rollback(row, 44 - spare)
    assert manager.requests.coverage(row) == twin.requests.coverage(row)
    for one in (manager, twin):
        for _ in range(30):
            one.requests.step([row])
    assert manager.requests.coverage(row) == twin.requests.coverage(row)
    audited(manager)


@pytest.mark.parametrize("name", NAMES)
def test_a_chunk_that_does_not_fit_changes_nothing_and_then_fits(name: str) -> None:
    manager = make(PROFILED[name], slots=9)
    granule, requests = manager.profile.granule, manager.requests
    row, other = requests.admit(granule + 3), requests.admit(3 * granule)
    before, counts = exactly(manager, row), manager.audit().counts
    with pytest.raises(Refused) as full:
        requests.extend(row, 5 * granule)
    assert full.value.refusal is Reason.POOL_FULL
    assert exactly(manager, row) == before and manager.audit().counts == counts
    requests.finish(other)
    requests.extend(row, 5 * granule)
    assert requests.tokens[row] == 6 * granule + 3
    with pytest.raises(Refused) as never:
        requests.extend(row, 5 * granule)
    assert never.value.refusal is Reason.CAPACITY
    audited(manager)


def test_a_full_window_goes_on_in_the_slots_that_it_has() -> None:
    manager = make(PROFILES["tiny_gpt_oss"])
    pool, requests = manager.core.pools["swa_window"], manager.requests
    row = requests.admit(64)
    keys = manager.keys(list(range(1000)))
    while pool.free:
        manager.reserve(keys, 0, 1, kinds=("swa_window",))
    requests.extend(row, 64)
    audited(manager)
    before = exactly(manager, row)
    with pytest.raises(Refused):  # what the device still reads can't be written
        requests.extend(row, 8, done=lambda: False)
    assert exactly(manager, row) == before
    audited(manager)


def test_blocks_that_slide_out_wait_for_the_device() -> None:
    manager = make(PROFILES["tiny_gpt_oss"])
    requests, ended = manager.requests, []
    row = requests.admit(64)
    old = set(slots_of(manager, row)["swa_window"])
    requests.extend(row, 9, done=lambda: bool(ended))
    gone = old - set(slots_of(manager, row)["swa_window"])
    assert len(gone) == 2 and not gone & set(manager.core.pools["swa_window"].free_slots.tolist())
    audited(manager)
    ended.append(True)
    requests.finish(row)
    assert all_free(manager)


def test_a_prompt_is_extended_before_it_decodes() -> None:
    manager = make(in_blocks())
    row = manager.requests.admit(20)
    with pytest.raises(ValueError, match="a chunk of 0; extend a prompt by at least 1 token"):
        manager.requests.extend(row, 0)
    with pytest.raises(ValueError, match="holds no request"):
        manager.requests.extend(3, 1)
    manager.requests.step([row])
    with pytest.raises(ValueError, match="21 tokens, 1 of them decoded, and a chunk of 4"):
        manager.requests.extend(row, 4)
    audited(manager)


@pytest.mark.parametrize("name", NAMES)
def test_chunks_over_a_lease_are_found_by_others(name: str) -> None:
    """Reused tokens, then chunks that end anywhere, then one at a boundary; a third request reads all of it."""
    manager = make(PROFILED[name])
    granule, requests = manager.profile.granule, manager.requests
    prompt = np.random.default_rng(5).integers(0, 250, 6 * granule + 1)
    keys = manager.keys(prompt)
    first = requests.admit(2 * granule)
    requests.publish(first, keys)
    requests.finish(first)
    lease = manager.acquire(manager.match(keys, 2 * granule + 1))
    row = requests.admit(2 * granule, lease=lease)
    assert requests.shared_tokens([row])[0] == 2 * granule
    for chunk in (3, granule, 3 * granule - 3):
        requests.extend(row, chunk)
        assert requests.coverage(row).gaps == ()
        audited(manager)
    assert requests.publish(row, keys) == 6
    assert manager.match(keys).now == 6 * granule
    requests.finish(row)
    audited(manager)


def test_a_token_at_a_time_is_a_batch_a_stride() -> None:
    """A chunk that ends no stride brings no entry, so a block's version never outgrows its word."""
    manager = make(PROFILES["tiny_deepseek_v4"])
    row = in_chunks(manager, *range(1, 65))
    assert [word and word["version"] for word in words_of(manager, row)["compressed_kv"]] == [8, 8]
    audited(manager)
