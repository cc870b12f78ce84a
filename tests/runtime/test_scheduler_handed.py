"""Work that was granted and that the engine does not know of: nobody has computed it, so nobody may find it (S17, T8).

A call of ``schedule`` that a store or a clock breaks off leaves such work behind.
"""

from __future__ import annotations

from concurrent.futures import wait

import pytest

from kvfsm.runtime.answers import AnswerKind
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.policy import WindowPolicy
from kvfsm.runtime.queues import Queue
from kvfsm.runtime.requests import GUARD
from kvfsm.runtime.scheduler import Live, Scheduler

from .bench import A, Bench
from .serving import prompt

DEEPSEEK = PROFILES["tiny_deepseek_v4"]
ELDER, NEW, OTHER = prompt(3, A), prompt(4, 2 * A + 4), prompt(5, 20)


def broken_off(bench: Bench, chunk: int = 2 * A + 4) -> Live:
    """A request of which ``schedule`` has granted so many tokens, and then raised."""
    live = bench.submit(NEW)
    bench.submit(OTHER)
    real, asked = bench.manager.match, 0

    def match(keys: Keys, tokens: int | None = None, **options: object) -> object:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise OSError("gone")
        return real(keys, tokens, **options)  # type: ignore[arg-type]

    bench.manager.match = match  # type: ignore[assignment, method-assign]
    with pytest.raises(OSError, match="gone"):
        bench.scheduler.schedule()
    bench.manager.match = real  # type: ignore[method-assign]
    assert bench.states(live) == ["running"] and live.row is not None
    assert int(bench.manager.requests.tokens[live.row]) == chunk and live.computed == 0
    return live


def test_what_the_engine_was_not_told_to_compute_is_not_published() -> None:
    bench = Bench(8)
    live = broken_off(bench)
    assert bench.scheduler.publish(live) == 0
    with pytest.raises(ValueError, match="are not computed yet"):
        bench.scheduler.decode([live])
    bench.scheduler.preempt(live)
    assert bench.manager.match(live.keys).kind is AnswerKind.MISS
    bench.over()


def test_who_goes_back_for_want_of_room_publishes_nothing_that_nobody_computed() -> None:
    bench = Bench(5)
    elder = bench.submit(ELDER)
    assert bench.granted() == [(1, 0, A)]
    live = broken_off(bench)
    bench.scheduler.cancel(bench.scheduler.live[3])
    back: list[Live] = []
    while not back:
        back += bench.scheduler.decode([elder]).back
    assert back == [live] and bench.states(live) == ["waiting"]
    assert bench.manager.match(live.keys).kind is AnswerKind.MISS
    assert bench.scheduler.schedule() == ()  # what was granted of it went with its row
    bench.over()


def test_an_earlier_chunk_is_shared_and_a_later_one_is_not() -> None:
    bench = Bench(chunk=A)
    live = bench.submit(NEW)
    assert bench.granted() == [(1, 0, A)] and bench.scheduler.publish(live) == 1
    other = bench.submit(OTHER)
    bench.manager.match, real = _raises, bench.manager.match  # type: ignore[assignment, method-assign]
    with pytest.raises(OSError, match="gone"):
        bench.scheduler.schedule()
    bench.manager.match = real  # type: ignore[method-assign]
    assert (live.computed, bench.scheduler.publish(live), bench.manager.match(live.keys).now) == (A, 1, A)
    assert bench.granted() == [(1, A, 2 * A)] and bench.scheduler.publish(live) == 2
    assert bench.scheduler.cancel(other)
    bench.over()


def _raises(*_: object, **__: object) -> None:
    raise OSError("gone")


def test_what_is_left_of_a_round_comes_at_once_even_where_the_store_stays_away() -> None:
    bench = Bench(chunk=A)
    live = broken_off(bench, A)
    bench.manager.match, real = _raises, bench.manager.match  # type: ignore[assignment, method-assign]
    assert bench.granted() == [(1, 0, A)] and live.computed == A
    with pytest.raises(OSError, match="gone"):
        bench.scheduler.schedule()
    assert bench.granted() == [(1, A, 2 * A)]
    bench.manager.match = real  # type: ignore[method-assign]
    bench.over()


def test_what_is_left_of_a_round_is_not_handed_out_over_memory_that_is_gone() -> None:
    bench = Bench()
    broken_off(bench)
    bench.manager.reallocate(void=True)
    assert sorted(bench.granted()) == [(1, 0, len(NEW)), (2, 0, len(OTHER))]
    bench.over()


def test_nobody_has_two_turns_in_a_round() -> None:
    """One that replays waits in a queue of its own until it begins, and for its next chunk in another."""
    granule = DEEPSEEK.granule
    bench = Bench(profile=DEEPSEEK, window=WindowPolicy.none(), chunk=granule, rows=1)
    elder = bench.submit(prompt(7, 4))
    assert len(bench.scheduler.schedule()) == 1
    tokens = prompt(1, 3 * granule + 4)
    bench.submit(tokens + prompt(2, 2 * granule))
    assert bench.scheduler.schedule() == ()
    bench.executor.run_all()
    bench.scheduler.finish(elder)
    for _ in range(6):
        numbers = [work.live.number for work in bench.scheduler.schedule()]
        assert len(numbers) == len(set(numbers))
    bench.over()


