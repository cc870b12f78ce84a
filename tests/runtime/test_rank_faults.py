"""What one rank alone meets (a failure, a slow disk, want of room) leaves all ranks with the same requests and rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvfsm.runtime.errors import RankFailed, Refused
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.queues import Queue
from kvfsm.runtime.scheduler import Live

from .serving import DEEPSEEK, faults, leaks, make, prompt, stored
from .test_rank_loads import PROMPT, A, finished, over, shelf
from .test_scheduler_ranks import Rank, good, ranks_of, together

LLAMA = PROFILES["tiny_llama"]


def test_work_that_one_rank_has_withheld_comes_in_the_same_order_on_all() -> None:
    """The first of them lacked room on one rank only, which has it behind the other in its turns."""
    g = LLAMA.granule
    ranks = ranks_of([make(9, LLAMA) for _ in range(2)], chunk=2 * g)
    ended = [False, False]

    def part(rank: Rank) -> Any:
        rank.submit(prompt(1, 4 * g), prompt(2, 3 * g), prompt(3, 2 * g))
        rank.schedule()
        row = rank.manager.requests.admit((2 + rank.number) * g)  # leaves one slot free, or none
        rank.manager.requests.finish(row, done=lambda: ended[rank.number])
        assert rank.schedule() == ()
        ended[rank.number] = True
        rank.scheduler.wake()
        return [(work.live.number, work.start) for work in rank.schedule()], finished(rank)

    assert good(together(ranks, part)) == [([(1, 2 * g), (2, 2 * g)], [])] * 2


# ---- a token that another rank could not step -----------------------------------------------------------------------


def _roll_back(rank: Rank, live: Live) -> None:
    g = rank.manager.profile.granule
    assert rank.scheduler.rollback(live, 2 * g - 1, keys=rank.manager.keys(prompt(1, 2 * g - 1)))


def _accept(rank: Rank, live: Live) -> None:
    rank.scheduler.propose([live], 2)
    rank.scheduler.accept([live], 1, tokens=[[7]])


def _reject(rank: Rank, live: Live) -> None:
    rank.scheduler.propose([live], 2)
    rank.scheduler.reject([live])


AFTER: dict[str, tuple[Callable[[Rank, Live], object], int]] = {
    "rolled back": (_roll_back, -1),
    "not rolled back": (lambda rank, live: rank.scheduler.rollback(live, live.tokens), 0),
    "drafts accepted": (_accept, 1),
    "drafts rejected": (_reject, 0),
    "published": (lambda rank, live: rank.scheduler.publish(live), 0),
    "scheduled": (lambda rank, live: rank.schedule(), 0),
    "put back": (lambda rank, live: (rank.scheduler.preempt(live), rank.schedule()), 0),
    "nothing": (lambda rank, live: None, 0),
}


@pytest.mark.parametrize("what", AFTER)
def test_after_a_token_that_failed_on_one_rank_all_rows_are_as_far(what: str) -> None:
    """The device of one rank can't be asked as the next granule begins."""
    g, (then, more) = LLAMA.granule, AFTER[what]
    ranks = ranks_of([make(12, LLAMA) for _ in range(2)])
    devices = ["works", "works"]

    def ended(number: int) -> bool:
        if devices[number] == "has gone":
            raise OSError("the device has gone")
        return devices[number] == "has ended"

    def part(rank: Rank) -> Any:
        row = rank.manager.requests.admit(3)
        rank.manager.requests.finish(row, done=lambda: ended(rank.number))
        (live,) = rank.submit(prompt(1, 2 * g - 1))
        rank.schedule()
        rank.scheduler.decode([live], tokens=[4])
        if rank.number == 1:
            devices[1] = "has gone"
        with pytest.raises(OSError if rank.number == 1 else RankFailed, match="the device has gone"):
            rank.scheduler.decode([live], tokens=[5])
        devices[rank.number] = "works"
        then(rank, live)
        assert live.row is not None and rank.manager.audit().ok
        far = int(rank.manager.requests.tokens[live.row]), live.computed, live.tokens, live.keys.tokens
        rank.scheduler.decode([live], tokens=[5])
        assert live.tokens == far[0] + 1
        devices[rank.number] = "has ended"
        return far, finished(rank)

    assert good(together(ranks, part)) == [((2 * g + more,) * 4, [])] * 2


# ---- a way back that one rank lacks ----------------------------------------------------------------------------------


def test_who_can_not_go_back_on_one_rank_goes_back_on_none() -> None:
    """One shares its granules; the other was reset before, and what it has of that epoch is shared with nobody."""
    g = LLAMA.granule
    ranks = ranks_of([make(12, LLAMA) for _ in range(2)])

    def part(rank: Rank) -> Any:
        (live,) = rank.submit(prompt(1, g + 3))
        rank.schedule()
        for token in prompt(1, 2 * g + 3)[g + 3 :]:
            rank.scheduler.decode([live], tokens=[token])
        if rank.number == 1:
            rank.manager.reset()
            with pytest.raises(Refused, match="EPOCH"):
                rank.scheduler.publish(live)
        else:
            assert rank.scheduler.publish(live) == 2
        shorter = rank.manager.keys(prompt(1, g + 4))
        said = "what is shared" if rank.number == 0 else "another rank can't go back"
        with pytest.raises(Refused, match=f"GAP .*{said}"):
            rank.scheduler.rollback(live, g + 4, keys=shorter)
        with pytest.raises(ValueError, match=f"request 1 has {2 * g + 3} tokens"):
            rank.scheduler.rollback(live, 2 * g + 4)
        assert (live.tokens, live.keys.tokens) == (2 * g + 3, 2 * g + 3)
        rank.scheduler.decode([live])
        assert rank.scheduler.rollback(live, 2 * g + 3)  # that far both can
        return live.tokens, rank.schedule(), finished(rank)

    assert good(together(ranks, part)) == [(2 * g + 3, (), [])] * 2


