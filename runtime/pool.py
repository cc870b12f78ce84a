"""Slots of one kind: a word each, metadata each, bytes each, and a stack of free ones.

Taking and giving back are slices of the stack and one event over an array of slots; nothing here loops over slots.
The last ``cold`` slots have no bytes in the arena: they stand for packed copies, whose bytes have no fixed size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from .answers import Reason
from .arena import Arena
from .errors import Broken, Refused
from .isolation import CLEAN, UNKNOWN, Isolation
from .keeping import NEVER, Keeping
from .kinds import Rules
from .room import Room
from .table import OnEvent, Table

Slots = npt.NDArray[np.intp]


class Pool:
    """One kind's slots. The caller holds the manager's lock.

    Args:
        kind: machine name.
        table: generated table class.
        arena: bytes of the ``hot`` slots.
        rules: arguments of the kind's events.
        cold: slots beside them for packed copies.
        on_event: told of each event, see ``Table``.
        isolation: clears slots that go to another tenant; None: nobody does.
        room: told when slots come back.

    Attributes:
        hot: slots that have bytes in the arena, [0, hot); those for packed copies follow.
        table: words of all slots.
        whole: the same words, for events that go to all slots named or to none.
        lossy: slots whose words say so.
        worn, worn_cold: free slots that are taken no more, at their last generation; those for packed copies.
        meta: what else the spec keeps of a slot, by name, [slots] in the type that the spec gives.
        stamped: how often the order of eviction may have changed.
        usage: slots in use of each tenant, by its number; empty where the spec keeps nobody's.
        left: whose bytes lie in each slot, int64 [hot], see ``isolation.py``.
    """

    def __init__(
        self,
        kind: str,
        table: type[Table],
        arena: Arena,
        rules: Rules,
        cold: int = 0,
        on_event: OnEvent | None = None,
        isolation: Isolation | None = None,
        room: Room | None = None,
    ) -> None:
        self.kind = kind
        self.arena = arena
        self.rules = rules
        self.hot = len(arena)
        self.table = table(self.hot + cold, on_event)
        self.whole = self.table.whole
        self.lossy = 0
        self.worn = self.worn_cold = 0
        self._generation = self.table.LAYOUT.field("generation")
        self.meta = {name: np.zeros(self.hot + cold, dtype) for name, dtype in table.META.items()}
        self.stamped = 0
        self.usage: Counter[int] = Counter()
        self.left = np.full(self.hot, CLEAN, np.int64)
        self._isolation = isolation
        self._room = room or Room()
        self._free = [_Stack(0, self.hot), _Stack(self.hot, self.hot + cold)]

    def __len__(self) -> int:
        return len(self.table)

    @property
    def free(self) -> int:
        """Free slots that have bytes in the arena."""
        return self._free[0].top

    @property
    def free_cold(self) -> int:
        """Free slots for packed copies."""
        return self._free[1].top

    @property
    def free_slots(self) -> Slots:
        """All free slots, in no order."""
        return np.concatenate([stack.slots[: stack.top] for stack in self._free]).astype(np.intp)

    def take(
        self,
        count: int,
        given: Mapping[str, npt.ArrayLike],
        event: str = "take",
        *,
        cold: bool = False,
        tenant: int | None = None,
        whose: int = UNKNOWN,
        clear: bool = True,
    ) -> Slots:
        """``count`` free slots, ascending, in the state that ``event`` leads to with the arguments ``given``.

        They count as the tenant's from now on, if the spec keeps that; None: nobody's. ``whose`` is who may read what
        lies in them; what anybody else left was cleared. Not so without ``clear``, for a taker who has just given them
        up: what lies in them stays as it is, and whose it is.

        Raises:
            Refused: POOL_FULL, or the event's refusal; nothing was taken.
            ValueError: a negative count.
        """
        if count < 0:
            raise ValueError(f"{count} slots of {self.kind}; give 0 or more")
        stack = self._free[cold]
        slots = self._next(stack, count)
        if self._isolation is not None and not cold and clear:
            self._isolation.clear(self, slots, whose)
        self.must(event, slots, "pool", **given)
        stack.top -= count
        if not cold and clear:
            self.left[slots] = whose
        if "tenant" in self.meta:
            self.meta["tenant"][slots] = tenant or 0
            self.usage[tenant or 0] += count
        return slots

    def next_slots(self, count: int) -> Slots:
        """The slots with bytes in the arena that are taken next; they stay free.

        Raises:
            Refused: POOL_FULL.
        """
        return self._next(self._free[0], count)

    def clear_next(self, count: int) -> None:
        """Clear what anybody left in the slots that are taken next: to take so many at once can fail no more.

        Raises:
            Refused: POOL_FULL.
        """
        slots = self.next_slots(count)
        if self._isolation is not None:
            self._isolation.clear(self, slots, UNKNOWN)

    def usable(self, slots: Slots) -> Slots:
        """Those that can be taken again once they are free; the others retire then, at their last generation."""
        return slots[self.table.fields("generation", slots) < self._generation.high]

    def room_in(self, slots: Slots) -> int:
        """How many slots with bytes in the arena could be taken again if all of these were free."""
        return len(self.usable(slots[slots < self.hot]))

    def give_back(self, slots: Slots) -> None:
        """Put slots whose words are free again on the stack. Those that can't be taken any more retire."""
        if not len(slots):
            return
        self._room.given += 1
        if "tenant" in self.meta:
            self.usage.subtract(self.meta["tenant"][slots].tolist())
        usable = self.usable(slots)
        hot = usable[usable < self.hot]
        self._free[0].push(hot)
        if worn := len(slots) - len(usable):
            cold = int(np.count_nonzero(slots >= self.hot)) - (len(usable) - len(hot))
            self.worn, self.worn_cold = self.worn + worn - cold, self.worn_cold + cold
        if len(hot) < len(usable):
            self._free[1].push(usable[usable >= self.hot])

    def fire(self, event: str, slots: npt.NDArray[Any], /, **given: npt.ArrayLike) -> int:
        """Apply an event to all slots, or to none; returns 0, or the code of the first refusal."""
        told = "is_lossy" in given  # no other event makes a slot lossy
        before = self.count_lossy(slots) if told else 0
        codes = getattr(self.whole, event)(slots, **given)
        if told:
            self.lossy += self.count_lossy(slots) - before
        return int(codes[codes != 0][0]) if codes.any() else 0

    def must(self, event: str, slots: npt.NDArray[Any], layer: str, /, **given: npt.ArrayLike) -> None:
        """The same of what may be refused, before anything else has changed; ``sure`` is for all that comes after.

        Raises:
            Refused: with the event's refusal, when any slot refuses; nothing was applied.
        """
        if code := self.fire(event, slots, **given):
            refusal: Any = self.table.REFUSALS(code)
            raise Refused(refusal, layer, f"{self.kind} refuses '{event}': {refusal.reason}")

    def sure(self, event: str, slots: npt.NDArray[Any], invariant: str, /, **given: npt.ArrayLike) -> None:
        """The same of what is ours to do: no slot can refuse it unless an invariant is broken.

        Raises:
            Broken: a slot refuses; nothing was applied.
        """
        if code := self.fire(event, slots, **given):
            refusal: Any = self.table.REFUSALS(code)
            raise Broken(invariant, f"{self.kind} refuses '{event}' as {refusal.name}: {refusal.reason}")

    def release(self, event: str, slots: Slots, /, **given: npt.ArrayLike) -> None:
        """Fire an event that makes slots free, and put them on the stack. Raises Broken (S2) when one refuses."""
        if len(slots):
            gone = self.count_lossy(slots) if self.lossy else 0
            self.sure(event, slots, "S2", **given)
            self.lossy -= gone
            self.give_back(slots)

    def abandon(self, slots: Slots) -> None:
        """Free slots that were taken and never published. Raises Broken (S2) when one refuses."""
        self.release("abandon", slots, expected=self.generations(slots))

    def count_lossy(self, slots: npt.NDArray[Any]) -> int:
        """How many of these slots rest on a lossy form or on a replay, by their words."""
        return int(np.count_nonzero(self.table.fields("lossy", slots)))

    def generations(self, slots: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Generation of each slot."""
        return self.table.fields("generation", slots)

    def generation(self, slot: int) -> int:
        """Generation of one slot, without the cost of a vectorised call."""
        return int(self.table.words[slot]) >> self._generation.shift & self._generation.mask

    def in_state(self, slots: npt.NDArray[Any], *names: str) -> npt.NDArray[np.bool_]:
        """Which slots are in one of the named states."""
        codes = [state for state in self.table.STATES if state.name.lower() in names]
        return np.isin(self.table.states(slots), codes)

    def eligible(self, slots: npt.NDArray[Any] | None = None) -> Slots:
        """Those of ``slots`` (or of all) that the spec lets eviction take now."""
        eviction = self.table.EVICTION
        if eviction is None:
            return np.empty(0, np.intp)
        every = np.arange(len(self.table)) if slots is None else slots
        return eviction.eligible(self.table, self.meta, every)

    def cached(self) -> int:
        """Slots with bytes in the arena that the spec names as candidates of eviction, held or not. Cost: a pass."""
        eviction = self.table.EVICTION
        candidates = () if eviction is None else eviction.candidates
        return int(np.isin(self.table.states()[: self.hot], candidates).sum())

    def stamp(self, slots: npt.NDArray[Any], clock: int) -> None:
        """Remember when slots were last used."""
        self.stamped += 1
        if "last_use" in self.meta:
            self.meta["last_use"][slots] = clock

    def count_use(self, slots: npt.NDArray[Any]) -> None:
        """One lease more was taken on each of these slots."""
        if "uses" in self.meta:
            uses = self.meta["uses"]
            self.stamped += 1
            uses[slots] += uses[slots] < np.iinfo(uses.dtype).max

    def publish(self, slots: npt.NDArray[Any], clock: int, keeping: Keeping) -> None:
        """Others find these slots from now on: nobody has used them yet, and they are kept as their publisher said."""
        self.stamp(slots, clock)
        fresh = {"uses": 0, "priority": keeping.priority, "expires": keeping.until}
        for name in fresh.keys() & self.meta.keys():
            self.meta[name][slots] = fresh[name]
        if "tenant" in self.meta and keeping.tenant is not None:
            self.usage.subtract(self.meta["tenant"][slots].tolist())
            self.meta["tenant"][slots] = keeping.tenant
            self.usage[keeping.tenant] += len(slots)

    def publish_again(self, slots: npt.NDArray[Any], keeping: Keeping, before: Mapping[str, npt.NDArray[Any]]) -> None:
        """The same was published once more: it is kept as dearly and as long as any of its publishers said.

        ``before`` has by name what they said, one value a slot.
        """
        for name, value in (("priority", keeping.priority), ("expires", keeping.until)):
            if name in self.meta:
                self.stamped += 1
                held = self.meta[name]
                held[slots] = np.maximum(held[slots], np.maximum(before[name], np.array(value, held.dtype)))

    def inherit(self, slots: Slots, source: Slots) -> None:
        """``slots`` take the place of ``source``, one for one: they are kept as those were."""
        self.stamped += 1
        if "tenant" in self.meta:
            self.usage.subtract(self.meta["tenant"][slots].tolist())
            self.usage.update(self.meta["tenant"][source].tolist())
        for array in self.meta.values():
            array[slots] = array[source]

    def lasting(self, slots: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Which of these slots never expire."""
        if "expires" not in self.meta:
            return np.ones(len(slots), np.bool_)
        ends: npt.NDArray[np.bool_] = self.meta["expires"][slots] == NEVER
        return ends

    def _next(self, stack: _Stack, count: int) -> Slots:
        """The slots on top of a stack, ascending; they stay there."""
        if count > stack.top:
            what = f"{count} slots of {self.kind}, {stack.top} of {len(stack.slots)} are free"
            raise Refused(Reason.POOL_FULL, "pool", what)
        return np.sort(stack.slots[stack.top - count : stack.top]).astype(np.intp)

    @property
    def metadata_bytes(self) -> int:
        """Bytes of words, metadata, whose bytes lie where, and free stack."""
        meta = sum(array.nbytes for array in self.meta.values())
        return int(self.table.words.nbytes + meta + self.left.nbytes + sum(stack.slots.nbytes for stack in self._free))


class _Stack:
    """Free slots; the lowest of [low, high) is on top at first."""

    __slots__ = ("slots", "top")

    def __init__(self, low: int, high: int) -> None:
        self.slots = np.arange(high - 1, low - 1, -1, dtype=np.int32)
        self.top = high - low

    def push(self, slots: Slots) -> None:
        """Put slots on top, the first of them uppermost."""
        self.slots[self.top : self.top + len(slots)] = slots[::-1]
        self.top += len(slots)
