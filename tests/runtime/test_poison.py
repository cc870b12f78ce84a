"""After a broken invariant every public call raises, and says what broke, where, and which events led there.

The calls are found by looking at the classes, so that a new one can't be forgotten.
"""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime import publication
from kvfsm.runtime.admission import Admission
from kvfsm.runtime.audit import audit
from kvfsm.runtime.errors import Broken, Poisoned, Refused
from kvfsm.runtime.fill import Fill
from kvfsm.runtime.generated import CapturedGraphTable
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.graphs import GraphRunner
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.lease import Lease
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.poison import Guard
from kvfsm.runtime.registration import Registration
from kvfsm.runtime.requests import RequestTable
from kvfsm.runtime.stores.local import LocalStore
from kvfsm.runtime.stores.store import Namespace
from kvfsm.runtime.ticket import Ticket
from kvfsm.runtime.trace import EventTrace

PROFILE = PROFILES["tiny_deepseek_v4"]
A = PROFILE.granule
KIND = "compressed_kv"


def make(**options: Any) -> Manager:
    return Manager(PROFILE, dict.fromkeys(PROFILE.kinds, 16), NumpyBackend(), cold=4, rows=4, **options)


def put(manager: Manager, keys: Keys, start: int, stop: int) -> None:
    for granule in range(start, stop):
        manager.publish(manager.reserve(keys, granule, granule + 1))


def keys_of(manager: Manager, seed: int = 0) -> Keys:
    return manager.keys(np.random.default_rng(seed).integers(0, 256, 4 * A + 1))


# ---- every public call -----------------------------------------------------------------------------------------------


@dataclass
class Scene:
    """A manager with one of everything open, and what its calls are given."""

    manager: Manager
    owners: Mapping[type, Any]  # an instance of each class whose calls are tried
    given: Mapping[str, Any]  # by name of the argument
    special: Mapping[tuple[type, str], Mapping[str, Any]]  # for calls whose argument means something else


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    namespace = Namespace.of(PROFILE)
    with LocalStore(tmp_path, namespace, budget_bytes=1 << 30) as store:
        manager = make(store=store)
        keys, stored = keys_of(manager), keys_of(manager, 1)
        put(manager, stored, 0, 2)
        for kind in PROFILE.kinds:
            manager.evict(kind, 99)
        put(manager, keys, 0, 3)
        answer, plan = manager.match(keys), manager.match(stored).plan
        assert plan is not None
        lease, fill = manager.acquire(answer), manager.reserve(keys, 3, 4)
        row = manager.requests.admit(A + 3)
        runner = GraphRunner(manager, lambda launch, inputs: None, [1])
        runner.capture(1)
        admission = Admission(manager)
        reservation = admission.admit(answer, 4 * A)
        ticket = manager.load_begin(plan)
        registration = Registration(manager, lambda region: None, lambda region: None)
        owners = {
            Manager: manager, RequestTable: manager.requests, Ticket: ticket, Lease: lease, Fill: fill,
            GraphRunner: runner, Admission: admission, Registration: registration,
        }  # fmt: skip
        one = np.array([0])
        given = {
            "keys": keys, "answer": answer, "plan": plan, "lease": lease, "fill": fill, "requests": [(keys, None)],
            "kind": KIND, "part": "entries", "layer": 2, "slots": one, "data": np.zeros((1, 2, 2), np.uint8),
            "start": 3, "stop": 4, "settled": A, "count": 1, "counts": np.array([0]), "deadline": None,
            "made": CapturedGraphTable, "row": row, "rows": [row], "tokens": A, "to": A + 2, "position": A,
            "entry": 0, "owner": "", "places": one, "bucket": 1, "reservation": reservation, "ticket": ticket,
            "name": "requests", "call": lambda ticket: None, "incarnation": 1, "step": A, "computed": None,
            "priority": 0, "ttl": None, "done": None,
        }  # fmt: skip
        special: dict[tuple[type, str], Mapping[str, Any]] = {
            (Manager, "components"): {"slots": {KIND: one.astype(np.int32)}},
            (Manager, "table"): {"slots": 1},
            (Admission, "admit"): {"tokens": 4 * A},
        }
        yield Scene(manager, owners, given, special)


