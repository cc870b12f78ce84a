"""A real process, really killed, at 200 random points: whatever it acknowledged is there, whole, and nothing torn is.

It proves recovery and the lock, not syncing: the page cache outlives the process. For power cuts see `test_crash.py`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvfsm.runtime.stores import segments
from kvfsm.runtime.stores.files import RealFiles
from kvfsm.runtime.stores.inspect import inspect
from kvfsm.runtime.stores.local import LocalStore
from kvfsm.runtime.stores.store import StoreLocked

from .promises import NAMESPACE, NUMBERS, SEGMENT_BYTES, Promises, acts, served


class Server:
    """`writer.py`, running: forks writers in no time, since everything is imported already."""

    def __init__(self) -> None:
        path = Path(__file__).with_name("writer.py")
        self.process = subprocess.Popen([sys.executable, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdin is not None and self.process.stdout is not None
        self.orders, self.told = self.process.stdin, self.process.stdout

    def start(self, directory: Path, seed: int, kill_at: int | None, part: float = 0, lies: bool = False) -> int:
        """Fork a writer; returns its process number."""
        order = {"directory": str(directory), "seed": seed, "kill_at": kill_at, "part": part, "lies": lies}
        self.orders.write(json.dumps(order).encode() + b"\n")
        self.orders.flush()
        return int(self.told.readline())

    def dots(self, wanted: int | None = None) -> int:
        """Read until so many acts returned, or until the writer's end; returns how many it were."""
        count = 0
        while count != wanted and (byte := self.told.read(1)) == b".":
            count += 1
        assert count == wanted or byte == b"\n", "the writer ended by itself"
        return count

    def stop(self) -> None:
        """The server ends when there are no more orders."""
        self.orders.close()
        self.process.wait()
        self.told.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


def outside(path: Path) -> tuple[dict[int, bool], int, list[str]]:
    """What somebody sees who only looks, as `kvfsm store fsck` does: objects, epoch, faults."""
    report = inspect(RealFiles(), path, NAMESPACE, True, lambda done, total: None)
    seen = {NUMBERS[header.kind, header.key]: header.lossy for header in report.objects}
    return seen, report.epoch, [f"{fault.path.name} at {fault.offset}: {fault.text}" for fault in report.faults]


def after_a_kill(directory: Path, promises: Promises, reopen: bool) -> list[str]:
    """Look at what a killed writer left, from outside, and opened anew; everything that is wrong."""
    path, wrong = directory / NAMESPACE.digest, []
    looked = (path / "state.json").exists()  # without it, nobody was told of any object
    if looked:
        seen, epoch, faults = outside(path)
        wrong += [f"seen from outside: {fault}" for fault in (*faults, *promises.broken(seen))]
        wrong += [f"epoch {epoch} after {promises.epoch_at_least}"] if epoch < promises.epoch_at_least else []
        if not reopen:
            promises.settle(seen, epoch)
            return wrong
    with LocalStore(directory, NAMESPACE, segment_bytes=SEGMENT_BYTES) as store:  # the lock went with the process
        found, faults = served(store)
        wrong += [*faults, *promises.broken(found)]
        if looked and (found, store.epoch) != (seen, epoch):
            wrong.append(f"{found} of epoch {store.epoch} is served, {seen} of {epoch} was seen from outside")
        if store.epoch < promises.epoch_at_least:
            wrong.append(f"epoch {store.epoch} after {promises.epoch_at_least}")
        files = sum(file.stat().st_size for file in store.path.glob("*.segment"))
        if store.usage().file_bytes != files or store.usage().corrupt:
            wrong.append(f"the files have {files} bytes, and the store says {store.usage()}")
        wrong += [f"{file.name} was left over" for file in store.path.glob("*.tmp")]
        promises.settle(found, store.epoch)
    return wrong


