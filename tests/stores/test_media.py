"""Disks that are full, forbidden, read-only or failing, and bytes that changed: refused, named, nothing lost."""

from __future__ import annotations

import errno
import itertools
import os
import resource
import shutil
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from kvfsm.runtime.stores import segments
from kvfsm.runtime.stores.format import HEADER_BYTES, stride
from kvfsm.runtime.stores.local import LocalStore
from kvfsm.runtime.stores.store import Item, StoreError, StoreFailed, StoreFull

from .faulty_files import FaultyFiles, everything, nothing, some
from .promises import NAMESPACE, SEGMENT_BYTES, Act, Promises, acts, an_id, payload, served

ROOT = Path("/disk/cache")
CODES = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EPERM, errno.EROFS, errno.EDQUOT, errno.EMFILE, errno.EFBIG)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def opened(files: FaultyFiles) -> LocalStore:
    return LocalStore(ROOT, NAMESPACE, files, segment_bytes=SEGMENT_BYTES)


def put(store: LocalStore, *numbers: int) -> None:
    store.put_many([Item(an_id(number), payload(number, False)) for number in numbers])


def wrong_with(store: LocalStore, promises: Promises) -> list[str]:
    found, wrong = served(store)
    return wrong + promises.broken(found)


def live(files: FaultyFiles, sequence: list[Act], code: int) -> tuple[bool, list[str]]:
    """Acts until one is refused, and what is wrong with the store then, at once and after power cuts."""
    promises, store, wrong = Promises(), None, []
    refused: StoreError | None = None
    act = Act("reopen")
    try:
        store = opened(files)
        for act in sequence:
            promises.begin(act)
            store = act.perform(store, lambda: opened(files))
            promises.end(act)
    except (StoreFull, StoreFailed) as problem:
        refused = problem
        kind = StoreFull if code in FULL and "reset again" not in str(problem) else StoreFailed
        if not isinstance(problem, kind) or str(ROOT) not in str(problem) or "fix: " not in str(problem):
            wrong.append(f"{act} is refused by {problem!r}")
    if refused is not None and store is not None and act.name == "put":
        strict = Promises(must=dict(promises.must))
        wrong += wrong_with(store, strict)  # what was refused is not there
    for survives in (nothing, everything, some(code)):
        after = files.power_cut(survives)
        again = opened(after)
        wrong += wrong_with(again, promises)
        put(again, 0, 1)
        wrong += [] if again.contains([an_id(0), an_id(1)]).all() else ["it takes nothing any more"]
    return refused is not None, [f"{refused}, in {act}: {one}" for one in wrong]


@pytest.mark.parametrize("code", CODES, ids=lambda code: errno.errorcode[code])
def test_an_error_at_any_operation_of_a_life_loses_nothing(code: int) -> None:
    """Every kind of act, the openings too; writes that fail leave any part behind."""
    sequence = list(itertools.islice(acts(3), 16))
    assert {act.name for act in sequence} == {"put", "delete", "reset", "collect", "reopen"}
    whole = FaultyFiles()
    assert live(whole, sequence, code) == (False, [])
    refusals = 0
    for number in range(len(whole.operations)):
        files = FaultyFiles()
        files.errors[number] = code
        refused, wrong = live(files, sequence, code)
        assert wrong == [], f"operation {number}, {whole.operations[number]}"
        refusals += refused
    assert refusals > len(whole.operations) * 0.8  # the others are those that only save work, or clean up


def test_a_disk_that_is_full_at_any_size_loses_nothing_and_can_be_used_again() -> None:
    new = [Item(an_id(number), payload(number, False)) for number in (3, 4, 5)]
    need = sum(stride(len(item.payload)) for item in new)
    for room in range(0, need, 1024):
        files = FaultyFiles()
        store = opened(files)
        put(store, 0, 1, 2)
        promises = Promises(must={0: False, 1: False, 2: False})
        files.capacity = sum(len(inode.visible) for inode in files.names.values()) + room
        with pytest.raises(StoreFull, match="nothing was kept; fix: free space"):
            store.put_many(new)
        assert wrong_with(store, promises) == []
        for left in (files.killed(), files.power_cut(nothing)):
            left.capacity = files.capacity
            with opened(left) as again:  # a full disk can still be read
                assert wrong_with(again, promises) == []
            left.capacity = None
            with opened(left) as again:
                assert again.put_many(new) == 3


