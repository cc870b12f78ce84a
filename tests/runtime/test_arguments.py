"""What is of the wrong type is told by name, with what to give in its place, and changes nothing.

Which arguments there are is asked of the code itself: each parameter of each public call gets things of other types in
turn, while the others stay right. A call that is new and not in the table fails the test of the table.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.audit import audit
from kvfsm.runtime.generated import KINDS
from kvfsm.runtime.keys import Keys, Media
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.policy import WindowPolicy
from kvfsm.runtime.trace import EventTrace

from .serving import Shelf, prompt
from .test_foreign import PROFILE, A, Side

CALLS: Mapping[str, Callable[[Side], dict[str, Any]]] = {
    "keys": lambda side: {"tokens": [1], "salt": b"", "adapter": "", "media": ()},
    "match": lambda side: {"keys": side.keys, "tokens": 9, "asks": None, "draft": 0, "at_most": None},
    "match_shared": lambda side: {"requests": ((side.keys, 9),), "asks": None, "draft": 0, "at_most": None},
    "boundaries": lambda side: {"keys": side.keys, "tokens": 9, "draft": 0, "at_most": None},
    "loadable": lambda side: {"keys": side.keys, "tokens": 9, "draft": 0, "at_most": None},
    "check": lambda side: {"answer": side.hit},
    "acquire": lambda side: {"answer": side.hit, "deadline": None},
    "acquire_all": lambda side: {"answer": side.hit, "deadline": None},
    "release": lambda side: {"lease": side.lease, "done": None},
    "renew": lambda side: {"lease": side.lease, "deadline": None},
    "overdue": lambda side: {},
    "revoke": lambda side: {"lease": side.late, "done": None},
    "leaks": lambda side: {},
    "load": lambda side: {"plan": side.plan},
    "load_begin": lambda side: {"plan": side.plan},
    "reserve": lambda side: {"keys": side.free, "start": 1, "stop": 2, "lease": None, "kinds": None},
    "rebuild_begin": lambda side: {"answer": side.rebuild},
    "publish": lambda side: {"fill": side.fill, "priority": 0, "ttl": None},
    "persist": lambda side: {"keys": side.keys, "start": 0},
    "abandon": lambda side: {"fill": side.fill, "done": None},
    "evict": lambda side: {"kind": "indexer_state", "count": 1},
    "expire": lambda side: {"keys": side.keys, "start": 0},
    "free_out_of_window": lambda side: {"keys": side.keys, "settled": A},
    "pack": lambda side: {"keys": side.keys, "start": 0},
    "expand": lambda side: {"keys": side.keys, "tokens": 9},
    "reset": lambda side: {},
    "set_aside": lambda side: {},
    "reallocate": lambda side: {"slots": None, "buffers": None, "void": True},  # once nothing is reserved
    "watch_room": lambda side: {"call": lambda: None},
    "check_held": lambda side: {"lease": side.lease},
    "audit": lambda side: {},
    "metadata_bytes": lambda side: {},
}
"""What each public call is rightly given."""

PARTS = {
    "acquire_now", "check_keys", "check_open", "check_own", "components", "drop_expired", "give_up", "object_of",
    "read", "receipt_of", "site", "table", "take", "tick", "unpark", "write",
}  # fmt: skip
"""What other parts of the runtime call, with what they have checked."""

OPTIONAL = {"tokens", "deadline", "store", "clock", "window", "buffers", "on_event", "trace"}
"""May be None, though the tables give something."""

ANY = {"owner", "lossy", "scrub"}
"""Labels, and flags that are asked for their truth."""

OPTIONS: dict[str, Any] = {
    "profile": PROFILE, "slots": dict.fromkeys(PROFILE.kinds, 4), "backend": NumpyBackend(), "store": Shelf(),
    "clock": iter(range(1, 99)).__next__, "lock": threading.Lock, "window": WindowPolicy.full(),
    "writes": "none", "cold": 0, "rows": 2, "copy_bytes": 1, "io_bytes": 1, "buffers": {}, "on_event": lambda *_: None,
    "trace": EventTrace(), "now": lambda: 0.0, "debug": True, "scrub": "none", "kinds": KINDS,
}  # fmt: skip
"""What the manager is rightly made with."""

WRONG: Mapping[str, Any] = {
    "text": "x", "object": object(), "list": ["x"], "class": NumpyBackend, "half": 2.5, "None": None,
}  # fmt: skip
"""Things of types that hardly anything is."""


def wrongs(name: str, right: Any) -> list[str]:
    """What is of another type than an argument's right value; None is not, where it means that nothing is given."""
    allowed = {"None"} if right is None or name in OPTIONAL else set()
    allowed |= {"half"} if name == "deadline" else set()
    allowed |= {"class"} if callable(right) or name in ("done", "on_event") else set()  # a class can be called
    return [one for one in WRONG if one not in allowed and type(WRONG[one]) is not type(right)]


