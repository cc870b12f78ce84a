"""Answers that say RETRY and STALE: when neither hit nor miss would be true, and when a hit is true no longer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from kvfsm.runtime.answers import AnswerKind, Reason
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.matching import Matcher
from kvfsm.runtime.stores.store import ObjectId

from .test_loading import PROFILE, A, Shelf, audited, make, prompt_keys, put, stored


class Asked(Shelf):
    """Calls back when it is asked what it has, the given number of times."""

    def __init__(self, objects: Shelf) -> None:
        super().__init__()
        self.objects = objects.objects
        self.acts: list[Callable[[], object]] = []

    def contains(self, ids: Sequence[ObjectId]) -> Any:
        found = super().contains(ids)
        if self.acts:
            self.acts.pop(0)()
        return found


@pytest.mark.parametrize("resident", [0, 2])
@pytest.mark.parametrize("asked", range(4))
def test_an_epoch_that_ends_while_the_store_is_asked_leaves_no_answer(asked: int, resident: int) -> None:
    store = Asked(stored())
    manager = make(store, writes="none")
    keys = prompt_keys(manager, 4)
    put(manager, keys, 0, resident)
    store.acts = [lambda: None] * asked + [manager.reset]
    answer = manager.match(keys)
    assert (answer.kind, answer.reason, answer.length, answer.now) == (AnswerKind.RETRY, Reason.EPOCH, 0, 0)
    assert answer.plan is None and not answer.claims and "epoch 1 ended" in answer.detail
    with pytest.raises(Refused) as refused:
        manager.acquire(answer)
    assert refused.value.refusal is Reason.EPOCH
    assert manager.check(answer) is AnswerKind.RETRY
    again = manager.match(keys)
    assert (again.kind, again.length) == (AnswerKind.MISS, 0)
    audited(manager)


def test_an_answer_that_needs_no_store_is_one_of_its_moment() -> None:
    store = Asked(stored())
    manager = make(store, writes="none")
    keys = prompt_keys(manager, 4)
    put(manager, keys, 0, 4)
    store.acts = [manager.reset]
    assert manager.match(keys).kind is AnswerKind.HIT  # nothing was asked
    assert store.acts and manager.epoch == 1


def test_what_else_happens_meanwhile_is_no_reason_to_ask_again() -> None:
    store = Asked(stored())
    manager = make(store, writes="none")
    keys = prompt_keys(manager, 4)
    put(manager, keys, 0, 2)
    store.acts = [lambda: manager.evict("compressed_kv", 9)]
    answer = manager.match(keys)
    assert (answer.kind, answer.now) == (AnswerKind.HIT_PENDING, 2 * A)
    assert manager.check(answer) is AnswerKind.STALE
    audited(manager)


def test_what_lacked_and_has_come_meanwhile_is_a_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another loads it before the store is asked: a plan would bring nothing, and who has it would wait for ever."""
    manager = make(Asked(stored()), writes="none")
    keys = prompt_keys(manager, 4)
    put(manager, keys, 0, 4)
    for kind in manager.core.trailing:
        manager.evict(kind, 9)
    plans = [manager.match(keys).plan]
    real = Matcher._loadable

    def later(self: Matcher, *given: Any) -> Any:
        while plans:
            manager.load(plans.pop())
        return real(self, *given)

    monkeypatch.setattr(Matcher, "_loadable", later)
    answer = manager.match(keys)
    assert (answer.kind, answer.now, answer.plan) == (AnswerKind.HIT, 4 * A, None)
    audited(manager)


CHANGES: dict[str, Callable[[Manager, Any], object]] = {
    "nothing": lambda manager, keys: None,
    "another prompt": lambda manager, keys: put(manager, prompt_keys(manager, 2, seed=7), 0, 2),
    "a longer one": lambda manager, keys: put(manager, keys, 3, 4),
    "eviction": lambda manager, keys: manager.evict("indexer_state", 1),
    "all evicted, and published again": lambda manager, keys: (_evict_all(manager), put(manager, keys, 0, 3)),
    "its window": lambda manager, keys: manager.evict("swa_window", 3),
    "expiry of its end": lambda manager, keys: manager.expire(keys, 2),
    "expiry behind it": lambda manager, keys: manager.expire(keys, 3),
    "reset": lambda manager, keys: manager.reset(),
    "other memory": lambda manager, keys: manager.reallocate(dict.fromkeys(PROFILE.kinds, 2)),
    "packed": lambda manager, keys: manager.pack(keys),
}
HARMLESS = {"nothing", "another prompt", "a longer one", "expiry behind it"}


