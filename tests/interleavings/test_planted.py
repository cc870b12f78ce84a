"""Negative controls: each race planted in the runtime is found by going through all schedules, for its own reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from kvfsm.runtime.manager import Manager

from . import planted, planted_serving
from .exploring import explore, wrong
from .runs import Scenario, every
from .scheduler import preemptions
from .shortest import as_test, check, needed, shortest, story
from .test_pairs import setting_of
from .world import WITH_BLOCKS, Setting, World

# where a race is planted, and the beginning, operations and store with which it shows; what it is told by; and the
# number of schedules until it was
PLANTED = {
    planted.AcquiresUnchecked: ("p", ("read p", "take q"), "split", "before release: bytes of compressed_kv", 8),
    planted.PinsAnyGeneration: ("p", ("read p", "take q"), "split", "after acquire: bytes of compressed_kv", 8),
    planted.ReleasesUnlocked: ("p", ("read p", "read p"), "split", "pins, leases account for", 3),
    planted.EvictsByEarlierPins: ("p", ("read p", "take q"), "split", "before release: bytes of compressed_kv", 23),
    planted.PublishesEarly: ("empty", ("fill p", "read p"), "none", "before release: bytes of compressed_kv", 2),
    planted.StoresUnheld: ("empty", ("fill p", "take q"), "split", "from the store: bytes of compressed_kv", 9),
    planted.StoresLate: ("empty", ("fill q", "reset"), "split", "from the store: granule 0 is found, and was", 4),
    planted.ResetsInTwoSteps: ("p stored", ("load p", "reset"), "split", "afterwards: granule 0 is found, and was", 6),
    planted.CompletesOfAnyEpoch: (
        "p stored", ("load p", "reset"), "split", "afterwards: granule 0 is found, and was", 7,
    ),
    planted.FreesAtAbort: ("p stored", ("load p", "abort, take q"), "split", "are not its own", 135),
    planted.ParksNothing: ("p", ("read p, park", "take q"), "split", "on the device: bytes of compressed_kv", 2),
    planted.FitsAlways: (
        "p packed around", ("expand p", "expire p end"), "split", "would stand behind a gap", 3,
    ),
    planted.ForgetsLoss: ("p packed lossy", ("pack p", "expand p"), "split", "expanded: lossy bytes of granule 0", 2),
    planted.PacksOpenly: ("p", ("read p", "pack p, take q"), "split", "before release: bytes of compressed_kv", 17),
    planted.PacksBlindly: ("p", ("pack p", "expire p end"), "split", "index: I4", 2),
    planted.PacksAllOrNothing: ("p", ("pack p", "expire p end"), "split", "known slots that are free", 2),
}  # fmt: skip


@pytest.mark.parametrize("make", PLANTED, ids=lambda make: make.__name__)
def test_a_planted_race_is_found_for_its_own_reason(make: type[Manager]) -> None:
    begin, names, store, reason, count = PLANTED[make]
    setting = Setting(WITH_BLOCKS, store=store, make=make)
    first = Scenario(begin, names, setting).run(())
    assert first.wrong == (), "one operation after the other goes well"

    def told(wrong: tuple[str, ...]) -> bool:
        return any(reason in text for text in wrong)

    found = every(begin, names, setting, until=told)
    assert told(found.wrong), found
    assert found.schedules == count
    least = shortest(Scenario(begin, names, setting), found, until=told)
    print(f"{found}\n{story(least)}")
    assert told(least.wrong)
    assert preemptions(least.steps) <= 2


# the same of what is beside the manager, over as few kinds as show it, with so many preemptions; found within
# so many schedules, twice what it takes now
SERVING: Mapping[Callable[[World], None], tuple[str, tuple[str, str], int, str, int]] = {
    planted_serving.admits_in_two_steps: ("p", ("admit p", "admit p"), 2, "two are under way, and one may be", 14),
    planted_serving.frees_when_the_last_leaves: (
        "p stored", ("admit p", "cancel all, take q"), 1, "bytes of compressed_kv", 16,
    ),
    planted_serving.admits_before_it_has: (
        "p stored and submitted", ("schedule", "give up"), 1, "something is open still", 22,
    ),
    planted_serving.revokes_at_once: ("p", ("lend p", "revoke, take q"), 1, "under a deadline: bytes of", 10),
    planted_serving.gives_up_under_the_step: (
        "p submitted", ("schedule", "give up, take q"), 1, "afterwards: bytes of compressed_kv", 16,
    ),
    planted_serving.wakes_early: ("empty", ("submit p", "schedule"), 1, "nobody is woken", 6),
    planted_serving.shares_drafts: ("empty", ("speculate", "read p"), 1, "after acquire: bytes of compressed_kv", 8),
    planted_serving.lets_go_before_it_is_stored: (
        "empty", ("preempt row", "take q"), 1, "from the store: bytes of compressed_kv", 22,
    ),
    planted_serving.blames_the_second: (
        "p rebuilding", ("publish", "publish"), 1, "request 1 lost its keys", 8,
    ),
    planted_serving.clears_nothing: ("p", ("other tenant", "take q"), 1, "another tenant's bytes are left", 36),
}  # fmt: skip


@pytest.mark.parametrize("plant", SERVING, ids=lambda plant: plant.__name__)
def test_a_race_planted_beside_the_manager_is_found_for_its_own_reason(plant: Callable[[World], None]) -> None:
    begin, names, bound, reason, count = SERVING[plant]
    scenario = Scenario(begin, names, replace(setting_of((begin, *names)), plant=plant))
    assert scenario.run(()).wrong == (), "one operation after the other goes well"

    def told(wrong: tuple[str, ...]) -> bool:
        return any(reason in text for text in wrong)

    found = explore(scenario.run, bound=bound, until=told)
    assert told(found.wrong), found
    print(f"{found}\n{story(shortest(scenario, found, until=told))}")
    assert found.schedules <= count


@pytest.mark.parametrize(("begin", "names", "bound"), [one[:3] for one in SERVING.values()])
def test_without_the_plant_beside_the_manager_every_schedule_goes_well(
    begin: str, names: tuple[str, str], bound: int
) -> None:
    print(check(begin, names, setting_of((begin, *names)), bound=bound))


CONTROLS = sorted({(begin, names, store) for begin, names, store, *_ in PLANTED.values()})


@pytest.mark.parametrize(
    ("begin", "names", "store"),
    [pytest.param(*one, marks=[pytest.mark.long] if "abort, take q" in one[1] else []) for one in CONTROLS],
)
def test_without_the_plant_every_schedule_goes_well(begin: str, names: tuple[str, str], store: str) -> None:
    print(check(begin, names, Setting(WITH_BLOCKS, store=store)))


def test_a_failure_prints_a_test_that_replays_it() -> None:
    begin, names, store, _, _ = PLANTED[planted.StoresUnheld]
    setting = Setting(WITH_BLOCKS, store=store, make=planted.StoresUnheld)
    found = every(begin, names, setting, until=wrong)
    least = shortest(Scenario(begin, names, setting), found)
    again = Scenario(begin, names, setting).run(needed(least.steps))
    assert (again.wrong, again.final) == (least.wrong, least.final)
    with pytest.raises(AssertionError, match="task 1: ") as failed:
        check(begin, names, setting)
    text = as_test("replayed", begin, names, setting, least)
    assert str(failed.value).endswith(text)
    print(failed.value)
    named: dict[str, object] = {"__name__": f"{__package__}.printed", "__package__": __package__}
    exec(compile(text, "printed", "exec"), named)
    test = named["test_replayed"]
    assert callable(test)
    with pytest.raises(AssertionError, match="bytes of compressed_kv"):
        test()
    mended = text.replace("make=StoresUnheld", "make=Manager").replace("from .planted", "from kvfsm.runtime.manager")
    exec(compile(mended.replace("import StoresUnheld", "import Manager"), "mended", "exec"), named)
    mended_test = named["test_replayed"]
    assert callable(mended_test)
    mended_test()
