"""What `test_killed_anywhere.py` starts: forks a writer for each line of JSON that it reads, and waits for its end.

A line names a directory, the seed of the acts, the number of the file operation at which the writer kills itself (none:
it goes on until somebody else does) and how much of that operation is done, from 0 to 1. Written to standard output:
the writer's number and a newline, a dot for each act that returned, and a newline after its end. With "lies", the dot
comes before the act.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from promises import NAMESPACE, SEGMENT_BYTES, acts

from kvfsm.runtime.stores.files import Bytes, RealFiles
from kvfsm.runtime.stores.local import LocalStore


class KilledFiles(RealFiles):
    """Real files; the process ends in the middle of operation ``last``, counted from 0."""

    def __init__(self, last: int | None, part: float) -> None:
        self.left, self.part = last, part

    def _step(self, operation: Callable[[], Any], half: Callable[[], Any] = lambda: None) -> Any:
        if self.left == 0:
            if self.part == 1:
                operation()
            elif self.part:
                half()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.left is not None:
            self.left -= 1
        return operation()

    def make_directory(self, path: Path) -> None:
        self._step(lambda: super(KilledFiles, self).make_directory(path))

    def open(self, path: Path, *, write: bool) -> int:
        if not write:
            return super().open(path, write=write)
        return int(self._step(lambda: super(KilledFiles, self).open(path, write=write)))

    def write(self, handle: int, buffers: Sequence[Bytes], offset: int) -> None:
        data = b"".join(buffers)
        some = data[: int(self.part * len(data))]
        self._step(
            lambda: super(KilledFiles, self).write(handle, [data], offset),
            lambda: super(KilledFiles, self).write(handle, [some], offset),
        )

    def truncate(self, handle: int, size: int) -> None:
        self._step(lambda: super(KilledFiles, self).truncate(handle, size))

    def sync(self, handle: int) -> None:
        self._step(lambda: super(KilledFiles, self).sync(handle))

    def rename(self, source: Path, target: Path) -> None:
        self._step(lambda: super(KilledFiles, self).rename(source, target))

    def unlink(self, path: Path) -> None:
        self._step(lambda: super(KilledFiles, self).unlink(path))

    def sync_directory(self, path: Path) -> None:
        self._step(lambda: super(KilledFiles, self).sync_directory(path))

    def lock(self, path: Path, holder: str) -> int:
        return int(self._step(lambda: super(KilledFiles, self).lock(path, holder)))


def live(directory: str, seed: int, kill_at: int | None, part: float, lies: bool) -> None:
    """One writer's life; has no end of its own."""
    files = KilledFiles(kill_at, part)

    def opened() -> LocalStore:
        return LocalStore(directory, NAMESPACE, files, segment_bytes=SEGMENT_BYTES)

    store = opened()
    for act in acts(seed):
        if lies:
            os.write(1, b".")
        store = act.perform(store, opened)
        if not lies:
            os.write(1, b".")


def main() -> None:
    """Serve."""
    while line := sys.stdin.readline():
        order = json.loads(line)
        pid = os.fork()
        if not pid:
            try:
                os.write(1, b"%d\n" % os.getpid())  # from here, so that it is there before the first dot
                live(**order)
            finally:
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        os.write(1, b"\n" if os.WTERMSIG(status) == signal.SIGKILL else b"!\n")


main()