HELD_BY_THE_CALLER = re.compile("caller holds (the|its) (manager's )?lock")
"""What the description of a call says that is made in a larger step: it was let in before."""

ANSWERS_ANYWAY: Mapping[tuple[type, str], str] = {
    (Manager, "audit"): "says what is wrong",
    (Manager, "leaks"): "says what is open",
    (Manager, "metadata_bytes"): "counts memory",
    (Manager, "keys"): "of tokens alone",
    (Manager, "check_keys"): "of the keys alone",
    (RequestTable, "check_keys"): "of the keys and whose a row is",
    (Manager, "object_of"): "names of objects",
    (Manager, "site"): "of the stack alone",
    (Ticket, "join"): "a part of larger steps",
    (Ticket, "leave"): "a part of larger steps",
    (Ticket, "then"): "a part of larger steps",
    (Registration, "move"): "a part of larger steps",
    (Admission, "taken"): "what it counted",
    (Admission, "step_stop"): "of numbers alone",
    (Ticket, "slots"): "what it holds",
    (Ticket, "all_slots"): "what it holds",
    (Fill, "close"): "takes the right to write away",
    (Fill, "staged"): "what it handed out",
    (GraphRunner, "bucket_of"): "of numbers alone",
    (GraphRunner, "signature"): "what was captured",
    (GraphRunner, "begun"): "asks the device",
    (RequestTable, "count_pins"): "what the audit asks",
    (RequestTable, "slots"): "what the audit asks",
    (RequestTable, "need"): "of numbers alone",
    (RequestTable, "incarnation"): "what it counted",
    (RequestTable, "holds"): "what it counted",
    (Registration, "deregister"): "the memory goes, whatever it holds",
}


def public_calls(owner: type) -> list[str]:
    """Methods, and properties that ask the manager, which callers without the lock may use."""
    found = []
    for name, member in inspect.getmembers(owner):
        told = HELD_BY_THE_CALLER.search(inspect.getdoc(member) or "")
        if not name.startswith("_") and inspect.isfunction(member) and not told and not name.endswith("_now"):
            found.append(name)
    return found


def call(scene: Scene, owner: type, name: str) -> None:
    """Make a call with what its arguments are named after."""
    method = getattr(scene.owners[owner], name)
    given = {**scene.given, **scene.special.get((owner, name), {})}
    needed = [one for one in inspect.signature(method).parameters.values() if one.default is one.empty]
    unknown = [one.name for one in needed if one.name not in given]
    assert not unknown, f"{owner.__name__}.{name}: say in this module what {', '.join(unknown)} may be"
    positional = [given[one.name] for one in needed if one.kind is not one.KEYWORD_ONLY]
    method(*positional, **{one.name: given[one.name] for one in needed if one.kind is one.KEYWORD_ONLY})


CALLERS = (Manager, RequestTable, Ticket, Lease, Fill, GraphRunner, Admission, Registration)


@pytest.mark.parametrize("owner", CALLERS, ids=lambda owner: owner.__name__)
def test_a_poisoned_manager_refuses_every_public_call(owner: type, scene: Scene) -> None:
    scene.manager.lock.poison("S3", "a test", "planted")
    went = []
    for name in public_calls(owner):
        if (owner, name) in ANSWERS_ANYWAY:
            continue
        try:
            call(scene, owner, name)
        except Poisoned as poisoned:
            assert (poisoned.invariant, poisoned.where, poisoned.what) == ("S3", "a test", "planted")
        except Exception as error:  # it looked at something else before
            went.append(f"{name}: {type(error).__name__}: {error}")
        else:
            went.append(name)
    assert went == [], f"{owner.__name__} lets these through: {went}"


@pytest.mark.parametrize("owner", CALLERS, ids=lambda owner: owner.__name__)
def test_control_the_same_calls_of_a_healthy_manager_are_let_in(owner: type, scene: Scene) -> None:
    for name in public_calls(owner):
        try:
            call(scene, owner, name)
        except Poisoned:
            pytest.fail(f"{name} poisoned the manager")
        except Exception as error:  # what the calls before left makes some of them impossible
            assert scene.manager.lock.reason is None, error
    assert audit(scene.manager).ok


