"""The memory that the slots' bytes lie in: in which epoch it was allocated, and which launches over it have not ended.

Its word is that of the spec's ``graph_pool``. Launches have the addresses baked in that the memory had when they were
captured (``graphs.py``); while one is running the memory stays where it is. The caller holds the manager's lock.
"""

from __future__ import annotations

from typing import Any

from .errors import Broken, Refused
from .generated import GraphPoolTable, Refusal
from .lease import Done
from .table import OnEvent

_ONE = (0,)


class Memory:
    """Allocated when it is made: epoch 1.

    Args:
        on_event: told of each event from then on.
    """

    def __init__(self, on_event: OnEvent | None = None) -> None:
        self.table = GraphPoolTable(1)
        self._sure("wake")
        self.table.on_event = on_event
        self._numbers = 0
        self._launches: dict[int, Done | None] = {}  # None: its caller is still launching

    @property
    def epoch(self) -> int:
        """How often the memory was allocated."""
        return int(self.table.fields("epoch")[0])

    @property
    def place(self) -> int:
        """Tells two allocations apart until the number comes again, as addresses do."""
        return int(self.table.fields("place")[0])

    @property
    def running(self) -> bool:
        """Whether a launch has not ended, as far as was asked."""
        return bool(self.table.fields("running")[0])

    def launch(self) -> int:
        """Kernels that write to the memory are about to begin; returns the number of the launch."""
        self._sure("launch")
        self._numbers += 1
        self._launches[self._numbers] = None
        return self._numbers

    def retire(self, number: int, done: Done | None = None) -> None:
        """A launch has ended, or will have once ``done`` says so."""
        if done is None:
            del self._launches[number]
        else:
            self._launches[number] = done
        self.poll()

    def poll(self) -> None:
        """Ask the launches that are under way whether they have ended."""
        ended = [number for number, done in self._launches.items() if done is not None and done()]
        for number in ended:
            del self._launches[number]
        if self.running and not self._launches:
            self._sure("retire")

    def begun(self) -> Done:
        """Says whether all launches have ended that were begun when it was first asked.

        For ``done=`` of what gives slots back, which asks under the lock: what others launch meanwhile counts.
        """
        last: int | None = None

        def ended() -> bool:
            nonlocal last
            last = self._numbers if last is None else last
            return all(
                number > last or (done is not None and done()) for number, done in list(self._launches.items())
            )

        return ended

    def check_ended(self) -> None:
        """Raise Refused (PINNED) under a launch that has not ended."""
        self.poll()
        if self.running:
            raise Refused(Refusal.PINNED, "memory", f"{len(self._launches)} launches over the memory have not ended")

    def check_move(self) -> None:
        """Raise Refused when the memory can't move now: PINNED under a launch, RETIRED after the last epoch."""
        self.check_ended()
        if self.epoch == self.table.LAYOUT.field("epoch").high:
            raise Refused(Refusal.RETIRED, "memory", f"epoch {self.epoch} is the last one")

    def move(self) -> int:
        """The memory was given back and allocated anew; returns its epoch. After ``check_move``."""
        self._sure("sleep")
        self._sure("wake")
        return self.epoch

    def _sure(self, event: str) -> None:
        """What is asked here can't be refused unless an invariant is broken. Raises Broken (S24)."""
        if code := int(getattr(self.table, event)(_ONE)[0]):
            refusal: Any = Refusal(code)
            raise Broken("S24", f"the memory refuses '{event}' as {refusal.name}: {refusal.reason}")
