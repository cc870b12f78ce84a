"""A digest of everything that a world holds: equal for two schedules exactly when they left the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from kvfsm.runtime.manager import Manager


def snapshot(manager: Manager, *also: Any) -> str:
    """Words, use, free stacks, bytes, index, packed copies, rows and open things, with what is told beside them."""
    return _digest(*_guarded(manager), *_entries(manager), also)


def digest_of_guarded(manager: Manager, *also: Any) -> str:
    """The same without dictionaries, which tell of their changes themselves, and without what rows own."""
    return _digest(*_guarded(manager), also)


def _digest(*parts: Any) -> str:
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        state.update(part if isinstance(part, bytes) else repr(part).encode())
        state.update(b"\0")
    return state.hexdigest()


def _guarded(manager: Manager) -> Iterator[Any]:
    core = manager.core
    for kind, pool in core.pools.items():
        yield pool.table.words.tobytes()
        yield from (array.tobytes() for array in pool.meta.values())
        yield from (stack.slots[: stack.top].tobytes() for stack in pool._free)
        yield np.asarray(pool.arena.bytes).tobytes()
        yield pool.left.tobytes(), core.orphans[kind].tolist()
    yield sorted(_segment(segment) for segment in core.index.below(core.index.root))
    yield sorted(dict(core.cold_bytes).items())
    yield core.lossy_slots, manager.epoch, len(manager.parking), manager.requests.active.tolist()
    yield {kind: slots.tolist() for kind, slots in core.scratch.items()}, len(core.deadlines._heap)
    yield manager.memory.table.words.tobytes(), manager.lock.reason is None
    yield sorted((one.stage.name, one.first, str(one.loaded)) for one in dict.values(manager.reservations))
    yield sorted((one.state, one.kept, one.waiting) for one in dict.values(manager.loader.tickets))


def _entries(manager: Manager) -> Iterator[Any]:
    rows = manager.requests._rows
    yield rows.tokens.tolist(), rows.blocks.tolist(), rows.shared.tolist(), rows.lossy.tolist(), rows.drafts.tolist()
    held: tuple[dict[Any, Any], ...] = manager.fills, manager.receipts, manager.loader.tickets
    yield tuple(dict.__len__(one) for one in held)
    yield sorted(one.moving for one in dict.values(manager.loader.tickets))
    yield sorted(map(repr, dict.items(manager.loader.attempts._failures)))


def _segment(segment: Any) -> tuple[Any, ...]:
    trails = [() if held is None else tuple(one.tolist() for one in held.everything()) for held in segment.trails]
    paged = [slots[:live].tolist() for slots, live in zip(segment.slots, segment.live, strict=True)]
    return bytes(segment.digests), segment.base, segment.live, segment.ready, paged, trails
