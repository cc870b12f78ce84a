"""Negative controls: races planted in a subclass, each of which some schedule shows."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

from kvfsm.runtime.lease import Lease, Receipt
from kvfsm.runtime.manager import Manager

from .operations import OPERATIONS, take_aborted
from .runs import every
from .scheduler import Scheduler
from .world import A, World, quiet


class AcquiresUnchecked(Manager):
    """Reads the slots that the match saw, whatever is in them now, and pins nothing."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.seen: dict[int, tuple[Any, Any]] = {}

    def match(self, keys: Any, *given: Any, **named: Any) -> Any:
        answer = super().match(keys, *given, **named)
        boundary = answer.now // self.profile.granule
        spot = self.core.index.locate(keys.digests, boundary)
        if answer.now and spot.at == boundary:
            self.seen[id(answer)] = spot, {kind: self.core.slots_at(kind, spot, boundary) for kind in self.core.kinds}
        return answer

    def acquire(self, answer: Any, *, owner: str = "") -> Any:
        spot, slots = self.seen[id(answer)]
        with self.lock:
            receipt = Receipt(next(self._numbers), owner, {}, {}, spot.segment, spot.at)
            lease = Lease(self, receipt.lease_id, owner, answer.now, True, None, slots)
            self.receipts[receipt.lease_id] = (receipt, weakref.ref(lease))
        return lease


class EvictsPinned(Manager):
    """Eviction that takes leased slots, and gives them to others."""

    def evict(self, kind: str, count: int) -> int:
        table = self.core.pools[kind].table
        pins = table.LAYOUT.field("pins")
        table.words[:] &= table.words.dtype.type(~(pins.mask << pins.shift) % 2**64)
        return super().evict(kind, count)


class PublishesEarly(Manager):
    """Makes a fill visible before its last bytes are there."""

    def publish(self, fill: Any) -> None:
        arena = self.core.pools["compressed_kv"].arena.bytes
        slots = fill.slots["compressed_kv"]
        whole = arena[slots]
        arena[slots] = 0
        super().publish(fill)
        self.backend.scatter(arena, slots, whole)


class ForgetsLoss(Manager):
    """Answers exact whatever the bytes went through."""

    def _lease(self, receipt: Any, answer: Any, lossy: bool) -> Any:
        return super()._lease(receipt, answer, False)


class PacksOpenly(Manager):
    """Packs without the exclusive mark: readers come in, and the slots are freed under them."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        pool, packer = self.core.pools["compressed_kv"], self._packer
        must, pins = pool.must, pool.table.LAYOUT.field("pins")

        def marked_late(event: str, slots: Any, layer: str, /, **named: Any) -> None:
            if event == "compress_begin":
                return
            if event == "compress_done":
                pool.table.words[slots] &= pool.table.words.dtype.type(~(pins.mask << pins.shift) % 2**64)
                must("compress_begin", slots, layer, expected=named["expected"])
            must(event, slots, layer, **named)

        pool.must = marked_late  # type: ignore[method-assign]
        packer._set_ready = lambda n, segment, ready: None  # type: ignore[method-assign]


class PacksBlindly(Manager):
    """Takes for granted that the index holds nothing of what was packed when the packing ends."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        nothing = lambda n, spot, low, source: np.zeros(len(source), np.bool_)  # noqa: E731
        self._packer._still_held = nothing  # type: ignore[method-assign]


PLANTED = [
    (AcquiresUnchecked, "p", ("read p", "take q")),
    (EvictsPinned, "p", ("read p", "take q")),
    (PublishesEarly, "empty", ("fill p", "read p")),
    (ForgetsLoss, "p packed lossy", ("expand p", "read p")),
    (PacksOpenly, "p", ("read p", "pack p, take q")),
    (PacksBlindly, "p", ("pack p", "read p")),
]


@pytest.mark.parametrize(("make", "begin", "names"), PLANTED, ids=[made.__name__ for made, *_ in PLANTED])
def test_a_planted_race_is_found(make: type[Manager], begin: str, names: tuple[str, str]) -> None:
    choices, wrong, count = every(begin, names, 2, most=300, make=make)
    print(f"{wrong[:1]} after {count} schedules: {choices}")
    assert wrong != []
    assert every(begin, names, 2, most=count)[1] == []


def test_a_load_whose_slots_are_freed_before_it_has_stopped_is_found() -> None:
    found, wrong, count = every("p packed", ("expand p", take_aborted), 2, most=600)
    print(f"{wrong[:1]} after {count} schedules: {found}")
    assert any("not its own" in text for text in wrong)


class PacksAllOrNothing(Manager):
    """Frees every source of a packing, though the index still holds those that did not expire meanwhile."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        still_held = self._packer._still_held

        def all_or_nothing(n: int, spot: Any, low: int, source: Any) -> Any:
            found = still_held(n, spot, low, source)
            return found if found.all() else np.zeros_like(found)

        self._packer._still_held = all_or_nothing  # type: ignore[method-assign]


@pytest.mark.parametrize("make", [Manager, PacksAllOrNothing])
def test_another_prompts_bytes_show_in_a_freed_slot_that_the_index_keeps(make: type[Manager]) -> None:
    """The audit after the next reset is clean: only a reader that knows its bytes can tell."""
    scheduler = Scheduler([0, 0, 0, 0, 1, 1, 1, 0, 0])  # the expiry comes while the bytes are packed
    world = World(scheduler, 6, make=make)
    manager, other = world.manager, world.manager.keys(np.arange(A + 1))
    world.fill(world.p, 0, 3)

    def expire() -> None:
        manager.expire(world.p, 1)

    def reuse() -> None:
        world.fill(other, 0, 1)
        world.fill(world.q, 1, 3)
        world.read(world.q)

    errors = scheduler.run([quiet(OPERATIONS["pack p"], world), expire, reuse])
    manager.reset()
    assert (errors, manager.audit().violations) == ([], ())
    assert bool(world.wrong) == (make is PacksAllOrNothing), world.wrong