def test_a_sector_that_can_not_be_read_at_opening_loses_nothing() -> None:
    files = FaultyFiles()
    store = opened(files)
    for act in itertools.islice(acts(5), 12):
        store = act.perform(store, lambda: opened(files))
    before, _ = served(store)
    left = files.killed()
    probe = files.killed()
    opened(probe)
    assert before and probe.reads > 8
    for number in range(probe.reads):
        left.read_errors, left.reads = {number: errno.EIO}, 0
        with pytest.raises(StoreFailed, match="look at the disk"):
            opened(left)
        assert not left.handles and not left.locks
    left.read_errors = {}
    assert served(opened(left)) == (before, [])


def test_a_failed_sync_is_never_taken_for_done() -> None:
    """After a sync that failed, the system forgets what it was to write, and says of the next one that all is well."""
    assert taken_for_done() == []


def test_without_writing_it_anew_a_failed_sync_is_taken_for_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control."""
    monkeypatch.setattr(segments, "rewrite", lambda *_: None)
    assert taken_for_done() != []


def taken_for_done() -> list[str]:
    """What a store serves that was opened after syncs had failed, and a power cut takes away."""
    gone: list[str] = []
    for number in range(12):
        files = FaultyFiles()
        files.forgets = True
        store = opened(files)
        put(store, 0, 1)
        promises = Promises(must={0: False, 1: False})
        start = len(files.operations)
        files.errors = dict.fromkeys(range(start + number, start + number + 40), errno.EIO)  # taking back fails, too
        promises.begin(Act("put", (2, 3)))
        try:
            put(store, 2, 3)
        except StoreFailed:
            pass
        else:
            promises.end(Act("put", (2, 3)))
        files.errors = {}
        again = files.killed()
        found, wrong = served(opened(again))
        assert wrong + promises.broken(found) == []
        kept, _ = served(opened(again.power_cut(nothing)))
        gone += [f"object {one}, failing from operation {number} on" for one in found.keys() - kept.keys()]
    return gone


def test_a_file_that_could_not_be_removed_is_removed_the_next_time() -> None:
    for operation in ("unlink", "sync_directory"):
        files = FaultyFiles()
        store = opened(files)
        put(store, 0, 1, 2)
        store.delete([an_id(0)])
        files.always = {operation: errno.EIO}
        with pytest.raises(StoreFailed, match="collecting stopped"):
            store.collect()
        files.always = {}
        store.collect()
        assert store.usage().garbage_bytes == 0
        assert wrong_with(store, Promises(must={1: False, 2: False})) == []


def laid_down() -> tuple[FaultyFiles, Path]:
    """A closed store with objects 0 to 3, the last two of one group."""
    files = FaultyFiles()
    with opened(files) as store:
        put(store, 0)
        put(store, 1)
        put(store, 2, 3)
        return files, store.path / "00000001.segment"


def extents() -> dict[int, tuple[int, int]]:
    """Bytes [start, stop) of each object's record."""
    found, at = {}, 0
    for number in range(4):
        found[number] = (at, at + stride(len(payload(number, False))))
        at = found[number][1]
    return found


def found_after(files: FaultyFiles) -> set[int]:
    """Objects that are served, all of them right; and the store goes on."""
    with opened(files.power_cut(everything)) as store:
        found, wrong = served(store)
        assert [one for one in wrong if "wrong bytes" in one or ("contains" in one and "get says MISS" in one)] == []
        put(store, 0, 1, 2, 3, 9)
        assert served(store)[0].keys() == {0, 1, 2, 3, 9}
        return set(found)


