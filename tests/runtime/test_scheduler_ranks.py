"""Ranks that schedule together begin the same requests at the same tokens, however differently they evict; or are told.

Ranks are threads here, each with a manager and a scheduler of its own, and all run the same engine.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kvfsm.runtime.agreement import Agreement
from kvfsm.runtime.errors import KvfsmError, RankFailed, RankLost, RanksDiverged, Refused
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.queues import Queue, Queues
from kvfsm.runtime.ranks import Group, LocalGroup
from kvfsm.runtime.scheduler import Scheduler, Work

from .meddling import Meddling
from .serving import DEEPSEEK, ByHand, Engine, leaks, make, prompt
from .side_by_side import side_by_side

LLAMA = PROFILES["tiny_llama"]
A = DEEPSEEK.granule
Log = list[tuple[int, int, int, bool]]


class Rank:
    """One of several: what it has, and what it was given to compute."""

    def __init__(
        self,
        group: LocalGroup,
        manager: Manager,
        *,
        agrees: bool = True,
        wrap: Callable[[Group], Group] = lambda group: group,
        **options: Any,
    ) -> None:
        self.group, self.number, self.manager = group, group.rank, manager
        self.agreement = Agreement(wrap(group), manager) if agrees else None
        self.executor = ByHand()
        self.scheduler = Scheduler(manager, self.executor, agreement=self.agreement, **options)
        self.log: list[Log] = []

    def schedule(self) -> tuple[Work, ...]:
        work = self.scheduler.schedule()
        self.log.append([(one.live.number, one.start, one.stop, one.exact) for one in work])
        return work

    def submit(self, *prompts: Sequence[int]) -> list[Any]:
        return [self.scheduler.submit(self.manager.keys(list(tokens))) for tokens in prompts]


def together(ranks: Sequence[Rank], part: Callable[[Rank], Any]) -> list[Any]:
    """What ``part`` returns or raises on each rank, run at the same time."""

    def run(number: int) -> Any:
        try:
            return part(ranks[number])
        except BaseException as error:  # to the test, of whatever kind
            ranks[number].group.leave()
            return error

    return side_by_side(len(ranks), run)


def ranks_of(managers: Sequence[Manager], *, deadline: float = 60.0, **options: Any) -> list[Rank]:
    groups = LocalGroup.make(len(managers), deadline=deadline)
    return [Rank(group, manager, **options) for group, manager in zip(groups, managers, strict=True)]


def kept(manager: Manager, ends: Sequence[int], tokens: Sequence[int]) -> Manager:
    """It can go on from these granules of a prompt."""
    keys, start = manager.keys(list(tokens)), 0
    for stop in ends:
        manager.publish(manager.reserve(keys, start, stop))
        start = stop
    return manager


def good(found: list[Any]) -> list[Any]:
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return found


# ---- what is reused -------------------------------------------------------------------------------------------------

LONG = prompt(1, 10 * A + 4)


@pytest.mark.parametrize("ends", [([3, 5], [3, 8]), ([3, 5], [3, 8], [3, 5, 8], [1, 2, 3])])
def test_all_begin_at_the_greatest_boundary_that_all_have(ends: tuple[list[int], ...]) -> None:
    """The least of what each has at most is 5, which the second does not have."""
    ranks = ranks_of([kept(make(40), own, LONG) for own in ends])

    def part(rank: Rank) -> int:
        rank.submit(LONG)
        rank.schedule()
        assert rank.agreement is not None
        return rank.agreement.exchanges

    assert good(together(ranks, part)) == [2] * len(ends)
    assert [rank.log for rank in ranks] == [[[(1, 3 * A, 10 * A, True)]]] * len(ends)


def test_without_agreement_they_begin_at_different_tokens() -> None:
    """The control."""
    ranks = ranks_of([kept(make(40), own, LONG) for own in ([3, 5], [3, 8])], agrees=False)
    for rank in ranks:
        rank.submit(LONG)
        rank.schedule()
    assert [rank.log[0][0][1] for rank in ranks] == [5 * A, 8 * A]


def test_what_one_rank_restores_from_a_lossy_form_is_exact_on_none() -> None:
    managers = [make(40, LLAMA, cold=8) for _ in range(2)]
    g = LLAMA.granule
    tokens = prompt(1, 3 * g + 1)
    for manager in managers:
        kept(manager, [3], tokens)
    keys = managers[1].keys(tokens)
    managers[1].pack(keys, lossy=True)
    managers[1].expand(keys)
    ranks = ranks_of(managers)
    good(together(ranks, lambda rank: [rank.submit(tokens), rank.schedule()]))
    assert [rank.log for rank in ranks] == [[[(1, 3 * g, 3 * g + 1, False)]]] * 2


# ---- who begins -----------------------------------------------------------------------------------------------------


def test_nobody_begins_before_all_have_room() -> None:
    """The device of one rank ends later; its slots are free only then."""
    managers = [make(4, LLAMA) for _ in range(2)]
    ended = [True, False]
    ranks = ranks_of(managers)
    g = LLAMA.granule

    def part(rank: Rank) -> None:
        row = rank.manager.requests.admit(3 * g)
        rank.manager.requests.finish(row, done=lambda: ended[rank.number])
        rank.submit(prompt(1, 2 * g), prompt(2, g))
        rank.schedule()
        ended[rank.number] = True
        rank.schedule()
        rank.scheduler.preempt_all()

    good(together(ranks, part))
    assert ranks[0].log == ranks[1].log
    begun = [[number for number, *_ in log] for log in ranks[0].log]
    assert begun == [[2], [1]]  # the second fits in the slot that the other rank has
    for rank in ranks:
        report = rank.scheduler.report()
        assert report.deferred == {"POOL_FULL": 1} and rank.manager.audit().ok
        assert not rank.manager.reservations


def test_what_never_fits_on_one_rank_is_rejected_on_all() -> None:
    ranks = ranks_of([make(slots, LLAMA) for slots in (9, 4)])

    def part(rank: Rank) -> str:
        (live,) = rank.submit(prompt(1, 6 * LLAMA.granule))
        rank.schedule()
        with pytest.raises(Refused) as refused:
            live.begun.result(0)
        return f"{refused.value.refusal.name} at {refused.value.layer}"

    assert good(together(ranks, part)) == ["CAPACITY at ranks", "CAPACITY at pool"]
    assert all(leaks(rank.scheduler) == [] for rank in ranks)


def test_a_chunk_goes_out_once_all_ranks_have_room_for_it() -> None:
    ranks = ranks_of([make(4, LLAMA) for _ in range(2)], chunk=LLAMA.granule)
    ended = [True, False]
    g = LLAMA.granule

    def part(rank: Rank) -> None:
        (live,) = rank.submit(prompt(1, 3 * g))
        rank.schedule()
        row = rank.manager.requests.admit(3 * g)
        rank.manager.requests.finish(row, done=lambda: ended[rank.number])
        rank.schedule()
        assert live.computed == g  # on the rank that has granted more, too
        assert rank.scheduler.publish(live) == 1
        ended[rank.number] = True
        rank.scheduler.wake()
        rank.schedule()
        rank.schedule()
        rank.scheduler.finish(live)

    good(together(ranks, part))
    assert ranks[0].log == ranks[1].log == [[(1, 0, g, True)], [], [(1, g, 2 * g, True)], [(1, 2 * g, 3 * g, True)]]
    assert all(leaks(rank.scheduler) == [] for rank in ranks)


def test_where_all_wait_for_room_on_one_rank_the_youngest_gives_way_on_all() -> None:
    """One rank has no slot for the second chunk of either; the other has granted both, and takes that back."""
    ranks = ranks_of([make(4, LLAMA) for _ in range(2)], chunk=LLAMA.granule)
    ended = [True, False]
    g = LLAMA.granule

    def part(rank: Rank) -> None:
        one, two = rank.submit(prompt(1, 2 * g), prompt(2, 2 * g))
        for work in rank.schedule():
            rank.scheduler.publish(work.live)
        row = rank.manager.requests.admit(2 * g)
        rank.manager.requests.finish(row, done=lambda: ended[rank.number])
        rank.schedule()
        assert (one.row is None, two.row is None) == (False, True)
        rank.schedule()
        rank.scheduler.finish(one)
        ended[rank.number] = True
        rank.scheduler.wake()
        rank.schedule()
        rank.scheduler.finish(two)

    good(together(ranks, part))
    assert ranks[0].log == ranks[1].log
    assert [[(number, start) for number, start, *_ in log] for log in ranks[0].log] == [
        [(1, 0), (2, 0)], [], [(1, g)], [(2, 0)],
    ]  # fmt: skip
    assert all(leaks(rank.scheduler) == [] for rank in ranks)


@pytest.mark.parametrize("full", [0, 1])
def test_who_has_no_room_for_a_token_on_one_rank_goes_back_on_all(full: int) -> None:
    """Two rows of a slot each, and a third slot that one rank does not have yet."""
    ranks = ranks_of([make(3, LLAMA) for _ in range(2)])
    g, ended = LLAMA.granule, [rank != full for rank in range(2)]

    def part(rank: Rank) -> Any:
        row = rank.manager.requests.admit(g)
        rank.manager.requests.finish(row, done=lambda: ended[rank.number])
        one, two = rank.submit(prompt(1, g), prompt(2, 1))
        rank.schedule()
        stepped = rank.scheduler.decode([one, two], tokens=[7, 8])
        names = [live.number for live in stepped.lives], [live.number for live in stepped.back]
        left = (one.tokens, one.keys.tokens, two.tokens, two.keys.tokens)
        ended[rank.number] = True
        log = rank.schedule()
        rank.scheduler.finish(one)
        log = log or rank.schedule()
        rank.scheduler.finish(two)
        return names, left, [(one.live.number, one.start, one.stop) for one in log]

    first, second = good(together(ranks, part))
    assert first == second == (([1], [2]), (g + 1, g + 1, 1, 1), [(2, 0, 1)])
    assert all(leaks(rank.scheduler) == [] for rank in ranks)


def test_drafts_have_room_on_all_ranks_or_on_none() -> None:
    ranks = ranks_of([make(3, LLAMA) for _ in range(2)])
    g, ended = LLAMA.granule, [True, False]

    def part(rank: Rank) -> list[Any]:
        row = rank.manager.requests.admit(2 * g)
        rank.manager.requests.finish(row, done=lambda: ended[rank.number])
        (live,) = rank.submit(prompt(1, g))
        rank.schedule()
        with pytest.raises(Refused) as refused:
            rank.scheduler.propose([live], 2)
        assert not rank.manager.requests.drafts.any()
        ended[rank.number] = True
        rank.scheduler.propose([live], 2)
        rank.scheduler.accept([live], 1, tokens=[[7]])
        rank.scheduler.finish(live)
        return [refused.value.refusal.name, refused.value.layer, live.computed]

    assert good(together(ranks, part)) == [["POOL_FULL", "ranks", g + 1], ["POOL_FULL", "pool", g + 1]]
    assert all(leaks(rank.scheduler) == [] for rank in ranks)


# ---- many requests --------------------------------------------------------------------------------------------------


def served(rank: Rank, seed: int, requests: int) -> tuple[int, int]:
    """Requests come over time and are run to their end, while this rank evicts by itself.

    Returns how often a request began with what is reused, and how often this rank had more than that.
    """
    same, own = random.Random(seed), random.Random(f"{seed} {rank.number}")
    granule, engine = rank.manager.profile.granule, Engine(rank.scheduler, decode=2)
    reused, more = 0, 0
    for step in range(400):
        if requests and step % 2 == 0:
            shape = same.randrange(3), same.randrange(1, 6 * granule)
            rank.submit(prompt(shape[0], shape[1]))
            requests -= 1
        for kind in rank.manager.profile.kinds:
            if own.random() < 0.1:
                rank.manager.evict(kind, own.randrange(4))
        had = {
            live.number: rank.manager.match(live.keys, live.tokens).now
            for live in rank.scheduler.live.values()
            if live.row is None
        }
        before = len(engine.work)
        engine.step()
        done = engine.work[before:]
        rank.log.append([(one.live.number, one.start, one.stop, one.exact) for one in done])
        for one in done:
            reused += one.start > 0 and one.live.number in had
            more += one.start < had.get(one.live.number, 0)
        if not requests and not rank.scheduler.live:
            return reused, more
    raise AssertionError(f"left: {[rank.scheduler.state(live) for live in rank.scheduler.live.values()]}")


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("profile", [LLAMA, DEEPSEEK], ids=lambda one: one.name)
@pytest.mark.parametrize("seed", range(3))
def test_ranks_that_evict_differently_compute_the_same(count: int, profile: Any, seed: int) -> None:
    slots = {kind: 9 if kind in ("compressed_kv", "indexer_state") else 7 for kind in profile.kinds}
    ranks = ranks_of([make(slots, profile) for _ in range(count)], chunk=2 * profile.granule)
    found = good(together(ranks, lambda rank: served(rank, seed, 24)))
    for rank in ranks:
        assert rank.log == ranks[0].log
        assert leaks(rank.scheduler) == []
        assert rank.scheduler.report().finished + rank.scheduler.report().cut_short == 24
        assert rank.agreement is not None and ranks[0].agreement is not None
        assert rank.agreement.exchanges == ranks[0].agreement.exchanges
    assert {reused for reused, _ in found} != {0} and len({reused for reused, _ in found}) == 1
    assert any(more for _, more in found), "no rank ever had more than was agreed"


def test_ranks_of_other_sizes_get_all_done() -> None:
    """Patience is counted by what any rank lacks, so that no two ranks keep room for different requests for ever."""
    ranks = ranks_of([make(slots, LLAMA) for slots in (12, 8, 10)], chunk=LLAMA.granule)
    good(together(ranks, lambda rank: served(rank, 5, 20)))
    assert all(rank.log == ranks[0].log and leaks(rank.scheduler) == [] for rank in ranks)


# ---- when ranks part ------------------------------------------------------------------------------------------------


def test_a_rank_that_is_gone_is_named_and_nobody_hangs() -> None:
    ranks = ranks_of([make(12, LLAMA) for _ in range(4)], deadline=0.3)

    def part(rank: Rank) -> Any:
        rank.submit(prompt(1, 20), prompt(2, 20))
        rank.schedule()
        if rank.number == 2:
            return None  # it dies, and says nothing
        rank.submit(prompt(3, 20))
        with pytest.raises(RankLost) as lost:
            rank.schedule()
        with pytest.raises(RuntimeError, match="has ended; begin one with a new group"):
            rank.schedule()
        with pytest.raises(RuntimeError, match="has ended"):
            rank.scheduler.decode([])
        for live in list(rank.scheduler.live.values()):  # what it has can be given up
            rank.scheduler.cancel(live)
        return lost.value.ranks

    assert good(together(ranks, part)) == [(2,), (2,), None, (2,)]
    assert all(leaks(rank.scheduler) == [] for rank in ranks if rank.number != 2)


@pytest.mark.parametrize("exchange", [1, 2])
def test_a_rank_that_dies_in_a_round_leaves_nobody_with_room(exchange: int) -> None:
    """Before it says what it has, or before it says what it could reserve."""

    def die(call: int) -> None:
        if call == exchange:
            raise SystemExit

    one, other = LocalGroup.make(2, deadline=0.3)
    ranks = [Rank(one, make(12, LLAMA)), Rank(other, make(12, LLAMA), wrap=lambda group: Meddling(group, die))]

    def part(rank: Rank) -> Any:
        rank.submit(prompt(1, 20))
        with pytest.raises(RankLost if rank.number == 0 else SystemExit):
            try:
                rank.schedule()
            finally:
                rank.group.leave()
        assert rank.scheduler.report().states == {"waiting": 1}
        assert not rank.manager.reservations and not rank.manager.receipts and rank.manager.audit().ok

    good(together(ranks, part))


def divergences() -> dict[str, Callable[[Rank], object]]:
    return {
        "another request": lambda rank: rank.submit(prompt(3 + rank.number, 20)),
        "a request more": lambda rank: rank.submit(*[prompt(3, 20)] * (1 + rank.number)),
        "one that was cancelled": lambda rank: rank.number and rank.scheduler.cancel(rank.scheduler.live[1]),
        "one that was preempted": lambda rank: rank.number and rank.scheduler.preempt(rank.scheduler.live[1]),
        "another owner": lambda rank: rank.scheduler.submit(rank.manager.keys([1]), owner=f"owner {rank.number}"),
    }


@pytest.mark.parametrize("what", divergences())
def test_ranks_that_serve_different_things_are_told_at_the_next_round(what: str) -> None:
    ranks = ranks_of([make(12, LLAMA) for _ in range(2)])

    def part(rank: Rank) -> None:
        rank.submit(prompt(1, 20))
        rank.schedule()
        divergences()[what](rank)
        rank.schedule()

    found = together(ranks, part)
    assert all(isinstance(one, RanksDiverged) for one in found), found
    assert all(rank.manager.audit().ok for rank in ranks)


def test_a_rank_that_fails_is_heard_of_and_the_next_round_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = ranks_of([make(12, LLAMA) for _ in range(3)])
    real = ranks[1].manager.match
    broken = [True]

    def match(*arguments: Any, **options: Any) -> Any:
        if broken.pop() if broken else False:
            raise OSError("the store has gone")
        return real(*arguments, **options)

    monkeypatch.setattr(ranks[1].manager, "match", match)

    def part(rank: Rank) -> str:
        rank.submit(prompt(1, 20))
        try:
            rank.schedule()
        except (OSError, KvfsmError) as error:
            told = type(error).__name__, str(error)
        rank.schedule()
        return f"{told[0]}: {told[1]}"

    other = "RankFailed: rank 1 gave the step up: OSError: the store has gone"
    assert good(together(ranks, part)) == [other, "OSError: the store has gone", other]
    assert [rank.log for rank in ranks] == [[[(1, 0, 20, True)]]] * 3


def test_a_rank_that_is_poisoned_says_so() -> None:
    ranks = ranks_of([make(12, LLAMA) for _ in range(2)])

    def part(rank: Rank) -> str:
        rank.submit(prompt(1, 20))
        if rank.number == 1:
            rank.manager.lock.poison("S3", "a test", "planted")
        with pytest.raises(KvfsmError) as told:
            rank.schedule()
        return f"{type(told.value).__name__}: {told.value}"

    first, second = good(together(ranks, part))
    assert first.startswith("RankFailed: rank 1 gave the step up: Poisoned: S3 broke in a test: planted")
    assert second.startswith("Poisoned: S3 broke in a test: planted")
    assert ranks[0].scheduler.report().states == {"waiting": 1} and ranks[0].manager.audit().ok


@pytest.mark.parametrize("call", ["make_room", "propose"])
def test_a_rank_that_fails_at_a_token_is_heard_of(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = ranks_of([make(12, LLAMA) for _ in range(2)])

    def gone(*arguments: Any, **options: Any) -> None:
        raise OSError("the device has gone")

    monkeypatch.setattr(ranks[1].manager.requests, call, gone)

    def part(rank: Rank) -> int:
        (live,) = rank.submit(prompt(1, 20))
        rank.schedule()
        with pytest.raises(OSError if rank.number == 1 else RankFailed, match="the device has gone"):
            rank.scheduler.decode([live]) if call == "make_room" else rank.scheduler.propose([live], 1)
        assert not rank.manager.requests.drafts.any()
        rank.schedule()
        rank.scheduler.finish(live)
        return live.tokens

    assert good(together(ranks, part)) == [20, 20]
    assert all(leaks(rank.scheduler) == [] for rank in ranks)


def test_a_rank_that_fails_when_all_have_agreed_holds_nothing_and_has_parted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory can't be copied. The others have begun by then, so they can't go on together."""
    ranks = ranks_of([kept(make(40), [3], LONG) for _ in range(2)])

    def gone(*arguments: Any) -> None:
        raise OSError("the memory has gone")

    monkeypatch.setattr(ranks[1].manager.backend, "gather", gone)

    def part(rank: Rank) -> None:
        rank.submit(LONG, prompt(2, 20))
        if rank.number == 1:
            with pytest.raises(OSError, match="the memory has gone"):
                rank.schedule()
            assert not rank.manager.reservations and not rank.manager.receipts and rank.manager.audit().ok
        else:
            rank.schedule()
        rank.schedule()

    found = together(ranks, part)
    assert all(isinstance(one, RanksDiverged) for one in found), found
    assert "request 0 of step 1" in str(found[0])


