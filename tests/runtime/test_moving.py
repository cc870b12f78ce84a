"""Memory that is given back and comes again, in part or all of it, and a backend that fails half way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.manager import Manager

PROFILE = PROFILES["tiny_deepseek_v4"]
SLOTS = 6
KINDS = tuple(PROFILE.kinds)
Buffers = dict[str, np.ndarray[Any, np.dtype[np.uint8]]]


class HalfWay(NumpyBackend):
    """Clears half of a slot and fails, at the call that is told."""

    def __init__(self) -> None:
        self.left: int | None = None

    def scrub(self, arena: Any, slots: Any) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                arena[slots, : arena.shape[1] // 2] = 0
                raise OSError("the device does not clear")
        super().scrub(arena, slots)


def memory(spare: int = 0) -> Buffers:
    """Memory for all kinds, with room for some bytes more."""
    return {kind: np.zeros(SLOTS * PROFILE.layouts[kind].slot_bytes + spare, np.uint8) for kind in KINDS}


def full(buffers: Buffers) -> tuple[Manager, Keys]:
    """Every slot but the one that is set aside is cached, and has a byte of its own."""
    manager = Manager(PROFILE, dict.fromkeys(KINDS, SLOTS), HalfWay(), buffers=buffers)
    manager.set_aside()
    keys = manager.keys(range((SLOTS - 1) * PROFILE.granule + 1), salt=b"tenant")
    for granule in range(SLOTS - 1):
        manager.publish(manager.reserve(keys, granule, granule + 1))
    for kind in KINDS:
        arena = manager.core.pools[kind].arena.bytes
        arena[:] = np.arange(1, SLOTS + 1, dtype=np.uint8)[:, None]
    return manager, keys


def looks(manager: Manager, keys: Keys) -> tuple[Any, ...]:
    pools = manager.core.pools
    return (
        manager.memory.epoch, manager.match(keys).now, [pool.arena.bytes.copy().tolist() for pool in pools.values()],
        [pool.table.words.tolist() for pool in pools.values()], manager.set_aside(),
    )  # fmt: skip


@pytest.mark.parametrize("fails", range(len(KINDS)))
@pytest.mark.parametrize("slots", [SLOTS, SLOTS - 1])
def test_a_clear_that_fails_over_memory_in_use_leaves_every_byte(fails: int, slots: int) -> None:
    """New memory is that of before; the slots that are cleared first hold what is cached."""
    buffers = memory()
    manager, keys = full(buffers)
    before = looks(manager, keys)
    backend = manager.backend
    assert isinstance(backend, HalfWay) and before[1] == (SLOTS - 1) * PROFILE.granule
    backend.left = fails
    with pytest.raises(OSError, match="does not clear"):
        manager.reallocate(dict.fromkeys(KINDS, slots), buffers=buffers)
    assert looks(manager, keys) == before
    assert manager.audit().ok
    backend.left = None
    manager.reallocate(dict.fromkeys(KINDS, slots), buffers=buffers)
    assert manager.match(keys).now == 0 and manager.audit().ok
    for kind, slot in manager.set_aside().items():
        assert not manager.core.pools[kind].arena.bytes[slot].any()


def test_control_bytes_that_are_not_put_back_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above looks at the slots that are cleared."""
    buffers = memory()
    manager, keys = full(buffers)
    before = looks(manager, keys)
    slot = manager.core.make_pools(dict.fromkeys(KINDS, SLOTS), buffers)[KINDS[0]].next_slots(1)
    manager.core.pools[KINDS[0]].arena.bytes[slot, :1] = 0
    assert looks(manager, keys) != before


def test_bytes_go_along_to_the_very_memory_or_apart_from_it() -> None:
    buffers = memory(spare=64)
    manager, keys = full({kind: buffer[:-64] for kind, buffer in buffers.items()})
    before = looks(manager, keys)
    shifted = {kind: buffer[64:] for kind, buffer in buffers.items()}
    with pytest.raises(ValueError, match=r"overlaps the memory that its bytes lie in.*apart from it"):
        manager.reallocate(buffers=shifted, void=True)
    assert looks(manager, keys) == before
    for other in ({kind: buffer[:-64] for kind, buffer in buffers.items()}, memory()):
        manager.reallocate(buffers=other, void=True)
        assert looks(manager, keys)[1:] == before[1:]
        assert all(
            manager.core.pools[kind].arena.base == int(buffer.ctypes.data) for kind, buffer in other.items()
        )
    assert manager.audit().ok
