"""What must hold of a manager at rest: conservation (S1), freedom (S2), leases (S3), holds (S9), loss, the index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .leaks import open_handles
from .pool import Pool

if TYPE_CHECKING:
    from .manager import Manager


@dataclass(frozen=True, slots=True)
class Audit:
    """Counts by kind and state, and violations as sentences that begin with the invariant's name.

    ``dropped`` names leases that nobody holds any more but that were never released: their slots stay protected. In
    debug mode it says where they were taken.
    """

    counts: Mapping[str, Mapping[str, int]]
    violations: tuple[str, ...]
    dropped: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.violations


def audit(manager: Manager) -> Audit:
    """Audit a manager; the caller holds its lock. Costs a pass over all slots and the index."""
    violations = [f"index: {text}" for text in manager.core.index.audit()]
    counts = {}
    for kind, pool in manager.core.pools.items():
        counts[kind] = pool.table.count_by_state()
        violations += [f"{text} ({kind})" for text in _kind(manager, kind, pool)]
    dropped = tuple(str(leak) for leak in open_handles(manager) if leak.dropped)
    return Audit(counts, tuple(violations), dropped)


def _kind(manager: Manager, kind: str, pool: Pool) -> list[str]:
    wrong: list[str] = []
    every = np.arange(len(pool))
    free = pool.in_state(every, "free")
    retired = pool.generations(every) == pool.table.LAYOUT.field("generation").high
    stacked = pool.free_slots
    if len(np.unique(stacked)) != len(stacked):
        wrong.append("S1: a slot is on the free stack twice")
    if pool.free + pool.free_cold != len(stacked):
        wrong.append(f"S1: {pool.free + pool.free_cold} slots are counted as free, the stack has {len(stacked)}")
    if not np.array_equal(np.sort(stacked), every[free & ~retired]):
        wrong.append(f"S1: {len(stacked)} slots on the free stack, {int((free & ~retired).sum())} words are free")
    for name in ("pins", "holds"):
        if pool.table.fields(name, every[free]).any():
            wrong.append(f"S2: a free slot has {name}")
    if pool.count_lossy(every) != pool.lossy:
        wrong.append(f"T9: {pool.count_lossy(every)} slots are lossy, {pool.lossy} are counted")
    known = _known(manager, kind)
    where = np.concatenate([slots for slots in known.values()]) if known else np.empty(0, np.intp)
    if len(np.unique(where)) != len(where):
        wrong.append(f"S1: a slot is known twice among {', '.join(known)}")
    if not np.array_equal(np.sort(where), every[~free]):
        lost = np.setdiff1d(every[~free], where)[:5].tolist()
        extra = np.setdiff1d(where, every[~free])[:5].tolist()
        wrong.append(f"S1: slots in use that nobody knows: {lost}; known slots that are free: {extra}")
    pins = np.zeros(len(pool), np.int64)
    for receipt in [receipt for receipt, _ in manager.receipts.values()] + list(manager.parked):
        if kind in receipt.slots:
            slots = receipt.slots[kind]
            pins[slots] += 1
            if not np.array_equal(pool.generations(slots), receipt.generations[kind]):
                wrong.append(f"S3: lease {receipt.lease_id} covers slots that were taken anew")
    manager.requests.count_pins(kind, pins)
    if not np.array_equal(pool.table.fields("pins"), pins):
        found = pool.table.fields("pins")
        slot = int(np.flatnonzero(found != pins)[0])
        wrong.append(f"S3: slot {slot} has {int(found[slot])} pins, leases account for {int(pins[slot])}")
    held = _held(manager, kind, len(pool))
    if not np.array_equal(found := pool.table.fields("holds"), held):
        slot = int(np.flatnonzero(found != held)[0])
        wrong.append(f"S9: slot {slot} has {int(found[slot])} holds, transfers account for {int(held[slot])}")
    return wrong


def _held(manager: Manager, kind: str, slots: int) -> npt.NDArray[np.int64]:
    """Holds that open transfers have on each slot of a kind: what the store or an expansion reads."""
    held = np.zeros(slots, np.int64)
    for writing in manager.storer.open:
        if kind in writing.held:
            held[writing.held[kind][0]] += 1
    for ticket in manager.tickets.values() if kind == "compressed_kv" else ():
        held[ticket.held] += 1
    return held


def _known(manager: Manager, kind: str) -> dict[str, npt.NDArray[np.intp]]:
    """Who knows which slots of a kind: each slot in use is known exactly once."""
    core = manager.core
    known: dict[str, Any] = {"orphans": core.orphans[kind]}
    indexed = []
    for segment in core.index.below(core.index.root):
        if kind in core.paged:
            n = core.paged.index(kind)
            indexed.append(segment.slots[n][: segment.live[n]])
        elif kind in core.trailing:
            held = segment.trails[core.trailing.index(kind)]
            if held is not None:
                indexed.append(held.everything()[1])
    known["index"] = np.concatenate(indexed) if indexed else np.empty(0, np.intp)
    for fill in manager.fills.values():
        if kind in fill.slots:
            known[f"fill {fill.fill_id}"] = fill.slots[kind]
            if fill.rebuild is not None:  # the index finds those that are rebuilt in place
                known[f"fill {fill.fill_id}"] = fill.rebuild.unfound(fill.slots[kind], known["index"])
    for ticket in manager.tickets.values():
        known[f"ticket {ticket.ticket_id}"] = ticket.all_slots(kind)
    for number, reservation in manager.reservations.items():
        known[f"reservation {number}"] = reservation.slots[kind]
    for number, given_up in enumerate(manager.given_up):
        if kind in given_up.slots:
            known[f"given up {number}"] = given_up.slots[kind]
    if kind in core.scratch:
        known["scratch"] = core.scratch[kind]
    for one in manager.packer.open if kind == "compressed_kv" else ():
        known[f"packing {one.number}"] = np.concatenate((one.copies, np.setdiff1d(one.source, known["index"])))
    known["live requests"] = manager.requests.slots(kind)
    return {name: np.asarray(slots, np.intp) for name, slots in known.items()}