def _evict_all(manager: Manager) -> None:
    for kind in PROFILE.kinds:
        manager.evict(kind, 99)


@pytest.mark.parametrize("change", CHANGES)
def test_an_answer_is_stale_where_acquire_would_refuse_it(change: str) -> None:
    manager = make(cold=8)
    keys = prompt_keys(manager, 4)
    put(manager, keys, 0, 3)
    answer = manager.match(keys)
    assert (answer.now, manager.check(answer)) == (3 * A, AnswerKind.HIT)
    CHANGES[change](manager, keys)
    words = {kind: pool.table.words.tolist() for kind, pool in manager.core.pools.items()}
    said = manager.check(answer)
    assert said is (AnswerKind.HIT if change in HARMLESS else AnswerKind.STALE)
    assert {kind: pool.table.words.tolist() for kind, pool in manager.core.pools.items()} == words  # it changed nothing
    if said is AnswerKind.HIT:
        manager.release(manager.acquire(answer))
    else:
        with pytest.raises(Refused) as refused:
            manager.acquire(answer)
        assert refused.value.refusal is Reason.STALE
    audited(manager)


def test_check_and_acquire_agree_after_any_changes() -> None:
    random, seen = np.random.default_rng(11), Counter[AnswerKind]()
    names = [name for name in CHANGES if name != "other memory"]
    for _ in range(60):
        manager = make(cold=8)
        keys = prompt_keys(manager, 4)
        put(manager, keys, 0, int(random.integers(1, 4)))
        answer = manager.match(keys)
        for name in random.choice(names, random.integers(0, 4)).tolist():
            start = manager.match(keys).now // A
            try:
                CHANGES[name](manager, keys) if name != "a longer one" else put(manager, keys, start, 4)
            except Refused:
                pass
        said = manager.check(answer)
        seen[said] += 1
        try:
            manager.release(manager.acquire(answer))
            acquired = AnswerKind.HIT
        except Refused as refused:
            assert refused.refusal is Reason.STALE
            acquired = AnswerKind.STALE
        assert said is acquired
        audited(manager)
    assert set(seen) == {AnswerKind.HIT, AnswerKind.STALE} and min(seen.values()) >= 10, seen


def test_an_answer_with_nothing_to_read_is_not_stale() -> None:
    manager = make(stored(), writes="none")
    keys = prompt_keys(manager, 4)
    assert manager.check(manager.match(keys)) is AnswerKind.HIT_PENDING
    assert manager.check(manager.match(prompt_keys(manager, 4, seed=3))) is AnswerKind.MISS
    rejected = manager.match(keys, asks={"swa_window": "0" * 64})
    assert manager.check(rejected) is AnswerKind.REJECT


def test_every_sharer_of_an_answer_is_checked() -> None:
    manager = make()
    one, two = (prompt_keys(manager, 3, seed=seed) for seed in (1, 2))
    for keys in (one, two):
        put(manager, keys, 0, 3)
    answer = manager.match_shared([(one, None), (two, None)])
    assert (answer.now, manager.check(answer)) == (3 * A, AnswerKind.HIT)
    manager.expire(two, 2)
    assert manager.check(answer) is AnswerKind.STALE


def test_control_a_check_that_ignores_generations_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    holds = Matcher.holds

    def of_any_generation(self: Matcher, claim: Any, boundary: int) -> bool:
        core = self._manager.core
        spot = core.index.locate(claim.digests, boundary)
        return holds(self, claim, boundary) or spot.at == boundary

    monkeypatch.setattr(Matcher, "holds", of_any_generation)
    with pytest.raises(AssertionError):
        test_an_answer_is_stale_where_acquire_would_refuse_it("all evicted, and published again")