OTHER_OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "chunk": ({"chunk": A}, {"chunk": 2 * A}),
    "no chunk": ({"chunk": A}, {}),
    "boundaries": ({}, {"boundaries": False}),
    "budget": ({"budgets": {Queue.RESIDENT: 100.0}}, {}),
    "attempts": ({"attempts": 2}, {"attempts": 0}),
    "patience": ({"queues": Queues(patience=2)}, {"queues": Queues(patience=3)}),
    "ageing": ({"queues": Queues(ageing=2.0)}, {}),
    "weights": ({"queues": Queues({"a": 2.0})}, {"queues": Queues({"a": 1.0})}),
}


@pytest.mark.parametrize("what", OTHER_OPTIONS)
def test_ranks_of_other_options_are_told_before_anybody_begins(what: str) -> None:
    """Else they would compute other tokens in one step, and the engine's own exchanges would not fit."""
    groups = LocalGroup.make(2, deadline=60.0)
    ranks = [Rank(group, make(40), **given) for group, given in zip(groups, OTHER_OPTIONS[what], strict=True)]

    def part(rank: Rank) -> None:
        rank.submit(prompt(1, 3 * A + 5))
        rank.schedule()

    found = together(ranks, part)
    assert all(isinstance(one, RanksDiverged) and "give the same on all ranks" in str(one) for one in found), found
    for rank in ranks:
        assert rank.log == [] and rank.scheduler.report().states == {"waiting": 1}
        assert not rank.manager.reservations and rank.manager.audit().ok


