"""Ranks load together: which request loads what is decided once for all, each loads what it lacks at its own pace.

Ranks are threads, each with a manager, a scheduler and a store of its own; loads run when a test says so.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from kvfsm.runtime.admission import Limits
from kvfsm.runtime.audit import audit
from kvfsm.runtime.errors import RankFailed, RankLost
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.profile import Profile
from kvfsm.runtime.ranks import LocalGroup
from kvfsm.runtime.scheduler import Work
from kvfsm.runtime.stores.memory import MemoryStore
from kvfsm.runtime.stores.store import Found, ObjectId, Verdict

from .serving import DEEPSEEK, Engine, Watched, bytes_at, leaks, make, prompt, stored, watch, write
from .test_scheduler_ranks import Rank, good, ranks_of, together

LLAMA = PROFILES["tiny_llama"]
A = DEEPSEEK.granule
PROMPT = prompt(1, 6 * A + 4)


class Rotten(MemoryStore):
    """A store in memory that can't give what is ``rotten``, and says that it has it; ``asks`` comes with a question."""

    def __init__(self) -> None:
        super().__init__()
        self.rotten: set[ObjectId] = set()
        self.asks: Callable[[], None] = lambda: None

    def contains(self, ids: Sequence[ObjectId]) -> Any:
        self.asks()
        return super().contains(ids)

    def get(self, id: ObjectId, into: Any) -> Found:
        return Found(Verdict.INTEGRITY) if id in self.rotten else super().get(id, into)


def shelf(granules: int = 6, tokens: Sequence[int] = PROMPT, profile: Profile = DEEPSEEK) -> Rotten:
    """A store that has so many granules of a prompt."""
    store = Rotten()
    if granules:
        stored(store, [tokens[: granules * profile.granule]], profile)
    return store


def over(stores: Sequence[Rotten], slots: Any = 24, profile: Profile = DEEPSEEK, **options: Any) -> list[Rank]:
    """Ranks over these stores, with nothing in memory."""
    managers = [make(slots, profile, store, writes="none", cold=slots) for store in stores]
    return ranks_of(managers, **options)


def spoil(manager: Manager, kind: str, place: int, tokens: Sequence[int] = PROMPT) -> None:
    """The store has lost one object, and does not know."""
    keys = manager.keys(list(tokens))
    assert isinstance(manager.store, Rotten)
    manager.store.rotten |= set(manager.object_of(keys.digests, keys.salt, kind, np.array([place])))


