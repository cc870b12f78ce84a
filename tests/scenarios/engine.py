"""What the conformance scenarios of serving engines share: prompts, and an engine that starts and ends requests.

How their words map onto the manager's:

* A pool of one kind has slots 0, 1, ... and no reserved null block: each kind has a pool of its own, as large as what
  that kind may use of the engine's one pool. A padding entry in a table is the guard, which is no slot.
* *Allocate* is ``requests.admit``: a row with slots for the whole prompt, over a lease on what is reused. *Cache full
  blocks* is ``requests.publish``. *Free a request* is ``requests.finish``.
* *References* of a slot: its pins, or 1 where a live row fills it. *Free*: on the free stack, or cached and nobody's.
* *Hits* are in tokens, and *evicted* slots go through ``evict``, so that whoever pins something keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kvfsm.runtime.answers import Answer
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.manager import Manager

KV = "compressed_kv"
WINDOW = "swa_window"


def runs(blocks: int, more: int = 0, *, size: int = 16) -> list[int]:
    """A prompt of ``blocks`` blocks, block k being ``size`` times token k, and ``more`` tokens of the next one."""
    return [at // size for at in range(blocks * size + more)]


@dataclass(frozen=True, slots=True)
class Running:
    """A live request: its row, what it reused (tokens), and its keys."""

    row: int
    hit: int
    keys: Keys


class Engine:
    """An engine's bookkeeping on one manager.

    Args:
        manager: with a pool for each kind of its profile.
    """

    def __init__(self, manager: Manager) -> None:
        self.manager = manager

    def match(self, prompt: list[int], **identity: Any) -> Answer:
        """The look-up alone."""
        return self.manager.match(self.manager.keys(prompt, **identity), len(prompt))

    def hit(self, prompt: list[int], **identity: Any) -> int:
        """Tokens that the look-up finds."""
        return self.match(prompt, **identity).now

    def start(self, prompt: list[int], *, publish: bool = True, **identity: Any) -> Running:
        """Look the prefix up, allocate the rest in one step, and let others find the whole blocks.

        Raises:
            Refused: when the rest doesn't fit; the request holds nothing then.
        """
        keys = self.manager.keys(prompt, **identity)
        answer = self.manager.match(keys, len(prompt))
        lease = self.manager.acquire(answer) if answer.now else None
        try:
            row = self.manager.requests.admit(len(prompt), lease=lease)
        except Refused:
            if lease is not None:
                self.manager.release(lease)
            raise
        if publish:
            self.manager.requests.publish(row, keys)
        return Running(row, answer.now, keys)

    def decode(self, one: Running, tokens: list[int]) -> int:
        """Decode these tokens; returns the blocks of the request that others find then."""
        for token in tokens:
            self.manager.requests.step([one.row])
            one.keys.extend([token])
        return self.manager.requests.publish(one.row, one.keys)

    def end(self, *running: Running) -> None:
        """End requests, in this order."""
        for one in running:
            self.manager.requests.finish(one.row)

    def table(self, one: Running, kind: str = KV) -> list[int]:
        """Slots of a request."""
        found: list[int] = self.manager.requests.table(kind, [one.row])[0].tolist()
        return found

    def references(self, slots: list[int], kind: str = KV) -> list[int]:
        """Who holds each of some slots."""
        pool, index = self.manager.core.pools[kind], np.array(slots, np.intp)
        held: list[int] = (pool.table.fields("pins", index) + pool.in_state(index, "filling")).tolist()
        return held

    def free(self, kind: str = KV) -> int:
        """Slots that an allocation may take: nobody's, cached or not."""
        pool = self.manager.core.pools[kind]
        return pool.free + len(pool.eligible(np.arange(pool.hot)))

    def cached(self, kind: str = KV) -> int:
        """Slots that the index finds."""
        pool = self.manager.core.pools[kind]
        return int(pool.in_state(np.arange(pool.hot), "resident").sum())

    def victims(self, kind: str = KV) -> list[int]:
        """Evict one after another what nobody holds; the cached slots, in the order in which they went."""
        gone: list[int] = []
        pool = self.manager.core.pools[kind]
        while True:
            before = set(pool.free_slots.tolist())
            if not self.manager.evict(kind, 1):
                return gone
            gone += set(pool.free_slots.tolist()) - before

    def words(self) -> dict[str, list[int]]:
        """Every state word, to see that nothing has changed."""
        return {kind: pool.table.words.tolist() for kind, pool in self.manager.core.pools.items()}
