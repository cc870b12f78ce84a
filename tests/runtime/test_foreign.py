"""What another manager, admission or scheduler gave is refused by every public call that takes such a thing.

Two sides are made alike: same prompts, same numbers of leases, fills and reservations, same slots. So nothing but the
question whose a thing is can tell them apart. Which calls there are is asked of the code itself: a new one that is not
in the table fails the test of the table.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

import kvfsm.runtime
from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.admission import Admission, Reservation
from kvfsm.runtime.answers import Answer, Plan, Reason
from kvfsm.runtime.audit import audit
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.leaks import Leak
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.requests import RequestTable
from kvfsm.runtime.scheduler import Scheduler

from .serving import Shelf, prompt, stored, write
from .test_scheduler_misuse import CALLS as SCHEDULER_CALLS

PROFILE = PROFILES["tiny_deepseek_v32"]
A = PROFILE.granule

GIVEN = (
    "Answer", "Plan", "Claim", "Lease", "Receipt", "GivenUp", "Leak", "Fill", "Ticket", "Reservation", "Live", "Work",
)  # fmt: skip
"""Types of what callers are given."""

PUBLIC = (Manager, RequestTable, Admission, Scheduler)
"""What engines call. What they hand on to is behind the lock: see ``INSIDE``."""

INSIDE = {
    "Filler": Manager, "Lessor": Manager, "Loader": Manager, "Matcher": Manager, "Parking": Manager, "Storer": Manager,
    "LiveRequests": Scheduler, "LoadWorkers": Scheduler, "RunningRows": Scheduler, "Turns": Scheduler,
    "RankTurns": Scheduler, "KeyRebuilds": Scheduler, "Ticket": Manager, "RowLife": RequestTable, "Ways": Admission,
}  # fmt: skip
"""Parts whose calls come from one of these, with what it has checked. A ticket's own calls are on its own loader."""


class Side:
    """A manager with one of everything that it gives."""

    def __init__(self) -> None:
        shelf, self.now = Shelf(), 0.0
        stored(shelf, [prompt(1, 3 * A + 4)], PROFILE)
        slots = dict.fromkeys(PROFILE.kinds, 32)
        self.manager = Manager(PROFILE, slots, NumpyBackend(), store=shelf, writes="none", now=lambda: self.now)
        self.admission = Admission(self.manager)
        stale = self.manager.keys(prompt(3, 3 * A))
        write(self.manager, stale, 2)
        self.manager.evict("indexer_state", 2)
        self.keys, self.free = self.manager.keys(prompt(2, 3 * A)), self.manager.keys(prompt(4, 3 * A))
        write(self.manager, self.keys, 2)
        self.hit, self.rebuild = self.manager.match(self.keys), self.manager.match(stale)
        self.pending = self.manager.match(self.manager.keys(prompt(1, 3 * A + 4)))
        self.missing = self.manager.match(self.manager.keys([1]))  # no cache was asked for that
        assert (self.hit.kind, self.pending.kind, self.missing.claims) == ("HIT", "HIT_PENDING", ())
        assert self.rebuild.rebuild is not None
        self.lease, self.late = (self.manager.acquire(self.hit, deadline=deadline) for deadline in (None, 5.0))
        self.receipt = self.manager.receipts[self.late.lease_id][0]
        (self.leak,) = (one for one in self.manager.leaks() if one.receipt is self.receipt)
        self.fill = self.manager.reserve(self.free, 0, 1)
        self.ready, self.entered = self.begun(), self.begun()
        self.admission.enter(self.entered)

    @property
    def plan(self) -> Plan:
        assert self.pending.plan is not None
        return self.pending.plan

    def begun(self) -> Reservation:
        one = self.admission.admit(self.missing, 1)
        assert isinstance(one, Reservation)
        return one

    def state(self) -> tuple[Any, ...]:
        """All that a refused call leaves as it was."""
        manager = self.manager
        words = [pool.table.words.tolist() for pool in manager.core.pools.values()]
        open_ = (list(manager.receipts), list(manager.fills), list(manager.tickets), list(manager.reservations))
        reserved = [(one.stage, one.lease, one.ticket) for one in (self.ready, self.entered)]
        waiting = (list(manager.parked), list(manager.given_up))
        return (
            words, open_, reserved, waiting, manager.requests.tokens.tolist(), self.admission.words.words.tolist(),
            self.lease.revoked, self.late.revoked,
        )  # fmt: skip


def locked(call: Callable[[Side, Side], object]) -> Callable[[Side, Side], object]:
    """The same under the lock, as its docstring asks."""

    def run(mine: Side, theirs: Side) -> object:
        with mine.manager.lock:
            return call(mine, theirs)

    return run


