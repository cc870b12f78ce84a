"""Where others come in, in nested runs: a store and a backend that call ``during`` while no lock is held."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.stores.memory import MemoryStore
from kvfsm.runtime.stores.store import Found, StoreError, Verdict


class Lost(OSError):
    """What the store raises now and then where it is asked."""


class Shelf(MemoryStore):
    """Calls ``during`` before it is asked, read or written; loses some of what it has, and fails now and then.

    Args:
        during: lets others come in.
        chance: decides.
        lost: how many of the objects that are read are lost.
        fails: how many of the reads and writes raise; of the questions, a twentieth of that.

    Attributes:
        sound: nothing is lost from now on, and nothing raises.
    """

    def __init__(self, during: Callable[[], None], chance: random.Random, lost: float, fails: float = 0.0) -> None:
        super().__init__()
        self._during, self._chance, self._lost, self._fails = during, chance, lost, fails
        self.sound = False

    def contains(self, ids: Sequence[Any]) -> Any:
        self._during()
        if self._does(self._fails / 20):
            raise Lost("contains")
        return super().contains(ids)

    def get_many(self, ids: Sequence[Any], into: Sequence[Any]) -> list[Found]:
        self._during()
        if self._does(self._fails):
            raise Lost("get_many")
        found = super().get_many(ids, into)
        return [Found(Verdict.INTEGRITY) if self._does(self._lost) else one for one in found]

    def put_many(self, items: Sequence[Any], *, at_epoch: int | None = None) -> int:
        self._during()
        if self._does(self._fails):
            raise StoreError("full")
        return super().put_many(items, at_epoch=at_epoch)

    def _does(self, share: float) -> bool:
        return share > 0 and not self.sound and self._chance.random() < share


class Interrupted(NumpyBackend):
    """Calls ``during`` before bytes are packed or expanded."""

    def __init__(self, during: Callable[[], None]) -> None:
        super().__init__()
        self._during = during

    def pack(self, *given: Any, **named: Any) -> list[bytes]:
        self._during()
        return super().pack(*given, **named)

    def expand(self, *given: Any, **named: Any) -> Any:
        self._during()
        return super().expand(*given, **named)
