"""Nested runs of several ranks: their engines do the same, and on each others come in as they like.

Each rank is a world of ``test_scheduler_nested.py``, in a thread of its own. What all engines do is drawn alike; what
comes in between, also while a rank waits for the others' words, is each rank's own: it evicts, loads and fails
differently, its device lags, others read and write there. All must be given the same work, and what each goes on from
has the bytes of its prefix.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from kvfsm.runtime.errors import RanksDiverged
from kvfsm.runtime.queues import Queue
from kvfsm.runtime.rank_turns import RankTurns
from kvfsm.runtime.ranks import LocalGroup
from kvfsm.runtime.scheduler import Live, Work

from . import test_scheduler_nested as nested
from .side_by_side import side_by_side
from .test_scheduler_nested import ACTS, MODELS, OF_ROWS, STEPS, Act, World

SEEDS, SEEDS_LONG = range(4), range(4, 124)
ROUNDS = 400  # at the end


class Between:
    """A group; others come in before each exchange."""

    def __init__(self, group: LocalGroup) -> None:
        self.rank, self.size, self._group = group.rank, group.size, group
        self.during = lambda: None

    def all_gather(self, data: bytes) -> list[bytes]:
        self.during()
        return self._group.all_gather(data)


class Rank(World):
    """One of several.

    Attributes:
        log: number, start, stop and exactness of all work that was returned, who waits for which turn then, and which
            requests were stepped.
    """

    def __init__(self, seed: int, model: str, group: LocalGroup) -> None:
        between = Between(group)
        super().__init__(seed, model, between)
        self.alike, self.own, self.acts = random.Random(f"all, {seed}"), self.chance, OWN
        self.log: list[object] = []
        between.during = self.during

    def during(self) -> None:
        """See ``World``; what comes in is this rank's own."""
        with self.drawing(self.own):
            super().during()

    @contextmanager
    def drawing(self, chance: random.Random) -> Iterator[None]:
        """What is drawn meanwhile is drawn from this."""
        before, self.chance = self.chance, chance
        try:
            yield
        finally:
            self.chance = before

    def together(self) -> None:
        """One thing that the engines of all ranks do."""
        with self.drawing(self.alike):
            self.step(ALIKE)

    def lives(self) -> list[Live]:
        """Those that are live on all ranks."""
        with self.alone():
            lives = list(self.scheduler.live.values())
            return [live for live in lives if self.scheduler.state(live) != "draining"]

    def launch(self, lives: Sequence[Live]) -> None:
        """See ``World``; how far the device is behind is this rank's own."""
        self.log.append([(live.number, live.computed) for live in lives])
        with self.drawing(self.own):
            super().launch(lives)

    def compute_all(self, works: Sequence[Work]) -> None:
        """See ``World``."""
        self.log.append([(work.live.number, work.start, work.stop, work.exact) for work in works])
        turns = self.scheduler.queues._lines[Queue.RESIDENT].waiting.values()
        self.log.append(sorted((one.request, one.start, one.cost, one.holds) for one in turns))
        super().compute_all(works)

    def serve_all(self) -> None:
        """All that is live is run to its end, in as many rounds on all ranks."""
        for _ in range(ROUNDS):
            while self.workers.jobs and self.own.random() < 0.7:
                self.workers.run(self.own.randrange(len(self.workers.jobs)))
            if not self.lives():
                break
            self.compute_all(self.scheduler.schedule())
            nested.device_ends(self)
            for live in self.running():
                self.scheduler.finish(live)
        while self.workers.jobs:
            self.workers.run()


def cancel(rank: Rank) -> None:
    if lives := rank.lives():
        rank.scheduler.cancel(rank.chance.choice(lives), done=rank.begun())


def sleep(rank: Rank) -> None:
    """All go back; the memory of one rank may go, that of another not."""
    nested.device_ends(rank)
    gone = rank.scheduler.preempt_all(done=rank.begun())
    nested.device_ends(rank)
    if gone and rank.own.random() < 0.5:
        rank.manager.reallocate(None if rank.own.random() < 0.5 else rank.slots)


_OTHERWISE = (nested.cancel, nested.sleep, nested.void)  # what ranks do in another way, or never
ALIKE: tuple[Act, ...] = (
    *(act for act in ACTS if act in OF_ROWS and act not in _OTHERWISE), nested.submit, nested.submit, nested.submit,
    nested.stock, nested.stock, cancel, sleep,
)  # fmt: skip
OWN: tuple[Act, ...] = tuple(act for act in ACTS if act not in ALIKE and act not in _OTHERWISE)


def run(seed: int, model: str, size: int) -> list[Rank]:
    """A run of so many ranks; of each, what is wrong ends its part."""
    groups = LocalGroup.make(size, deadline=60.0)

    def part(number: int) -> Rank:
        rank = Rank(seed, model, groups[number])
        try:
            nested.stock(rank)
            for _ in range(STEPS):
                rank.together()
                if rank.own.random() < 0.5:
                    rank.step()
                if rank.wrong:
                    return rank
            rank.end()
            return rank
        finally:
            groups[number].leave()

    return side_by_side(size, part)


def runs(seeds: Sequence[int], model: str, size: int) -> Counter[str]:
    done: Counter[str] = Counter()
    for seed in seeds:
        ranks = run(seed, model, size)
        assert [rank.wrong for rank in ranks] == [[]] * size, f"seed {seed} of {model}"
        assert all(rank.log == ranks[0].log for rank in ranks), f"seed {seed} of {model}"
        for rank in ranks:
            done += rank.done + Counter({name: getattr(rank.scheduler.report(), name) for name in nested.TOLD})
    print(done)
    return done


@pytest.mark.parametrize("size", [2, 3])
def test_whatever_comes_in_on_each_of_several_ranks_all_do_the_same(size: int) -> None:
    done: Counter[str] = Counter()
    for model in MODELS:
        done += runs(SEEDS, model, size)
    assert done["nested"] > 20 * len(MODELS) * len(SEEDS) * size, "what nobody interrupts shows nothing"
    assert all(done[name] for name in ("finished", "cancelled", "preempted", "loads"))


@pytest.mark.long
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("part", range(2))
def test_whatever_comes_in_on_each_of_several_ranks_all_do_the_same_for_long(model: str, size: int, part: int) -> None:
    done = runs(SEEDS_LONG[part::2], model, size)
    assert {act.__name__ for act in (*ALIKE, *OWN)} - set(done) == set(), "each came to something"


# ---- negative controls: planted faults -------------------------------------------------------------------------------


def noticed(seeds: int = 60) -> None:
    with pytest.raises(RanksDiverged, match=r"ranks differ in (request|which exchange)"):
        runs(range(seeds), MODELS[0], 2)


def test_a_rank_that_begins_what_others_have_no_room_for_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = RankTurns._settle_one

    def alone(self: RankTurns, live: Live, all_said: Sequence[Any]) -> None:
        real(self, live, [self._said.get(live, all_said[0])] * len(all_said))

    monkeypatch.setattr(RankTurns, "_settle_one", alone)
    noticed()


def test_a_rank_that_hands_out_a_chunk_which_others_did_not_grant_would_be_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = RankTurns._settle

    def all_at_once(self: RankTurns, *given: Any) -> None:
        real(self, *given)
        self.withheld = set()

    monkeypatch.setattr(RankTurns, "_settle", all_at_once)
    noticed()