def overdue(call: Callable[[Side, Side], object]) -> Callable[[Side, Side], object]:
    """The same when the deadline has passed."""

    def run(mine: Side, theirs: Side) -> object:
        mine.now = theirs.now = 6.0
        return call(mine, theirs)

    return run


def placed(mine: Side, theirs: Side) -> object:
    """Whose the lease is comes before how many slots there are."""
    requests = mine.manager.requests
    slots = mine.manager.take(requests.need(3 * A, 2), "take") if mine is theirs else {}
    return requests.place(3 * A, slots, lease=theirs.lease)


CALLS: dict[str, dict[str, Callable[[Side, Side], object]]] = {
    "Manager.check": {
        "hit": lambda mine, theirs: mine.manager.check(theirs.hit),
        "missing": lambda mine, theirs: mine.manager.check(theirs.missing),
    },
    "Manager.check_own": {
        "answer": lambda mine, theirs: mine.manager.check_own(theirs.missing),
        "plan": lambda mine, theirs: mine.manager.check_own(theirs.plan),
    },
    "Manager.acquire": {
        "hit": lambda mine, theirs: mine.manager.acquire(theirs.hit),
        "missing": lambda mine, theirs: mine.manager.acquire(theirs.missing),
    },
    "Manager.acquire_all": {"hit": lambda mine, theirs: mine.manager.acquire_all(theirs.hit)},
    "Manager.acquire_now": {"hit": locked(lambda mine, theirs: mine.manager.acquire_now(theirs.hit, ""))},
    "Manager.release": {"lease": lambda mine, theirs: mine.manager.release(theirs.lease)},
    "Manager.renew": {"lease": lambda mine, theirs: mine.manager.renew(theirs.lease, 9.0)},
    "Manager.revoke": {
        "lease": overdue(lambda mine, theirs: mine.manager.revoke(theirs.late)),
        "receipt": overdue(lambda mine, theirs: mine.manager.revoke(theirs.receipt)),
        "leak": overdue(lambda mine, theirs: mine.manager.revoke(theirs.leak)),
    },
    "Manager.check_held": {"lease": lambda mine, theirs: mine.manager.check_held(theirs.lease)},
    "Manager.receipt_of": {"lease": locked(lambda mine, theirs: mine.manager.receipt_of(theirs.lease))},
    "Manager.load": {"plan": lambda mine, theirs: mine.manager.load(theirs.plan)},
    "Manager.load_begin": {"plan": lambda mine, theirs: mine.manager.load_begin(theirs.plan)},
    "Manager.reserve": {"lease": lambda mine, theirs: mine.manager.reserve(mine.keys, 2, 3, lease=theirs.lease)},
    "Manager.rebuild_begin": {
        "rebuild": lambda mine, theirs: mine.manager.rebuild_begin(theirs.rebuild),
        "missing": lambda mine, theirs: mine.manager.rebuild_begin(theirs.missing),
    },
    "Manager.publish": {"fill": lambda mine, theirs: mine.manager.publish(theirs.fill)},
    "Manager.abandon": {"fill": lambda mine, theirs: mine.manager.abandon(theirs.fill)},
    "Manager.check_open": {"fill": lambda mine, theirs: mine.manager.check_open(theirs.fill)},
    "RequestTable.admit": {"lease": lambda mine, theirs: mine.manager.requests.admit(3 * A, lease=theirs.lease)},
    "RequestTable.place": {"lease": locked(placed)},
    "Admission.admit": {
        "hit": lambda mine, theirs: mine.admission.admit(theirs.hit, 3 * A),
        "pending": lambda mine, theirs: mine.admission.admit(theirs.pending, 4 * A),
        "missing": lambda mine, theirs: mine.admission.admit(theirs.missing, 1),
        "another length": lambda mine, theirs: mine.admission.admit(theirs.hit, 3 * A - (mine is not theirs) * 2 * A),
    },
    "Admission.rebuild": {"rebuild": lambda mine, theirs: mine.admission.rebuild(theirs.rebuild, 3 * A)},
    "Admission.bytes_of": {"pending": locked(lambda mine, theirs: mine.admission.bytes_of(theirs.pending))},
    "Admission.behind_transfers": {
        "hit": locked(lambda mine, theirs: mine.admission.behind_transfers(theirs.hit, 3 * A, None)),
    },
    "Admission.reload": {
        "reservation": lambda mine, theirs: mine.admission.reload(theirs.ready, mine.missing),
        "answer": lambda mine, theirs: mine.admission.reload(mine.ready, theirs.missing),
    },
    "Admission.enter": {"reservation": lambda mine, theirs: mine.admission.enter(theirs.ready)},
    "Admission.enter_now": {"reservation": locked(lambda mine, theirs: mine.admission.enter_now(theirs.ready))},
    "Admission.cancel": {"reservation": lambda mine, theirs: mine.admission.cancel(theirs.ready)},
    "Admission.cancel_now": {"reservation": locked(lambda mine, theirs: mine.admission.cancel_now(theirs.ready))},
    "Admission.drop_now": {"reservation": locked(lambda mine, theirs: mine.admission.drop_now(theirs.ready))},
    "Admission.leave": {"reservation": lambda mine, theirs: mine.admission.leave(theirs.entered)},
    "Admission.leave_now": {"reservation": locked(lambda mine, theirs: mine.admission.leave_now(theirs.entered))},
}  # fmt: skip
"""By call and by what it is given: ``mine`` is asked, and ``theirs`` has given it."""

