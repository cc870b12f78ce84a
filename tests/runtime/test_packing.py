"""The cold form of compressed KV: lossless unless asked otherwise, and never readable before it is expanded."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.answers import AnswerKind
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.fill import Fill
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.layout import Layout
from kvfsm.runtime.manager import Manager

PROFILE = PROFILES["tiny_deepseek_v4"]
LAYOUT = PROFILE.layouts["compressed_kv"]
A = PROFILE.granule


def make(slots: int = 16, cold: int = 16) -> Manager:
    return Manager(PROFILE, dict.fromkeys(PROFILE.kinds, slots), NumpyBackend(), cold=cold)


def prompt(seed: int, granules: int, shared: int = 0) -> np.ndarray:
    """Tokens whose first ``shared`` granules are the same for every seed."""
    head = np.random.default_rng(99).integers(0, 256, shared * A)
    return np.concatenate((head, np.random.default_rng(seed).integers(0, 256, (granules - shared) * A + 1)))


def write(fill: Fill) -> None:
    for kind in fill.kinds:
        for part in PROFILE.layouts[kind].parts:
            view = fill.view(kind, part.name, part.layer)
            for n, place in enumerate(fill.places[kind].tolist()):
                rows = np.random.default_rng([place, part.layer]).standard_normal((part.rows, part.row_bytes // 4))
                view[n] = rows.astype("<f4").view(np.uint8)


def put(manager: Manager, keys: Keys, start: int, stop: int) -> None:
    for granule in range(start, stop):
        fill = manager.reserve(keys, granule, granule + 1)
        write(fill)
        manager.publish(fill)


def audited(manager: Manager) -> None:
    assert manager.audit().violations == ()


def entries(manager: Manager, keys: Keys) -> np.ndarray:
    with manager.acquire(manager.match(keys)) as lease:
        return np.concatenate([lease.view("compressed_kv", p.name, p.layer).ravel() for p in LAYOUT.parts])


def test_packed_blocks_come_back_bit_by_bit() -> None:
    manager = make()
    keys = manager.keys(prompt(1, 4))
    put(manager, keys, 0, 4)
    before = entries(manager, keys).copy()
    assert manager.pack(keys) == 4
    audited(manager)
    assert manager.core.pools["compressed_kv"].free == 16
    answer = manager.match(keys)
    assert (answer.kind, answer.now, answer.length) == (AnswerKind.HIT_PENDING, 0, 4 * A)
    assert answer.objects["compressed_kv"].verdict == "PACKED"
    assert answer.plan is not None
    again = manager.load(answer.plan)
    assert (again.kind, again.length, again.exact) == (AnswerKind.HIT, 4 * A, True)
    audited(manager)
    assert np.array_equal(entries(manager, keys), before)
    assert manager.core.cold_bytes == {}


def test_what_rests_on_lossy_bytes_says_so() -> None:
    manager = make()
    keys = manager.keys(prompt(1, 4))
    put(manager, keys, 0, 4)
    before = entries(manager, keys).copy().view("<f4")
    assert manager.pack(keys, 2, lossy=True) == 2
    assert manager.match(keys, at_most=2 * A).exact
    answer = manager.expand(keys)
    assert (answer.length, answer.exact) == (4 * A, False)
    assert manager.match(keys, at_most=2 * A).exact
    with manager.acquire(answer) as lease:
        assert not lease.exact
    after = entries(manager, keys).view("<f4")
    assert 0 < np.abs(after - before).max() < 0.2
    audited(manager)


def test_granules_that_another_branch_reads_stay_expanded() -> None:
    manager = make()
    one, two = manager.keys(prompt(1, 4, shared=2)), manager.keys(prompt(2, 4, shared=2))
    put(manager, one, 0, 4)
    put(manager, two, 2, 4)
    assert manager.pack(one) == 2
    assert manager.match(two).now == 4 * A
    assert manager.match(one).now == 2 * A
    assert manager.pack(two) == 4
    assert manager.match(two).now == 0
    audited(manager)
    assert manager.expand(one).now == manager.expand(two).now == 4 * A
    audited(manager)


def test_leased_granules_are_not_packed() -> None:
    manager = make()
    keys = manager.keys(prompt(1, 4))
    put(manager, keys, 0, 4)
    with manager.acquire(manager.match(keys, at_most=2 * A)):
        assert manager.pack(keys) == 2
        audited(manager)
    assert manager.pack(keys) == 2
    audited(manager)


def test_without_room_for_copies_nothing_is_packed() -> None:
    manager = make(cold=1)
    keys = manager.keys(prompt(1, 4))
    put(manager, keys, 0, 4)
    with pytest.raises(Refused, match=r"4 packed copies, and there is room for 1; fix: Manager\(cold=4\)"):
        manager.pack(keys)
    assert manager.match(keys).now == 4 * A
    audited(manager)


def test_a_republished_granule_replaces_its_packed_copy() -> None:
    manager = make()
    keys = manager.keys(prompt(1, 3))
    put(manager, keys, 0, 3)
    manager.pack(keys)
    put(manager, keys, 0, 3)
    assert manager.match(keys).now == 3 * A
    assert manager.core.cold_bytes == {}
    audited(manager)


def test_packed_copies_are_evicted_before_what_is_younger() -> None:
    manager = make()
    keys = manager.keys(prompt(1, 3))
    put(manager, keys, 0, 3)
    manager.pack(keys)
    assert manager.evict("compressed_kv", 9) == 3
    assert manager.core.cold_bytes == {}
    audited(manager)


def test_what_is_being_packed_is_not_readable_when_others_publish_behind_it() -> None:
    manager = make()
    keys = manager.keys(prompt(1, 4))
    put(manager, keys, 0, 2)
    seen: list[int] = []

    class Slow(NumpyBackend):
        def pack(self, layout: Layout, data: np.ndarray, lossy: bool = False) -> list[bytes]:
            fill = manager.reserve(keys, 2, 3)  # another thread's publication while the bytes are packed
            write(fill)
            manager.publish(fill)
            seen.append(manager.match(keys).now)
            return super().pack(layout, data, lossy)

    manager.backend = Slow()
    assert manager.pack(keys) == 2
    assert seen == [0]
    assert manager.match(keys).now == 0
    assert manager.expand(keys).now == 3 * A
    audited(manager)


def test_bytes_of_another_layout_are_not_expanded() -> None:
    backend = NumpyBackend()
    data = np.zeros((1, LAYOUT.slot_bytes), np.uint8)
    blob = backend.pack(LAYOUT, data)[0]
    with pytest.raises(ValueError, match="not of layout"):
        backend.expand(PROFILE.layouts["indexer_state"], [blob])
    with pytest.raises(ValueError, match="packed slot 1 of 2 of compressed_kv: has 8 bytes behind its header"):
        backend.expand(LAYOUT, [blob, blob[:32]])


@pytest.mark.parametrize(
    ("lost", "state", "now"), [(2, "failed", 2), (3, "failed", 2), (4, "failed", 2), (5, "done", 5)]
)
def test_an_expansion_around_a_granule_that_expires_meanwhile_leaves_no_gap(lost: int, state: str, now: int) -> None:
    """Granule 3 is published anew between packed ones, and the chain is cut before, at or behind it."""
    manager = make()
    keys = manager.keys(prompt(1, 5))
    put(manager, keys, 0, 5)
    assert manager.pack(keys, 2) == 3
    put(manager, keys, 3, 4)
    answer = manager.match(keys)
    assert answer.plan is not None
    ticket = manager.load_begin(answer.plan)
    manager.expire(keys, lost)
    ticket.transfer()
    assert (ticket.state, manager.match(keys).now) == (state, now * A)
    audited(manager)
    put(manager, keys, 0, 5)
    assert manager.match(keys).now == 5 * A
    audited(manager)


def test_what_expired_while_it_was_expanded_is_not_found_again() -> None:
    """Nobody published it anew, and there is no store: it can't come back."""
    manager = make()
    keys = manager.keys(prompt(1, 5))
    put(manager, keys, 0, 5)
    assert manager.pack(keys, 2) == 3
    plan = manager.match(keys).plan
    assert plan is not None
    ticket = manager.load_begin(plan)
    manager.expire(keys, 4)
    ticket.transfer()
    assert ticket.state == "failed" and manager.core.pools["compressed_kv"].free == 14
    assert manager.core.pools["compressed_kv"].free_cold == 14  # the copies of the two that did not expire
    assert manager.expand(keys).now == 4 * A
    audited(manager)


@pytest.mark.parametrize("how", ["expanded", "published", "kept"])
def test_what_stands_behind_packed_granules_is_read_in_every_branch_once_they_are(how: str) -> None:
    """Another prompt goes on behind granules that are packed, or are being packed, by a packing that then fails."""

    class Backend(NumpyBackend):
        def pack(self, *given: Any, **named: Any) -> list[bytes]:
            if how == "kept":
                put(manager, other, 3, 5)
                raise OSError
            return super().pack(*given, **named)

    manager = Manager(PROFILE, dict.fromkeys(PROFILE.kinds, 16), Backend(), cold=16)
    keys, other = manager.keys(prompt(1, 5, 3)), manager.keys(prompt(2, 5, 3))
    put(manager, keys, 0, 5)
    with contextlib.suppress(OSError):
        manager.pack(keys, 2)
        put(manager, other, 3, 5)
    if how == "expanded":
        manager.expand(keys)
    elif how == "published":
        put(manager, other, 2, 3)
    answer = manager.match(other)
    assert (answer.kind, answer.now, answer.plan) == (AnswerKind.HIT, 5 * A, None)
    audited(manager)
