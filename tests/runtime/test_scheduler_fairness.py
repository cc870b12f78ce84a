"""Nobody waits for ever, though small requests come without end; and a stalled disk holds up nobody else."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from kvfsm.runtime.admission import Limits
from kvfsm.runtime.queues import Queue, Queues
from kvfsm.runtime.scheduler import Live

from .bench import HIT, A, Bench
from .serving import prompt, stored

PATIENCE = 3
LARGE = prompt(2, 6 * A + 4)  # 7 slots


class Stream:
    """A bench on which a small request comes in each round, and runs for so many more."""

    def __init__(self, slots: int, *, rounds: int = 2, patience: int = PATIENCE, **options: Any) -> None:
        self.bench = Bench(slots, queues=Queues(patience=patience), **options)
        self.small: deque[Live] = deque()
        self._began: dict[Live, int] = {}
        self._rounds, self.round, self.served = rounds, 0, 0

    def go(self, tokens: int = A + 4) -> None:
        """One round."""
        self.round += 1
        self.small.append(self.bench.submit(prompt(1000 + self.round, tokens)))
        for work in self.bench.scheduler.schedule():
            self._began[work.live] = self.round
        for live in [live for live in self.small if self.round - self._began.get(live, self.round) >= self._rounds]:
            self.small.remove(live)
            self.bench.scheduler.finish(live)
            self.served += 1

    def rounds_until(self, live: Live, state: str, most: int) -> int | None:
        """How many rounds it takes until a request is in a state; None where it is not after so many."""
        for count in range(most):
            if self.bench.states(live) == [state]:
                return count
            self.go()
        return None


def test_a_large_request_is_not_passed_for_ever_by_small_ones_of_other_queues() -> None:
    stream = Stream(8)
    stored(stream.bench.store, [LARGE], stream.bench.manager.profile)
    for _ in range(3):
        stream.go()
    large = stream.bench.submit(LARGE)
    assert stream.bench.scheduler.where(large) is Queue.DISK
    took = stream.rounds_until(large, "admitted", 50)
    assert took is not None and PATIENCE < took <= PATIENCE + 4
    served = stream.served
    stream.bench.executor.run_all()
    assert stream.rounds_until(large, "running", 50) is not None
    stream.bench.scheduler.finish(large)
    for _ in range(12):
        stream.go()
    assert stream.served > served
    stream.bench.over()


def test_without_patience_ending_it_would_be_passed_for_ever() -> None:
    stream = Stream(8, patience=1 << 30)
    stored(stream.bench.store, [LARGE], stream.bench.manager.profile)
    for _ in range(3):
        stream.go()
    large = stream.bench.submit(LARGE)
    assert stream.rounds_until(large, "admitted", 200) is None and stream.served > 150
    stream.bench.over()


def test_several_who_lack_room_are_served_in_the_order_in_which_their_patience_ended() -> None:
    stream = Stream(8)
    for _ in range(3):
        stream.go()
    large = [stream.bench.submit(prompt(seed, 6 * A + 4)) for seed in (2, 3, 4)]
    for live in large:
        assert stream.rounds_until(live, "running", 50) is not None
        others = [other for other in large if other is not live and stream.bench.states(other) == ["running"]]
        assert others == []
        stream.bench.scheduler.finish(live)
    stream.bench.over()


def test_who_is_given_up_stops_nobody_any_more() -> None:
    stream = Stream(8)
    for _ in range(3):
        stream.go()
    large = stream.bench.submit(prompt(2, 6 * A + 4))
    for _ in range(PATIENCE + 2):
        stream.go()
    assert stream.bench.scheduler.where(large) is Queue.RESIDENT
    stream.bench.scheduler.cancel(large)
    served = stream.served
    for _ in range(10):
        stream.go()
    assert stream.served > served + 5
    stream.bench.over()


@pytest.mark.parametrize("large", [prompt(2, 9 * A + 4), prompt(5, 9 * A + 4)], ids=["resident", "stored"])
def test_a_stalled_disk_holds_up_nobody_even_where_one_starves_for_its_room(large: list[int]) -> None:
    """A load that doesn't end holds four of twelve slots, and the large request needs ten."""
    stream = Stream(12)
    stored(stream.bench.store, [prompt(5, 9 * A + 4)], stream.bench.manager.profile)
    stalled = stream.bench.submit(HIT)
    starving = stream.bench.submit(large)
    assert stream.rounds_until(starving, "running", 40) is None
    assert stream.bench.states(stalled, starving) == ["admitted", "waiting"] and stream.served >= 36
    load = stream.bench.submit(prompt(5, 2 * A + 4))  # it would wait for the disk, and keep room from the large one
    for _ in range(5):
        stream.go()
    assert stream.bench.states(load) == ["waiting"] and len(stream.bench.executor.jobs) == 1
    stream.bench.executor.run_all()
    assert stream.rounds_until(stalled, "running", 5) is not None
    stream.bench.scheduler.finish(stalled)
    assert stream.rounds_until(starving, "running" if large[0] == prompt(2, 1)[0] else "admitted", 12) is not None
    stream.bench.over()


def test_want_of_a_limit_on_loads_stops_nobody() -> None:
    stream = Stream(24, limits=Limits(blocks={"store": 3}))
    stored(stream.bench.store, [LARGE[: 3 * A + 4]], stream.bench.manager.profile)
    stalled, behind = stream.bench.submit(HIT), stream.bench.submit(LARGE[: 3 * A + 4])
    for _ in range(30):
        stream.go()
    assert stream.bench.states(stalled, behind) == ["admitted", "waiting"] and stream.served >= 27
    assert stream.bench.scheduler.report().deferred["FULL"] >= 30
    stream.bench.over()


def test_a_running_request_whose_room_a_stalled_load_holds_stops_nobody() -> None:
    """The load holds four of nine slots, and the prompt needs six."""
    bench = Bench(9, chunk=2 * A)
    stalled, long = bench.submit(HIT), bench.submit(prompt(3, 6 * A))
    assert bench.granted() == [(2, 0, 2 * A)] and bench.states(stalled) == ["admitted"]
    assert bench.granted() == [(2, 2 * A, 4 * A)]
    for seed in range(6):
        other = bench.submit(prompt(seed + 10, 4))
        assert bench.granted() == [(other.number, 0, 4)]
        bench.scheduler.finish(other)
    assert bench.states(stalled, long) == ["admitted", "running"]
    bench.executor.run_all()
    bench.over()