TRUSTED = {"Manager.give_up": "what it is given was taken out of the books already, by who holds the lock"}


# ---- the table ------------------------------------------------------------------------------------------------------


def classes() -> Iterator[type]:
    """Every class of the runtime that isn't generated, nor an adapter to another library."""
    for found in pkgutil.walk_packages(kvfsm.runtime.__path__, "kvfsm.runtime."):
        if not re.search(r"\.(generated|integrations)\b", found.name):
            module = importlib.import_module(found.name)
            yield from (one for one in vars(module).values() if inspect.isclass(one) and one.__module__ == found.name)


def takers(one: type) -> list[str]:
    """Public methods of a class that take something callers are given."""
    word = re.compile(rf"\b({'|'.join(GIVEN)})\b")
    return [
        f"{one.__name__}.{name}"
        for name, method in inspect.getmembers(one, inspect.isfunction)
        if not name.startswith("_")
        and any(word.search(str(given.annotation)) for given in list(inspect.signature(method).parameters.values())[1:])
    ]


def test_the_table_has_every_public_call() -> None:
    found = {name for one in PUBLIC for name in takers(one)}
    assert found == {*CALLS, *TRUSTED, *(f"Scheduler.{name}" for name in SCHEDULER_CALLS)}


def test_every_other_class_that_takes_such_things_is_inside() -> None:
    """A new class is either public, and then in the table, or named as a part of one that is."""
    others = {one.__name__ for one in classes() if takers(one) and one not in PUBLIC}
    assert others - set(INSIDE) == set()
    assert set(INSIDE) <= {one.__name__ for one in classes()} and set(INSIDE.values()) <= set(PUBLIC)


def test_a_call_that_is_new_would_be_seen() -> None:
    class Sub(Manager):
        def new(self, count: int, answers: Sequence[Answer] = ()) -> None:
            """Takes answers."""

    assert set(takers(Sub)) - {f"Sub.{name.partition('.')[2]}" for name in takers(Manager)} == {"Sub.new"}


# ---- the calls ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("call", "given"), [(call, given) for call, some in CALLS.items() for given in some])
def test_what_another_gave_is_refused_and_changes_nothing(call: str, given: str) -> None:
    mine, theirs, run = Side(), Side(), CALLS[call][given]
    assert mine.state()[0] == theirs.state()[0]  # word for word the same
    before = mine.state(), theirs.state()
    with pytest.raises(Refused, match=r"another|is not open here") as refused:
        run(mine, theirs)
    assert refused.value.refusal is Reason.LEASE
    assert (mine.state(), theirs.state()) == before
    for side in (mine, theirs):
        assert audit(side.manager).violations == ()
    try:
        run(mine, mine)
    except Refused as found:  # there is nothing to read in its own either
        assert given == "missing" and found.refusal is not Reason.LEASE


def test_two_admissions_of_one_manager_are_two() -> None:
    """Each has limits of its own, and gives back to those."""
    side = Side()
    other = Admission(side.manager)
    for call in (other.enter, other.cancel):
        with pytest.raises(Refused, match="made by another admission"):
            call(side.ready)
    with pytest.raises(Refused, match="made by another admission"):
        other.leave(side.entered)
    side.admission.cancel(side.ready)


def test_a_leak_of_another_kind_is_no_lease() -> None:
    side = Side()
    (leak,) = (one for one in side.manager.leaks() if one.what == "fill")
    with pytest.raises(Refused, match=rf"lease can be revoked; abandon\(manager.fills\[{leak.number}\]\) ends it"):
        side.manager.revoke(leak)
    side.manager.abandon(side.manager.fills[leak.number])
    with pytest.raises(Refused, match=r"only a lease can be revoked$"):
        side.manager.revoke(Leak("load", 0, "", None, False))
