"""Stand-ins for what moves and keeps bytes: each does its work in halves around a switch point, so that tears show."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.profile import Profile
from kvfsm.runtime.stores.files import RealFiles
from kvfsm.runtime.stores.local import LocalStore
from kvfsm.runtime.stores.store import EpochEnded, Found, Item, Namespace, ObjectId, StoreFailed, Verdict
from kvfsm.runtime.trace import EventTrace

from .scheduler import CoopLock, Scheduler

Touch = Callable[[Any, Any, bool], None]
"""Tells of an access: an array in an arena, slots of it (None: those where the array lies), and whether it writes."""


class SplitBackend(NumpyBackend):
    """Copies in two halves around a switch point."""

    def __init__(self, scheduler: Scheduler, touch: Touch) -> None:
        self._switch, self._touch, self.failing = scheduler.switch, touch, False

    def gather(self, arena: Any, slots: Any) -> Any:
        plain, half = np.asarray(arena), len(slots) // 2
        data = np.empty((len(slots), *arena.shape[1:]), np.uint8)
        for part in (slice(0, half), slice(half, None)):
            self._switch("gather")
            self._touch(arena, slots[part], False)
            data[part] = plain[slots[part]]
        return data

    def scatter(self, arena: Any, slots: Any, data: Any) -> None:
        plain, half = np.asarray(arena), arena.shape[-1] // 2
        for part in (slice(0, half), slice(half, None)):
            self._switch("scatter")
            self._touch(arena, slots, True)
            plain[slots, ..., part] = data[..., part]

    def pack(self, layout: Any, data: Any, lossy: bool = False) -> list[bytes]:
        if self.failing:
            raise OSError("the copy engine failed")
        return super().pack(layout, data, lossy)


class SplitStore:
    """A dictionary whose puts and gets copy in two halves; late puts of an ended epoch are refused."""

    def __init__(self, scheduler: Scheduler, touch: Touch) -> None:
        self._scheduler, self._touch = scheduler, touch
        self.failing = self.reset_fails = False
        self.objects: dict[ObjectId, tuple[bytes, Mapping[str, Any], int]] = {}
        self._epoch = 1

    @property
    def epoch(self) -> int:
        self._scheduler.touch(("store",), False)
        return self._epoch

    @property
    def io_bytes(self) -> int:
        return 1

    def bind(self, namespace: Namespace) -> None:
        pass

    def contains(self, ids: Sequence[ObjectId]) -> Any:
        self._scheduler.switch("store.contains")
        for one in ids:
            self._scheduler.touch(("object", one), False)
        return np.array([one in self.objects for one in ids], bool)

    def put(self, id: ObjectId, payload: Any, *, meta: Mapping[str, Any], at_epoch: int | None = None) -> None:
        self.put_many([Item(id, payload, meta)], at_epoch=at_epoch)

    def put_many(self, items: Sequence[Item], *, at_epoch: int | None = None) -> int:
        halves: list[bytes] = [b""] * len(items)
        for part in range(2):
            self._scheduler.switch("store.put")
            for n, item in enumerate(items):
                self._touch(item.payload, None, False)
                half = len(item.payload) // 2
                halves[n] += bytes(item.payload[half:] if part else item.payload[:half])
        made = self.epoch if at_epoch is None else at_epoch
        if made != self.epoch:
            raise EpochEnded("late")
        for item, payload in zip(items, halves, strict=True):
            self._scheduler.touch(("object", item.id), True)
            self.objects[item.id] = (payload, dict(item.meta), made)
        return len(items)

    def get(self, id: ObjectId, into: Any) -> Found:
        self._scheduler.switch("store.get")
        self._scheduler.touch(("object", id), False)
        if self.failing or id not in self.objects:
            return Found(Verdict.MISS)
        payload, meta, _ = self.objects[id]
        data, half = np.frombuffer(payload, np.uint8), len(payload) // 2
        self._touch(into, None, True)
        into[:half] = data[:half]
        self._scheduler.switch("store.get")
        self._touch(into, None, True)
        into[half:] = data[half:]
        return Found(Verdict.OK, meta, len(payload))

    def get_many(self, ids: Sequence[ObjectId], into: Sequence[Any]) -> list[Found]:
        return [self.get(*one) for one in zip(ids, into, strict=True)]

    def reset(self) -> int:
        """Interrupted while the manager holds its lock."""
        self._scheduler.switch("store.reset")
        if self.reset_fails:
            self.reset_fails = False
            raise StoreFailed("the epoch was not ended")
        self._scheduler.touch(("store",), True)
        for one in self.objects:
            self._scheduler.touch(("object", one), True)
        self.objects.clear()
        self._epoch += 1
        return self._epoch

    def dump(self) -> Any:
        """What it holds."""
        return self._epoch, sorted((repr(id), hash(payload), made) for id, (payload, _, made) in self.objects.items())

    def stale(self) -> list[str]:
        """Complaints about objects of an ended epoch."""
        epochs = {made for *_, made in self.objects.values()} - {self._epoch}
        return [f"the store holds objects of epoch {made}" for made in epochs]

    def usage(self) -> Any:
        return len(self.objects)

    def close(self) -> None:
        self.objects.clear()


class SplitFiles(RealFiles):
    """Files whose reads and writes are switch points; nothing is made durable."""

    def __init__(self, scheduler: Scheduler, touch: Touch) -> None:
        super().__init__()
        self._scheduler, self._touch = scheduler, touch

    def read(self, handle: int, buffers: Any, offset: int) -> int:
        self._scheduler.visit(("files",), False, "files.read")
        for buffer in buffers:
            self._touch(np.frombuffer(buffer, np.uint8), None, True)
        return super().read(handle, buffers, offset)

    def write(self, handle: int, buffers: Any, offset: int) -> None:
        self._scheduler.visit(("files",), True, "files.write")
        for buffer in buffers:
            self._touch(np.frombuffer(buffer, np.uint8), None, False)
        super().write(handle, buffers, offset)

    def sync(self, handle: int) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass


class SplitLocalStore(LocalStore):
    """The real store with its locks under the scheduler: whoever holds one touches all that it guards."""

    def __init__(self, scheduler: Scheduler, touch: Touch, profile: Profile, events: EventTrace) -> None:
        self._place = tempfile.TemporaryDirectory()
        namespace = Namespace.of(profile)
        super().__init__(self._place.name, namespace, SplitFiles(scheduler, touch), trace=events)
        self._scheduler, self._touch = scheduler, touch
        guarded = {("store",): True}

        def lock(name: str) -> Any:
            return _ReadyLock(scheduler, name, otherwise=guarded)

        self._lock = self._readable = self._puts._lock = lock("store")
        self._writer, self._puts._waiting_lock = lock("store writer"), lock("store queue")

    @property
    def epoch(self) -> int:
        self._scheduler.touch(("store",), False)
        return super().epoch

    def put_many(self, items: Sequence[Item], *, at_epoch: int | None = None) -> int:
        self._scheduler.switch("store.put")
        for item in items:
            self._touch(item.payload, None, False)
        return super().put_many(items, at_epoch=at_epoch)

    def get(self, id: ObjectId, into: Any) -> Found:
        return self.get_many([id], [into])[0]

    def get_many(self, ids: Sequence[ObjectId], into: Sequence[Any]) -> list[Found]:
        self._scheduler.switch("store.get")
        for one in into:
            self._touch(one, None, True)
        return super().get_many(ids, [np.asarray(one) for one in into])

    def dump(self) -> Any:
        """What it holds."""
        usage = self.usage()
        return usage.epoch, usage.objects

    def stale(self) -> list[str]:
        """Nothing: the store itself serves no object of an ended epoch."""
        return []

    def close(self) -> None:
        super().close()
        self._place.cleanup()


class _ReadyLock(CoopLock):
    """A lock that stands for a condition too, of which nobody waits."""

    def notify_all(self) -> None:
        pass
