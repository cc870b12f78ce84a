"""Two backends are called alike, over memory of the host and over memory that only kernels touch: they do the same.

Also what neither does: slots that there are not, rows that don't fit them. Nothing is written then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kvfsm.kernels.backend import KernelBackend
from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.arena import Arena
from kvfsm.runtime.backend import Backend, copy_slots, expand_slots, pack_slots
from kvfsm.runtime.generated.models import PROFILES

from ..hostcuda.host import HostLauncher

PROFILE = PROFILES["tiny_deepseek_v4"]
LAYOUT = PROFILE.layouts["compressed_kv"]
SLOTS = 8


@dataclass
class Side:
    """A backend, an arena with random bytes, and another one of slots of another size."""

    backend: Backend
    arena: Arena
    other: Arena

    @property
    def bytes(self) -> npt.NDArray[np.uint8]:
        return self.backend.gather(self.arena.region, np.arange(SLOTS))


def rows(count: int, seed: int = 0, size: int = LAYOUT.slot_bytes) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (count, size), np.uint8)


@pytest.fixture(params=[(1 << 20, 64), (1 << 12, 3)], ids=["at once", "in turns"])
def sides(request: pytest.FixtureRequest) -> tuple[Side, Side]:
    """NumPy's, and that of the kernels."""
    staged_bytes, entries = request.param
    kernels = KernelBackend(HostLauncher(), staged_bytes=staged_bytes, entries=entries)
    slots = {"compressed_kv": SLOTS, "swa_window": SLOTS}
    memory = kernels.arenas(PROFILE, slots)
    made = (
        Side(NumpyBackend(), *(Arena(PROFILE.layouts[kind], SLOTS) for kind in slots)),
        Side(kernels, *(Arena(PROFILE.layouts[kind], SLOTS, buffer=memory[kind]) for kind in slots)),
    )
    for side in made:
        side.backend.scatter(side.arena.region, np.arange(SLOTS), rows(SLOTS))
        side.backend.scrub(side.other.region, np.arange(SLOTS))
    return made


Slots = Any
Call = Callable[[Side, Slots], object]

BLOBS = NumpyBackend().pack(LAYOUT, rows(3, seed=1), False)

CALLS: dict[str, Call] = {
    "gather": lambda side, slots: side.backend.gather(side.arena.region, slots).tobytes(),
    "scatter": lambda side, slots: side.backend.scatter(side.arena.region, slots, rows(np.size(slots), seed=2)),
    "scrub": lambda side, slots: side.backend.scrub(side.arena.region, slots),
    "copy from": lambda side, slots: copy_slots(side.backend, side.arena, np.arange(np.size(slots)), side.arena, slots),
    "copy to": lambda side, slots: copy_slots(side.backend, side.arena, slots, side.arena, np.arange(np.size(slots))),
    "pack": lambda side, slots: pack_slots(side.backend, side.arena, slots, False),
    "expand": lambda side, slots: expand_slots(side.backend, side.arena, slots, BLOBS[: np.size(slots)]),
}

SOME_SLOTS: dict[str, Slots] = {
    "none": np.empty(0, np.intp),
    "one": np.array([7]),
    "some": np.array([6, 3, 5]),
    "int32": np.array([4, 7], np.int32),
    "uint64": np.array([4, 7], np.uint64),
    "a list": [5, 4],
    "an empty list": [],
}

NO_SLOTS: dict[str, Slots] = {
    "negative": np.array([1, -1]),
    "past the end": np.array([SLOTS, 0]),
    "what 32 bits take for slot 0": np.array([2**32]),
    "more than 64 bits": [2**70],
    "fractions": np.array([0.0, 1.0]),
    "a mask": np.array([True, False, True]),
    "a table": np.array([[0, 1]]),
    "a number": 2,
}


@pytest.mark.parametrize("slots", SOME_SLOTS)
@pytest.mark.parametrize("call", CALLS)
def test_slots_in_whatever_numbers(call: str, slots: str, sides: tuple[Side, Side]) -> None:
    numpy, kernels = sides
    assert CALLS[call](numpy, SOME_SLOTS[slots]) == CALLS[call](kernels, SOME_SLOTS[slots])
    assert (numpy.bytes == kernels.bytes).all()
    if call in ("scatter", "scrub", "copy to", "expand"):
        assert (numpy.bytes == rows(SLOTS)).all() == (len(SOME_SLOTS[slots]) == 0)


def refused(sides: tuple[Side, Side], call: Callable[[Side], object]) -> tuple[type[Exception], str]:
    """How both refuse a call, alike; nothing was written."""
    found = []
    for side in sides:
        with pytest.raises((IndexError, ValueError)) as error:
            call(side)
        found.append((error.type, str(error.value)))
        assert (side.bytes == rows(SLOTS)).all()
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize("slots", NO_SLOTS)
@pytest.mark.parametrize("call", CALLS)
def test_what_is_no_slot_is_refused(call: str, slots: str, sides: tuple[Side, Side]) -> None:
    kind, text = refused(sides, lambda side: CALLS[call](side, NO_SLOTS[slots]))
    assert kind is IndexError and "; fix: pass" in text


SOME = np.array([2, 5, 1])

UNFIT: dict[str, Callable[[Side], object]] = {
    "too few rows": lambda side: side.backend.scatter(side.arena.region, SOME, rows(2)),
    "one row for all": lambda side: side.backend.scatter(side.arena.region, SOME, rows(1)),
    "too many rows": lambda side: side.backend.scatter(side.arena.region, SOME, rows(4)),
    "rows that are too short": lambda side: side.backend.scatter(
        side.arena.region, SOME, rows(3, size=LAYOUT.slot_bytes - 16)
    ),
    "rows that are too long": lambda side: side.backend.scatter(
        side.arena.region, SOME, rows(3, size=LAYOUT.slot_bytes + 16)
    ),
    "rows of numbers": lambda side: side.backend.scatter(side.arena.region, SOME, rows(3).view(np.float32)),
    "bytes in a row": lambda side: side.backend.scatter(side.arena.region, SOME, rows(3).reshape(-1)),
    "fewer targets": lambda side: copy_slots(side.backend, side.arena, SOME[:2], side.arena, np.array([3, 4, 6])),
    "more targets": lambda side: copy_slots(side.backend, side.arena, SOME, side.arena, np.array([3])),
    "slots of another size": lambda side: copy_slots(side.backend, side.arena, SOME, side.other, SOME),
    "fewer strings": lambda side: expand_slots(side.backend, side.arena, SOME, BLOBS[:2]),
    "one string for all": lambda side: expand_slots(side.backend, side.arena, SOME, BLOBS[:1]),
    "more strings": lambda side: expand_slots(side.backend, side.arena, SOME[:2], BLOBS),
    "no string": lambda side: expand_slots(side.backend, side.arena, SOME, [*BLOBS[:2], b"nothing"]),
}


@pytest.mark.parametrize("what", UNFIT)
def test_what_does_not_fit_the_slots_is_refused(what: str, sides: tuple[Side, Side]) -> None:
    kind, text = refused(sides, UNFIT[what])
    assert issubclass(kind, ValueError) and "; fix: " in text
