"""Plans that name an open load: which one, and that waiting for it and matching again loads nothing twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime import loading
from kvfsm.runtime.answers import Plan
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.overlap import reach
from kvfsm.runtime.stores.memory import MemoryStore
from kvfsm.runtime.stores.store import Found, ObjectId

GPT = PROFILES["tiny_gpt_oss"]
A = GPT.granule
LONG = 6


class Counting(MemoryStore):
    """Counts how often each object is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[ObjectId] = Counter()

    def get(self, id: ObjectId, into: Any) -> Found:
        self.reads[id] += 1
        return super().get(id, into)


def tokens(shared: int, granules: int, seed: int) -> list[int]:
    """Prompts of one beginning, which part after ``shared`` granules."""
    own = np.random.default_rng(seed).integers(1000, 2000, (granules - shared) * A).tolist()
    return [*range(shared * A), *own, 7]


def manager_of(prompts: Sequence[list[int]], **options: Any) -> tuple[Manager, Counting, list[Keys]]:
    """A manager with empty memory over a store that holds some prompts."""
    store = Counting()
    writer = make(store)
    for prompt in prompts:
        keys = writer.keys(prompt)
        start = writer.match(keys).now // A
        if start < len(keys):
            writer.publish(writer.reserve(keys, start, len(keys)))
    manager = make(store, writes="none", **options)
    return manager, store, [manager.keys(prompt) for prompt in prompts]


def make(store: MemoryStore, **options: Any) -> Manager:
    return Manager(GPT, dict.fromkeys(GPT.kinds, 64), NumpyBackend(), store=store, **options)


def plan_of(manager: Manager, keys: Keys, granules: int = LONG) -> Plan:
    plan = manager.match(keys, at_most=granules * A).plan
    assert plan is not None
    return plan


def brute(manager: Manager, plan: Plan, other: Plan) -> int:
    """The farthest granule of the places that two plans both bring, place by place."""
    ends = [0]
    for kind in manager.core.kinds:
        ours, theirs = (
            {
                (place, *manager.object_of(one.claim.digests, one.claim.salt, kind, np.array([place])))
                for place in one.wanted.get(kind, np.empty(0, np.int64)).tolist()
            }
            for one in (plan, other)
        )
        ends += [int(manager.core.granules(kind, np.array([place]))[0]) + 1 for place, _ in ours & theirs]
    return max(ends)


@pytest.mark.parametrize("shared", [0, 1, 3, 5, 6])
def test_two_plans_meet_where_they_bring_the_same_objects(shared: int) -> None:
    manager, _, (one, two) = manager_of([tokens(LONG, LONG, 1), tokens(shared, LONG, 2)])
    found = set()
    for ours in range(1, LONG + 1):
        for theirs in range(1, LONG + 1):
            plan, other = plan_of(manager, one, ours), plan_of(manager, two, theirs)
            assert reach(manager.core, plan, other) == reach(manager.core, other, plan) == brute(manager, plan, other)
            found.add(reach(manager.core, plan, other))
    assert found == set(range(shared + 1)) - ({0} if shared else set())


@pytest.mark.parametrize("first", [2, 4, 6])
@pytest.mark.parametrize("second", [2, 4, 6])
@pytest.mark.parametrize("shared", [0, 3, 6])
def test_who_waits_for_the_named_load_and_matches_again_loads_nothing_twice(
    shared: int, first: int, second: int
) -> None:
    manager, store, (one, two) = manager_of([tokens(LONG, LONG, 1), tokens(shared, LONG, 2)])
    ticket = manager.load_begin(plan_of(manager, one, first))
    plan = plan_of(manager, two, second)
    assert plan.ticket == (ticket.ticket_id if shared else None)
    words = {kind: pool.table.words.tolist() for kind, pool in manager.core.pools.items()}
    assert plan_of(manager, two, second).ticket == plan.ticket and set(manager.tickets) == {ticket.ticket_id}
    assert {kind: pool.table.words.tolist() for kind, pool in manager.core.pools.items()} == words  # asking is pure
    ticket.transfer()
    answer = manager.match(two, at_most=second * A)
    if answer.plan is not None:
        assert answer.plan.ticket is None
        manager.load(answer.plan)
    assert manager.match(two, at_most=second * A).now == second * A
    assert max(store.reads.values()) == 1
    assert manager.audit().ok


