"""Negative controls: races planted in a subclass, each of which some schedule shows."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

from kvfsm.runtime.lease import Lease, Receipt
from kvfsm.runtime.manager import Manager

from .operations import take_aborted
from .runs import every


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