@pytest.mark.parametrize(("queues", "step"), [(Queues, -1.0), (lambda: Queues(ageing=1.0), -50.0)])
def test_clocks_that_differ_or_go_back_change_no_turn(queues: Callable[[], Queues], step: float) -> None:
    """With room in a step's budget for one of them, ranks that prefer different ones would never begin any."""
    groups, ranks = LocalGroup.make(2, deadline=60.0), []
    for group, steps in zip(groups, (1.0, step), strict=True):
        clock = itertools.count(0.0, steps).__next__
        ranks.append(Rank(group, make(40, LLAMA), clock=clock, queues=queues(), budgets={Queue.RESIDENT: 10.0}))

    def part(rank: Rank) -> list[list[int]]:
        for number in range(6):
            keys = rank.manager.keys(prompt(number, 20))
            rank.scheduler.submit(keys, owner=f"owner {number % 3}")
        for _ in range(6):
            rank.schedule()
        return [[number for number, *_ in work] for work in rank.log]

    assert good(together(ranks, part)) == [[[1], [2], [3], [4], [5], [6]]] * 2


@pytest.mark.parametrize("odd", ["an agreement", 0, False, LLAMA])
def test_what_is_no_agreement_is_told(odd: Any) -> None:
    with pytest.raises(TypeError, match=r"agreement=.*; give an Agreement\(group, manager\)"):
        Scheduler(make(4, LLAMA), ByHand(), agreement=odd)