def test_what_answers_anyway_does(scene: Scene) -> None:
    scene.manager.lock.poison("S3", "a test", "planted")
    for owner, name in ANSWERS_ANYWAY:
        assert name in public_calls(owner), f"{owner.__name__}.{name} is gone; take it off the list"
    for name in ("audit", "leaks", "metadata_bytes"):
        call(scene, Manager, name)
    assert scene.manager.tickets and not scene.manager.parked and not scene.manager.given_up


def test_pointers_and_views_of_a_poisoned_manager_are_refused(scene: Scene) -> None:
    lease = scene.owners[Lease]
    assert lease.state_data_ptrs
    scene.manager.lock.poison("S3", "a test", "planted")
    with pytest.raises(Poisoned):
        lease.state_data_ptrs  # noqa: B018


# ---- what poisons, and what does not ---------------------------------------------------------------------------------


def test_ordinary_refusals_and_mistakes_poison_nothing() -> None:
    manager = make()
    keys = keys_of(manager)
    put(manager, keys, 0, 2)
    lease, answer = manager.acquire(manager.match(keys)), manager.match(keys)
    manager.release(lease)

    def broken() -> bool:
        raise RuntimeError("the device is gone")

    manager.reset()
    row = manager.requests.admit(3)
    mistakes: list[Callable[[], object]] = [
        lambda: manager.release(lease), lambda: manager.acquire(answer), lambda: manager.evict("nothing", 1),
        lambda: manager.reserve(keys, 2, 9), lambda: manager.requests.step([row, row]),
        lambda: manager.requests.step([99]), lambda: manager.requests.admit(0), lambda: manager.requests.finish(3),
        lambda: manager.requests.finish(row, done=broken), lambda: manager.renew(lease, 1.0),
        lambda: manager.reallocate({KIND: 1}), lambda: manager.reallocate(),
    ]  # fmt: skip
    for mistake in mistakes:
        with pytest.raises(Exception) as error:
            mistake()
        assert not isinstance(error.value, Poisoned), error.value
    assert manager.lock.reason is None and manager.audit().ok
    manager.requests.finish(row)


def test_a_failed_assertion_poisons_and_goes_to_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = make()
    keys = keys_of(manager)

    def fail(*_: object) -> None:
        raise AssertionError("the index is upside down")

    monkeypatch.setattr(publication, "check_chain", fail)
    fill = manager.reserve(keys, 0, 1)
    with pytest.raises(AssertionError, match="upside down") as first:
        manager.publish(fill)
    assert any("poisoned" in note for note in first.value.__notes__)
    with pytest.raises(Poisoned, match=r"assertion broke in publish \(filling.py:\d+\).*upside down"):
        manager.match(keys)


