"""Interleaved requests on one manager, step by step, against an oracle that knows prompts and nothing else.

The oracle computes each slot's bytes from the tokens before it. Whatever a lease or a live request reads is exactly
that, or marked as not exact and then what a lossy packing makes of it; everything else is refused. Steps and their
arguments print as code, so that a failure can be pasted into a test.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, ClassVar

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.admission import Admission, Limits, Reservation, Stage
from kvfsm.runtime.answers import Answer
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.fill import Fill
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.lease import Lease
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.stores.memory import MemoryStore
from kvfsm.runtime.ticket import Ticket

PAGED = ("compressed_kv", "indexer_state")
GRANULES = 4
PROMPTS = st.integers(0, 2)
COUNTS = st.integers(1, 3)


@cache
def tokens(granule: int, prompt: int) -> Any:
    """Three prompts in a tree: the others share two granules, or one, with the first."""
    shared = (0, 2, 1)[prompt]
    first = np.random.default_rng(0).integers(0, 256, GRANULES * granule + 1)
    own = np.random.default_rng(prompt).integers(0, 256, GRANULES * granule + 1)
    return np.concatenate((first[: shared * granule], own[shared * granule :]))


@cache
def expected(profile: str, kind: str, prefix: bytes) -> Any:
    """Bytes of a slot of a kind whose tokens so far are ``prefix``; small ones, so that floats are finite."""
    seed = int.from_bytes(hashlib.sha256(kind.encode() + prefix).digest()[:8], "big")
    size = PROFILES[profile].layouts[kind].slot_bytes
    return np.random.default_rng(seed).integers(1, 0x40, size, np.uint8)


@cache
def rounded(profile: str, prefix: bytes) -> Any:
    """The bytes of compressed KV after one lossy packing."""
    backend, layout = NumpyBackend(), PROFILES[profile].layouts["compressed_kv"]
    return backend.expand(layout, backend.pack(layout, expected(profile, "compressed_kv", prefix)[None], True))[0]


class Requests(RuleBasedStateMachine):
    """Steps of several requests that are open at once. Subclasses say of which model and manager."""

    profile = "tiny_gpt_oss"
    make: type[Manager] = Manager
    reached: ClassVar[Counter[str]] = Counter()  # what the steps of all runs came to, to see that they come to much

    answers: Bundle[tuple[int, Answer]] = Bundle("answers")
    leases: Bundle[tuple[int, Lease | None]] = Bundle("leases")
    fills: Bundle[tuple[int, Fill | None]] = Bundle("fills")
    tickets: Bundle[tuple[int, Ticket | None]] = Bundle("tickets")
    rows: Bundle[tuple[int, int]] = Bundle("rows")
    reservations: Bundle[tuple[int, Reservation | None]] = Bundle("reservations")

    def __init__(self) -> None:
        super().__init__()
        self.model = PROFILES[self.profile]
        self.granule = self.model.granule
        self.manager = self.make(
            self.model, dict.fromkeys(self.model.kinds, 9), NumpyBackend(), store=MemoryStore(), cold=4, rows=3
        )
        self.admission = Admission(self.manager, Limits(requests=2))
        self.keys = [self.manager.keys(tokens(self.granule, prompt)) for prompt in range(3)]
        self.published: set[bytes] = set()  # prefixes published in this epoch
        self.device_reads = True
        self.in_flight: list[tuple[str, Any, Any]] = []  # kind, slots, generations that the device may still use
        self.open: dict[int, tuple[int, Lease]] = {}  # lease number -> prompt, lease
        self.live: dict[int, int] = {}  # row -> prompt
        self.prefilling: set[int] = set()  # rows that have decoded nothing yet

    @initialize(counts=st.tuples(*[st.sampled_from([3, 2, 1, 0])] * 3), taken=st.sampled_from([False, False, True]))
    def begin(self, counts: tuple[int, ...], taken: bool) -> None:
        """Some granules of each prompt are published; ``taken``: and then evicted, so that the store alone has them."""
        for prompt, count in enumerate(counts):
            if count:
                self.end_fill(self.append(prompt, 0, count), True)
        if taken:
            self.evict("all", 99)

    # ---- reading ---------------------------------------------------------------------------------------------------

    @rule(target=answers, prompt=PROMPTS, at_most=st.sampled_from([None, None, 2]))
    def match(self, prompt: int, at_most: int | None) -> tuple[int, Answer]:
        """What is found was published."""
        limit = None if at_most is None else at_most * self.granule
        answer = self.manager.match(self.keys[prompt], at_most=limit)
        self.check_known(prompt, answer.now)
        return prompt, answer

    @rule(target=leases, answer=answers)
    def acquire(self, answer: tuple[int, Answer]) -> tuple[int, Lease | None]:
        """Of an answer of any age; if that is refused, then of a fresh one."""
        try:
            lease = self.manager.acquire(answer[1])
        except Refused as refused:
            self.reached[f"acquire {refused.refusal.name}"] += 1
            return self.take(answer[0])
        self.reached["acquire"] += 1
        self.open[lease.lease_id] = answer[0], lease
        return answer[0], lease

    @rule(target=leases, prompt=PROMPTS)
    def take(self, prompt: int) -> tuple[int, Lease | None]:
        """A fresh hit is there to be acquired."""
        answer = self.manager.match(self.keys[prompt])
        if not answer.now:
            return prompt, None
        lease = self.manager.acquire(answer)
        self.open[lease.lease_id] = prompt, lease
        return prompt, lease

    @rule(prompt=PROMPTS, other=PROMPTS, parked=st.booleans())
    def read_both(self, prompt: int, other: int, parked: bool) -> None:
        """Two requests that need the same length."""
        answer = self.manager.match_shared([(self.keys[prompt], None), (self.keys[other], None)])
        if answer.now:
            self.reached["shared"] += 1
            for which, lease in zip((prompt, other), self.manager.acquire_all(answer), strict=True):
                self.check_bytes(which, lease)
                self.give_back(lease, parked)

    @rule(lease=consumes(leases), parked=st.booleans())
    def release(self, lease: tuple[int, Lease | None], parked: bool) -> None:
        """At once, or when the device has ended its reads."""
        if lease[1] is not None and self.open.pop(lease[1].lease_id, None) is not None:
            self.give_back(lease[1], parked)

    def give_back(self, lease: Lease, parked: bool) -> None:
        """Release, and see that what the device reads stays."""
        if parked and self.device_reads:
            self.reached["parked"] += 1
            for kind, slots in lease.slots.items():
                generations = self.manager.core.pools[kind].generations(slots)
                self.in_flight.append((kind, slots, generations))
        else:
            self.reached["released"] += 1
        self.manager.release(lease, done=self.done(parked))

    @rule(reads=st.booleans())
    def device(self, reads: bool) -> None:
        """It ends all that was begun, or falls behind."""
        self.device_reads = reads
        if not reads:
            self.in_flight.clear()

    # ---- writing ---------------------------------------------------------------------------------------------------

    @rule(target=fills, prompt=PROMPTS, start=st.integers(0, GRANULES - 1), count=COUNTS)
    def append(self, prompt: int, start: int, count: int) -> tuple[int, Fill | None]:
        """Reserve and write granules from ``start`` on."""
        try:
            fill = self.manager.reserve(self.keys[prompt], start, min(GRANULES, start + count))
        except Refused:
            return prompt, None
        for kind in fill.kinds:
            self.write(prompt, kind, fill.places[kind].tolist(), fill.slots[kind])
        return prompt, fill

    @rule(fill=consumes(fills), publish=st.booleans())
    def end_fill(self, fill: tuple[int, Fill | None], publish: bool) -> None:
        """Publish it, or give it up: also where the chain before it is gone."""
        prompt, one = fill
        if one is None:
            return
        try:
            if publish:
                self.manager.publish(one)
                self.reached["published"] += 1
                places = range(one.start, one.stop)
                self.published |= {self.prefix(prompt, "compressed_kv", place) for place in places}
                return
        except Refused as refused:
            self.reached[f"publish {refused.refusal.name}"] += 1
        self.manager.abandon(one)

    @rule(target=fills, prompt=PROMPTS, count=COUNTS, behind=st.booleans())
    def rebuild(self, prompt: int, count: int, behind: bool) -> tuple[int, Fill | None]:
        """Indexer keys that are in no store either are computed again; ``behind``: of entries that were made anew."""
        manager, keys = self.manager, self.keys[prompt]
        if "indexer_state" not in self.model.kinds:
            return prompt, None
        if behind:
            self.remake(prompt, count)
        else:
            self.evict("indexer_state", count)
        assert isinstance(manager.store, MemoryStore)  # whatever was published, live requests' too, was written through
        for name in manager.object_of(keys.digests, keys.salt, "indexer_state", np.arange(GRANULES)):
            manager.store.objects.pop(name, None)
        try:
            fill = manager.rebuild_begin(manager.match(keys))
        except Refused as refused:
            self.reached[f"rebuild {refused.refusal.name}"] += 1
            return prompt, None
        assert fill.rebuild is not None
        self.reached["rebuilt in place" if fill.rebuild.in_place.any() else "rebuilt"] += 1
        self.write(prompt, "indexer_state", fill.places["indexer_state"].tolist(), fill.slots["indexer_state"])
        return prompt, fill

    def remake(self, prompt: int, count: int) -> None:
        """Entries whose keys were decoded go, and come back in one batch."""
        row = self.admit((prompt, None), 0, self.granule - 3)
        if row[0] >= 0:
            self.decode(row, 0, 0, True, False)
            self.finish(row, False)
        self.evict("compressed_kv", 9)
        try:
            fill = self.manager.reserve(self.keys[prompt], 0, count, kinds=("compressed_kv",))
        except Refused:
            return
        self.write(prompt, "compressed_kv", fill.places["compressed_kv"].tolist(), fill.slots["compressed_kv"])
        self.end_fill((prompt, fill), True)

    @rule(target=reservations, prompt=PROMPTS, answer=st.none() | answers, step=st.sampled_from([None, 1]))
    def reserve(
        self, prompt: int, answer: tuple[int, Answer] | None, step: int | None
    ) -> tuple[int, Reservation | None]:
        """All that a request needs up to its first step, or nothing; by a fresh answer, or by one of any age."""
        prompt, found = answer or (prompt, self.manager.match(self.keys[prompt]))
        size = GRANULES * self.granule + 1
        try:
            said = self.admission.admit(found, size, step=None if step is None else step * self.granule)
        except Refused as refused:
            self.reached[f"reserve {refused.refusal.name}"] += 1
            return prompt, None
        if not isinstance(said, Reservation):
            self.reached[type(said).__name__] += 1
            return prompt, None
        self.reached[f"reserved, {said.stage}"] += 1
        return prompt, said

    @rule(
        target=rows, reservation=consumes(reservations), ok=st.sampled_from([True, True, False]), cancel=st.booleans()
    )
    def enter(self, reservation: tuple[int, Reservation | None], ok: bool, cancel: bool) -> tuple[int, int]:
        """Its load ends, well or not, and its row begins; or it is given up on the way, and the load ends late."""
        prompt, one = reservation
        if one is None or one.stage in (Stage.ENTERED, Stage.ENDED):
            return -1, prompt
        ticket = one.ticket
        if cancel:
            self.reached[f"cancelled, {one.stage}"] += 1
            self.admission.cancel(one)
        if ticket is not None and not ticket.ended:
            ticket.transfer() if ok else ticket.done(False)
        if cancel or one.stage is not Stage.READY:
            return -1, prompt
        try:
            row = self.admission.enter(one)
        except Refused as refused:
            self.reached[f"enter {refused.refusal.name}"] += 1
            self.admission.cancel(one)
            return -1, prompt
        self.admission.leave(one)
        self.reached["entered"] += 1
        self.live[row] = prompt
        self.prefilling.add(row)
        return row, prompt

    @rule(target=rows, lease=leases, granules=st.integers(0, GRANULES - 1), more=st.integers(0, 9))
    def admit(self, lease: tuple[int, Lease | None], granules: int, more: int) -> tuple[int, int]:
        """A live request, on a lease if that is held still."""
        prompt, reused = lease
        length = max(1, min(granules * self.granule + more, GRANULES * self.granule))
        if reused is not None and reused.lease_id not in self.open:
            reused = None
        try:
            row = self.manager.requests.admit(max(length, reused.length if reused is not None else 1), lease=reused)
        except Refused:
            return -1, prompt
        if reused is not None:
            del self.open[reused.lease_id]
        self.reached["admitted" if reused is None else "admitted on a lease"] += 1
        self.live[row] = prompt
        self.prefilling.add(row)
        return row, prompt

    @rule(row=rows, more=st.integers(1, 2 * 9), parked=st.booleans())
    def extend(self, row: tuple[int, int], more: int, parked: bool) -> None:
        """The next chunk of a prompt; it fits, or nothing has changed."""
        number, prompt = row
        requests = self.manager.requests
        if self.live.get(number) != prompt or number not in self.prefilling or requests.drafts[number]:
            return
        before = int(requests.tokens[number])
        after = min(before + more, GRANULES * self.granule)
        if after > before:
            try:
                with self.watch(number, parked):
                    requests.extend(number, after - before, done=self.done(parked))
                self.reached["extended"] += 1
            except Refused as refused:
                self.reached[f"extend {refused.refusal.name}"] += 1
                after = before
            assert requests.tokens[number] == after and requests.coverage(number).gaps == ()

    @rule(row=rows, count=st.integers(1, 5), stays=st.integers(0, 5), parked=st.booleans())
    def speculate(self, row: tuple[int, int], count: int, stays: int, parked: bool) -> None:
        """Drafts, whose blocks the device fills with what nobody may read; or the verdict on those that are open."""
        number, prompt = row
        requests = self.manager.requests
        if self.live.get(number) != prompt:
            return
        before, tokens = requests.coverage(number), int(requests.tokens[number])
        if requests.drafts[number]:
            stays = min(stays, int(requests.drafts[number]))
            with self.watch(number, parked):
                requests.accept([number], stays, done=self.done(parked))
            self.reached["accepted" if stays else "rejected"] += 1
            assert requests.tokens[number] == tokens + stays and not requests.drafts[number]
            assert requests.coverage(number).gaps == ()
            assert stays or requests.coverage(number) == before
            if stays:
                self.prefilling.discard(number)
            return
        held = self.held_by(number)
        count = max(0, min(count, GRANULES * self.granule - tokens))
        try:
            requests.propose([number], count)
        except Refused as refused:
            self.reached[f"propose {refused.refusal.name}"] += 1
            return
        self.reached["proposed"] += bool(count)
        for kind, slots in self.held_by(number).items():
            self.manager.core.pools[kind].arena.bytes[slots[~np.isin(slots, held[kind])]] = 0x7F
        assert requests.coverage(number) == before

    @rule(target=rows, row=consumes(rows), parked=st.booleans(), gone=st.booleans())
    def put_back(self, row: tuple[int, int], parked: bool, gone: bool) -> tuple[int, int]:
        """Preempted, perhaps all evicted, and begun again at its committed tokens if there is room."""
        number, prompt = row
        requests = self.manager.requests
        if self.live.get(number) != prompt:
            return -1, prompt
        before, tokens = requests.coverage(number), int(requests.tokens[number])
        self.write_row(number, prompt)
        with self.watch(number, parked):
            left = requests.preempt(number, self.keys[prompt], done=self.done(parked))
        del self.live[number]
        assert left.tokens == tokens
        if left.unpublished is None:
            self.published |= {self.prefix(prompt, "compressed_kv", place) for place in range(left.published)}
        if gone:
            self.evict("all", 99)
        answer = self.manager.match(self.keys[prompt], at_most=tokens)
        lease = self.manager.acquire(answer) if answer.now else None
        try:
            number = requests.admit(tokens, lease=lease)
        except Refused:
            if lease is not None:
                self.manager.release(lease)
            return -1, prompt
        self.reached["resumed" if answer.now else "resumed from nothing"] += 1
        assert requests.coverage(number) == before
        self.live[number] = prompt
        self.prefilling.add(number)
        return number, prompt

    @rule(row=rows, forth=st.integers(0, 9), back=st.integers(0, 2), end=st.booleans(), parked=st.booleans())
    def decode(self, row: tuple[int, int], forth: int, back: int, end: bool, parked: bool) -> None:
        """Some tokens forth, some back, and then perhaps up to the end of the granule and found by others.

        ``parked``: scheduled ahead of the device.
        """
        number, prompt = row
        requests = self.manager.requests
        if self.live.get(number) != prompt:
            return
        self.prefilling.discard(number)
        if requests.drafts[number]:
            with self.watch(number, parked):
                requests.reject([number], done=self.done(parked))
        try:
            self.step(number, forth, parked)
            if back:
                with self.watch(number, parked):
                    to = max(1, int(requests.tokens[number]) - back)
                    requests.rollback(number, to, done=self.done(parked))
                self.reached["rolled back"] += 1
            if end:
                self.step(number, -int(requests.tokens[number]) % self.granule, parked)
                self.write_row(number, prompt)
                with self.watch(number, parked):
                    done = self.done(parked)
                    self.reached["row published"] += bool(requests.publish(number, self.keys[prompt], done=done))
                whole = range(int(requests.tokens[number]) // self.granule)
                self.published |= {self.prefix(prompt, "compressed_kv", place) for place in whole}
        except Refused as refused:
            self.reached[f"decode {refused.refusal.name}"] += 1

    @rule(row=consumes(rows), parked=st.booleans())
    def finish(self, row: tuple[int, int], parked: bool) -> None:
        """The request ends; ``parked``: the device is not done with it."""
        if self.live.get(row[0]) == row[1]:
            with self.watch(row[0], parked):
                self.manager.requests.finish(row[0], done=self.done(parked))
            del self.live[row[0]]

    @rule(prompt=PROMPTS, granules=st.integers(0, 2), forth=st.integers(0, 9), end=st.booleans(), parked=st.booleans())
    def serve(self, prompt: int, granules: int, forth: int, end: bool, parked: bool) -> None:
        """A request from its beginning to its end."""
        row = self.admit((prompt, None), granules, 5)
        if row[0] >= 0:
            self.decode(row, forth, 1, end, parked)
            self.finish(row, parked)

    @rule(
        target=rows, prompt=PROMPTS, more=st.integers(1, 18), count=COUNTS, stays=st.integers(0, 2),
        parked=st.booleans(), gone=st.booleans(), open_=st.booleans(),
    )  # fmt: skip
    def converse(
        self, prompt: int, more: int, count: int, stays: int, parked: bool, gone: bool, open_: bool
    ) -> tuple[int, int]:
        """A prompt in two chunks, drafts, and perhaps it is put back; ``open_``: with drafts that are not decided."""
        row = self.admit((prompt, None), 1, 5)
        self.extend(row, more, parked)
        self.speculate(row, count, 0, parked)
        self.speculate(row, 1, stays, parked)
        if open_:
            self.speculate(row, count, 0, parked)
        return self.put_back(row, parked, gone) if gone or open_ else row

    # ---- what the cache does ---------------------------------------------------------------------------------------

    @rule(kind=st.sampled_from(["all", *PAGED, "uncompressed_tail", "swa_window"]), count=COUNTS)
    def evict(self, kind: str, count: int) -> None:
        """Some slots of a kind, or all that nobody holds."""
        for one in self.model.kinds:
            if kind in ("all", one):
                self.reached["evicted"] += bool(self.manager.evict(one, 99 if kind == "all" else count))

    @rule(
        prompt=PROMPTS,
        start=st.integers(0, 2),
        lossy=st.sampled_from([True, False]),
        expand=st.sampled_from([True, True, False]),
    )
    def pack(self, prompt: int, start: int, lossy: bool, expand: bool) -> None:
        """The end of a chain; ``expand``: and then expand and read it."""
        try:
            done = self.manager.pack(self.keys[prompt], start, lossy=lossy)
        except Refused:
            return
        self.reached["packed with loss" if lossy else "packed"] += bool(done)
        if expand:
            self.load(prompt)
            self.read_both(prompt, prompt, False)

    @rule(prompt=PROMPTS)
    def load(self, prompt: int) -> None:
        """What is packed or stored, in one go."""
        answer = self.manager.match(self.keys[prompt])
        if answer.plan is not None:
            try:
                answer = self.manager.load(answer.plan)
            except Refused:
                return
            self.reached["loaded"] += bool(answer.now)
            self.check_known(prompt, answer.now)

    @rule(target=tickets, prompt=PROMPTS)
    def begin_load(self, prompt: int) -> tuple[int, Ticket | None]:
        """Of what is packed or stored now."""
        return self.begin_planned((prompt, self.manager.match(self.keys[prompt])))

    @rule(target=tickets, answer=answers)
    def begin_planned(self, answer: tuple[int, Answer]) -> tuple[int, Ticket | None]:
        """Of a plan of any age."""
        if answer[1].plan is None:
            return answer[0], None
        try:
            return answer[0], self.manager.load_begin(answer[1].plan)
        except Refused:
            return answer[0], None

    @rule(ticket=tickets, ok=st.sampled_from([True, True, False]))
    def end_load(self, ticket: tuple[int, Ticket | None], ok: bool) -> None:
        """All bytes are there, or it fails."""
        one = ticket[1]
        if one is None or one.state not in ("open", "aborted"):
            return
        self.reached[f"{one.state}, then {'done' if ok else 'failed'}"] += 1
        if one.state == "open" and ok:
            ok = self.manager.loader._transfer(one)
            for kind in self.manager.core.paged if ok else ():
                if len(one.all_slots(kind)):
                    for _ in self.model.layouts[kind].layers:
                        one.land(kind)
        one.done(ok)

    @rule(prompt=PROMPTS, at=st.integers(0, 9), known=st.booleans())
    def load_partly(self, prompt: int, at: int, known: bool) -> None:
        """All bytes come but those of one place; ``known``: that one is said before the load ends."""
        self.evict("all", 99)
        one = self.begin_load(prompt)[1]
        if one is None or one.state != "open" or not (loaded := [b for b in one.batches if b.begin == "load_begin"]):
            return
        batch = loaded[at % len(loaded)]
        place = int(batch.places[at % len(batch.places)])
        if not self.manager.loader._transfer(one):
            one.abort()
            one.quiesce()
            return
        for kind in self.manager.core.paged:
            for _ in self.model.layouts[kind].layers if len(one.all_slots(kind)) else ():
                one.land(kind)
        if known:
            one.miss(batch.kind, [place])
        one.done(False, missing={batch.kind: [place]})
        self.reached["loaded in part" if one.kept else "loaded in no part"] += 1
        self.check_known(prompt, self.manager.match(self.keys[prompt]).now)

    @rule(ticket=tickets, comes=st.booleans(), goes=st.sampled_from([0, 1, 9]))
    def share_load(self, ticket: tuple[int, Ticket | None], comes: bool, goes: int) -> None:
        """Others wait for a load as well, and go; when all have gone, it is given up."""
        one = ticket[1]
        if one is None or one.state != "open":
            return
        if comes:
            one.join("another")
            self.reached["joined"] += 1
        for owner in one.waiting[:goes]:
            self.reached["left by all" if one.leave(owner) else "left"] += 1

    @rule(ticket=tickets, late=st.booleans(), quiesce=st.booleans())
    def abort(self, ticket: tuple[int, Ticket | None], late: bool, quiesce: bool) -> None:
        """The owner goes; perhaps bytes arrive still, and perhaps they are known to have stopped."""
        one = ticket[1]
        if one is None or one.state not in ("open", "aborted"):
            return
        self.reached[f"abort what is {one.state}"] += 1
        if one.state == "open":
            one.abort()
        if late:
            for batch in one.batches:
                self.write(ticket[0], batch.kind, batch.places.tolist(), batch.slots)
        if quiesce:
            one.quiesce()

    @rule(prompt=PROMPTS, start=st.integers(0, 2), reset=st.sampled_from([False, False, True]))
    def forget(self, prompt: int, start: int, reset: bool) -> None:
        """The end of a chain, or everything: nothing that was published before a reset is found again."""
        if not reset:
            self.manager.expire(self.keys[prompt], start)
            return
        self.manager.reset()
        self.published.clear()

    # ---- what must hold --------------------------------------------------------------------------------------------

    @invariant()
    def the_audit_is_clean(self) -> None:
        """Conservation, freedom, leases, the index."""
        violations = self.manager.audit().violations
        assert violations == (), violations

    @invariant()
    def all_read_their_own_bytes(self) -> None:
        """Open leases, and granules that live requests share with the cache."""
        for prompt, lease in self.open.values():
            self.check_bytes(prompt, lease)
        requests = self.manager.requests
        for row, prompt in self.live.items():
            shared = int(requests.shared_tokens([row])[0]) // self.granule
            for kind in PAGED if shared else ():
                if kind in self.model.kinds:
                    slots = requests.table(kind, [row])[0][:shared]
                    self.compare(prompt, kind, range(shared), slots, exact=not requests.is_lossy(row))

    @invariant()
    def what_the_device_uses_is_nobody_elses(self) -> None:
        """Slots that were given up ahead of the device are neither free nor taken anew."""
        for kind, slots, generations in self.in_flight:
            pool = self.manager.core.pools[kind]
            same = pool.generations(slots) == generations
            assert same.all() and not np.isin(slots, pool.free_slots).any(), f"{kind} is used in flight, and reused"

    def done(self, parked: bool) -> Callable[[], bool] | None:
        """What the device says, if it is asked."""
        return (lambda: not self.device_reads) if parked else None

    @contextmanager
    def watch(self, row: int, parked: bool) -> Iterator[None]:
        """Remember what a call takes from a row while the device uses it."""
        before = self.held_by(row)
        generations = {kind: self.manager.core.pools[kind].generations(slots) for kind, slots in before.items()}
        yield
        if parked and self.device_reads:
            after = self.held_by(row)
            for kind, slots in before.items():
                gone = ~np.isin(slots, after[kind])
                if gone.any():
                    self.in_flight.append((kind, slots[gone], generations[kind][gone]))
                    self.reached[f"{kind} given up in flight"] += 1

    def held_by(self, row: int) -> dict[str, Any]:
        """Slots that a live request reads or writes, by kind."""
        requests, held = self.manager.requests, {}
        for kind in self.model.kinds:
            if kind in PAGED:
                slots = requests.table(kind, [row])[0]
            else:
                tail = kind == "uncompressed_tail"
                slots = requests.tail_table([row]) if tail else requests.window_table([row])[0]
            held[kind] = slots[slots >= 0].astype(np.intp)
        return held

    def check_known(self, prompt: int, length: int) -> None:
        """What is found was published since the last reset."""
        for place in range(length // self.granule):
            assert self.prefix(prompt, "compressed_kv", place) in self.published, f"granule {place} is found"

    def check_bytes(self, prompt: int, lease: Lease) -> None:
        """Every byte that a lease reads."""
        self.reached["read exact" if lease.exact else "read not exact"] += 1
        for kind, slots in lease.slots.items():
            places = self.manager.core.places(kind, lease.length // self.granule).tolist()
            self.compare(prompt, kind, places, slots, exact=lease.exact)

    def compare(self, prompt: int, kind: str, places: Sequence[int], slots: Any, *, exact: bool) -> None:
        """Bytes of some slots."""
        arena = self.manager.core.pools[kind].arena.bytes
        for place, slot in zip(places, slots.tolist(), strict=True):
            prefix = self.prefix(prompt, kind, place)
            right = np.array_equal(arena[slot], expected(self.profile, kind, prefix))
            if not right and kind == "compressed_kv" and not exact:
                right = np.array_equal(arena[slot], rounded(self.profile, prefix))
            assert right, f"prompt {prompt} reads other bytes of {kind} at {place}"

    def step(self, row: int, count: int, parked: bool) -> None:
        """Decode tokens up to the end of the prompt."""
        for _ in range(count):
            if self.manager.requests.tokens[row] < GRANULES * self.granule:
                with self.watch(row, parked):
                    self.manager.requests.step([row], done=self.done(parked))

    def write_row(self, row: int, prompt: int) -> None:
        """What decoding leaves in whole granules, and at the boundary."""
        requests = self.manager.requests
        whole, shared = int(requests.tokens[row]) // self.granule, int(requests.shared_tokens([row])[0]) // self.granule
        for kind in self.model.kinds:
            if kind in PAGED:
                self.write(prompt, kind, range(shared, whole), requests.table(kind, [row])[0][shared:whole])
            elif kind == "uncompressed_tail":
                self.write(prompt, kind, [whole], requests.tail_table([row]))
            elif self.model.window_block is None:
                self.write(prompt, kind, [whole], requests.window_table([row])[0])
            else:
                blocks, slots = requests.window_blocks([row])[0], requests.window_table([row])[0]
                self.write(prompt, kind, blocks[blocks >= 0].tolist(), slots[blocks >= 0])

    def write(self, prompt: int, kind: str, places: Sequence[int], slots: Any) -> None:
        """What computing the model would leave."""
        arena = self.manager.core.pools[kind].arena.bytes
        for place, slot in zip(places, slots.tolist(), strict=True):
            arena[slot] = expected(self.profile, kind, self.prefix(prompt, kind, place))

    def prefix(self, prompt: int, kind: str, place: int) -> bytes:
        """Tokens that a slot's bytes depend on."""
        block = self.model.window_block if kind == "swa_window" else None
        end = (place + (kind in PAGED)) * self.granule if block is None else (place + 1) * block
        return bytes(tokens(self.granule, prompt)[:end].astype(np.uint8))