def test_an_agreement_is_over_the_schedulers_manager() -> None:
    (group,) = LocalGroup.make(1)
    with pytest.raises(ValueError, match="an agreement over another manager"):
        Scheduler(make(4, LLAMA), ByHand(), agreement=Agreement(group, make(4, LLAMA)))


def test_one_rank_alone_is_served_as_ever() -> None:
    (rank,) = ranks_of([make(9, LLAMA)], chunk=LLAMA.granule)
    served(rank, 1, 12)
    assert leaks(rank.scheduler) == []


# ---- others come in while ranks speak with each other ----------------------------------------------------------------


def meddled(act: Callable[[Rank], Any], at: int, **options: Any) -> list[Rank]:
    """Two ranks, on each of which another thread does something before an exchange of theirs."""
    groups, ranks = LocalGroup.make(2), list[Rank]()

    def wrap(group: Group) -> Group:
        return Meddling(group, lambda call: act(ranks[group.rank]) if call == at else None)

    ranks += [Rank(group, make(40, **options), wrap=wrap, chunk=A) for group in groups]
    return ranks


@pytest.mark.parametrize("at", [1, 2])
def test_who_comes_after_all_were_asked_begins_in_the_next_round(at: int) -> None:
    ranks = meddled(lambda rank: rank.submit(prompt(3, A)), at)

    def part(rank: Rank) -> None:
        rank.submit(prompt(2, A))
        rank.schedule()
        rank.schedule()

    good(together(ranks, part))
    assert [rank.log for rank in ranks] == [[[(1, 0, A, True)], [(2, 0, A, True)]]] * 2