def test_a_bit_that_flips_anywhere_costs_its_own_object_at_the_most() -> None:
    files, path = laid_down()
    size = len(files.names[path].visible)
    assert found_after(files) == {0, 1, 2, 3}
    lost = 0
    for offset in range(0, size, 157):
        (own,) = (number for number, (start, stop) in extents().items() if start <= offset < stop)
        files.flip(path, offset, offset % 8)
        found = found_after(files)
        assert found >= {0, 1, 2, 3} - {own}, offset
        lost += own not in found
        files.flip(path, offset, offset % 8)
    covered = sum(HEADER_BYTES + len(payload(number, False)) for number in range(4))
    assert lost > 0.9 * covered / 157  # all but the padding


def test_a_file_that_ends_anywhere_costs_what_is_behind_at_the_most() -> None:
    files, path = laid_down()
    whole = bytes(files.names[path].visible)
    cuts = {cut for start, stop in extents().values() for cut in (start, start + 1, stop - 1)}
    cuts |= {start + HEADER_BYTES + more for start, _ in extents().values() for more in (-1, 0, 1, 900)}
    for cut in sorted(cuts):
        files.shorten(path, cut)
        assert found_after(files) == {number for number, (_, stop) in extents().items() if stop <= cut}, cut
        for data in (files.names[path].visible, files.names[path].durable):
            data[:] = whole


@pytest.mark.parametrize("name", ["namespace.json", "lock", "state.json"])
def test_a_small_file_with_any_bit_flipped_costs_at_most_the_epoch(name: str) -> None:
    files, path = laid_down()
    small = path.parent / name
    for offset in range(0, len(files.names[small].visible), 5):
        files.flip(small, offset, offset % 8)
        assert found_after(files) == (set() if name == "state.json" else {0, 1, 2, 3})
        files.flip(small, offset, offset % 8)


def in_a_child(work: Callable[[], None], uid: int | None = None) -> str:
    """Run in a process of its own, as another user if told so; returns what it raised, or nothing."""
    out, into = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(out)
            if uid is not None and os.getuid() == 0:
                os.setuid(uid)
            work()
        except BaseException:
            os.write(into, traceback.format_exc().encode()[-4000:])
        finally:
            os._exit(0)
    os.close(into)
    os.waitpid(pid, 0)
    with os.fdopen(out) as told:
        return told.read()


def real(directory: Path) -> LocalStore:
    return LocalStore(directory, NAMESPACE, segment_bytes=SEGMENT_BYTES)


def test_too_many_open_files_lose_nothing(tmp_path: Path) -> None:
    """The system's own limit, at any number of files that are left."""

    def work() -> None:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        for left in range(8):
            store = real(tmp_path / str(left))
            put(store, 0, 1)
            used = max(int(name) for name in os.listdir("/proc/self/fd")) + 1
            fillers = [os.open("/dev/null", os.O_RDONLY) for _ in range(used - len(os.listdir("/proc/self/fd")) + 2)]
            top = max(*fillers, used) + 1
            resource.setrlimit(resource.RLIMIT_NOFILE, (top + left, hard))
            refused = 0
            for number in range(2, 12):
                try:
                    put(store, number)
                except StoreFailed as problem:
                    assert "ulimit -n" in str(problem) or "opened anew" in str(problem), problem
                    refused += 1
            found, wrong = served(store)
            assert not wrong and found.keys() >= {0, 1} and len(found) == 12 - refused, (found, wrong, refused)
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            store.close()
            with real(tmp_path / str(left)) as store:
                assert served(store)[0].keys() >= found.keys()
                put(store, *range(12))

    assert in_a_child(work) == ""


