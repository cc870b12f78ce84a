"""The exploration itself: what is left out changes no result, wrong claims are noticed, and nothing ends silently."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvfsm.runtime.manager import Manager

from . import planted
from .exploring import Exploration, wrong
from .operations import BEGINNINGS, OPERATIONS, TIMED, home, void
from .runs import every
from .scheduler import CoopLock, Scheduler
from .snapshot import digest_of_guarded
from .watching import GUARDS, CheckedLock
from .world import WITH_BLOCKS, WITH_ONE_KIND, Op, Setting, World, quiet

SMALL = Setting(WITH_ONE_KIND, store="none")

# beginning "p": operations, all schedules, those that the reduction leaves, final states
COUNTS = {
    ("read p", "read p"): (252, 14, 1),
    ("read p", "evict"): (6, 4, 4),
    ("read p", "expire p end"): (6, 4, 3),
    ("read p", "pack p"): (28, 8, 4),
    ("read p", "reset"): (6, 4, 3),
    ("read p", "take q"): (238, 11, 6),
    ("read p", "expand p"): (6, 3, 1),
    ("read p", "fill q end"): (1287, 17, 2),
    ("pack p", "pack p"): (8, 4, 1),
    ("pack p", "fill q end"): (495, 10, 3),
    ("pack p", "expand p"): (287, 12, 2),
    ("pack p", "decode p"): (291, 23, 4),
    ("evict", "decode p"): (7, 6, 4),
    ("expire p end", "abandon"): (7, 3, 3),
    ("read p", "evict", "pack p"): (216, 36, 14),
    ("read p", "evict", "expire p end"): (36, 16, 8),
    ("evict", "pack p", "reset"): (27, 10, 3),
    ("pack p", "pack p", "expire p end"): (48, 16, 2),
}


def same(one: Exploration, other: Exploration) -> bool:
    """Whether two explorations came to the same states and verdicts."""
    return (one.finals, one.verdicts) == (other.finals, other.verdicts)


@pytest.mark.parametrize("names", COUNTS, ids=", ".join)
def test_one_schedule_of_each_class_leads_wherever_all_do(names: tuple[str, ...]) -> None:
    full, reduced = every("p", names, SMALL, reduce=False), every("p", names, SMALL)
    assert full.complete and reduced.complete
    assert same(full, reduced)
    assert (full.schedules, reduced.schedules, len(full.finals)) == COUNTS[names]


@pytest.mark.parametrize("bound", [0, 1, 2])
@pytest.mark.parametrize("names", [("read p", "pack p", "evict"), ("pack p", "expand p"), ("read p", "take q")])
def test_a_bounded_exploration_leads_wherever_all_schedules_within_the_bound_do(
    names: tuple[str, ...], bound: int
) -> None:
    full, reduced = (every("p", names, SMALL, bound=bound, reduce=reduce) for reduce in (False, True))
    assert full.complete and reduced.complete
    assert same(full, reduced)
    assert reduced.schedules <= full.schedules


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (planted.AcquiresUnchecked, ("read p", "take q")),
        (planted.EvictsByEarlierPins, ("read p", "take q")),
        (planted.ReleasesUnlocked, ("read p", "evict")),
        pytest.param(planted.PacksOpenly, ("read p", "pack p, take q"), marks=[pytest.mark.long]),
        (planted.PacksBlindly, ("pack p", "expire p end")),
        (planted.PacksAllOrNothing, ("pack p", "expire p end")),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_what_goes_wrong_is_the_same_with_and_without_the_reduction(
    make: type[Manager], names: tuple[str, ...]
) -> None:
    setting = Setting(WITH_ONE_KIND, store="none", make=make)
    full, reduced = every("p", names, setting, reduce=False), every("p", names, setting)
    assert full.complete and reduced.complete
    assert same(full, reduced)
    assert full.schedules > reduced.schedules


@pytest.mark.parametrize(
    ("blind", "make", "begin", "names", "setting"),
    [
        ({"state"}, planted.ReleasesUnlocked, "p", ("read p", "read p"), SMALL),
        ({"bytes"}, planted.ParksNothing, "p", ("read p, park", "take q"), Setting(WITH_BLOCKS)),
        ({"store", "object"}, planted.StoresLate, "empty", ("fill q", "reset"), Setting(WITH_BLOCKS)),
    ],
    ids=["words", "bytes", "store"],
)
def test_steps_wrongly_said_to_be_independent_hide_a_race_and_the_full_exploration_tells(
    blind: set[str], make: type[Manager], begin: str, names: tuple[str, str], setting: Setting
) -> None:
    told = Setting(setting.profile, store=setting.store, make=make)
    wrongly = Setting(setting.profile, store=setting.store, make=make, blind=frozenset(blind))
    assert every(begin, names, told, until=wrong).wrong != ()
    reduced = every(begin, names, wrongly)
    assert (reduced.complete, reduced.wrong) == (True, ()), "the race is missed"
    full = every(begin, names, wrongly, reduce=False, most=3_000, until=wrong)
    assert full.wrong != () and not same(full, reduced)


def guarded(world: World) -> Callable[[], str]:
    """Digests what the manager's lock guards."""
    return lambda: digest_of_guarded(world.manager, world.serving.state())


