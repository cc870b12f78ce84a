"""A request that is put back and begun again is exactly where it was, whatever became of its slots meanwhile (S18)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kvfsm.runtime.answers import Reason
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.policy import WindowPolicy
from kvfsm.runtime.preemption import Preempted
from kvfsm.runtime.requests import GUARD, RequestTable

from .rows import PAGED, all_free, audited, compressing, compute, contents, exactly, make, roomy, slots_of, words_of

PROFILED = {name: PROFILES[name] for name in ("tiny_deepseek_v4", "tiny_gpt_oss")} | roomy()
NAMES = tuple(PROFILED)


def begin(manager: Manager, tokens: int, decoded: int) -> int:
    """A live request."""
    row = manager.requests.admit(tokens, owner="one")
    for _ in range(decoded):
        manager.requests.step([row])
    compute(manager, row, 0)
    return row


def resume(manager: Manager, keys: Keys, left: Preempted) -> tuple[int, int]:
    """The request at its committed tokens again, granule by granule; returns its row, and the tokens it reused."""
    answer = manager.match(keys, left.tokens + 1)
    lease = manager.acquire(answer, owner=left.owner) if answer.now else None
    granule = manager.profile.granule
    first = answer.now or min(granule, left.tokens)
    row = manager.requests.admit(first, lease=lease, owner=left.owner)
    while manager.requests.tokens[row] < left.tokens:
        manager.requests.extend(row, min(granule, left.tokens - int(manager.requests.tokens[row])))
    if left.tokens > answer.now:
        compute(manager, row, answer.now)
    return row, answer.now


def nothing(manager: Manager) -> None:
    """Nothing happens."""


def evicted(manager: Manager) -> None:
    """Everything is evicted, and its bytes are overwritten."""
    for kind, pool in manager.core.pools.items():
        manager.evict(kind, 99)
        pool.arena.bytes[:] = 255
    assert all_free(manager)


def reset(manager: Manager) -> None:
    """A new epoch begins."""
    manager.reset(scrub=True)


MEANWHILE: dict[str, Callable[[Manager], None]] = {"nothing": nothing, "evicted": evicted, "reset": reset}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("meanwhile", MEANWHILE)
@pytest.mark.parametrize("drafts", [0, 3])
def test_a_request_that_was_put_back_is_exactly_where_it_was(name: str, meanwhile: str, drafts: int) -> None:
    for tokens, decoded in ((5, 0), (20, 9), (60, 4), (64, 0), (33, 31), (90, 7)):
        manager = make(PROFILED[name])
        requests, granule = manager.requests, manager.profile.granule
        keys = manager.keys(np.random.default_rng(9).integers(0, 250, tokens + decoded + 1))
        row = begin(manager, tokens, decoded)
        coverage, read = requests.coverage(row), contents(manager, row)
        if drafts:
            requests.propose([row], min(drafts, int(requests.draft_room([row])[0])))
        proposed = int(requests.drafts[row])
        left = requests.preempt(row, keys)
        whole = (tokens + decoded) // granule
        assert left == Preempted("one", tokens + decoded, whole, proposed, None)
        assert not requests.active.any() and not requests.slots(manager.profile.kinds[0]).size
        audited(manager)
        MEANWHILE[meanwhile](manager)
        row, reused = resume(manager, keys, left)
        if meanwhile != "nothing":
            assert reused == 0
        elif left.tokens % granule == 0 or set(manager.profile.kinds) <= set(PAGED):
            assert reused == whole * granule
        assert requests.coverage(row) == coverage and contents(manager, row) == read
        assert requests.owners[row] == "one" and not requests.drafts.any()
        said = words_of(manager, row)
        if set(PAGED) <= set(said):
            pairs = zip(said["compressed_kv"], said["indexer_state"], strict=True)
            assert all(kv and key and kv["version"] == key["version"] for kv, key in pairs if requests.stride < granule)
        audited(manager)
        for _ in range(granule):
            requests.step([row])
        assert requests.coverage(row).gaps == ()
        requests.finish(row)
        for kind in manager.profile.kinds:
            manager.evict(kind, 99)
        assert all_free(manager)


def test_a_row_that_is_put_back_with_its_drafts_counted_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = make(PROFILED["compressing"])
    keys = manager.keys(list(range(100)))
    row = begin(manager, 30, 0)
    coverage = manager.requests.coverage(row)
    propose = RequestTable.propose

    def counted(self: RequestTable, rows: list[int], count: int) -> None:
        propose(self, rows, count)
        self.accept(rows, count)

    monkeypatch.setattr(RequestTable, "propose", counted)
    manager.requests.propose([row], 3)
    left = manager.requests.preempt(row, keys)
    row, _ = resume(manager, keys, left)
    assert manager.requests.coverage(row) != coverage


def test_what_was_begun_before_a_reset_is_not_published_when_it_is_put_back() -> None:
    manager = make(compressing())
    keys = manager.keys(list(range(100)))
    row = begin(manager, 64, 0)
    manager.reset()
    left = manager.requests.preempt(row, keys)
    assert (left.tokens, left.published, left.unpublished) == (64, 0, Reason.EPOCH)
    assert manager.match(keys).now == 0 and all_free(manager)
    audited(manager)


def test_what_rests_on_a_replay_is_put_back_as_that() -> None:
    """Its blocks are found by others, and answers say that they are not exact."""
    manager = make(PROFILES["tiny_deepseek_v4"], window=WindowPolicy.none())
    keys = manager.keys(list(range(200)))
    first = begin(manager, 64, 0)
    manager.requests.preempt(first, keys)
    lease = manager.acquire(manager.match(keys, 65))
    assert not lease.exact and lease.length == 64
    row = manager.requests.admit(128, lease=lease)
    left = manager.requests.preempt(row, keys)
    assert left.published == 4
    answer = manager.match(keys, 129)
    assert answer.now == 128 and not answer.exact
    pool = manager.core.pools["compressed_kv"]
    assert pool.lossy == 2
    audited(manager)


def test_a_request_whose_chain_is_gone_is_put_back_without_being_published() -> None:
    manager = make(compressing())
    keys = manager.keys(list(range(200)))
    first = begin(manager, 64, 0)
    manager.requests.preempt(first, keys)
    row = manager.requests.admit(96, lease=manager.acquire(manager.match(keys, 65)))
    manager.expire(keys)
    left = manager.requests.preempt(row, keys)
    assert (left.tokens, left.published, left.unpublished) == (96, 2, Reason.GAP)
    audited(manager)
    evicted(manager)


def test_slots_of_a_request_that_is_put_back_wait_for_the_device() -> None:
    manager = make(PROFILES["tiny_gpt_oss"])
    ended: list[bool] = []
    keys = manager.keys(list(range(100)))
    row = begin(manager, 30, 3)
    mine = {kind: {slot for slot in slots if slot != GUARD} for kind, slots in slots_of(manager, row).items()}
    manager.requests.propose([row], 2)
    manager.requests.preempt(row, keys, done=lambda: bool(ended))
    for kind, slots in mine.items():
        pool = manager.core.pools[kind]
        manager.evict(kind, 99)
        assert not slots & set(pool.free_slots.tolist())
    audited(manager)
    ended.append(True)
    evicted(manager)
    audited(manager)


def test_a_request_is_put_back_with_keys_of_its_own() -> None:
    manager = make(compressing())
    row = begin(manager, 70, 0)
    before = exactly(manager, row)
    with pytest.raises(Refused) as foreign:
        manager.requests.preempt(row, make(PROFILES["tiny_gpt_oss"]).keys(list(range(100))))
    assert foreign.value.refusal is Reason.IDENTITY and exactly(manager, row) == before
    with pytest.raises(ValueError, match="holds no request"):
        manager.requests.preempt(9, manager.keys(list(range(100))))
