"""Two operations at once: every schedule of every pair, on small worlds. Nothing is sampled."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from .shortest import check
from .world import WITH_ALL_KINDS, WITH_BLOCKS, WITH_ONE_KIND, Setting

ROWS = ("decode q reusing", "roll back")
LOADS = ("load p", "load in steps", "load aborts", "load fails")
OPERATIONS = {
    "p": (
        "read p", "read both", "read p, park", "device ends", "fill q end", "evict", "expire p end", "pack p",
        "pack p lossy", "reset", "reset fails", "window p", "take q", *ROWS,
    ),
    "p stored": (*LOADS, "abort all", "evict", "fill p", "reset", "reset fails", "read p"),
    "p packed": ("expand p", "read p", "expire p", "evict", "abort all", "fill q end", "reset"),
    "empty": ("fill p", "fill q", "abandon", "read p", "reset", "decode p"),
    "p and q": ("read both", "evict", "read q", "expire p", "pack p"),
}  # fmt: skip
"""By beginning."""

SETTINGS = {"one kind": Setting(WITH_ONE_KIND), "blocks": Setting(WITH_BLOCKS), "all kinds": Setting(WITH_ALL_KINDS)}


def pairs(begin: str) -> list[tuple[str, str]]:
    """Every pair of a beginning's operations, each with itself too."""
    return list(itertools.combinations_with_replacement(OPERATIONS[begin], 2))


def is_long(names: tuple[str, str]) -> bool:
    """Two operations of many steps: hundreds or thousands of schedules."""
    many = {*ROWS, *LOADS, "fill p", "take q", "decode p", "expand p", "reset fails"}
    some = {"read both", "read p, park", "fill q", "fill q end"}
    return names[0] in many | some and names[1] in many | some and not set(names) <= some


def explored(begin: str, setting: Setting, names: list[tuple[str, str]], bound: int | None = None) -> Counter[str]:
    """Every schedule of each pair, or every one within a bound; fails with the first that goes wrong."""
    counts: Counter[str] = Counter()
    for pair in names:
        result = check(begin, pair, setting, bound=bound)
        counts += Counter({"pairs": 1, "schedules": result.schedules, "states": len(result.finals)})
    print(begin, "without a bound" if bound is None else f"at most {bound} preemptions", dict(counts))
    return counts


@pytest.mark.parametrize("begin", OPERATIONS)
def test_every_schedule_of_every_pair_keeps_what_must_hold(begin: str) -> None:
    short = [names for names in pairs(begin) if not is_long(names)]
    assert explored(begin, SETTINGS["blocks"], short)["schedules"] > len(short)


@pytest.mark.long
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("begin", OPERATIONS)
def test_every_schedule_of_the_long_pairs_and_of_other_models_keeps_what_must_hold(begin: str, setting: str) -> None:
    """Two loads, and two long operations over all kinds of objects, have too many: those with two preemptions."""
    every_pair = pairs(begin)
    bounded = [names for names in every_pair if set(names) <= set(LOADS) or (setting == "all kinds" and is_long(names))]
    explored(begin, SETTINGS[setting], [names for names in every_pair if names not in bounded])
    explored(begin, SETTINGS[setting], bounded, 2)


@pytest.mark.parametrize(
    ("begin", "names"),
    [
        ("p", ("read p", "evict")),
        ("p", ("read p", "reset")),
        ("p", ("read p", "pack p lossy")),
        ("p", ("pack p", "reset fails")),
        ("p", ("window p", "read p, park")),
        ("p packed", ("expand p", "expire p")),
        ("p packed lossy", ("expand p", "read p")),
        ("p stored", ("load p", "reset")),
        ("p stored", ("load aborts", "evict")),
        ("empty", ("fill p", "fill p")),
    ],
)
def test_pairs_with_all_kinds_of_objects(begin: str, names: tuple[str, str]) -> None:
    explored(begin, SETTINGS["all kinds"], [names])


LOCAL = [
    ("p stored", ("load p", "reset")),
    ("empty", ("fill p", "reset")),
    ("p stored", ("read p", "evict")),
]


@pytest.mark.parametrize(("begin", "names"), LOCAL)
def test_pairs_over_the_store_on_disk_with_its_own_locks(begin: str, names: tuple[str, str]) -> None:
    explored(begin, Setting(WITH_ONE_KIND, store="local"), [names])