def test_who_is_said_to_read_only_changes_nothing() -> None:
    locks: list[CheckedLock] = []

    def lock(scheduler: Scheduler) -> CheckedLock:
        locks.append(CheckedLock(scheduler, "manager", GUARDS))
        return locks[-1]

    changed: set[str] = set()
    for name, op in OPERATIONS.items():
        for begin in dict.fromkeys(("p", "p stored", "p packed", "p packed lossy", home(name))):
            scheduler = Scheduler()
            world = World(scheduler, Setting(lock=lock, timed=name in TIMED))
            quiet(BEGINNINGS[begin], world)()
            locks[-1].snapshot = guarded(world)
            scheduler.run([quiet(op, world)])
            changed.update(locks[-1].changed)
    assert changed == set()
    wrongly = Scheduler()
    wrongly_told = World(wrongly, Setting(lock=lock))
    wrongly.touch = lambda resource, write: None  # type: ignore[method-assign]
    BEGINNINGS["p"](wrongly_told)
    locks[-1].snapshot = guarded(wrongly_told)
    wrongly.run([quiet(OPERATIONS["read p"], wrongly_told)])
    assert locks[-1].changed == ["Manager.acquire_all", "Manager.release"]


def _two_locks(first: int) -> Op:
    """Takes two locks, the task's own first."""

    def work(world: World) -> None:
        scheduler = world.scheduler
        locks = _LOCKS.setdefault(id(scheduler), [CoopLock(scheduler, name, otherwise={}) for name in "ab"])
        with locks[first], locks[1 - first]:
            scheduler.touch(("both",), True)

    return work


_LOCKS: dict[int, list[CoopLock]] = {}


@pytest.mark.parametrize("reduce", [True, False])
def test_locks_taken_in_two_orders_get_stuck_in_some_schedule(reduce: bool) -> None:
    explored = every("empty", (_two_locks(0), _two_locks(1)), SMALL, reduce=reduce)
    assert any("every task waits" in text for verdict in explored.verdicts for text in verdict)
    ordered = every("empty", (_two_locks(0), _two_locks(0), _two_locks(0)), SMALL, reduce=reduce)
    assert (ordered.complete, ordered.wrong) == (True, ())
    assert ordered.schedules >= 6


def test_an_exploration_that_ends_early_is_not_complete() -> None:
    assert not every("p", ("read p", "take q"), SMALL, most=5).complete
    assert not every("p", ("read p", "take q"), SMALL, most=5, bound=2).complete
    assert "not complete" in str(every("p", ("read p", "take q"), SMALL, most=5))
    setting = Setting(WITH_ONE_KIND, store="none", make=planted.AcquiresUnchecked)
    found = every("p", ("read p", "take q"), setting, until=wrong)
    assert not found.complete and found.wrong != ()


def test_words_that_change_without_the_lock_are_seen() -> None:
    def unlocked(world: World) -> None:
        void(world.manager.core.pools["compressed_kv"].table.states())

    explored = every("p", (unlocked, "evict"), SMALL)
    assert (explored.complete, explored.schedules) == (True, 3)  # two looks, before, around or after it