def test_a_request_can_be_cancelled_only_when_the_clock_answers() -> None:
    bench = Bench()
    live = broken_off(bench)
    count = bench.manager.clock
    bench.manager.clock = _raises  # type: ignore[assignment]
    with pytest.raises(OSError, match="gone"):
        bench.scheduler.cancel(live)
    assert bench.states(live) == ["running"]
    bench.manager.clock = count
    assert bench.scheduler.cancel(live)
    bench.over()


def test_a_second_scheduler_of_a_manager_waits_until_the_first_has_ended() -> None:
    """Neither would know whom to let go of for want of room."""
    bench = Bench()
    live = bench.submit(ELDER)
    second = Scheduler(bench.manager, bench.executor)
    with pytest.raises(Refused, match="another scheduler of this manager has live requests"):
        second.submit(bench.manager.keys(OTHER))
    bench.scheduler.cancel(live)
    assert second.cancel(second.submit(bench.manager.keys(OTHER)))
    bench.over()


# ---- given up while work is handed out -------------------------------------------------------------------------------


@pytest.mark.parametrize("whose", [0, 1])
def test_who_is_given_up_while_another_is_told_of_its_work_is_not_handed_out(whose: int) -> None:
    """A callback of ``begun`` runs before ``schedule`` returns: what it frees is another's when the engine launches."""
    bench = Bench()
    lives = [bench.submit(ELDER), bench.submit(OTHER)]
    lives[0].begun.add_done_callback(lambda begun: bench.scheduler.cancel(lives[whose]) and None)
    assert [work.live for work in bench.scheduler.schedule()] == [lives[1 - whose]]
    assert bench.states(*lives)[whose] == "absent" and lives[whose].row is None
    bench.over()


def test_keys_that_are_given_up_while_another_is_told_of_its_work_are_not_handed_out() -> None:
    profile = PROFILES["tiny_deepseek_v32"]
    bench, tokens = Bench(profile=profile), prompt(4, 2 * profile.granule + 4)
    bench.manager.publish(bench.manager.reserve(bench.manager.keys(tokens), 0, 2))
    bench.manager.evict("indexer_state", 2)
    cold, rebuilds = bench.submit(OTHER), bench.submit(tokens)
    assert bench.scheduler.where(rebuilds) is Queue.INDEXER
    cold.begun.add_done_callback(lambda begun: bench.scheduler.cancel(rebuilds) and None)
    assert [work.live for work in bench.scheduler.schedule()] == [cold]
    assert bench.states(rebuilds) == ["absent"]
    bench.over()


def test_who_waits_for_several_to_begin_hears_of_one_that_was_given_up() -> None:
    bench = Bench()
    live = bench.submit(ELDER)
    assert bench.scheduler.cancel(live) and live.begun.cancelled()
    assert wait([live.begun], timeout=0.1).done == {live.begun}


# ---- steps that the device has not ended -----------------------------------------------------------------------------


def test_slots_of_who_goes_back_in_a_schedule_wait_for_the_device() -> None:
    """All who run lack room for their next chunk, and the steps before are launched and have not ended (T7)."""
    bench, device = Bench(4, chunk=A), [False]
    elder, younger = bench.submit(prompt(3, 3 * A)), bench.submit(prompt(4, 3 * A))
    for _ in range(2):
        assert len(bench.scheduler.schedule(done=lambda: device[0])) == 2
    written = bench.manager.requests.table("compressed_kv", [younger.row])[0]
    assert bench.scheduler.schedule(done=lambda: device[0]) == ()
    assert bench.states(elder, younger) == ["running", "waiting"]
    pool = bench.manager.core.pools["compressed_kv"]
    assert not set(written.tolist()) & set(pool.free_slots.tolist()) and bench.manager.evict("compressed_kv", 4) == 0
    assert bench.scheduler.schedule(done=lambda: device[0]) == ()
    device[0] = True
    bench.scheduler.wake()
    bench.over()


def test_blocks_that_slide_out_in_a_schedule_wait_for_the_device() -> None:
    profile = PROFILES["tiny_gpt_oss"]
    bench, device = Bench(profile=profile, chunk=4 * profile.granule), [False]
    live = bench.submit(prompt(4, 8 * profile.granule))
    bench.scheduler.schedule(done=lambda: device[0])
    written = bench.manager.requests.window_table([live.row])[0]
    bench.scheduler.schedule(done=lambda: device[0])
    slid = set(written.tolist()) - set(bench.manager.requests.window_table([live.row])[0].tolist()) - {GUARD}
    assert slid and not slid & set(bench.manager.core.pools["swa_window"].free_slots.tolist())
    device[0] = True
    bench.over()