def parameters(call: Callable[..., object]) -> set[str]:
    return set(inspect.signature(call).parameters) - {"self", *ANY}


def test_the_tables_have_every_public_call_and_option() -> None:
    public = {name for name, _ in inspect.getmembers(Manager, inspect.isfunction) if not name.startswith("_")}
    assert public == {*CALLS, *PARTS} and not PARTS & set(CALLS)
    side = Side()
    for name, given in CALLS.items():
        assert parameters(getattr(Manager, name)) == set(given(side)), name
    assert parameters(Manager.__init__) == set(OPTIONS) - ANY


def made(name: str) -> Side:
    """A side at which a call goes well with what the table gives it."""
    side = Side()
    if name == "revoke":
        side.now = 6.0
    if name == "reallocate":
        side.admission.cancel(side.ready)
        side.admission.leave(side.entered)
    return side


@pytest.mark.parametrize("name", CALLS)
def test_a_call_with_the_right_types_goes_well(name: str) -> None:
    """So that what the next test gives is refused for the one thing in it that is wrong."""
    side = made(name)
    getattr(side.manager, name)(**CALLS[name](side))
    assert audit(side.manager).violations == ()


@pytest.mark.parametrize("name", [name for name in CALLS if CALLS[name](Side())])
def test_a_call_says_which_argument_is_of_the_wrong_type(name: str) -> None:
    side = made(name)
    for parameter, right in CALLS[name](side).items():
        for wrong in wrongs(parameter, right):
            before = side.state()
            with pytest.raises((TypeError, ValueError)) as error:
                getattr(side.manager, name)(**CALLS[name](side) | {parameter: WRONG[wrong]})
            assert "; " in str(error.value), (parameter, wrong, str(error.value))
            assert side.state() == before, (parameter, wrong)
    assert audit(side.manager).violations == ()


@pytest.mark.parametrize("option", OPTIONS)
def test_the_manager_says_which_option_is_of_the_wrong_type(option: str) -> None:
    Manager(**OPTIONS)
    for wrong in wrongs(option, OPTIONS[option]):
        with pytest.raises((TypeError, ValueError), match=option) as error:
            Manager(**OPTIONS | {option: WRONG[wrong]})
        assert "give " in str(error.value), (wrong, str(error.value))


def test_an_answer_without_a_plan_is_told_so() -> None:
    side = Side()
    for call in (side.manager.load, side.manager.load_begin):
        with pytest.raises(TypeError, match="plan is None; give that of a HIT_PENDING answer, no other has one"):
            call(side.hit.plan)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "media",
    [3, Media(b"x", 0, 1), [(0, 10, "x")], [Media("x", 0, 1)], [Media(b"x", 0.5, 1)], [Media(b"x", 0, 1.5)]],  # type: ignore[arg-type]
)
def test_media_of_another_form_are_told_which(media: Any) -> None:
    with pytest.raises(TypeError, match=r"give .*Media|give bytes|give whole tokens"):
        Keys(A, "model", prompt(1, A), media=media)