def lives(server: Server, directory: Path, seed: int, count: int, lies: bool = False) -> tuple[Counter[str], list[str]]:
    """So many writers of one directory one after another, each killed; returns the points, and what went wrong."""
    chance, promises, points, wrong = random.Random(seed), Promises(), Counter[str](), []
    for life in range(count):
        at_operation = chance.random() < 0.5
        number = chance.randrange(48 if at_operation else 12)
        part = chance.choice([0, chance.random(), 1]) if at_operation else 0
        pid = server.start(directory, seed + life, number if at_operation else None, part, lies)
        if at_operation:
            done = server.dots()
            points["at a file operation"] += 1
        else:
            server.dots(number)
            if number and chance.random() < 0.5:
                wrong += while_it_writes(directory, pid)
            os.kill(pid, signal.SIGKILL)
            done = number + server.dots()
            points["at any moment"] += 1
        sequence = list(itertools.islice(acts(seed + life), done + 1))
        for act in sequence[:-1]:
            promises.begin(act)
            promises.end(act)
        promises.begin(sequence[-1])
        found = after_a_kill(directory, promises, chance.random() < 0.6)
        how = f"operation {number}, {part:.2f} of it" if at_operation else f"{number} acts"
        wrong += [f"life {life}, seed {seed + life}, killed after {how}, in {sequence[-1]}: {one}" for one in found]
    return points, wrong


def while_it_writes(directory: Path, pid: int) -> list[str]:
    """Another process may not open the store, and hears by whom it is held; it may look."""
    try:
        LocalStore(directory, NAMESPACE, segment_bytes=SEGMENT_BYTES).close()
    except StoreLocked as problem:
        wrong = [] if f"process {pid} on" in str(problem) else [f"the holder is {pid}, said was: {problem}"]
    else:
        wrong = ["two writers opened the store at once"]
    with contextlib.suppress(FileNotFoundError):  # a file that is collected away between being listed and opened
        outside(directory / NAMESPACE.digest)
    return wrong


def test_a_writer_killed_at_200_random_points_keeps_what_it_acknowledged(server: Server, tmp_path: Path) -> None:
    first = random.SystemRandom().randrange(1 << 30)
    print(f"seed {first}")
    points: Counter[str] = Counter()
    for number in range(20):
        count, wrong = lives(server, tmp_path / str(number), first + 1000 * number, 10)
        assert wrong == []
        points += count
    print(dict(points))
    assert points.total() == 200 and min(points.values()) > 50


def at_operations(server: Server, directory: Path, part: float, lies: bool = False) -> list[str]:
    """Writers of the same acts, killed at one operation after another; everything that is wrong afterwards."""
    wrong: list[str] = []
    for number in range(14, 34):
        promises = Promises()
        server.start(directory / str(number), 11, number, part, lies)
        sequence = list(itertools.islice(acts(11), server.dots() + 1))
        for act in sequence[:-1]:
            promises.begin(act)
            promises.end(act)
        promises.begin(sequence[-1])
        wrong += after_a_kill(directory / str(number), promises, True)
    return wrong


def test_a_writer_that_acknowledges_too_early_is_seen(server: Server, tmp_path: Path) -> None:
    """Negative control: the dot comes before the act."""
    assert any("allowed is" in one for one in at_operations(server, tmp_path, 0, lies=True))


def test_recovery_that_keeps_torn_groups_is_seen(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: the group that was being written is kept, whatever arrived of it."""
    assert at_operations(server, tmp_path / "sound", 0.6) == []
    monkeypatch.setattr(segments, "is_whole", lambda *_: True)
    wrong = at_operations(server, tmp_path / "torn", 0.6)
    assert any("TRUNCATED" in one for one in wrong)
    assert any("are not all there or all gone" in one for one in wrong)


def test_a_record_that_lacks_only_padding_is_torn(server: Server, tmp_path: Path) -> None:
    """What ends within its padding is neither kept nor counted, whoever looks."""
    for part in (0.8, 0.999):
        assert at_operations(server, tmp_path / str(part), part) == []
