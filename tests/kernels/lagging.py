"""A device that lags: launches wait in their streams, and run in any order that streams and events allow.

What a launcher is asked for is put at the end of the current stream's queue. A seed says when the head of which queue
runs, and that may be long after the call has returned. A wait holds its stream until its mark is over; a download
returns when all before it in its stream has run. Kernels themselves run on the host, one at a time.

Memory is taken and given back in the order of streams, as CuPy's pool does it: what ``empty`` gives somebody else may
be writing to until the stream that asked for it comes to that place, and again once it has come to where it was freed.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kvfsm.kernels.launch import LaunchPlan, Pointer

from ..hostcuda.host import HostBuffer, HostLauncher

FOREIGN = 0xEE
"""What somebody else has in memory that is not one's own yet, or no more."""


class Busy(OSError):
    """A launch that failed."""


@dataclass(eq=False)
class LaggingMark:
    """Behind what was in a stream's queue."""

    launcher: LaggingLauncher
    stream: int
    is_over: bool = False

    def ended(self) -> bool:
        """Whether it has run by now."""
        self.launcher.go_on()
        return self.is_over


@dataclass
class Operation:
    """One entry of a queue: what it does, and the mark that it waits for."""

    call: Callable[[], None]
    after: LaggingMark | None = None


class LaggingBuffer:
    """Memory whose contents are as far as its streams are."""

    def __init__(self, launcher: LaggingLauncher, memory: HostBuffer) -> None:
        self._launcher, self._memory, self._stream = launcher, memory, launcher.stream

    @property
    def pointer(self) -> Pointer:
        """All of it."""
        return self._memory.pointer

    def download(self, length: int | None = None) -> npt.NDArray[Any]:
        """What is there when the current stream has come here."""
        self._launcher.finish()
        return self._memory.download(length)

    def write(self, array: npt.NDArray[Any]) -> None:
        """As memory of the host is written that isn't pinned: taken at once, there in the stream's order."""
        taken, memory = array.copy(), self._memory
        self._launcher.put(lambda: memory.write(taken))

    def __del__(self) -> None:
        self._launcher.put(_overwriting(self._memory), stream=self._stream)


@dataclass
class LaggingLauncher:
    """A launcher of streams by number; ``stream`` is the current one.

    pace      how often the device goes on while the host calls it: 0 for never but when it is waited for, 1 for at once
    failing   how often a launch raises, half of them though it was launched
    unmarked  how often a mark does
    deaf      streams don't wait for marks: for negative controls
    """

    chance: random.Random
    pace: float = 0.3
    failing: float = 0.0
    unmarked: float = 0.0
    deaf: bool = False
    stream: int = 0
    host: HostLauncher = field(default_factory=HostLauncher)
    queues: dict[int, deque[Operation]] = field(default_factory=dict)
    ran: int = 0

    # ---- what a launcher has ----------------------------------------------------------------------------------------

    def upload(self, array: npt.NDArray[Any]) -> LaggingBuffer:
        """It is there when this returns, as CuPy's are that block."""
        made = self.empty(array.shape, array.dtype)
        self.finish()
        made._memory.write(np.ascontiguousarray(array))
        return made

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> LaggingBuffer:
        """Memory that is one's own from here on in the current stream."""
        made = LaggingBuffer(self, self.host.empty(shape, dtype))
        self.put(_overwriting(made._memory))
        return made

    def launch(self, plan: LaunchPlan) -> None:
        """Put it into the current stream."""
        if plan.is_empty:
            return
        fails = self.chance.random() < self.failing
        if not fails or self.chance.random() < 0.5:
            self.put(lambda: self.host.launch(plan))
        if fails:
            raise Busy(plan.kernel.name)

    def mark(self) -> LaggingMark:
        """Behind all that the current stream has."""
        if self.chance.random() < self.unmarked:
            raise Busy("mark")
        made = LaggingMark(self, self.stream)
        self.put(lambda: setattr(made, "is_over", True))
        return made

    def wait(self, mark: Any) -> None:
        """The current stream goes on once the mark is over."""
        if not self.deaf:
            self.put(lambda: None, after=mark)

    def synchronise(self) -> None:
        """All streams run dry."""
        for stream in list(self.queues):
            self.finish(stream)

    # ---- what the device does ---------------------------------------------------------------------------------------

    @contextmanager
    def on(self, stream: int) -> Iterator[None]:
        """Make a stream the current one."""
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before

    def put(self, call: Callable[[], None], *, after: LaggingMark | None = None, stream: int | None = None) -> None:
        """Put something to the end of a queue, of the current stream by default."""
        queue = self.queues.setdefault(self.stream if stream is None else stream, deque())
        queue.append(Operation(call, after))
        if stream is None:
            self.go_on()

    def go_on(self) -> None:
        """The device may run something, or a lot."""
        while self.chance.random() < self.pace and self._step():
            pass

    def finish(self, stream: int | None = None) -> None:
        """Run until what a stream has now has run; others may go on meanwhile."""
        number = self.stream if stream is None else stream
        if number not in self.queues or not self.queues[number]:
            return
        last = self.queues[number][-1]
        while last in self.queues[number]:
            if self.chance.random() < self.pace:
                self._step()
            else:
                self._run(number)

    def _step(self) -> bool:
        """Run the head of any stream that can; False when none has anything."""
        busy = [stream for stream, queue in self.queues.items() if queue]
        ready = [one for one in busy if (mark := self.queues[one][0].after) is None or mark.is_over]
        assert ready or not busy, "all streams wait for each other"
        if ready:
            self._pop(self.chance.choice(ready))
        return bool(ready)

    def _run(self, stream: int) -> None:
        """Run the head of this stream, or of the one that it waits for, or of the one that that waits for."""
        while (mark := self.queues[stream][0].after) is not None and not mark.is_over:
            stream = mark.stream
        self._pop(stream)

    def _pop(self, stream: int) -> None:
        self.ran += 1
        self.queues[stream].popleft().call()


def _overwriting(memory: HostBuffer) -> Callable[[], None]:
    """What somebody else does to memory that is not one's own."""

    def overwrite() -> None:
        memory.array.view(np.uint8)[...] = FOREIGN

    return overwrite
