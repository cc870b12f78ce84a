"""A store in memory: answers as a slower tier would, for runs and tests that need no disk. Nothing is durable."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .store import EpochEnded, Found, Item, Meta, Namespace, ObjectId, Readable, Usage, Verdict, Writable, bytes_of


class MemoryStore:
    """See ``Store``. Nothing expires by itself; any thread may call.

    Attributes:
        objects: payload and meta of all that it holds.
        namespace: of these objects; that of the first who binds it, None until then.
    """

    def __init__(self) -> None:
        self.objects: dict[ObjectId, tuple[bytes, Meta]] = {}
        self.namespace: Namespace | None = None
        self._epoch = 1
        self._lock = threading.Lock()  # guards both

    @property
    def epoch(self) -> int:
        """See ``Store.epoch``."""
        return self._epoch

    @property
    def io_bytes(self) -> int:
        """See ``Store.io_bytes``."""
        return 1

    def bind(self, namespace: Namespace) -> None:
        """See ``Store.bind``."""
        with self._lock:
            if self.namespace is None:
                self.namespace = namespace
            self.namespace.check(namespace)

    def contains(self, ids: Sequence[ObjectId]) -> NDArray[np.bool_]:
        """See ``Store.contains``."""
        with self._lock:
            return np.fromiter((one in self.objects for one in ids), np.bool_, len(ids))

    def put(self, id: ObjectId, payload: Readable, *, meta: Meta, at_epoch: int | None = None) -> None:
        """See ``Store.put``."""
        self.put_many([Item(id, payload, meta)], at_epoch=at_epoch)

    def put_many(self, items: Sequence[Item], *, at_epoch: int | None = None) -> int:
        """See ``Store.put_many``."""
        copies = [(item.id, bytes(bytes_of(item.payload)), dict(item.meta)) for item in items]
        with self._lock:
            if at_epoch is not None and at_epoch != self._epoch:
                raise EpochEnded(f"the bytes are of epoch {at_epoch}, and it is {self._epoch} now")
            written = set()
            for id, payload, meta in copies:
                known = self.objects.get(id)
                if known is None or (known[1].get("lossy", False) and not meta.get("lossy", False)):
                    self.objects[id] = payload, meta
                    written.add(id)
            return len(written)

    def get(self, id: ObjectId, into: Writable) -> Found:
        """See ``Store.get``."""
        with self._lock:
            known = self.objects.get(id)
        if known is None:
            return Found(Verdict.MISS)
        payload, meta = known
        if len(payload) > len(target := bytes_of(into)):
            return Found(Verdict.LAYOUT)
        target[: len(payload)] = payload
        return Found(Verdict.OK, meta, len(payload))

    def get_many(self, ids: Sequence[ObjectId], into: Sequence[Writable]) -> list[Found]:
        """See ``Store.get_many``."""
        return [self.get(one, place) for one, place in zip(ids, into, strict=True)]

    def reset(self) -> int:
        """See ``Store.reset``."""
        with self._lock:
            self.objects.clear()
            self._epoch += 1
            return self._epoch

    def usage(self) -> Usage:
        """See ``Store.usage``."""
        with self._lock:
            held = sum(len(payload) for payload, _ in self.objects.values())
            return Usage(len(self.objects), held, held, 0, 0, self._epoch, None)

    def close(self) -> None:
        """Nothing to let go of."""