def same_as_cold(rank: Rank, work: Work, tokens: Sequence[int] = PROMPT) -> None:
    """What it goes on from has the bytes of a run that computed all of it."""
    cold = make(40, rank.manager.profile)
    keys = cold.keys(list(tokens))
    write(cold, keys, work.start // cold.profile.granule)
    found, expected = bytes_at(rank.manager, work.live.keys, work.start), bytes_at(cold, keys, work.start)
    assert found == expected and set(map(len, found.values())) != {0}


def begun(rank: Rank, *, rounds: int = 8, runs: Callable[[int], bool] = lambda number: True) -> Work:
    """The work with which the first request begins; this rank's loads run after a round if ``runs`` says so."""
    for number in range(rounds):
        for work in rank.schedule():
            return work
        assert audit(rank.manager).ok
        if runs(number):
            rank.executor.run_all()
    raise AssertionError(f"after {rounds} rounds: {rank.scheduler.report().states}")


def finished(rank: Rank) -> list[str]:
    """What is left when everybody was given up, and all loads have ended."""
    for live in list(rank.scheduler.live.values()):
        rank.scheduler.cancel(live)
    rank.executor.run_all()
    return leaks(rank.scheduler)


# ---- from what all have --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 4])
def test_what_all_stores_have_is_loaded_on_all_ranks_before_they_begin(count: int) -> None:
    ranks = over([shelf() for _ in range(count)])

    def part(rank: Rank) -> Any:
        rank.submit(PROMPT)
        work = begun(rank)
        same_as_cold(rank, work)
        assert work.exact and rank.scheduler.report().loads == 1
        return work.start, finished(rank)

    assert good(together(ranks, part)) == [(6 * A, [])] * count
    assert [rank.log for rank in ranks] == [[[], [(1, 6 * A, len(PROMPT), True)]]] * count


def test_a_rank_loads_only_what_it_lacks() -> None:
    """One has it in memory, one in its store, one some of it here and the rest there."""
    ranks = over([shelf(), shelf(), shelf()])
    for rank, granules in zip(ranks, (6, 0, 2), strict=True):
        write(rank.manager, rank.manager.keys(PROMPT), granules)

    def part(rank: Rank) -> Any:
        rank.submit(PROMPT)
        work = begun(rank)
        same_as_cold(rank, work)
        return work.start, rank.scheduler.report().loads, finished(rank)

    assert good(together(ranks, part)) == [(6 * A, 0, []), (6 * A, 1, []), (6 * A, 1, [])]


def test_nobody_loads_what_one_store_has_not() -> None:
    ranks = over([shelf(6), shelf(3), shelf(5)])

    def part(rank: Rank) -> Any:
        rank.submit(PROMPT)
        work = begun(rank)
        same_as_cold(rank, work)
        return work.start, rank.manager.match(work.live.keys).now, finished(rank)

    assert good(together(ranks, part)) == [(3 * A, 3 * A, [])] * 3


def test_packed_copies_are_expanded_on_the_ranks_that_have_them() -> None:
    ranks = over([shelf(0, profile=LLAMA) for _ in range(2)], profile=LLAMA)
    g, tokens = LLAMA.granule, prompt(1, 4 * LLAMA.granule + 1)
    for rank in ranks:
        write(rank.manager, rank.manager.keys(tokens), 4)
    ranks[1].manager.pack(ranks[1].manager.keys(tokens))
    ranks[1].manager.store.objects.clear()  # type: ignore[union-attr]
    assert ranks[1].manager.match(ranks[1].manager.keys(tokens)).now < 4 * g

    def part(rank: Rank) -> Any:
        rank.submit(tokens)
        work = begun(rank)
        same_as_cold(rank, work, tokens)
        return work.start, rank.scheduler.report().loads, finished(rank)

    assert good(together(ranks, part)) == [(4 * g, 0, []), (4 * g, 1, [])]


# ---- loads that fail, or take long ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("attempts", "starts", "loads"), [(0, 0, 1), (1, 3 * A, 3), (2, 3 * A, 3)])
def test_where_one_rank_gets_less_all_begin_from_what_it_can_have(attempts: int, starts: int, loads: int) -> None:
    """The entries of its fourth granule are rotten. That is known after two loads; the third is to what all can have.

    Windows at that boundary the others have loaded by then as well: they had those of the last one only.
    """
    ranks = over([shelf(), shelf(), shelf()], attempts=attempts)
    spoil(ranks[1].manager, "compressed_kv", 3)

    def part(rank: Rank) -> Any:
        (live,) = rank.submit(PROMPT)
        work = begun(rank)
        if work.start:
            same_as_cold(rank, work)
        return work.start, live.brought, finished(rank)

    assert good(together(ranks, part)) == [(starts, loads, [])] * 3


def test_plain_entries_are_kept_as_far_as_all_ranks_got_them() -> None:
    """Every granule is a boundary, and of a failed load those before the first that failed are there."""
    g, tokens = LLAMA.granule, prompt(1, 6 * LLAMA.granule + 1)
    ranks = over([shelf(6, tokens, LLAMA) for _ in range(3)], profile=LLAMA, attempts=0)
    for rank, place in zip(ranks[:2], (4, 2), strict=True):
        spoil(rank.manager, "compressed_kv", place, tokens)

    def part(rank: Rank) -> Any:
        rank.submit(tokens)
        work = begun(rank)
        same_as_cold(rank, work, tokens)
        return work.start // g, rank.manager.match(work.live.keys).now // g, finished(rank)

    assert good(together(ranks, part)) == [(2, 4, []), (2, 2, []), (2, 6, [])]


def test_a_load_that_fails_once_is_tried_again_by_all() -> None:
    ranks = over([shelf(), shelf()], attempts=1)
    spoil(ranks[1].manager, "compressed_kv", 3)

    def part(rank: Rank) -> Any:
        (live,) = rank.submit(PROMPT)
        rank.schedule()
        rank.executor.run_all()
        assert isinstance(rank.manager.store, Rotten)
        rank.manager.store.rotten.clear()
        work = begun(rank)
        same_as_cold(rank, work)
        return work.start, live.brought, rank.scheduler.report().loads, finished(rank)

    assert good(together(ranks, part)) == [(6 * A, 2, 1, []), (6 * A, 2, 2, [])]


def test_a_slow_rank_delays_the_request_that_waits_for_it_and_no_other() -> None:
    ranks = over([shelf(), shelf()])
    other = prompt(2, A + 3)

    def part(rank: Rank) -> Any:
        first, second = rank.submit(PROMPT, other)
        order: list[tuple[int, int]] = []
        for number in range(8):
            for work in rank.schedule():
                order.append((number, work.live.number))
                rank.scheduler.publish(work.live)
            if rank.number == 0 or number == 5:
                rank.executor.run_all()
            if second.row is not None and second.computed == second.tokens:
                rank.scheduler.decode([second], tokens=[7])
        assert first.row is not None and second.tokens > len(other) + 3
        return order, finished(rank)

    (order, left), other_rank = good(together(ranks, part))
    assert other_rank == (order, left) and left == []
    assert [number for number, request in order if request == 1] == [6]
    assert {request for number, request in order if number < 6} == {2}


def test_who_waits_for_the_loads_of_others_asks_again() -> None:
    """Nobody here is told when they are over."""
    ranks = over([shelf(), shelf()])

    def part(rank: Rank) -> list[bool]:
        rank.submit(PROMPT)
        rank.schedule()
        woken = [rank.scheduler.wait(0)]
        if rank.number == 0:
            rank.executor.run_all()
        rank.schedule()
        woken.append(rank.scheduler.wait(0))
        rank.executor.run_all()
        rank.schedule()
        return woken

    assert good(together(ranks, part)) == [[False, True], [False, False]]
    assert [finished(rank) for rank in ranks] == [[], []]


@pytest.mark.parametrize("slow", [False, True])
def test_a_request_that_is_given_up_while_one_rank_loads_leaves_nothing(slow: bool) -> None:
    ranks = over([shelf(), shelf()])

    def part(rank: Rank) -> Any:
        (live,) = rank.submit(PROMPT)
        rank.schedule()
        if rank.number == 0 or not slow:
            rank.executor.run_all()
        rank.schedule() if slow else None
        rank.scheduler.cancel(live)
        rank.submit(prompt(2, 20))
        work = begun(rank, runs=lambda number: False)
        return work.live.number, work.start, finished(rank)

    assert good(together(ranks, part)) == [(2, 0, [])] * 2


def test_a_request_that_is_given_up_while_a_worker_moves_its_bytes_is_nobody_s_to_the_others() -> None:
    """It drains on one rank only."""
    ranks = over([shelf(), shelf()])

    def part(rank: Rank) -> Any:
        (live,) = rank.submit(PROMPT)
        rank.schedule()
        starts: list[int] = []

        def meanwhile() -> None:
            rank.scheduler.cancel(live)
            rank.submit(prompt(2, 20))
            starts.extend(work.start for work in rank.schedule())

        if rank.number == 0:
            rank.executor.run_all()
            meanwhile()
        else:
            get_many = rank.manager.store.get_many  # type: ignore[union-attr]

            def slowly(ids: Any, into: Any) -> Any:
                if not starts:
                    meanwhile()
                    assert rank.scheduler.state(live) == "draining"
                return get_many(ids, into)

            rank.manager.store.get_many = slowly  # type: ignore[union-attr, method-assign]
            rank.executor.run_all()
        assert rank.scheduler.state(live) == "absent"
        return starts, finished(rank)

    assert good(together(ranks, part)) == [([0], [])] * 2


def test_who_is_put_back_while_ranks_load_loads_anew_on_all_of_them() -> None:
    """The engine sleeps when one rank has loaded and the other has not begun."""
    ranks = over([shelf(), shelf()])

    def part(rank: Rank) -> Any:
        rank.submit(PROMPT)
        rank.schedule()
        if rank.number == 0:
            rank.executor.run_all()
        assert rank.scheduler.preempt_all()
        assert not rank.manager.reservations and not rank.manager.receipts and not rank.manager.tickets
        for kind in rank.manager.profile.kinds:  # what was loaded goes while the engine sleeps
            rank.manager.evict(kind, 99)
        rank.executor.run_all()
        work = begun(rank)
        same_as_cold(rank, work)
        return work.start, finished(rank)

    assert good(together(ranks, part)) == [(6 * A, [])] * 2
    assert ranks[0].log == ranks[1].log


def test_a_rank_that_dies_while_others_load_is_named_and_what_they_have_can_be_given_up() -> None:
    ranks = over([shelf(), shelf(), shelf()], deadline=0.3)

    def part(rank: Rank) -> Any:
        rank.submit(PROMPT)
        rank.schedule()
        if rank.number == 2:
            return None
        rank.executor.run_all()
        with pytest.raises(RankLost) as lost:
            rank.schedule()
        return lost.value.ranks, finished(rank)

    assert good(together(ranks, part)) == [((2,), [])] * 2 + [None]


def test_a_store_that_can_not_be_asked_is_heard_of_and_the_next_round_goes_on() -> None:
    ranks = over([shelf(), shelf()])
    broken = [True]

    def breaks() -> None:
        if broken.pop() if broken else False:
            raise OSError("the disk has gone")

    ranks[1].manager.store.asks = breaks  # type: ignore[union-attr]

    def part(rank: Rank) -> Any:
        rank.submit(PROMPT)
        with pytest.raises(OSError if rank.number == 1 else RankFailed, match="the disk has gone"):
            rank.schedule()
        return begun(rank).start, finished(rank)

    assert good(together(ranks, part)) == [(6 * A, [])] * 2


# ---- room ----------------------------------------------------------------------------------------------------------


def test_what_one_rank_may_never_load_no_rank_loads() -> None:
    groups = LocalGroup.make(2, deadline=60.0)
    limits = [Limits(), Limits(blocks={"store": 2})]
    managers = [make(24, DEEPSEEK, shelf(), writes="none") for _ in range(2)]
    ranks = [Rank(*one, limits=limit) for one, limit in zip(zip(groups, managers, strict=True), limits, strict=True)]
    for rank in ranks:
        write(rank.manager, rank.manager.keys(PROMPT), 2)

    def part(rank: Rank) -> Any:
        rank.submit(PROMPT)
        work = begun(rank)
        report = rank.scheduler.report()
        return work.start, report.loads, report.loads_cut, finished(rank)

    assert good(together(ranks, part)) == [(2 * A, 0, 1, [])] * 2


def test_what_one_rank_can_never_lease_beside_its_row_no_rank_goes_on_from() -> None:
    """It has one window, which is leased, and a row needs one of its own."""
    few = dict.fromkeys(DEEPSEEK.kinds, 24) | {"swa_window": 1}
    managers = [make(slots) for slots in (24, few)]
    for manager in managers:
        write(manager, manager.keys(PROMPT[: 2 * A]), 1)
    ranks = ranks_of(managers)

    def part(rank: Rank) -> Any:
        rank.submit(PROMPT)
        return begun(rank).start, finished(rank)

    assert managers[1].match(managers[1].keys(PROMPT)).now == A
    assert good(together(ranks, part)) == [(0, [])] * 2


def test_who_has_no_room_to_load_on_one_rank_waits_on_all_and_loads_when_there_is() -> None:
    ranks = over([shelf(), shelf()], slots=8)

    def part(rank: Rank) -> Any:
        ended = rank.number == 0
        row = rank.manager.requests.admit(6 * A)
        rank.manager.requests.finish(row, done=lambda: ended)
        rank.submit(PROMPT)
        assert rank.schedule() == () and not rank.executor.jobs and not rank.manager.reservations
        ended = True
        work = begun(rank)
        same_as_cold(rank, work)
        return work.start, finished(rank)

    assert good(together(ranks, part)) == [(6 * A, [])] * 2
    assert [rank.scheduler.report().deferred for rank in ranks] == [{"POOL_FULL": 1}] * 2


# ---- many requests --------------------------------------------------------------------------------------------------


def served(rank: Rank, seed: int, requests: int) -> int:
    """Requests come over time and are run to their end, while this rank evicts, loads and fails by itself.

    Returns how often a request began with what is reused.
    """
    same, own = random.Random(seed), random.Random(f"{seed} {rank.number}")
    granule, engine = rank.manager.profile.granule, Engine(rank.scheduler, decode=2)
    reused = 0
    for step in range(600):
        if requests and step % 2 == 0:
            rank.submit(prompt(same.randrange(4), same.randrange(1, 6 * granule)))
            requests -= 1
        drawn, chosen = same.random(), same.random()
        lives = [live for live in rank.scheduler.live.values() if not drains(rank, live)]
        running = [live for live in lives if live.row is not None]
        if drawn < 0.05 and lives:
            rank.scheduler.cancel(lives[int(chosen * len(lives))])
        elif drawn < 0.1 and running:
            rank.scheduler.preempt(running[int(chosen * len(running))])
        elif drawn < 0.12:
            rank.scheduler.preempt_all()
        for kind in rank.manager.profile.kinds:
            if own.random() < 0.1:
                rank.manager.evict(kind, own.randrange(4))
        if rank.executor.jobs and own.random() < 0.5:
            rank.executor.run(own.randrange(len(rank.executor.jobs)))
        before = len(engine.work)
        engine.step()
        done = engine.work[before:]
        rank.log.append([(one.live.number, one.start, one.stop, one.exact) for one in done])
        reused += sum(one.start > 0 and one.live.row is not None for one in done)
        assert audit(rank.manager).ok
        if not requests and not [live for live in rank.scheduler.live.values() if not drains(rank, live)]:
            return reused
    raise AssertionError(f"left: {[rank.scheduler.state(live) for live in rank.scheduler.live.values()]}")


def drains(rank: Rank, live: Any) -> bool:
    return rank.scheduler.state(live) == "draining"


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("profile", [LLAMA, DEEPSEEK], ids=lambda one: one.name)
@pytest.mark.parametrize("seed", range(4))
def test_ranks_that_load_evict_and_fail_differently_compute_the_same(count: int, profile: Any, seed: int) -> None:
    slots = {kind: 9 if kind in ("compressed_kv", "indexer_state") else 7 for kind in profile.kinds}
    chance, stores = random.Random(seed), []
    for _ in range(count):
        store = Rotten()
        kept = [prompt(n, profile.granule * chance.randrange(1, 6)) for n in range(4)]
        stored(store, kept, profile)
        store.rotten = {one for one in store.objects if chance.random() < 0.05}
        stores.append(store)
    locks = [Watched() for _ in stores]
    managers = [
        make(slots, profile, store, writes="none", lock=lambda lock=lock: lock)
        for store, lock in zip(stores, locks, strict=True)
    ]
    ranks = ranks_of(managers, chunk=2 * profile.granule, attempts=1)
    for rank, lock in zip(ranks, locks, strict=True):
        watch(rank.scheduler, lock, every=7)
    found = good(together(ranks, lambda rank: served(rank, seed, 24)))
    for rank in ranks:
        assert rank.log == ranks[0].log
        assert rank.agreement is not None and ranks[0].agreement is not None
        assert rank.agreement.exchanges == ranks[0].agreement.exchanges
        rank.executor.run_all()
        assert leaks(rank.scheduler) == []
    assert len(set(found)) == 1 and found[0] > 0
    assert sum(rank.scheduler.report().loads for rank in ranks) > 0, "nobody ever loaded"
