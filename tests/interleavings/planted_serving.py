"""Races planted beside the manager: in admission, in a scheduler, in leases and in rows. Each changes a world."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kvfsm.runtime.admission import Deferred, Limits, Rejected, Reservation
from kvfsm.runtime.answers import Answer
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.generated import Refusal
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.leaks import Leak
from kvfsm.runtime.lease import Done, Lease, Receipt
from kvfsm.runtime.live_requests import Live
from kvfsm.runtime.queues import Queue
from kvfsm.runtime.ticket import Ticket

from .world import World


def admits_in_two_steps(world: World) -> None:
    """Looks whether there is room, lets go of the lock, and then takes without looking."""
    admission, lock = world.serving.admission, world.manager.lock
    admission.limits = Limits(requests=1)
    admission._names = {"requests": (0, 4)}
    admit = admission.admit

    def admit_late(answer: Answer, tokens: int, **named: Any) -> Reservation | Deferred | Rejected:
        with lock:
            if admission.taken("requests") >= 1:
                return Deferred(Refusal.FULL, "admission", "one is under way")
        decision = admit(answer, tokens, **named)
        if admission.taken("requests") > 1:
            world.wrong.append("two are under way, and one may be")
        return decision

    admission.admit = admit_late  # type: ignore[method-assign]


def frees_when_the_last_leaves(world: World) -> None:
    """Slots of a load that the last one has left are free at once, though its bytes may still arrive."""
    loader = world.manager.loader
    leave = loader.leave

    def leave_and_free(ticket: Ticket, owner: str) -> bool:
        last = leave(ticket, owner)
        if last:
            ticket.moving = False
            loader._sure(ticket, "quiesce", of=ticket.word.of)
            loader._free_aborted(ticket, "quiesced")
        return last

    loader.leave = leave_and_free  # type: ignore[method-assign]


def admits_before_it_has(world: World) -> None:
    """A request's word says that it is admitted before it has its reservation: two regions of the lock."""
    turns = world.serving.engine._turns
    lock, requests, admission, workers = world.manager.lock, turns._requests, turns._admission, turns._workers

    def admit(live: Live, reservation: Reservation, queue: Queue, *, less: bool = False) -> None:
        ticket = reservation.ticket
        with lock:
            where = queue if ticket is not None or queue not in (Queue.DISK, Queue.COMPRESSED) else Queue.RESIDENT
            gone = requests.try_fire("admit", live, where=where) is not None
            if gone:
                admission.cancel_now(reservation)
            else:
                requests.queues.granted(live.number)
        with lock:
            if not gone:
                live.reservation, live.loading = reservation, ticket
                if ticket is None:
                    turns._enter(live)
        if ticket is not None and not gone:
            workers.start(live, ticket)
        elif ticket is not None:
            workers.quiesce(ticket)

    turns._admit = admit  # type: ignore[method-assign]


def revokes_at_once(world: World) -> None:
    """What is revoked is free, though the device reads it still."""
    revoke = world.manager.revoke

    def revoke_now(lease: Lease | Receipt | Leak, *, done: Done | None = None) -> None:
        revoke(lease)

    world.manager.revoke = revoke_now  # type: ignore[method-assign]


def gives_up_under_the_step(world: World) -> None:
    """Slots of a request that is given up are free, though the engine's step writes to them still."""
    engine = world.serving.engine
    cancel = engine.cancel

    def cancel_now(live: Live, *, done: Done | None = None) -> bool:
        return cancel(live)

    engine.cancel = cancel_now  # type: ignore[method-assign]


def wakes_early(world: World) -> None:
    """Who submits wakes the engine before the request is in a queue, and not afterwards."""
    engine, flag = world.serving.engine, world.serving.flag
    submit = engine.submit
    engine._changed = SimpleNamespace(set=lambda: None, clear=flag.clear)  # type: ignore[assignment]

    def submit_late(keys: Keys, tokens: int | None = None, *, owner: str = "") -> Live:
        flag.set()
        return submit(keys, tokens, owner=owner)

    engine.submit = submit_late  # type: ignore[method-assign]


def shares_drafts(world: World) -> None:
    """What is accepted is published before its bytes are there."""
    world.manager.writes_through = False  # the store would have other bytes in any order
    requests = world.manager.requests
    accept = requests.accept

    def accept_and_publish(rows: Any, counts: Any, **named: Any) -> None:
        accept(rows, counts, **named)
        for row in rows:
            requests.publish(row, world.p)

    requests.accept = accept_and_publish  # type: ignore[method-assign]


def lets_go_before_it_is_stored(world: World) -> None:
    """What a row that is put back has published is not held while the store reads it."""
    world.manager.storer.hold = lambda kept: {}  # type: ignore[method-assign]


def blames_the_second(world: World) -> None:
    """Who publishes keys that another call has published just now says that they were lost."""
    rebuilds, manager = world.serving.engine._rebuilds, world.manager

    def publish(live: Live) -> None:
        fill = live.rebuild
        if fill is None or live.owed:
            return
        try:
            manager.publish(fill)
        except Refused as refused:
            rebuilds._ended(live, fill, refused)
        else:
            rebuilds._ended(live, fill, None)

    rebuilds.publish = publish  # type: ignore[method-assign]


def clears_nothing(world: World) -> None:
    """Slots go to another tenant with what was left in them."""
    world.manager.isolation.clear = lambda *given: None  # type: ignore[method-assign]