def test_a_plan_names_the_load_that_brings_the_most_and_of_equals_the_oldest() -> None:
    prompts = [tokens(LONG, LONG, 1), tokens(2, LONG, 2), tokens(4, LONG, 3), tokens(4, LONG, 4)]
    manager, _, keys = manager_of(prompts)
    plans = [plan_of(manager, one) for one in keys]
    two, three, four = (manager.load_begin(plan) for plan in plans[1:])
    assert plan_of(manager, keys[0]).ticket == three.ticket_id
    three.done(False, missing={})
    assert plan_of(manager, keys[0]).ticket == four.ticket_id
    four.abort()
    assert plan_of(manager, keys[0]).ticket == two.ticket_id
    assert plan_of(manager, keys[0], 1).ticket == two.ticket_id
    manager.reset()  # the load goes on, and publishes nothing
    two.done(False, missing={})
    four.quiesce()
    assert not manager.tickets and manager.audit().ok


def test_a_load_of_an_ended_epoch_is_not_waited_for() -> None:
    manager, store, (keys,) = manager_of([tokens(LONG, LONG, 1)])
    kept = dict(store.objects)
    ticket = manager.load_begin(plan_of(manager, keys))
    manager.reset()
    store.objects = kept  # stored again, in the new epoch
    assert plan_of(manager, keys).ticket is None
    ticket.done(False)
    assert manager.audit().ok


def test_a_load_behind_what_a_plan_wants_is_not_waited_for() -> None:
    """Memory holds the first granules: a load of those of another branch brings nothing."""
    manager, _, (one, two) = manager_of([tokens(LONG, LONG, 1), tokens(3, LONG, 2)])
    manager.load(plan_of(manager, one, 3))
    ticket = manager.load_begin(plan_of(manager, one))
    assert plan_of(manager, two).ticket is None
    ticket.transfer()
    assert manager.load(plan_of(manager, two)).now == LONG * A
    assert manager.audit().ok


def test_an_expansion_that_is_under_way_is_named() -> None:
    profile = PROFILES["tiny_deepseek_v4"]
    manager = Manager(profile, dict.fromkeys(profile.kinds, 16), NumpyBackend(), cold=8)
    keys = manager.keys(list(range(3 * profile.granule + 1)))
    for granule in range(3):
        manager.publish(manager.reserve(keys, granule, granule + 1))
    assert manager.pack(keys) == 3
    plan = manager.match(keys).plan
    assert plan is not None and plan.ticket is None and not plan.wanted
    ticket = manager.load_begin(plan)
    again = manager.match(keys).plan
    assert again is not None and again.ticket == ticket.ticket_id
    ticket.transfer()
    assert manager.match(keys).now == 3 * profile.granule
    assert manager.audit().ok


def test_a_plan_that_names_a_load_can_be_loaded_at_once() -> None:
    manager, _, (keys,) = manager_of([tokens(LONG, LONG, 1)])
    ticket = manager.load_begin(plan_of(manager, keys))
    plan = plan_of(manager, keys)
    assert plan.ticket == ticket.ticket_id
    assert manager.load(plan).now == LONG * A
    ticket.transfer()
    assert manager.audit().counts["compressed_kv"]["resident"] == LONG
    assert manager.audit().ok


def test_control_a_load_of_another_chain_that_is_named_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "reach", lambda core, plan, other: min(plan.boundary, other.boundary))
    with pytest.raises(AssertionError):
        test_who_waits_for_the_named_load_and_matches_again_loads_nothing_twice(0, 4, 4)