@pytest.mark.parametrize("verb", ["cancel", "finish"])
@pytest.mark.parametrize("at", [3, 4])
def test_who_ran_and_has_ended_before_all_have_spoken_is_left_out(verb: str, at: int) -> None:
    """It was granted its next chunk, which nobody hands out any more."""
    ranks = meddled(lambda rank: getattr(rank.scheduler, verb)(rank.scheduler.live[1]), at)

    def part(rank: Rank) -> list[str]:
        lives = rank.submit(prompt(2, 3 * A), prompt(3, 3 * A))
        rank.schedule()
        rank.schedule()
        rank.scheduler.cancel(lives[1])
        return leaks(rank.scheduler)

    assert good(together(ranks, part)) == [[], []]
    assert [rank.log[1] for rank in ranks] == [[(2, A, 2 * A, True)]] * 2


def test_nobody_else_takes_the_row_of_who_begins_once_all_have_agreed() -> None:
    """On one rank somebody wants it: that rank would part from the others."""
    refused: list[str] = []

    def wants(rank: Rank) -> None:
        if rank.number == 1:
            with pytest.raises(Refused, match="all 1 rows are taken, or promised") as error:
                rank.manager.requests.admit(5)
            refused.append(error.value.refusal.name)

    ranks = meddled(wants, 2, rows=1)

    def part(rank: Rank) -> list[str]:
        (live,) = rank.submit(prompt(2, A))
        assert [work.live for work in rank.schedule()] == [live]
        rank.scheduler.finish(live)
        return leaks(rank.scheduler)

    assert good(together(ranks, part)) == [[], []]
    assert refused == ["BACKPRESSURE"]
