"""Bytes of slots, part by part: read, written, and where the tensor of each layer lies.

Whoever calls has the slots: a lease, a fill or a row, which the manager has checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .arena import RemoteBytes
from .errors import Refused
from .generated import Refusal
from .lease import Component

if TYPE_CHECKING:
    from .manager import Manager


def read_part(
    manager: Manager,
    kind: str,
    part: str,
    layer: int,
    slots: npt.NDArray[Any],
    leased: npt.NDArray[np.int64] | None,
) -> npt.NDArray[np.uint8]:
    """See ``Manager.read``."""
    arena, where = manager.core.pools[kind].arena, manager.profile.layouts[kind].part(part, layer)
    if not arena.is_remote:
        tensor, even = arena.part(where), _even(slots)
        return tensor[even] if even is not None else manager.backend.gather(tensor, slots)
    if leased is None or manager.device is None:
        return manager.backend.gather(arena.part_region(where), slots)
    data, code = manager.device.read(kind, arena.part_region(where), slots, leased)
    if code:
        refusal = Refusal(code)
        raise Refused(refusal, "device", f"a slot of {kind} can't be read: {refusal.reason}")
    return data


def write_part(
    manager: Manager, kind: str, part: str, layer: int, slots: npt.NDArray[Any], data: npt.NDArray[np.uint8]
) -> None:
    """See ``Manager.write``."""
    tensor = manager.core.pools[kind].arena.part_region(manager.profile.layouts[kind].part(part, layer))
    if isinstance(tensor, RemoteBytes) or not np.may_share_memory(data, tensor):
        manager.backend.scatter(tensor, slots, data)


def components(manager: Manager, slots: Mapping[str, npt.NDArray[np.int32]]) -> tuple[Component, ...]:
    """See ``Manager.components``."""
    found = []
    for kind, part in manager.profile.tensors():
        arena, held = manager.core.pools[kind].arena, slots.get(kind, np.empty(0, np.int32))
        base = arena.base + part.offset
        found.append(Component(kind, part.layer, part.name, base, arena.stride, part.payload_bytes, held))
    return tuple(found)


def _even(slots: npt.NDArray[Any]) -> slice | None:
    """Slots at equal growing distances as a slice; None when they are not."""
    if len(slots) == 0:
        return slice(0, 0)
    if len(slots) == 1:
        return slice(int(slots[0]), int(slots[0]) + 1)
    steps = np.diff(slots)
    step = int(steps[0])
    return slice(int(slots[0]), int(slots[-1]) + 1, step) if step > 0 and (steps == step).all() else None
