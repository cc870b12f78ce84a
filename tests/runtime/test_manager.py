"""The life of a prefix in the manager: reserve, publish, match, acquire, read, release, evict."""

from __future__ import annotations

import numpy as np
import pytest

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.answers import AnswerKind, Reason
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.fill import Fill
from kvfsm.runtime.generated import KINDS
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.lease import Lease
from kvfsm.runtime.manager import Manager

PROFILE = PROFILES["tiny_deepseek_v4"]
A = PROFILE.granule


def make(slots: int = 32, **options: object) -> Manager:
    return Manager(PROFILE, dict.fromkeys(PROFILE.kinds, slots), NumpyBackend(), **options)  # type: ignore[arg-type]


def tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 256, count).tolist()


def write(fill: Fill, tag: int) -> None:
    """Bytes that name the prefix, the kind and the place."""
    for kind in fill.kinds:
        for part in PROFILE.layouts[kind].parts:
            view = fill.view(kind, part.name, part.layer)
            for n, place in enumerate(fill.places[kind].tolist()):
                view[n] = (tag * 31 + place * 7 + part.layer) % 251


def put(manager: Manager, keys: Keys, start: int, stop: int, tag: int = 1) -> None:
    for granule in range(start, stop):
        fill = manager.reserve(keys, granule, granule + 1)
        write(fill, tag)
        manager.publish(fill)


def check_bytes(lease: Lease, tag: int) -> None:
    for kind in lease.slots:
        boundary = lease.length // A
        places = range(boundary) if kind in ("compressed_kv", "indexer_state") else [boundary]
        for part in PROFILE.layouts[kind].parts:
            view = lease.view(kind, part.name, part.layer)
            for n, place in enumerate(places):
                assert (view[n] == (tag * 31 + place * 7 + part.layer) % 251).all()


def audited(manager: Manager) -> None:
    assert manager.audit().violations == ()


def test_a_published_prefix_is_read_back() -> None:
    manager = make()
    prompt = tokens(4 * A + 5)
    keys = manager.keys(prompt)
    assert manager.match(keys).kind is AnswerKind.MISS
    put(manager, keys, 0, 4)
    answer = manager.match(keys, len(prompt))
    assert (answer.kind, answer.length, answer.exact, answer.replay) == (AnswerKind.HIT, 4 * A, True, None)
    assert {kind: one.verdict for kind, one in answer.objects.items()} == {
        "compressed_kv": "HIT", "uncompressed_tail": "HIT", "swa_window": "HIT", "indexer_state": "HIT",
        "ondisk_prefix": "ABSENT",
    }  # fmt: skip
    with manager.acquire(answer) as lease:
        assert lease.length == 4 * A
        check_bytes(lease, 1)
        audited(manager)
    audited(manager)


def test_the_last_token_is_always_computed() -> None:
    manager = make()
    keys = manager.keys(tokens(4 * A))
    put(manager, keys, 0, 4)
    assert manager.match(keys).length == 3 * A
    assert manager.match(keys, 4 * A + 1).length == 4 * A


def test_nothing_is_found_before_publication_nor_after_abandoning() -> None:
    manager = make()
    keys = manager.keys(tokens(2 * A))
    fill = manager.reserve(keys, 0, 1)
    assert manager.match(keys).kind is AnswerKind.MISS
    manager.abandon(fill)
    assert manager.match(keys).kind is AnswerKind.MISS
    with pytest.raises(Refused, match="published or abandoned already"):
        manager.publish(fill)
    audited(manager)


def test_what_was_evicted_and_republished_is_stale() -> None:
    manager = make()
    keys = manager.keys(tokens(3 * A))
    put(manager, keys, 0, 2)
    answer = manager.match(keys)
    assert manager.evict("compressed_kv", 1) == 1
    with pytest.raises(Refused) as gone:
        manager.acquire(answer)
    assert gone.value.refusal is Reason.STALE
    put(manager, keys, 1, 2)
    with pytest.raises(Refused) as replaced:
        manager.acquire(answer)
    assert replaced.value.refusal is Reason.STALE
    audited(manager)
    manager.release(manager.acquire(manager.match(keys)))
    audited(manager)


