"""The manager: validated reads, leases, fills and eviction over the five kinds of cache object of one model.

Every public method is atomic under one lock. Bytes of fills, loads, packing and the store are moved outside it; a slot
is cleared, and a row's boundary copied, under it. What the methods promise is said here, what they do elsewhere: reads
in ``matching.py`` and ``leasing.py``, writes in ``filling.py``, loads and expansions in ``loading.py``, packing in
``packing.py``, what goes to the store in ``storing.py``, what ends in ``expiry.py``, what waits for the device in
``parking.py``, memory that moves in ``moving.py``, bytes of slots in ``slot_bytes.py``, live requests in
``requests.py``. What the lock protects is in ``core.py``.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from .answers import Answer, AnswerKind, Plan, Reason
from .arguments import check_call, check_count, check_has, check_is, check_whole
from .audit import Audit, audit
from .backend import Backend, Device, check_memory
from .core import Buffers, Core
from .errors import Broken, Refused
from .expiry import drop_expired, expire, free_out_of_window
from .fill import Fill
from .filling import Filler
from .generated import KINDS
from .isolation import CLEAN, Isolation
from .keys import Keys, Media
from .layers import LayerCounts, alignment
from .leaks import Leak, call_site, open_handles
from .lease import Component, Done, GivenUp, Lease, Receipt, check_deadline
from .leasing import Lessor
from .loading import Loader
from .matching import Matcher, Request
from .memory import Memory
from .moving import begin_empty, move_cached
from .packing import Packer
from .parking import Parking
from .poison import Guard
from .policy import WindowPolicy
from .profile import Profile
from .rebuilding import begin_rebuild
from .requests import RequestTable
from .slot_bytes import components, read_part, write_part
from .store_keys import object_ids
from .stores.store import Namespace, ObjectId, Store
from .storing import Storer
from .table import OnEvent, Table
from .ticket import Ticket
from .trace import EventTrace, told

if TYPE_CHECKING:
    from .admission import Reservation
    from .live_requests import Live
    from .registration import Registration

Lock = Callable[[], AbstractContextManager[Any]]
Writes = Literal["write_through", "none"]
Scrub = Literal["tenant", "none"]
T = TypeVar("T", bound=Table)


class Manager:
    """Cache state of one served model in fast memory, with a store behind it.

    Args:
        profile: the served model.
        slots: slots of each kind that the profile has.
        backend: moves the bytes.
        store: a slower tier; none when None.
        clock: called for each use, returns growing numbers below 2**63; eviction goes by them.
        lock: makes the one lock.
        window: at which boundaries windows are kept.
        writes: whether what fills and live requests publish is stored too.
        cold: slots for packed copies of compressed KV; ``pack`` has no room without.
        rows: live requests that ``requests`` can hold.
        copy_bytes: alignment of bases and strides that the copy instruction needs.
        io_bytes: the same for the I/O mode; 1 for buffered I/O. What the store's reads need is added to it.
        buffers: memory for the arenas, by kind; own memory of the host where there is none, but for a device.
        on_event: told of each event on state words, under the lock.
        trace: records them, for `kvfsm validate`.
        now: the time that deadlines of leases are in; asked only where there is one.
        scrub: whether slots that go to another tenant are cleared ("tenant") or not ("none"); see ``isolation.py``.
        debug: whether leases, fills and loads note the call that opened them, for ``leaks`` and ``audit``.
        kinds: table classes by kind, of a package of one's own that was generated from other specs; the shipped ones
            for those that it doesn't name.

    Attributes:
        profile, backend, store, clock, now: as given.
        window: at which boundaries windows are kept; all by default.
        writes_through: whether what is published is stored too.
        device: the backend where it is a device, else None.
        core: pools and index.
        requests: live requests, a row each.
        memory: the epoch of the slots' memory, and launches over it.
        isolation: whose bytes are whose, and who clears them.
        lock: the one lock, which lets nobody in once the manager is poisoned.
        matcher, lessor, filler, loader, packer, storer: who matches, leases, fills, loads, packs and stores.
        parking: slots that were let go while the device still uses them.
        reservations: what admission holds, by number.
        registrations: transfer engines' views of the memory, which follow when it moves.
        served: live requests by number, of the scheduler that has some; empty while none has.
        epoch: of what is cached, from 1 on; each ``reset`` begins another.
        time: what the clock said last, 0 before its first use.
        number: gives the next number of a lease, fill or reservation.
        mark: what the answers of this manager carry, and no other's.
        layers: how often each layer of a read passed one on, and how often not.
        store_failures: how often what was published could not be stored.

    Raises:
        ValueError: ``slots`` or ``buffers`` name other kinds than the profile has, ``kinds`` names one that is none,
            two kinds share memory, some memory can't be used or isn't the backend's, an option is out of its range, or
            the backend's device serves another manager.
        TypeError: an argument of another type, such as the name of a profile or the class of a backend.
        OtherNamespace: the store keeps objects of another model, layout or meaning of scores.
        ProfileError: a pool whose offsets the kernels' ABI can't form.
    """

    def __init__(
        self,
        profile: Profile,
        slots: Mapping[str, int],
        backend: Backend,
        *,
        store: Store | None = None,
        clock: Callable[[], int] | None = None,
        lock: Lock = threading.Lock,
        window: WindowPolicy | None = None,
        writes: Writes = "write_through",
        cold: int = 0,
        rows: int = 256,
        copy_bytes: int = 1,
        io_bytes: int = 1,
        buffers: Buffers | None = None,
        on_event: OnEvent | None = None,
        trace: EventTrace | None = None,
        now: Callable[[], float] = time.monotonic,
        debug: bool = False,
        scrub: Scrub = "tenant",
        kinds: Mapping[str, type[Table]] = KINDS,
    ) -> None:
        _check_parts(profile, backend, store, window, trace, kinds)
        _check_calls({"lock": lock, "now": now}, {"clock": clock, "on_event": on_event})
        check_is("debug", debug, bool, "True or False")
        _check_options(writes, scrub)
        cold, rows = check_count("cold", cold, 0), check_count("rows", rows, 0)
        copy_bytes, io_bytes = check_count("copy_bytes", copy_bytes, 1), check_count("io_bytes", io_bytes, 1)
        if store is not None:
            store.bind(Namespace.of(profile))
        self.profile = profile
        self.backend = backend
        self.store = store
        self.window = window or WindowPolicy.full()
        recorder = None if trace is None else trace.source("manager")
        tell = told(on_event, recorder)
        self.isolation = Isolation(backend)
        clearing = self.isolation if scrub == "tenant" else None
        self.device = backend if isinstance(backend, Device) else None
        tell_pools = told(tell, None if self.device is None else self.device.fired)
        memory = {} if buffers is None else buffers
        self.core = Core(profile, slots, cold, self.window, memory, tell_pools, kinds, clearing)
        check_memory(backend, {kind: pool.arena for kind, pool in self.core.pools.items()}, memory)
        self.memory = Memory(tell)
        self.layers = LayerCounts()
        self.epoch = 1
        self.store_failures = 0
        self.lock = Guard(
            lock(), lambda: audit(self).violations, None if trace is None else trace.last, self._tell_room
        )
        self._on_event, self._trace, self._recorder = on_event, trace, recorder
        self._record_pools()
        self._watch([self.memory.table])
        if self.device is not None:
            self.device.watch(self.core, self.core.pools)()
        self.clock = clock or itertools.count(1).__next__
        self.time = 0
        self.now = now
        self._debug = debug
        self.reservations: dict[int, Reservation] = {}
        self.registrations: list[Registration] = []
        self.served: Mapping[int, Live] = {}
        self.writes_through = store is not None and writes == "write_through"
        self.number = itertools.count(1).__next__
        self.mark = object()
        self._multiples = copy_bytes, math.lcm(io_bytes, 1 if store is None else store.io_bytes)
        self.matcher = self._make_matcher()
        self.lessor = Lessor(self)
        self.filler = Filler(self)
        self.parking = Parking(self)
        self.loader = Loader(self)
        self.packer = Packer(self)
        self.storer = Storer(self)
        self.requests = RequestTable(self, rows)

    # ---- keys and reads -------------------------------------------------------------------------------------------

    def keys(self, tokens: npt.ArrayLike, *, salt: bytes = b"", adapter: str = "", media: Sequence[Media] = ()) -> Keys:
        """Content keys of a request, a digest a granule. Other salts, adapters or media share nothing."""
        self.isolation.see(salt)
        return Keys(self.profile.granule, self.profile.identity, tokens, salt=salt, adapter=adapter, media=media)

    def match(
        self,
        keys: Keys,
        tokens: int | None = None,
        *,
        asks: Mapping[str, str] | None = None,
        draft: int = 0,
        at_most: int | None = None,
    ) -> Answer:
        """How much of a prompt can be reused. Changes nothing.

        Args:
            keys: of the prompt.
            tokens: length of the prompt; that of the keys by default. The last token is always left to compute.
            asks: layout digest that the kernel reads, by kind; the manager's own by default.
            draft: tokens at the end that a draft model must compute itself. Taken once: an answer that is given back as
                ``at_most`` has had it already.
            at_most: reuse no more than this many tokens.

        Raises:
            ValueError: a negative ``draft`` or ``at_most``.
        """
        _check_are_keys(keys)
        _check_asks(asks)
        return self.matcher.match((Request(keys, tokens),), asks, draft, at_most)

    def match_shared(
        self,
        requests: Sequence[tuple[Keys, int | None]],
        *,
        asks: Mapping[str, str] | None = None,
        draft: int = 0,
        at_most: int | None = None,
    ) -> Answer:
        """The greatest length that every one of several requests can reuse. Changes nothing."""
        _check_pairs(requests)
        _check_asks(asks)
        return self.matcher.match(tuple(Request(*request) for request in requests), asks, draft, at_most)

    def boundaries(
        self, keys: Keys, tokens: int | None = None, *, draft: int = 0, at_most: int | None = None
    ) -> npt.NDArray[np.int64]:
        """Every boundary that ``match`` could give as ``now``, int64 in granules, ascending; it gives the greatest.

        Ranks that agree intersect these sets (``agreement.py``): what one rank restores at most, another may not have.
        Changes nothing. Arguments as for ``match``. Cost: what trailing kinds hold on the chain, and the answer's size.

        Raises:
            ValueError: a negative ``draft`` or ``at_most``.
            Refused: IDENTITY for keys of another model.
        """
        self.check_keys(keys)
        return self.matcher.boundaries(Request(keys, tokens), draft, at_most)

    def loadable(
        self, keys: Keys, tokens: int | None = None, *, draft: int = 0, at_most: int | None = None
    ) -> npt.NDArray[np.int64]:
        """Every boundary that memory and the store have together, the packed included; otherwise as ``boundaries``.

        Asks the store for all that memory lacks.

        Raises:
            ValueError: a negative ``draft`` or ``at_most``.
            Refused: IDENTITY for keys of another model.
        """
        self.check_keys(keys)
        return self.matcher.loadable(Request(keys, tokens), draft, at_most)

    def check(self, answer: Answer) -> AnswerKind:
        """Look at a match's answer again: HIT while ``acquire`` would find what it found, else STALE. Changes nothing.

        An answer with nothing to read now is given back as it is. Cost: O(log n), far below that of a lease.

        Raises:
            Refused: LEASE for another manager's answer.
        """
        _check_is_answer(answer)
        self.check_own(answer)
        boundary = answer.now // self.profile.granule
        if not boundary or not answer.claims:
            return answer.kind
        with self.lock:
            self.drop_expired()
            held = all(self.matcher.holds(claim, boundary) for claim in answer.claims)
        return AnswerKind.HIT if held else AnswerKind.STALE

    def acquire(self, answer: Answer, *, owner: str = "", deadline: float | None = None) -> Lease:
        """Take a lease on what one request's answer found, if it is still there.

        Args:
            answer: of ``match``.
            owner: who reads.
            deadline: when the reader will have ended, as a time of ``now``; see ``lease.py`` for what comes then.

        Raises:
            ValueError: a deadline that is no time, or the answer of several requests.
            Refused: STALE when anything was evicted or replaced since, INTERSECT when there is nothing to acquire,
                LEASE for a deadline that has passed; nothing is held then.
        """
        _check_is_answer(answer)
        if len(answer.claims) > 1:
            raise ValueError(f"the answer is of {len(answer.claims)} requests; give it to acquire_all")
        (lease,) = self.acquire_all(answer, owner=owner, deadline=deadline)
        return lease

    def acquire_all(self, answer: Answer, *, owner: str = "", deadline: float | None = None) -> tuple[Lease, ...]:
        """The same for each request of a shared answer; all of them or none."""
        _check_is_answer(answer)
        check_deadline(deadline)
        with self.lock:
            self.lessor.check_ahead(deadline)
            self.unpark()
            return self.acquire_now(answer, owner, deadline)

    def release(self, lease: Lease, *, owner: str | None = None, done: Done | None = None) -> None:
        """Give a lease back.

        Args:
            lease: of this manager, not released yet.
            owner: who releases; the lease's own by default.
            done: says whether the device has ended its reads. While it has not, the slots stay protected. What it
                raises goes to the caller, of this method or of a later one that asks again; then nothing is given back.

        Raises:
            Refused: LEASE when it is another manager's or owner's, or was released before.
        """
        _check_done(done)
        with self.lock:
            self.lessor.release(lease, owner, done)

    def renew(self, lease: Lease, deadline: float | None) -> None:
        """Give a lease another deadline, while its own has not passed; None: it has none any more.

        Raises:
            Refused: LEASE when it is overdue, another manager's, or was released, or for a deadline that has passed;
                the lease keeps its own then.
            ValueError: a deadline that is no time.
        """
        check_deadline(deadline)
        with self.lock:
            self.lessor.renew(lease, deadline)

    def overdue(self) -> tuple[Receipt, ...]:
        """What was taken for leases whose deadline has passed, the oldest deadline first. Their slots are protected."""
        with self.lock:
            return self.lessor.overdue()

    def revoke(self, lease: Lease | Receipt | Leak, *, done: Done | None = None) -> None:
        """Take back a lease that is overdue, or that was dropped; its holder's release is refused from then on.

        What a fill brings that rests on it is published no more.

        Args:
            lease: the lease, or what ``overdue`` or ``leaks`` says of it.
            done: says whether the device has ended its reads; the slots stay protected until then. None: it has.

        Raises:
            Refused: LEASE when its holder may still read, when it is another manager's or was released, or is none.
        """
        _check_done(done)
        with self.lock:
            self.lessor.revoke(lease, done)

    def leaks(self) -> tuple[Leak, ...]:
        """Every lease, fill, load, reservation and live request that is open; in debug mode with what opened it."""
        with self.lock.lock:
            return open_handles(self)

    def load(self, plan: Plan, *, owner: str = "") -> Answer:
        """Bring what a plan names into fast memory; returns what a fresh match says.

        Where the store can't give an object, only the whole granules before it are brought.

        Raises:
            Refused: POOL_FULL or BACKPRESSURE: not now; CAPACITY: never; STALE where what is packed has changed;
                LEASE for another manager's plan. Nothing was taken.
            Exception: what the store or the backend raises; nothing is left of the load then.
        """
        _check_is_plan(plan)
        self.check_own(plan)
        self.loader.load(plan, owner)
        request = Request.from_claim(plan.claim, plan.tokens)
        return self.matcher.match((request,), None, 0, plan.most * self.profile.granule)

    def load_begin(self, plan: Plan, *, owner: str = "") -> Ticket:
        """Reserve destinations for a plan, all or nothing; the ticket's methods say how the transfer goes on."""
        _check_is_plan(plan)
        self.check_own(plan)
        return self.loader.begin(plan, owner)

    # ---- writes ---------------------------------------------------------------------------------------------------

    def reserve(
        self,
        keys: Keys,
        start: int,
        stop: int,
        *,
        lease: Lease | None = None,
        owner: str = "",
        kinds: Sequence[str] | None = None,
    ) -> Fill:
        """Slots to write the state of granules [start, stop) into; of every kind or of none.

        Args:
            keys: cover ``stop`` granules.
            start: first granule; what lies before it must be resident when the fill is published.
            stop: granule after the last; boundary kinds get slots for this boundary.
            lease: on what lies before ``start``, which then stays resident. Where the writer goes on from state that it
                read under a lease, this must be that lease: without one, the fill counts as exact if what is held for
                ``start`` now is, and as of this epoch. With one it is of the lease's epoch.
            owner: who fills.
            kinds: only these kinds.

        Raises:
            Refused: POOL_FULL (not now) or CAPACITY (never, beside what the lease holds); nothing was taken. LEASE when
                the lease ends before ``start``, is another manager's, was released or is overdue. IDENTITY for keys of
                another model.
            ValueError: a range that the keys don't cover, or a kind that has no slots.
        """
        if lease is not None:
            check_is("lease", lease, Lease, "a lease on what lies before, or None")
        if kinds is not None:
            check_is("kinds", kinds, Collection, "names of kinds, or None for all")
        check_whole("start", start, "granules, not tokens")
        check_whole("stop", stop, "granules, not tokens")
        return self.filler.reserve(keys, start, stop, lease, owner, kinds)

    def rebuild_begin(self, answer: Answer, *, owner: str = "") -> Fill:
        """Slots for the indexer keys that an answer says are to be computed again, all of them or none.

        The fill has slots of ``indexer_state`` alone. ``fill.rebuild.lease`` has what they are computed from: the
        entries of all granules before ``fill.stop``, good keys, and tail and window of the boundary ``lease.length``
        at which computing can go on. It ends with the fill. ``publish`` ties the keys to the entries' version; keys of
        lossy entries are lossy. Of stale keys that nobody reads the very slots are taken: once begun, they can be
        published or are lost, and so are those behind them.

        Args:
            answer: of one request's ``match``, with a ``rebuild``.
            owner: who computes.

        Raises:
            Refused: STALE when entries or keys are not what was matched: match again. POOL_FULL or CAPACITY without
                room, INTERSECT (or the answer's reason) when it names nothing to rebuild. Nothing was taken.
        """
        _check_is_answer(answer)
        self.check_own(answer)
        with self.lock:
            self.unpark()
            return begin_rebuild(self, answer, owner)

    def publish(self, fill: Fill, *, priority: int = 0, ttl: int | None = None) -> None:
        """Seal a fill and let others find it, all kinds at once; what the index holds already stays, and ours is freed.

        Args:
            fill: of this manager, neither published nor abandoned.
            priority: how dearly it is kept, where a spec orders eviction by it.
            ttl: after so many ticks of the clock it is found no more, nor what stands behind it; it is free as its
                readers leave. The store doesn't get it, for it would not know. None: it never ends.

        Raises:
            ValueError: a priority or ttl that the specs of no kind keep, or that is out of range; the fill is then
                still the caller's.
            Refused: GAP when the chain before the fill is gone, EPOCH after a reset, LEASE when the lease that it rests
                on is overdue, was revoked, or was overdue when it was released, STALE when entries that keys were
                rebuilt from are not found any more; the fill is then still the caller's.
        """
        self.filler.publish(fill, priority, ttl)

    def persist(self, keys: Keys, start: int = 0) -> int:
        """Store what memory holds of a chain from granule ``start`` on, and the store lacks; durable when it returns.

        For what live requests published while the device still wrote (it must have ended by now), what was published
        under ``writes="none"``, or when the store failed. What is packed, or rests on a lossy form or on a replay,
        stays out.

        Returns:
            The number of objects written.

        Raises:
            StoreError: nothing was stored.
            Refused: IDENTITY for keys of another model, TOO_MANY_HOLDS while too many others store the same.
            ValueError: a manager without a store, or a start that is no granule of the keys.
        """
        _check_range(keys, start)
        return self.storer.persist(keys, start)

    def abandon(self, fill: Fill, *, done: Done | None = None) -> None:
        """Give a fill up; its slots are free again.

        Args:
            fill: of this manager, neither published nor abandoned.
            done: says whether the device has ended its writes; as for ``release``.

        Raises:
            Refused: LEASE when it was published or abandoned before.
        """
        _check_done(done)
        self.filler.abandon(fill, done)

    def evict(self, kind: str, count: int) -> int:
        """Reclaim up to ``count`` slots of a kind that nobody holds; returns how many went.

        Raises:
            ValueError: a kind that has no slots.
        """
        check_is("kind", kind, str, f"one of {', '.join(self.core.pools)}")
        check_whole("count", count, "a number of slots")
        self.core.check_kinds([kind])
        with self.lock:
            self.unpark()
            return self.core.evict(kind, count)

    def expire(self, keys: Keys, start: int = 0) -> int:
        """Make everything from granule ``start`` of a chain on, in every branch, unmatchable at once.

        Slots are freed as their readers leave. Returns how many slots that concerns.
        """
        _check_range(keys, start)
        with self.lock:
            self.unpark()
            return expire(self.core, keys.digests, start)

    def free_out_of_window(self, keys: Keys, settled: int) -> int:
        """Let go of window slots that no query from token ``settled`` on reads; returns how many expired.

        The frontier is counted back from the last published boundary at or below ``settled``, so that the window of
        that boundary stays whole.
        """
        _check_are_keys(keys)
        check_whole("settled", settled, "a number of tokens")
        with self.lock:
            return free_out_of_window(self.core, keys.digests, min(len(keys), settled // self.profile.granule))

    def pack(self, keys: Keys, start: int = 0, *, lossy: bool = False) -> int:
        """Move compressed KV of a chain from granule ``start`` on into its cold form; returns the granules packed.

        Granules that somebody holds, or that other chains read, stay as they are. A model without compressed KV packs
        nothing.

        Raises:
            Refused: POOL_FULL while other copies take the room that ``cold`` gave, CAPACITY where there is never so
                much; nothing was packed.
            Exception: what the backend raises; nothing was packed then.
        """
        _check_range(keys, start)
        return self.packer.pack(keys, start, lossy)

    def expand(self, keys: Keys, tokens: int | None = None) -> Answer:
        """Expand packed compressed KV of a chain; returns what a fresh match says."""
        answer = self.match(keys, tokens)
        while answer.plan is not None and answer.plan.expand:
            before = answer.now
            answer = self.load(answer.plan)
            if answer.now <= before:
                break
        return answer

    def reset(self, *, scrub: bool = False) -> int:
        """End the epoch: nothing published before is found again, in the store neither; returns the new epoch.

        The memory stays where it is, and graphs that were captured over it stay good.

        Nobody is interrupted: leases and live requests go on with what they hold until they end, and only then are its
        slots free. But fills, loads and live requests of the old epoch, and what is filled on its leases, can't be
        published any more.

        Args:
            scrub: also clear the bytes of every slot that is free then.
        """
        with self.lock:
            self.unpark()
            self.epoch += 1
            self.core.retire_all()
            self.core.clear()
            self.loader.attempts.forget()
            if self.store is not None:
                self.store.reset()
            for pool in self.core.pools.values() if scrub else ():
                free = pool.free_slots
                self.backend.scrub(pool.arena.region, free[free < pool.hot])
                pool.left[free[free < pool.hot]] = CLEAN
            return self.epoch

    # ---- memory that moves ----------------------------------------------------------------------------------------

    def set_aside(self) -> Mapping[str, int]:
        """A slot of each kind for writes that are nobody's, such as those of padding; the same ones at each call.

        They are never given to anybody else, nor evicted, nor found.

        Raises:
            Refused: POOL_FULL; nothing was taken.
        """
        with self.lock:
            if not self.core.scratch:
                self.unpark()
                self._set_aside()
            return {kind: int(slots[0]) for kind, slots in self.core.scratch.items()}

    def reallocate(
        self, slots: Mapping[str, int] | None = None, *, buffers: Buffers | None = None, void: bool = False
    ) -> int:
        """Give the slots' memory back and allocate it anew, as an engine that sleeps and wakes; returns its new epoch.

        Addresses move, or come again; either way what was captured over the old ones is refused from then on. Slots
        that were set aside are so again.

        Args:
            slots: of each kind. The pools then begin empty, answers are stale, and slots beyond are never named again.
                None: as many as before, and what is cached goes along, byte by byte.
            buffers: memory for the arenas, by kind; as at first where there is none. What was handed in before is let
                go.
            void: take away what leases, fills and live requests hold. Using one of them afterwards is refused (STALE),
                a row of before holds no request. Their holders must not be in a call meanwhile.

        Raises:
            Refused: PINNED under a launch, a transfer, a reservation or a reader on the device that has not ended;
                without ``void``, under anything that is held. RETIRED after the last epoch. Nothing has changed then.
            ValueError: other kinds than the profile has, counts that are none, memory that can't be used, two kinds
                that share memory, or new memory of a kind that overlaps the one that its bytes go along from, and is
                not that very memory.
            TypeError: an argument that is none.
            ProfileError: a pool whose offsets the kernels' ABI can't form.
            Exception: what a transfer engine raises that can't register the new memory, or the backend that can't clear
                what is set aside in it, or has no memory for the words; nothing has changed then.
        """
        if not isinstance(void, bool):
            raise TypeError(f"void={void!r}; give True or False")
        memory = {} if buffers is None else buffers
        with self.lock:
            self.unpark()
            if slots is None:
                move_cached(self, memory, void)
            else:
                aside = bool(self.core.scratch)
                begin_empty(self, slots, memory, void)
                self._record_pools()
                if aside:
                    self._set_aside_anew()
            self.matcher = self._make_matcher()
            return self.memory.move()

    def watch_room(self, call: Callable[[], None]) -> None:
        """Have ``call`` called, under the lock, whenever somebody who lacked room may find some by now.

        That is when slots have come back, or may be evicted again, whoever held them; and when the manager was
        poisoned. What the device ends counts when somebody asks it: any call that takes or gives slots does. A method
        is called as long as its object is there: this alone doesn't keep it.
        """
        check_call("call", call, "a function without arguments")
        with self.lock:
            self.core.room.watch(call)

    def table(self, made: type[T], slots: int) -> T:
        """Words of a safeguard, told and recorded as those of the pools are; to be changed under the lock."""
        self.lock.check()
        source = None if self._trace is None else self._trace.source(made.MACHINE)
        table = made(slots, told(self._on_event, source))
        if source is not None:
            source.watch([table], self.lock.lock)
        return table

    # ---- bytes and reports ----------------------------------------------------------------------------------------

    def check_held(self, lease: Lease) -> Receipt:
        """What was taken for a lease; raises Refused unless the lease can be read through.

        LEASE when it was given back, revoked or taken over by a live request, or is overdue; STALE over memory that is
        gone.
        """
        self.lock.check()
        return self.lessor.receipt_of(lease)

    def read(
        self,
        kind: str,
        part: str,
        layer: int,
        slots: npt.NDArray[Any],
        leased: npt.NDArray[np.int64] | None = None,
    ) -> npt.NDArray[np.uint8]:
        """Bytes of a part in some slots, uint8 [n, rows, row_bytes].

        On the host a view at equal distances, else new memory. On a device a copy; where generations are ``leased``,
        the launch that copies the slots looks at their words again.

        Raises:
            Refused: what a slot's word on the device says; its generation has moved, say.
        """
        self.lock.check()
        return read_part(self, kind, part, layer, slots, leased)

    def write(self, kind: str, part: str, layer: int, slots: npt.NDArray[Any], data: npt.NDArray[np.uint8]) -> None:
        """Put bytes of a part into slots, unless ``data`` is the slots' own memory."""
        self.lock.check()
        write_part(self, kind, part, layer, slots, data)

    def components(self, slots: Mapping[str, npt.NDArray[np.int32]]) -> tuple[Component, ...]:
        """Every tensor of every layer with the given slots, in the order of the profile's groups."""
        self.lock.check()
        return components(self, slots)

    def audit(self) -> Audit:
        """Check conservation, freedom and leases (S1, S2, S3) and the index; lists what is wrong.

        Anything wrong poisons the manager: every other call raises ``Poisoned`` from then on (``poison.py``). This one
        does not.
        """
        with self.lock.lock:
            found = audit(self)
            self.lock.found(found.violations, "audit()")
            if not found.ok:
                self._tell_room(poisoned=True)
        self.lock.tell()
        return found

    def metadata_bytes(self) -> int:
        """Bytes of words, metadata, free stacks, index and what eviction keeps: all but arenas and live requests."""
        with self.lock.lock:
            return self.core.metadata_bytes

    @property
    def receipts(self) -> dict[int, tuple[Receipt, Callable[[], Lease | None]]]:
        """What was taken for each open lease, and the lease unless it was dropped."""
        return self.lessor.receipts

    @property
    def fills(self) -> dict[int, Fill]:
        """Open fills."""
        return self.filler.fills

    @property
    def tickets(self) -> Mapping[int, Ticket]:
        """Open loads."""
        return self.loader.tickets

    @property
    def parked(self) -> Sequence[Receipt]:
        """Leases that were released while the device still reads."""
        return self.parking.receipts

    @property
    def given_up(self) -> Sequence[GivenUp]:
        """Slots that their writers gave up while the device still uses them."""
        return self.parking.given_up

    # ---- under the lock -------------------------------------------------------------------------------------------

    def acquire_now(self, answer: Answer, owner: str, deadline: float | None = None) -> tuple[Lease, ...]:
        """What ``acquire_all`` does, in a larger step of a caller who holds the lock."""
        return self.lessor.acquire(answer, owner, deadline)

    def take(
        self,
        counts: Mapping[str, int],
        event: str,
        given: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        salt: bytes | None = None,
    ) -> dict[str, npt.NDArray[np.intp]]:
        """Take slots of several kinds, all or nothing; ``salt`` says for which tenant. The caller holds the lock.

        What another tenant left in them is gone.
        """
        return self.core.take(counts, event, given, tenant=self.core.tenant(salt), whose=self.isolation.whose(salt))

    def object_of(self, digests: list[bytes], salt: bytes, kind: str, places: npt.NDArray[np.int64]) -> list[ObjectId]:
        """Store keys of some places."""
        return object_ids(self.core, digests, salt, kind, places)

    def receipt_of(self, lease: Lease) -> Receipt:
        """What was taken for a lease, to go on from it. The caller holds the lock.

        Raises:
            Refused: LEASE when it is another manager's, was released before or is overdue; STALE over memory that is
                gone.
        """
        return self.lessor.receipt_of(lease)

    def site(self) -> str | None:
        """The call that the runtime was entered by, in debug mode."""
        return call_site() if self._debug else None

    def check_keys(self, keys: Keys) -> None:
        """Raise Refused (IDENTITY) for keys of another model, where nothing would be found; TypeError for none."""
        _check_are_keys(keys)
        if (keys.granule, keys.identity) != (self.profile.granule, self.profile.identity):
            what = f"keys of {keys.identity!r} at granule {keys.granule}; make them with this manager's keys()"
            raise Refused(Reason.IDENTITY, "pool", what)

    def check_own(self, made: Answer | Plan) -> None:
        """Raise Refused (LEASE) for what another manager answered, or planned: it means nothing here."""
        self.lock.check()
        check_is("answer", made, (Answer, Plan), "what match answered")
        plan = made if isinstance(made, Plan) else made.plan
        claims = (*(() if isinstance(made, Plan) else made.claims), *(() if plan is None else (plan.claim,)))
        answered = isinstance(made, Plan) or made.maker is self.mark
        if not answered or any(claim.maker is not self.mark for claim in claims):
            what = "the answer, or its plan, was made by another manager; match again, with this one"
            raise Refused(Reason.LEASE, "lease", what)

    def give_up(self, held: Receipt | GivenUp, done: Done | None) -> None:
        """Unpin, or free, what somebody held: now, or once the device has ended. The caller holds the lock."""
        self.parking.give_up(held, done)

    def tick(self) -> int:
        """Ask the clock; what is used from now on is stamped so. The caller holds the lock and has changed nothing yet.

        A clock that raises then leaves everything as it was, and so does what nobody can keep (ValueError).
        """
        self.time = self.core.check_time(self.clock())
        return self.time

    def drop_expired(self) -> None:
        """Make unmatchable what has ended by now. The caller holds the lock."""
        if self.core.deadlines:
            drop_expired(self.core, self.core.check_time(self.clock()))

    def unpark(self) -> None:
        """Free what waited for the device, and does no longer; let go of what has ended. The caller holds the lock."""
        self.drop_expired()
        self.parking.poll()

    def check_open(self, fill: Fill) -> None:
        """Raise Refused unless a fill is open here: LEASE, or STALE when the memory it was given is gone."""
        self.filler.check_open(fill)

    def _watch(self, tables: Sequence[Table]) -> None:
        """Let the trace know of words that the manager keeps from now on."""
        if self._recorder is not None:
            self._recorder.watch(tables, self.lock.lock)

    def _record_pools(self) -> None:
        """Let the trace know of the words of the pools."""
        self._watch([pool.table for pool in self.core.pools.values()])

    def _set_aside(self) -> None:
        self.core.scratch = self.take(dict.fromkeys(self.core.pools, 1), "take")

    def _set_aside_anew(self) -> None:
        """The same in pools that begin, where there is room. Raises Broken (S24) when a slot is refused."""
        try:
            self._set_aside()
        except Refused as refused:
            raise Broken("S24", f"new memory has no slot to set aside: {refused}") from refused

    def _make_matcher(self) -> Matcher:
        arenas = {kind: pool.arena for kind, pool in self.core.pools.items()}
        return Matcher(self, alignment(arenas, *self._multiples))

    def _tell_room(self, poisoned: bool) -> None:
        self.core.room.tell(anyway=poisoned)


def _check_parts(
    profile: Profile,
    backend: Backend,
    store: Store | None,
    window: WindowPolicy | None,
    trace: EventTrace | None,
    kinds: Mapping[str, type[Table]],
) -> None:
    check_is("profile", profile, Profile, "one of PROFILES of kvfsm.runtime.generated.models, or of your own package")
    check_has("backend", backend, Backend, "an instance, such as kvfsm.kernels.reference.NumpyBackend()")
    if store is not None:
        check_has("store", store, Store, "a store, such as LocalStore(directory, Namespace.of(profile)), or None")
    if window is not None:
        check_is("window", window, WindowPolicy, "a policy, such as WindowPolicy.full(), or None")
    if trace is not None:
        check_is("trace", trace, EventTrace, "EventTrace(), and write that to a file afterwards, or None")
    check_is("kinds", kinds, Mapping, "KINDS of a generated package")


def _check_calls(needed: Mapping[str, object], optional: Mapping[str, object]) -> None:
    for name, call in (*needed.items(), *((name, call) for name, call in optional.items() if call is not None)):
        check_call(name, call, "a function")


def _check_are_keys(keys: Keys) -> None:
    check_is("keys", keys, Keys, "keys, such as this manager's keys(tokens)")


def _check_range(keys: Keys, start: int) -> None:
    _check_are_keys(keys)
    check_whole("start", start, "the first granule")


def _check_pairs(requests: Sequence[tuple[Keys, int | None]]) -> None:
    fix = "pairs of keys and a prompt's tokens"
    check_is("requests", requests, Sequence, fix)
    for request in requests:
        check_is("one of the requests", request, (tuple, list), fix)
        _check_are_keys(request[0])


def _check_asks(asks: Mapping[str, str] | None) -> None:
    if asks is not None:
        check_is("asks", asks, Mapping, "layout digests by kind, or None")


def _check_is_answer(answer: Answer) -> None:
    check_is("answer", answer, Answer, "what match answered")


def _check_is_plan(plan: Plan) -> None:
    check_is("plan", plan, Plan, "that of a HIT_PENDING answer, no other has one")


def _check_done(done: Done | None) -> None:
    if done is not None:
        check_call("done", done, "a function that says whether the device has ended, or None")


def _check_options(writes: str, scrub: str) -> None:
    if writes not in ("write_through", "none"):
        raise ValueError(f"writes={writes!r}; give 'write_through' or 'none'")
    if scrub not in ("tenant", "none"):
        raise ValueError(f"scrub={scrub!r}; give 'tenant' or 'none'")
