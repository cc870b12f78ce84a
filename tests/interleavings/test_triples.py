"""Three operations at once: every schedule where there are few, and every one within a stated bound elsewhere."""

from __future__ import annotations

import itertools

import pytest

from .runs import every
from .shortest import check
from .test_pairs import setting_of
from .world import WITH_ALL_KINDS, WITH_BLOCKS, WITH_ONE_KIND, Setting

SMALL = Setting(WITH_ONE_KIND, store="none")
SHORT = ("read p", "evict", "expire p end", "pack p", "reset")
BOUNDED = [
    ("p", ("decode q reusing", "read p", "evict")),
    ("p", ("read p, park", "device ends", "take q")),
    ("p", ("roll back", "pack p", "read p")),
    ("p", ("read both", "pack p", "expire p end")),
    ("p", ("window p", "read p", "fill q end")),
    ("p stored", ("load p", "abort all", "reset")),
    ("p stored", ("load p", "evict", "fill q end")),
    ("p stored", ("load aborts", "load p", "evict")),
    ("p stored", ("reset fails", "load p", "fill p")),
    ("p packed", ("expand p", "abort all", "evict")),
    ("empty", ("fill p", "read p", "reset")),
]
SKIPPED_UNLESS_LONG = {BOUNDED[6], BOUNDED[7], BOUNDED[8]}


SERVING = [
    ("p stored", ("admit p", "cancel all", "abort all")),  # admitted, cancelled, and the load ends
    ("p joined", ("work", "give up", "schedule")),  # two wait for one load
    ("p opened", ("join", "join", "abort all")),
    ("p running", ("decode", "preempt", "publish")),
    ("p running", ("schedule", "give up", "take q")),
    ("p lent", ("revoke", "read p", "evict")),
    ("p", ("lend p", "revoke, take q", "device ends")),
    ("p stored and submitted", ("schedule", "submit q", "give up")),
    ("p loading", ("schedule", "work", "give up")),
    ("empty", ("speculate", "fill p", "evict")),  # drafts are taken while another publishes the same
    ("empty", ("preempt row", "take q", "reset")),  # what went back is stored while its slots are wanted
    ("p rebuilding", ("publish", "publish", "preempt")),
    ("p", ("other tenant", "take q", "evict")),
]
"""What an engine does at once, over as few kinds of objects as there may be."""


@pytest.mark.parametrize(("begin", "names"), SERVING)
def test_every_schedule_of_an_engine_s_triple_with_one_preemption_keeps_what_must_hold(
    begin: str, names: tuple[str, ...]
) -> None:
    print(check(begin, names, setting_of(names), bound=1))


@pytest.mark.long
@pytest.mark.parametrize("profile", [WITH_ONE_KIND, WITH_BLOCKS, WITH_ALL_KINDS])
@pytest.mark.parametrize(("begin", "names"), SERVING)
def test_every_schedule_of_an_engine_s_triple_with_two_preemptions_keeps_what_must_hold(
    begin: str, names: tuple[str, ...], profile: str
) -> None:
    print(check(begin, names, Setting(profile), bound=2 if profile == WITH_ONE_KIND else 1))


@pytest.mark.parametrize(
    "names",
    [names for names in itertools.combinations(SHORT, 3)] + [("pack p", "pack p lossy", "expand p")],
    ids=", ".join,
)
def test_every_schedule_of_short_triples_keeps_what_must_hold(names: tuple[str, ...]) -> None:
    print(check("p", names, SMALL))


@pytest.mark.parametrize(
    ("begin", "names"),
    [pytest.param(*one, marks=[pytest.mark.long] if one in SKIPPED_UNLESS_LONG else []) for one in BOUNDED],
)
def test_every_schedule_of_a_triple_with_one_preemption_keeps_what_must_hold(
    begin: str, names: tuple[str, ...]
) -> None:
    print(check(begin, names, Setting(WITH_BLOCKS), bound=1))


@pytest.mark.long
@pytest.mark.parametrize(("begin", "names"), BOUNDED)
def test_every_schedule_of_a_triple_with_two_preemptions_keeps_what_must_hold(
    begin: str, names: tuple[str, ...]
) -> None:
    print(check(begin, names, Setting(WITH_BLOCKS), bound=2))


@pytest.mark.long
@pytest.mark.parametrize("names", list(itertools.combinations_with_replacement((*SHORT, "take q"), 3)), ids=", ".join)
def test_every_schedule_of_every_triple_keeps_what_must_hold(names: tuple[str, ...]) -> None:
    print(check("p", names, SMALL))


def test_a_limit_that_is_reached_is_said() -> None:
    explored = every("p", ("read p", "read p", "read p"), SMALL, most=20)
    assert (explored.complete, explored.schedules) == (False, 20)