def test_a_lease_protects_its_slots_until_it_is_released() -> None:
    manager = make()
    keys = manager.keys(tokens(3 * A))
    put(manager, keys, 0, 2)
    lease = manager.acquire(manager.match(keys))
    assert [manager.evict(kind, 9) for kind in ("compressed_kv", "indexer_state")] == [0, 0]
    assert manager.evict("uncompressed_tail", 9) == manager.evict("swa_window", 9) == 1  # the boundary nobody reads
    check_bytes(lease, 1)
    manager.release(lease)
    assert [manager.evict(kind, 9) for kind in PROFILE.kinds] == [2, 1, 1, 2]
    audited(manager)


def test_a_second_release_is_refused() -> None:
    manager, other = make(), make()
    keys = manager.keys(tokens(2 * A))
    put(manager, keys, 0, 1)
    put(other, keys, 0, 1)
    lease = manager.acquire(manager.match(keys), owner="a")
    with pytest.raises(Refused, match="another manager"):
        other.release(lease)
    with pytest.raises(Refused, match="belongs to 'a', not to 'b'"):
        manager.release(lease, owner="b")
    manager.release(lease, owner="a")
    with pytest.raises(Refused, match="released already") as twice:
        manager.release(lease)
    assert twice.value.refusal is Reason.LEASE
    audited(manager)


def test_duplicates_are_given_back() -> None:
    manager = make()
    keys = manager.keys(tokens(3 * A))
    first, second = manager.reserve(keys, 0, 2), manager.reserve(keys, 0, 2)
    write(first, 1)
    write(second, 1)
    manager.publish(first)
    before = manager.audit().counts
    manager.publish(second)
    after = manager.audit().counts
    assert before["compressed_kv"]["resident"] == after["compressed_kv"]["resident"] == 2
    assert after["compressed_kv"]["filling"] == 0
    audited(manager)


def test_a_full_pool_refuses_whole() -> None:
    manager = make(slots=4)
    keys = manager.keys(tokens(12 * A))
    fill = manager.reserve(keys, 0, 3)
    with pytest.raises(Refused) as full:
        manager.reserve(keys, 3, 5)
    assert full.value.refusal is Reason.POOL_FULL
    with pytest.raises(Refused) as too_big:
        manager.reserve(keys, 3, 9)
    assert too_big.value.refusal is Reason.CAPACITY
    audited(manager)
    manager.abandon(fill)
    audited(manager)


def test_kinds_of_ones_own_are_joined_by_the_shipped_ones() -> None:
    class Own(KINDS["compressed_kv"]):  # type: ignore[misc]
        """A class of another package."""

    manager = make(kinds={"compressed_kv": Own})
    assert isinstance(manager.core.pools["compressed_kv"].table, Own)
    assert type(manager.core.pools["swa_window"].table) is KINDS["swa_window"]
    with pytest.raises(ValueError, match="kinds= names mamba; there are: "):
        make(kinds={"mamba": Own})


def test_a_gap_before_a_fill_is_refused() -> None:
    manager = make()
    keys = manager.keys(tokens(4 * A))
    fill = manager.reserve(keys, 1, 2)
    with pytest.raises(Refused) as gap:
        manager.publish(fill)
    assert gap.value.refusal is Reason.GAP
    manager.abandon(fill)
    audited(manager)


def test_every_change_of_a_word_is_an_event() -> None:
    """Words differ only where an event was reported, and no event was refused on the way."""
    record: list[tuple[str, str, list[int], list[int]]] = []
    manager = make(on_event=lambda fired: record.append(
        (fired.machine, fired.event, fired.slots.tolist(), fired.codes.tolist())))  # fmt: skip
    before = {kind: pool.table.words.copy() for kind, pool in manager.core.pools.items()}
    keys = manager.keys(tokens(4 * A))
    put(manager, keys, 0, 3)
    with manager.acquire(manager.match(keys)):
        manager.evict("swa_window", 1)
    touched = {kind: {slot for machine, _, slots, _ in record if machine == kind for slot in slots} for kind in before}
    for kind, words in before.items():
        changed = set(np.flatnonzero(manager.core.pools[kind].table.words != words).tolist())
        assert changed <= touched[kind]
    assert {event for _, event, _, _ in record} >= {"take", "emit", "index", "seal", "pin", "unpin", "evict"}
    assert not any(any(codes) for _, _, _, codes in record)