def test_a_limit_of_file_sizes_loses_nothing(tmp_path: Path) -> None:
    def work() -> None:
        with real(tmp_path) as store:
            put(store, 0, 1)
            resource.setrlimit(resource.RLIMIT_FSIZE, (store.usage().file_bytes + 5000, resource.RLIM_INFINITY))
            with pytest.raises(StoreFull, match="ulimit -f"):
                put(store, 2, 3)
            assert served(store) == ({0: False, 1: False}, [])

    assert in_a_child(work) == ""
    with real(tmp_path) as store:
        assert served(store) == ({0: False, 1: False}, [])


def test_a_directory_of_another_user_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    for path in (tmp_path, *tmp_path.parents[:3]):
        path.chmod(path.stat().st_mode | 0o055)
    with real(tmp_path / "store") as store:
        put(store, 0, 1)
        path = store.path
    for mode in (0o555, 0o000):
        path.chmod(mode)
        (path / "lock").chmod(0o444)

        def work() -> None:
            with pytest.raises(StoreFailed, match="ermission denied; it can't be used as a store; fix: let this user"):
                real(tmp_path / "store")

        assert in_a_child(work, uid=65534) == ""
        path.chmod(0o755)
        (path / "lock").chmod(0o644)
        with real(tmp_path / "store") as store:
            assert served(store) == ({0: False, 1: False}, [])


def test_a_lock_that_could_not_be_written_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(StoreFull, match="fix: free space"):
            real(tmp_path)
    real(tmp_path).close()


def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreFailed, match="fix: give a directory"):
        real(tmp_path / "file")
    with real(tmp_path) as store:
        (store.path / "00000007.segment").mkdir()
    with pytest.raises(StoreFailed, match=r"00000007\.segment: Is a directory"):
        real(tmp_path)


MOUNTED = """
import errno, os, subprocess, sys
from pathlib import Path
sys.path.insert(0, {folder!r})
from promises import NAMESPACE, SEGMENT_BYTES, an_id, payload, served
from kvfsm.runtime.stores.local import LocalStore
from kvfsm.runtime.stores.store import StoreFailed, StoreFull

def put(store, number):
    store.put(an_id(number), payload(number, False), meta=dict())

disk = Path({disk!r})
store, kept = LocalStore(disk, NAMESPACE, segment_bytes=SEGMENT_BYTES), 0
try:
    for kept in range(16):
        put(store, kept)
except StoreFull as problem:
    assert "fix: free space" in str(problem), problem
else:
    raise AssertionError("it never was full")
everything = dict.fromkeys(range(kept), False)
assert kept > 2 and served(store) == (everything, []), (kept, served(store))
store.close()
with LocalStore(disk, NAMESPACE, segment_bytes=SEGMENT_BYTES) as store:
    assert served(store) == (everything, [])
subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
try:
    LocalStore(disk, NAMESPACE)
except StoreFailed as problem:
    assert "Read-only file system" in str(problem) and "fix: mount it" in str(problem), problem
else:
    raise AssertionError("it is read-only")
subprocess.run(["mount", "-o", "remount,rw,size=1m", str(disk)], check=True)
with LocalStore(disk, NAMESPACE, segment_bytes=SEGMENT_BYTES) as store:
    assert served(store) == (everything, [])
    put(store, kept)
"""


def test_a_real_disk_that_fills_and_turns_read_only_loses_nothing(tmp_path: Path) -> None:
    """A small file system in memory, mounted in a namespace of its own, so that nothing of it is left."""
    script = tmp_path / "script.py"
    disk = tmp_path / "disk"
    disk.mkdir()
    script.write_text(MOUNTED.format(folder=str(Path(__file__).parent), disk=str(disk)))
    mount = f"mount -t tmpfs -o size=80k tmpfs {disk}"
    unshare = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, mount], stderr=subprocess.PIPE).returncode:
        text = "nothing can be mounted here: disks were full and read-only in the file layer alone"
        warnings.warn(text, stacklevel=1)
        return
    command = f"{mount} && exec {sys.executable} {script}"
    done = subprocess.run([*unshare, command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