def test_an_error_that_leaves_work_half_done_poisons(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = make()
    keys = keys_of(manager)
    put(manager, keys, 0, 1)
    fill = manager.reserve(keys, 1, 2)

    def fail(*_: object, **__: object) -> None:
        raise OSError("out of memory")

    monkeypatch.setattr(publication, "place", fail)  # sealed by then, and nobody's
    with pytest.raises(OSError, match="out of memory"):
        manager.publish(fill)
    with pytest.raises(Poisoned, match="S1 broke in publish"):
        manager.match(keys)
    assert not manager.audit().ok


def test_an_error_that_leaves_everything_in_order_poisons_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = make()
    keys = keys_of(manager)
    fill = manager.reserve(keys, 0, 1)
    with monkeypatch.context() as patch:
        patch.setattr(publication, "check_chain", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            manager.publish(fill)
    manager.publish(fill)
    assert manager.match(keys).now == A and manager.audit().ok


def test_an_interrupt_in_the_middle_poisons(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = make()
    keys = keys_of(manager)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(publication, "check_chain", interrupt)
    with pytest.raises(KeyboardInterrupt):
        manager.publish(manager.reserve(keys, 0, 1))
    with pytest.raises(Poisoned, match=r"all or nothing broke in publish.*KeyboardInterrupt"):
        manager.match(keys)


def test_what_cannot_be_audited_is_broken() -> None:
    def cannot() -> list[str]:
        raise IndexError("no such slot")

    guard = Guard(threading.Lock(), cannot)
    with pytest.raises(TypeError), guard:
        raise TypeError("something else")
    with pytest.raises(Poisoned, match=r"can't be done after TypeError: something else: IndexError"), guard:
        pytest.fail("nobody is let in")


def test_a_release_that_slots_refuse_poisons() -> None:
    trace = EventTrace()
    manager = make(trace=trace)
    keys = keys_of(manager)
    put(manager, keys, 0, 2)
    lease = manager.acquire(manager.match(keys))
    table = manager.core.pools[KIND].table
    for slot in lease.slots[KIND].tolist():
        table.words[slot] = table.LAYOUT.replaced(int(table.words[slot]), {"pins": 0})
    with pytest.raises(Broken, match="S8 is broken: compressed_kv refuses 'unpin'"):
        manager.release(lease)
    with pytest.raises(Poisoned) as poisoned:
        manager.match(keys)
    assert poisoned.value.invariant == "S8" and "release (manager.py:" in poisoned.value.where
    assert "compressed_kv [0, 1] pin(expected=1" in " ".join(poisoned.value.events)
    assert "compressed_kv [0, 1] unpin(expected=1): refused as NOT_PINNED" in poisoned.value.events[-1]
    assert list(trace.lines())  # can be read, and shows what came before


def test_an_audit_that_finds_something_poisons_and_can_be_repeated() -> None:
    manager = make()
    keys = keys_of(manager)
    put(manager, keys, 0, 2)
    manager.core.orphans[KIND] = np.array([0])
    first = manager.audit()
    assert not first.ok and manager.audit() == first
    with pytest.raises(Poisoned, match=r"S1 broke in audit\(\): .* and 1 more"):
        manager.reserve(keys, 2, 3)


def test_without_a_trace_the_error_says_how_to_turn_it_on() -> None:
    guard = Guard(threading.Lock(), list)
    guard.poison("S1", "here", "a slot twice")
    with pytest.raises(Poisoned, match=r"no events were recorded; make the manager with trace=EventTrace\(\)"):
        guard.check()


def test_the_first_reason_stays() -> None:
    guard = Guard(threading.Lock(), list)
    guard.poison("S1", "here", "a slot twice")
    guard.found(["S3: a pin too many"], "there")
    assert guard.reason is not None and guard.reason.invariant == "S1"


def test_who_waited_for_the_lock_is_refused_too() -> None:
    guard, told = Guard(threading.Lock(), list), []

    def wait() -> None:
        try:
            with guard:
                told.append("in")
        except Poisoned:
            told.append("poisoned")

    with guard:
        thread = threading.Thread(target=wait)
        thread.start()
        guard.poison("S1", "here", "a slot twice")
    thread.join()
    assert told == ["poisoned"]
    assert guard.lock.acquire(blocking=False)  # type: ignore[attr-defined]  # and nobody holds it


def test_the_lock_is_made_once_and_is_a_context_manager_only() -> None:
    made = []

    class Plain:
        def __init__(self) -> None:
            made.append(self)
            self.inside = 0

        def __enter__(self) -> None:
            self.inside += 1

        def __exit__(self, *_: object) -> None:
            self.inside -= 1

    manager = make(lock=Plain)
    keys = keys_of(manager)
    put(manager, keys, 0, 2)
    manager.release(manager.acquire(manager.match(keys)))
    with pytest.raises(Refused):
        manager.acquire(manager.match(keys_of(manager, 3)))
    assert manager.audit().ok and len(made) == 1 and made[0].inside == 0


def test_an_audit_while_something_is_packed_poisons_nothing() -> None:
    """Half of the copies are made, and the chain that they are of has ended: nobody but the packer knows its slots."""

    class Slow(NumpyBackend):
        meanwhile: Callable[[], object] = list

        def pack(self, layout: Any, data: Any, lossy: bool = False) -> list[bytes]:
            self.meanwhile()
            return super().pack(layout, data, lossy)

    backend = Slow()
    manager = Manager(PROFILE, dict.fromkeys(PROFILE.kinds, 16), backend, cold=4)
    keys, found = keys_of(manager), []
    put(manager, keys, 0, 2)
    backend.meanwhile = lambda: found.append(manager.audit())
    assert manager.pack(keys) == 2
    manager.expire(keys)
    put(manager, keys, 0, 2)

    def expire() -> None:
        manager.expire(keys)
        found.append(manager.audit())

    backend.meanwhile = expire
    assert manager.pack(keys) == 0
    assert [one.violations for one in found] == [(), ()] and manager.audit().ok
