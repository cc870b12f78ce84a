"""A real process, really killed. It proves recovery and the lock, not syncing: the page cache outlives the process."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvfsm.runtime.stores.local import LocalStore
from kvfsm.runtime.stores.store import Namespace, ObjectId, Verdict

NAMESPACE = Namespace("model", {"swa_window": "layout"}, "raw")

WRITER = """
import hashlib, os, signal, sys
from kvfsm.runtime.stores.files import RealFiles
from kvfsm.runtime.stores.local import LocalStore
from kvfsm.runtime.stores.store import Item, Namespace, ObjectId

directory, stop_after = sys.argv[1], int(sys.argv[2])

class Killed(RealFiles):
    def write(self, handle, buffers, offset):
        data = b"".join(buffers)
        if stop_after >= 0 and len(data) == 20480:
            os.pwrite(handle, data[:stop_after], offset)
            os.kill(os.getpid(), signal.SIGKILL)
        super().write(handle, buffers, offset)

store = LocalStore(directory, Namespace("model", {"swa_window": "layout"}, "raw"), Killed(), segment_bytes=200_000)
number = 0
while True:
    names = [hashlib.sha256(b"%d" % n).digest() for n in range(number, number + 3)]
    if stop_after >= 0:
        names = names[:1]
    size = 16384 if stop_after >= 0 else 3200
    store.put_many([Item(ObjectId("swa_window", name), name * (size // 32)) for name in names])
    number += 3
    print(number, flush=True)
"""


def served(store: LocalStore, number: int, size: int) -> Verdict:
    name = hashlib.sha256(b"%d" % number).digest()
    into = bytearray(size)
    found = store.get(ObjectId("swa_window", name), into)
    assert found.verdict is not Verdict.OK or into == name * (size // 32)
    return found.verdict


@pytest.mark.parametrize(
    ("written", "expected"), [(0, Verdict.MISS), (5000, Verdict.MISS), (20479, Verdict.MISS), (20480, Verdict.OK)]
)
def test_a_block_is_visible_only_when_all_of_it_was_written(tmp_path: Path, written: int, expected: Verdict) -> None:
    """H-29: killed at a number of bytes of a 16384-byte block with its 4096-byte header; then the sweep."""
    done = subprocess.run([sys.executable, "-c", WRITER, str(tmp_path), str(written)], check=False)
    assert done.returncode == -signal.SIGKILL
    with LocalStore(tmp_path, NAMESPACE) as store:
        assert served(store, 0, 16384) is expected
        files = {path.name: path.stat().st_size for path in store.path.iterdir() if path.suffix != ".json"}
        assert files.pop("lock") > 0
        assert files == ({"00000001.segment": 20480} if expected is Verdict.OK else {})
        assert store.usage().file_bytes == sum(files.values())


def test_a_bit_flipped_at_rest_is_a_miss_for_its_integrity(tmp_path: Path) -> None:
    """H-29, last line."""
    name = hashlib.sha256(b"0").digest()
    with LocalStore(tmp_path, NAMESPACE) as store:
        store.put(ObjectId("swa_window", name), name * 512, meta={})
        path = store.path / "00000001.segment"
    data = bytearray(path.read_bytes())
    data[9000] ^= 1
    path.write_bytes(data)
    with LocalStore(tmp_path, NAMESPACE) as store:
        assert served(store, 0, 16384) is Verdict.INTEGRITY