# ---- turns that one rank grants before the other ---------------------------------------------------------------------


def test_turns_are_the_same_on_all_ranks_though_one_has_granted_a_chunk_before_the_others() -> None:
    """One rank's device ends later, and so it has no room for the next chunk while a third request comes."""
    g = LLAMA.granule
    ranks = ranks_of([make(8, LLAMA) for _ in range(2)], chunk=2 * g)
    ended = [True, False]

    def part(rank: Rank) -> Any:
        rank.submit(prompt(1, 5 * g))
        rank.schedule()
        row = rank.manager.requests.admit(5 * g)  # of eight, two are taken
        rank.manager.requests.finish(row, done=lambda: ended[rank.number])
        works = [len(rank.schedule())]
        rank.submit(prompt(2, g), prompt(3, g))
        ended[1] = True
        works.append(len(rank.schedule()))
        turns = rank.scheduler.queues._lines[Queue.RESIDENT]
        return works, turns.now, dict(turns.finished), faults(rank.scheduler), finished(rank)

    one, other = good(together(ranks, part))
    assert one == other and one[0][0] == 0 and one[-2:] == ([], [])


# ---- loads ----------------------------------------------------------------------------------------------------------


def test_who_drains_on_one_rank_keeps_nobody_from_coming() -> None:
    """One request may be live. It was given up, and one rank's worker still writes for it."""
    ranks = over([shelf(), shelf()], requests=1)

    def part(rank: Rank) -> Any:
        (live,) = rank.submit(PROMPT)
        rank.schedule()
        told: list[Any] = []

        def meanwhile() -> None:
            rank.scheduler.cancel(live)
            told.append(rank.scheduler.state(live))
            rank.submit(prompt(2, 20))
            with pytest.raises(Refused, match="BACKPRESSURE"):
                rank.submit(prompt(3, 20))
            told.append([work.live.number for work in rank.schedule()])

        get_many = rank.manager.store.get_many  # type: ignore[union-attr]

        def slowly(ids: Any, into: Any) -> Any:
            if not told:
                meanwhile()
            return get_many(ids, into)

        if rank.number == 1:
            rank.manager.store.get_many = slowly  # type: ignore[union-attr, method-assign]
        rank.executor.run_all()
        if rank.number == 0:
            meanwhile()
        return told, finished(rank)

    assert good(together(ranks, part)) == [(["absent", [2]], []), (["draining", [2]], [])]


@pytest.mark.parametrize("kind", [MemoryError, OSError, RuntimeError])
def test_an_executor_that_raises_on_one_rank_is_a_load_that_failed(kind: type[Exception]) -> None:
    """Two load and one begins at once, in the same round: what all have agreed on is done to the end."""
    other = prompt(2, 6 * A + 4)

    def both() -> Any:
        store = shelf()
        stored(store, [other[: 6 * A]], DEEPSEEK)
        return store

    ranks = over([both(), both()], slots=40)
    submit, times = ranks[1].executor.submit, [1]

    def refuses(*arguments: Any, **options: Any) -> Any:
        if times:
            raise kind(f"no thread {times.pop()}")
        return submit(*arguments, **options)

    ranks[1].executor.submit = refuses  # type: ignore[method-assign]

    def part(rank: Rank) -> Any:
        one, two, _ = rank.submit(PROMPT, other, prompt(3, 20))
        rank.schedule()
        faults = [str(live.fault) for live in (one, two)]
        for _ in range(4):
            rank.executor.run_all()
            rank.schedule()
        return faults, rank.scheduler.report().loads_failed, finished(rank)

    assert good(together(ranks, part)) == [(["None", "None"], 0, []), (["no thread 1", "None"], 1, [])]
    assert ranks[0].log == ranks[1].log
    begun = {number: start for log in ranks[0].log for number, start, *_ in log}
    assert begun == {1: 6 * A, 2: 6 * A, 3: 0}


# ---- drafts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("full", [False, True])
def test_drafts_that_never_fit_on_one_rank_are_refused_with_one_answer(full: bool) -> None:
    """The other rank has room, or none now."""
    g = LLAMA.granule
    ranks = ranks_of([make(4, LLAMA), make(2, LLAMA)])

    def part(rank: Rank) -> Any:
        if full and rank.number == 0:
            row = rank.manager.requests.admit(2 * g)
            rank.manager.requests.finish(row, done=lambda: False)
        (live,) = rank.submit(prompt(1, 2 * g))
        rank.schedule()
        with pytest.raises(Refused) as refused:
            rank.scheduler.propose([live], 1)
        assert not rank.manager.requests.drafts.any()
        rank.scheduler.finish(live)
        return refused.value.refusal.name, refused.value.layer

    assert good(together(ranks, part)) == [("CAPACITY", "ranks"), ("CAPACITY", "pool")]
    assert leaks(ranks[1].scheduler) == []
