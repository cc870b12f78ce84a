"""What the manager keeps under its lock: pools, the index over them, and how room is made in both.

How slots come to be found is in ``publication.py``. Nothing here takes a lock, or moves bytes but to clear what another
tenant left. Every change of a word is an event of the generated tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from .answers import Reason
from .arena import Arena, RemoteMemory, check_slots
from .arguments import check_whole
from .errors import Refused
from .eviction import Flat, LeafFirst, OnCut
from .generated import KINDS
from .index import Index, Segment, Spot
from .isolation import UNKNOWN, Isolation
from .keeping import NEVER, Deadlines, Keeping
from .kinds import PREFILL_VERSION, Numbers, rules_of, trail_of
from .policy import WindowPolicy, replay_range
from .pool import Pool, Slots
from .profile import Profile
from .room import Room
from .table import Eviction, OnEvent, Table
from .tenants import Tenants, evict_in_turn
from .tombstones import Tombstones

Buffers = Mapping[str, npt.NDArray[np.uint8] | RemoteMemory]


class Core:
    """Pools and index of one profile.

    Args:
        profile: the served model.
        slots: slots of each kind the profile has.
        cold: slots for packed copies of compressed KV.
        policy: which windows the index keeps.
        buffers: memory for arenas, by kind; own memory where there is none.
        on_event: told of each event on each pool.
        kinds: generated table class of each kind.
        isolation: clears slots that go to another tenant; None: nobody does.

    Attributes:
        profile, policy: as given.
        paged: kinds that have a slot for each granule, in the profile's order.
        trailing: the others that are cached: their slots are of a boundary, or of a window block.
        kinds: both, paged ones first. A window that the policy keeps nowhere is among neither, and yet has a pool.
        pools: by kind.
        index: where each chain's slots are, and how far it goes.
        leaf_first: what evicts each paged kind, from a chain's end.
        flat: what evicts each trailing kind.
        tombstones: digests of what was evicted, by kind; of those kinds only whose spec leaves them.
        deadlines: what ends when, in ticks of the clock, of what was published for some time only.
        orphans: by kind, intp [n]: slots that the index dropped while somebody still reads them.
        scratch: by kind, intp [1]: a slot for writes that are nobody's; empty until they are set aside.
        cold_bytes: by cold slot: its packed bytes, and the version of the entries in them.
        room: told when slots come back, or can be evicted again.

    Raises:
        ValueError: ``slots`` or ``buffers`` name other kinds than the profile has, a count is below 1, or two kinds
            share memory, or some can't be used.
        TypeError: ``slots`` or ``buffers`` are no mappings, or a count is no whole number.
        ProfileError: a pool whose offsets the kernels' ABI can't form.
    """

    def __init__(
        self,
        profile: Profile,
        slots: Mapping[str, int],
        cold: int,
        policy: WindowPolicy,
        buffers: Buffers,
        on_event: OnEvent | None = None,
        kinds: Mapping[str, type[Table]] = KINDS,
        isolation: Isolation | None = None,
    ) -> None:
        self.profile, self.policy = profile, policy
        if unknown := sorted(set(kinds) - set(KINDS)):
            raise ValueError(f"kinds= names {', '.join(unknown)}; there are: {', '.join(KINDS)}")
        for kind, table in kinds.items():
            table.check_stands_for(KINDS[kind])
        tables, rules = {**KINDS, **kinds}, rules_of(profile)
        self._tables = {kind: tables[kind] for kind in rules}
        self._budgets = {kind: rule.budget for kind, rule in self._rules() if rule.budget is not None}
        self._cascades = {kind: rule.cascade for kind, rule in self._rules() if rule.cascade}
        self._latest = self.most("last_use")
        numbers = [np.iinfo(table.META["tenant"]).max for table in self._tables.values() if "tenant" in table.META]
        self._tenants = Tenants(min(numbers)) if numbers else None
        self._cold, self._on_event, self._isolation = cold, on_event, isolation
        self.room = Room()
        self.pools = self.make_pools(slots, buffers)
        self.scratch: dict[str, Slots] = {}
        self.paged = tuple(kind for kind, kind_rules in rules.items() if kind_rules.paged)
        self.trailing = tuple(
            kind for kind in rules if kind not in self.paged and (kind != "swa_window" or policy.keep != "none")
        )
        self.kinds = self.paged + self.trailing
        self.cold_bytes: dict[int, tuple[bytes, int]] = {}
        self.orphans: dict[str, Slots] = {kind: np.empty(0, np.intp) for kind in self.pools}
        self._begin()

    def make_pools(self, slots: Mapping[str, int], buffers: Buffers) -> dict[str, Pool]:
        """Pools of free slots, by kind; nothing is changed. Raises as the constructor does."""
        rules = rules_of(self.profile)
        _check_by_kind("slots", slots)
        if set(slots) != set(rules):
            raise ValueError(f"slots are given for {sorted(slots)}; {self.profile.name} has {sorted(rules)}")
        arenas = self.make_arenas(slots, buffers)
        cold = {"compressed_kv": self._cold}
        pools = {
            kind: Pool(
                kind,
                self._tables[kind],
                arenas[kind],
                kind_rules,
                cold.get(kind, 0),
                self._on_event,
                self._isolation,
                self.room,
            )
            for kind, kind_rules in rules.items()
        }
        for kind in buffers:
            pools[kind].left[:] = UNKNOWN
        return pools

    def make_arenas(self, slots: Mapping[str, int], buffers: Buffers) -> dict[str, Arena]:
        """Memory for so many slots, by kind; nothing is changed. Raises as the constructor does."""
        _check_by_kind("buffers", buffers)
        if not set(buffers) <= set(slots):
            raise ValueError(f"buffers are given for {sorted(buffers)}; {self.profile.name} has {sorted(slots)}")
        arenas: dict[str, Arena] = {}
        for kind, count in slots.items():
            layout, whole = self.profile.layouts[kind], check_slots(kind, count)
            layout.check_pool(whole, self.profile.offset_bits)
            arena = Arena(layout, whole, buffer=buffers.get(kind))
            for other, earlier in arenas.items():
                if arena.overlaps(earlier):
                    raise ValueError(f"the buffers of {other} and {kind} share memory; give each kind its own")
            arenas[kind] = arena
        return arenas

    def replace_pools(self, pools: dict[str, Pool]) -> None:
        """Go on with other pools, all of them free, and an empty index."""
        self.pools = pools
        self.scratch, self.cold_bytes = {}, {}
        self.orphans = {kind: np.empty(0, np.intp) for kind in pools}
        self.clear()

    def clear(self) -> None:
        """Start with an empty index; what the pools hold is no longer found."""
        self.index.retire()
        self._begin()

    def _begin(self) -> None:
        """An empty index, and evictors over it."""
        specs = [trail_of(self.profile, kind) for kind in self.trailing]
        self.index = Index(len(self.paged), specs)
        self.deadlines = Deadlines()
        self.tombstones = {
            kind: Tombstones(len(self.pools[kind]))
            for kind, rule in self._rules()
            if rule.leaves == "tombstone" and kind in self.kinds  # of what is never cached nothing is left
        }
        self.leaf_first = {
            kind: LeafFirst(n, self.pools[kind], self.index, self.tombstones.get(kind), self._on_cut(kind))
            for n, kind in enumerate(self.paged)
        }
        self.flat = {
            kind: Flat(n, self.pools[kind], self.index, self.tombstones.get(kind))
            for n, kind in enumerate(self.trailing)
        }

    def _rules(self) -> Iterator[tuple[str, Eviction]]:
        for kind, table in self._tables.items():
            if table.EVICTION is not None:
                yield kind, table.EVICTION

    def _on_cut(self, kind: str) -> OnCut | None:
        return partial(self._cascade, kind) if kind in self._cascades else None

    def keeps(self, name: str) -> bool:
        """Whether the spec of some kind declares this meta field."""
        return any(name in table.META for table in self._tables.values())

    def most(self, name: str) -> int:
        """The greatest number that a meta field holds, and an eviction rule reads, in every kind that has it."""
        sizes = [np.iinfo(table.META[name]).max for table in self._tables.values() if name in table.META]
        return int(min([NEVER, *sizes]))

    def check_time(self, time: int) -> int:
        """What the clock said, if it can be kept; raises ValueError before anything is stamped with it."""
        if not 0 <= time <= self._latest:
            raise ValueError(f"the clock said {time}; let it say numbers from 0 to {self._latest}")
        return time

    def check_kinds(self, kinds: Iterable[str]) -> None:
        """Raise ValueError for kinds that have no slots."""
        if unknown := [kind for kind in kinds if kind not in self.pools]:
            raise ValueError(f"no slots of {', '.join(unknown)}; {self.profile.name} has {', '.join(self.pools)}")

    def check_keeping(self, priority: int, ttl: int | None) -> None:
        """Raise ValueError for a priority or ttl that nobody keeps or is out of range, TypeError for no number."""
        check_whole("priority", priority, "a whole number, 0 by default")
        if ttl is not None:
            check_whole("ttl", ttl, "a whole number of ticks of the clock, or None")
        if ttl is not None and not 1 <= ttl <= NEVER:
            raise ValueError(f"ttl={ttl}; give a whole number of ticks of the clock, 1 to {NEVER}")
        for name, given in (("priority", priority != 0), ("expires", ttl is not None)):
            if given and not self.keeps(name):
                raise ValueError(f"no kind's spec keeps '{name}'; declare it under 'meta:' of those that go by it")
        if priority and not 0 <= priority <= self.most("priority"):
            raise ValueError(f"priority={priority}; the specs keep 0 to {self.most('priority')}")

    def tenant(self, salt: bytes | None) -> int | None:
        """The number of the tenant with this salt, where the spec of some kind keeps it."""
        if self._tenants is None or salt is None:
            return None
        return self._tenants.number(salt, self.pools.values())

    @property
    def tells_tenants(self) -> bool:
        """Whether it matters whose a slot is: for what lies in it, or for budgets."""
        return self._tenants is not None or (self._isolation is not None and self._isolation.apart)

    def keeping(self, clock: int, priority: int, ttl: int | None, salt: bytes) -> Keeping:
        """How what is published now under a salt is to be kept."""
        return Keeping(priority, NEVER if ttl is None else min(NEVER, clock + ttl), self.tenant(salt))

    def stored(self, kind: str) -> bool:
        """Whether what is evicted of a kind is to be found in the store: what is published of it is stored at once."""
        rule = self._tables[kind].EVICTION
        return rule is not None and rule.leaves == "disk_copy"

    @property
    def metadata_bytes(self) -> int:
        """Bytes of words, metadata, free stacks, index and what eviction keeps."""
        pools = sum(pool.metadata_bytes for pool in self.pools.values())
        heaps = sum(leaves.nbytes for leaves in self.leaf_first.values())
        flat = sum(16 * len(flat.places) for flat in self.flat.values())
        stones = sum(stones.nbytes for stones in self.tombstones.values())
        return pools + heaps + flat + stones + self.deadlines.nbytes + self.index.nbytes

    # ---- what the index says --------------------------------------------------------------------------------------

    def places(self, kind: str, boundary: int) -> Numbers:
        """Places that a boundary needs of a kind."""
        if kind in self.paged:
            return np.arange(boundary)
        spec = self.index.specs[self.trailing.index(kind)]
        if not boundary:
            return np.empty(0, np.int64)
        return np.arange(spec.first(boundary), spec.stop(boundary))

    def granules(self, kind: str, places: Numbers) -> Numbers:
        """The granule that each place of a kind belongs to."""
        if kind in self.paged:
            return places
        return self.index.specs[self.trailing.index(kind)].granule(places)

    def slots_at(self, kind: str, spot: Spot, boundary: int) -> npt.NDArray[np.int32]:
        """Slots that hold those places."""
        if kind in self.paged:
            return self.index.slots(self.paged.index(kind), spot, 0, boundary)
        return self.index.trail_slots(self.trailing.index(kind), spot, boundary)

    def last_slot(self, kind: str, spot: Spot, boundary: int) -> int:
        """The slot that stands for the others: of the last granule, or of the boundary's last block."""
        if kind in self.paged:
            segment = self.index.climb(spot.segment, boundary)
            return int(segment.slots[self.paged.index(kind)][boundary - 1 - segment.base])
        trail = self.trailing.index(kind)
        spec = self.index.specs[trail]
        found = self.index.find(trail, spot, spec.stop(boundary) - 1)
        if found is None:
            raise KeyError(f"{kind} is not resident at boundary {boundary}")
        return found

    def versions(self, kind: str, spot: Spot, places: Numbers) -> Numbers:
        """Version of what indexer keys, or KV, at these granules are tied to; for other kinds nothing depends on it."""
        versions = np.full(len(places), PREFILL_VERSION, np.int64)
        partner = {"indexer_state": "compressed_kv", "compressed_kv": "indexer_state"}.get(kind)
        if partner in self.paged and len(places):
            n, low = self.paged.index(partner), int(places[0])
            high = min(int(places[-1]) + 1, self.index.live(n, spot))
            if high > low:
                slots = self.index.slots(n, spot, low, high)
                held = self.pools[partner].table.fields("version", slots)
                for packed in np.flatnonzero(slots >= self.pools[partner].hot).tolist():  # the word of a copy has none
                    held[packed] = self.cold_bytes[int(slots[packed])][1]
                known = places < high
                versions[known] = held[places[known] - low]
        return versions

    @property
    def lossy_slots(self) -> int:
        """Slots of all kinds that rest on a lossy form or on a replay."""
        return sum(pool.lossy for pool in self.pools.values())

    def is_lossy(self, slots: Mapping[str, npt.NDArray[Any]]) -> bool:
        """Whether any of these slots, by kind, rests on a lossy form or on a replay; O(1) while no slot does."""
        pools = self.pools
        return any(pools[kind].lossy and pools[kind].count_lossy(held) for kind, held in slots.items())

    def lossy_before(self, spot: Spot, stop: int) -> bool:
        """The same of all that a chain holds for boundary ``stop``; kinds without lossy slots are not looked up."""
        lossy = [kind for kind in self.kinds if self.pools[kind].lossy]
        return bool(lossy) and self.is_lossy({kind: self._held(kind, spot, stop) for kind in lossy})

    def replay(self, tokens: int) -> range | None:
        """Tokens to compute again before one goes on from ``tokens``; None where windows are kept, or are none."""
        kept = "swa_window" in self.trailing or "swa_window" not in self.pools
        return None if kept else replay_range(self.profile, tokens)

    def _held(self, kind: str, spot: Spot, stop: int) -> npt.NDArray[np.int32]:
        """Slots of a kind that a chain holds for a boundary: granules [0, stop) as far as they go, or its end."""
        if kind in self.paged:
            return self.slots_at(kind, spot, min(stop, self.index.live(self.paged.index(kind), spot)))
        valid = self.index.last(self.trailing.index(kind), spot, stop) == stop
        return self.slots_at(kind, spot, stop if valid else 0)

    def capacity(self, kind: str) -> int:
        """Slots of a kind that can ever be taken at once: all with bytes, but those worn, and the one set aside."""
        pool = self.pools[kind]
        return pool.hot - pool.worn - len(self.scratch.get(kind, ()))

    # ---- room -----------------------------------------------------------------------------------------------------

    def take(
        self,
        counts: Mapping[str, int],
        event: str,
        given: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        tenant: int | None,
        whose: int,
    ) -> dict[str, Slots]:
        """Take slots of several kinds, all or nothing; see ``Manager.take``.

        Args:
            counts: slots by kind.
            event: "take", or "load_begin" for bytes that are brought.
            given: arguments of the event by kind; those of "take" by default.
            tenant: for whom, where there are budgets; see ``tenants.py``.
            whose: for whom, where tenants are told apart; see ``isolation.py``.
        """
        self.make_room(counts, tenant)
        slots: dict[str, Slots] = {}
        try:
            for kind, count in counts.items():
                pool = self.pools[kind]
                said = given[kind] if given is not None else pool.rules.take()
                slots[kind] = pool.take(count, said, event, tenant=tenant, whose=whose)
        except BaseException:  # of a backend that can't clear what others left, too
            for kind, held in slots.items():
                pool = self.pools[kind]
                if event == "take":
                    pool.abandon(held)
                else:
                    failed = pool.rules.load_done(False, np.zeros(len(held), bool))
                    pool.sure("load_done", held, "S27", expected=pool.generations(held), **failed)
                    pool.release("discard", held, expected=pool.generations(held))
            raise
        return slots

    def make_room(self, counts: Mapping[str, int], tenant: int | None = None) -> None:
        """Evict until so many slots of each kind are free, for a tenant where there are budgets.

        Raises:
            Refused: CAPACITY when a pool is smaller, POOL_FULL when too much of it is in use; nothing is evicted
                then, of no kind.
        """
        for kind, count in counts.items():
            self.check_room(kind, count)
        for kind, count in counts.items():
            pool = self.pools[kind]
            while pool.free < count and self.evict(kind, count - pool.free, tenant, count):
                pass

    def check_fits(self, counts: Mapping[str, int], held: Mapping[str, npt.NDArray[np.intp]]) -> None:
        """Raise Refused (CAPACITY) where so many slots can never be had beside those that whoever asks holds."""
        for kind, count in counts.items():
            mine, most = len(held.get(kind, ())), self.capacity(kind)
            if mine and count + mine > most:
                what = f"{count} slots of {kind} beside {mine} of one's own lease, and the pool has {most}"
                raise Refused(Reason.CAPACITY, "pool", what)

    def check_room(self, kind: str, count: int) -> None:
        """Raise Refused unless eviction would make ``count`` slots of a kind free."""
        pool = self.pools[kind]
        if pool.free >= count:
            return
        if count > self.capacity(kind):
            what = f"{count} slots of {kind}, and the pool has {self.capacity(kind)}"
            raise Refused(Reason.CAPACITY, "pool", what)
        self.sweep(kind)
        if pool.free >= count:
            return
        leaves = self.leaf_first.get(kind)
        if leaves is not None and leaves.suffice(count - pool.free):
            return
        evictable = pool.room_in(pool.eligible(np.arange(pool.hot)))
        if pool.free + evictable >= count and leaves is not None:
            evictable = leaves.reachable()
        if pool.free + evictable < count:
            what = f"{count} slots of {kind}: {pool.free} free, {evictable} evictable, of {pool.hot}"
            raise Refused(Reason.POOL_FULL, "pool", what)

    def evict(self, kind: str, count: int, tenant: int | None = None, want: int = 0) -> int:
        """Evict up to ``count`` slots of a kind by its spec's rules; returns how many went.

        Args:
            kind: the kind.
            count: at most so many.
            tenant: for whom, where there are budgets; see ``tenants.py``.
            want: slots that this tenant is to have besides those it has.
        """
        done = self.sweep(kind)
        if done >= count:
            return done
        rule: LeafFirst | Flat | None = self.leaf_first.get(kind) or self.flat.get(kind)
        if rule is None:
            return done
        pool, budget = self.pools[kind], self._budgets.get(kind)
        if budget is None or budget.tenant is None:
            done += rule.evict(count - done)
        else:
            share = pool.hot * budget.tenant // 100
            done += evict_in_turn(pool, share, count - done, tenant, want, rule.evict)
        self._forget_cold()
        return done

    def trim(self) -> None:
        """Evict what kinds have cached beyond their budgets, as far as nobody holds it. Cost: a pass a budget."""
        for kind, budget in self._budgets.items():
            if budget.kind is not None:
                pool = self.pools[kind]
                over = pool.cached() - pool.hot * budget.kind // 100
                if over > 0:
                    self.evict(kind, over)

    def _cascade(self, kind: str, segment: Segment, at: int) -> None:
        """A segment holds a kind up to granule ``at`` only, nor does anything below it: what hangs on it goes too."""
        for other in self._cascades.get(kind, ()):
            if other in self.kinds:
                self.sever(other, segment, at)
                self.index.prune_below(segment)

    def sever(self, kind: str, segment: Segment, at: int) -> int:
        """Make a kind unmatchable from granule ``at`` on, in every branch below; its slots are free as readers leave.

        Args:
            kind: the kind.
            segment: holds granule ``at``, or ends with it.
            at: the first granule.

        Returns:
            The number of slots.
        """
        if kind in self.paged:
            gone = self.index.sever(self.paged.index(kind), Spot(segment, at), at).astype(np.intp)
            self.retire(kind, gone)
            self._cascade(kind, segment, at)
        else:
            gone = self._trailing_below(self.trailing.index(kind), segment, at)
            self.drop(kind, gone)
        self.offer(segment, at)
        return len(gone)

    def _trailing_below(self, trail: int, top: Segment, start: int) -> Slots:
        """Slots of a trailing kind at granules from ``start`` on, at or below a segment."""
        found = []
        for segment in self.index.below(top):
            held = segment.trails[trail]
            if held is not None:
                places, slots = held.everything()
                found.append(slots[places >= held.spec.stop(start)])
        return np.concatenate(found).astype(np.intp) if found else np.empty(0, np.intp)

    def drop(self, kind: str, slots: Slots) -> None:
        """Make slots of a trailing kind unmatchable; they are free as their readers leave."""
        self.flat[kind].drop_all(slots)
        self.retire(kind, slots)

    def retire_all(self) -> None:
        """Nobody new finds anything: what is cached is free once its readers are gone."""
        for kind, pool in self.pools.items():
            every = np.arange(len(pool))
            self.retire(kind, every[pool.in_state(every, "resident", "packed", "stale")])

    def retire(self, kind: str, slots: npt.NDArray[Any]) -> None:
        """Slots that the index dropped: nobody new reads them, and they are free once their readers are gone."""
        if not len(slots):
            return
        index = slots.astype(np.intp)
        pool = self.pools[kind]
        # What is being packed just now is freed by its packer.
        waiting = index[pool.in_state(index, "resident", "packed", "stale")]
        pool.sure("expire", waiting, "S2", expected=pool.generations(waiting))
        self.orphans[kind] = np.concatenate((self.orphans[kind], waiting))
        self.sweep(kind)

    def sweep(self, kind: str) -> int:
        """Free retired slots that nobody reads any more; returns how many went."""
        waiting = self.orphans[kind]
        if not len(waiting):
            return 0
        pool = self.pools[kind]
        gone = pool.eligible(waiting)
        pool.release("evict", gone)
        self.orphans[kind] = waiting[~np.isin(waiting, gone)]
        self._forget_cold()
        return len(gone)

    def offer(self, segment: Segment, at: int) -> None:
        """Leases or transfers on the chain up to granule ``at`` have ended: its end may be evicted."""
        self.room.given += 1
        segment = self.index.climb(segment, at)
        for leaves in self.leaf_first.values():
            leaves.offer_chain(segment)

    def _forget_cold(self) -> None:
        """Drop the packed bytes of cold slots that were evicted."""
        if self.cold_bytes:
            pool = self.pools["compressed_kv"]
            slots = np.fromiter(self.cold_bytes, np.intp, len(self.cold_bytes))
            for slot in slots[pool.in_state(slots, "free")].tolist():
                del self.cold_bytes[slot]


def _check_by_kind(name: str, given: object) -> None:
    if not isinstance(given, Mapping):
        raise TypeError(f"{name}={given!r}; give a mapping whose keys are kinds, or leave it out")
