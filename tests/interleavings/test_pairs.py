"""Two operations at once: every schedule of every pair, on small worlds. Nothing is sampled."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import pytest

from . import operations
from .operations import KEYED, TIMED, home
from .shortest import check
from .world import WITH_ALL_KINDS, WITH_BLOCKS, WITH_KEYS, WITH_ONE_KIND, Setting

ROWS = ("decode q reusing", "roll back")
LOADS = ("load p", "load in steps", "load aborts", "load fails")
OPERATIONS = {
    "p": (
        "read p", "read both", "read p, park", "device ends", "fill q end", "evict", "expire p end", "pack p",
        "pack p lossy", "reset", "reset fails", "window p", "take q", *ROWS,
    ),
    "p stored": (*LOADS, "abort all", "evict", "fill p", "reset", "reset fails", "read p"),
    "p packed": ("expand p", "read p", "expire p", "evict", "abort all", "fill q end", "reset"),
    "p packed around": ("expand p", "expire p end", "evict", "pack p end", "fill q end"),
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
@pytest.mark.parametrize(("begin", "names"), [(begin, names) for begin in OPERATIONS for names in pairs(begin)])
def test_every_schedule_of_every_pair_of_other_models_keeps_what_must_hold(
    begin: str, names: tuple[str, str], setting: str
) -> None:
    """Two loads, and two long operations over all kinds of objects, have too many: those with two preemptions."""
    bounded = set(names) <= set(LOADS) or (setting == "all kinds" and is_long(names))
    explored(begin, SETTINGS[setting], [names], 2 if bounded else None)


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
        ("p packed around", ("expand p", "expire p end")),
        ("p stored", ("load p", "reset")),
        ("p stored", ("load aborts", "evict")),
        ("empty", ("fill p", "fill p")),
    ],
)
def test_pairs_with_all_kinds_of_objects(begin: str, names: tuple[str, str]) -> None:
    explored(begin, SETTINGS["all kinds"], [names])


_SCHEDULES = ("schedule", "rebuild in turn")
_LAUNCHED = ("decode", "draft", "preempt", "publish", "sleep")  # what they are told of counts as computed
MISUSE = {frozenset(pair) for pair in itertools.product(_SCHEDULES, (*_SCHEDULES, *_LAUNCHED))}
"""Pairs that a scheduler refuses where they meet."""

SHORT = ("read p", "evict", "reset", "take q")
SERVING = {
    "p running": ("schedule", "submit p", "decode", "preempt", "publish", "finish", "give up", "sleep"),
    "p loading": ("schedule", "work", "give up", "sleep", "abort all", "evict", "reset"),
    "p stored and submitted": ("schedule", "submit p", "submit q", "give up", "sleep"),
    "p stored": ("admit p", "admit p, cancel", "cancel all", "abort all", "reset", "evict"),
    "p opened": ("join", "transfer", "abort all", "cancel all", "reset"),
    "p lent": ("revoke", "lend p", "device ends", "take q", "reset", "move memory"),
    "p without keys": ("rebuild", "rebuild admitted", "evict kv", "evict keys", "reset", "expire p end", "move memory"),
    "p without keys, submitted": ("rebuild in turn", "submit p", "give up", "evict kv", "evict keys", "reset"),
    "p rebuilding": ("publish", "preempt", "give up", "sleep", "evict kv", "evict keys", "reset"),
    "p": (
        "move memory", "grow memory", "set aside", "look on", "check p", "speculate", "preempt row", "other tenant",
        *SHORT,
    ),
}  # fmt: skip
"""By beginning: operations whose pairs have few schedules with one preemption."""


def pairs_with(first: str) -> list[tuple[str, tuple[str, str]]]:
    """An operation and each that is listed from it on, with the homes of both, from which they are explored."""
    names = list(operations.OPERATIONS)
    found: list[tuple[str, tuple[str, str]]] = []
    for second in names[names.index(first) :]:
        if frozenset({first, second}) not in MISUSE:
            found += [(begin, (first, second)) for begin in dict.fromkeys((home(first), home(second)))]
    return found


def setting_of(names: Sequence[str]) -> Setting:
    """The smallest world for some operations, and for a beginning if it is among them."""
    return Setting(WITH_KEYS if KEYED & set(names) else WITH_ONE_KIND, timed=bool(TIMED & set(names)))


@pytest.mark.parametrize("begin", SERVING)
def test_every_pair_of_an_engine_s_operations_keeps_what_must_hold_with_one_preemption(begin: str) -> None:
    for names in itertools.combinations_with_replacement(SERVING[begin], 2):
        if frozenset(names) not in MISUSE:
            print(begin, names, check(begin, names, setting_of((begin, *names)), bound=1))


@pytest.mark.parametrize("profile", [WITH_ONE_KIND, WITH_BLOCKS])
def test_the_next_step_of_a_prompt_beside_others_keeps_what_must_hold_with_one_preemption(profile: str) -> None:
    for other in ("submit p", "give up", "finish", "take q", "reset", "move memory"):
        print(other, check("p begun", ("schedule", other), Setting(profile, chunk=1), bound=1))


@pytest.mark.long
@pytest.mark.parametrize("first", operations.OPERATIONS)
def test_every_pair_of_all_operations_keeps_what_must_hold_with_one_preemption(first: str) -> None:
    for begin, names in pairs_with(first):
        print(begin, names, check(begin, names, setting_of(names), bound=1))


LOCAL = [
    ("p stored", ("load p", "reset")),
    ("empty", ("fill p", "reset")),
    ("p stored", ("read p", "evict")),
]


@pytest.mark.parametrize(("begin", "names"), LOCAL)
def test_pairs_over_the_store_on_disk_with_its_own_locks(begin: str, names: tuple[str, str]) -> None:
    explored(begin, Setting(WITH_ONE_KIND, store="local"), [names])
