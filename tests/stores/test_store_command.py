"""`kvfsm store`: lists, checks without changing anything, cleans."""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvfsm.codegen.cli import main
from kvfsm.runtime.stores.inspect import Report, inspect
from kvfsm.runtime.stores.local import LocalStore
from kvfsm.runtime.stores.store import Item, Namespace, ObjectId, Verdict

from .faulty_files import FaultyFiles

NAMESPACE = Namespace("tiny", {"compressed_kv": "layout a", "swa_window": "layout b"}, "raw")
OTHER = Namespace("tiny too", {"compressed_kv": "layout a"}, "raw")
PAYLOAD = bytes(range(256)) * 40
STRIDE = 4096 + 12288


def an_id(number: int) -> ObjectId:
    return ObjectId("compressed_kv", hashlib.sha256(b"%d" % number).digest())


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Two namespaces: three objects of which one is lossy, and one object."""
    with LocalStore(tmp_path, NAMESPACE) as store:
        store.put_many([Item(an_id(number), PAYLOAD, {"boundary": number}) for number in range(2)])
        store.put(ObjectId("swa_window", bytes(32)), PAYLOAD, meta={"lossy": True, "boundary": 12})
    with LocalStore(tmp_path, OTHER) as store:
        store.put(an_id(0), PAYLOAD, meta={})
    return tmp_path


Run = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(what: str, directory: Path, *options: str) -> tuple[int, dict[str, Any]]:
        code = main(["store", what, str(directory), *options, "--json"])
        return code, json.loads(capsys.readouterr().out or "{}")

    return run


def segment(directory: Path, namespace: Namespace = NAMESPACE, number: int = 1) -> Path:
    return directory / namespace.digest / f"{number:08d}.segment"


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def snapshot(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_ls_lists_kinds_boundaries_loss_and_epoch(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "ls", str(directory)]) == 0
    out = capsys.readouterr().out
    assert "model tiny too  epoch 0" in out
    assert "swa_window         0000000000000000  boundary     12  lossy       10240 bytes" in out
    assert f"compressed_kv      {an_id(1).key.hex()[:16]}  boundary      1  exact" in out
    assert f"3 objects, {3 * STRIDE} of {3 * STRIDE} bytes in files; 0 expired" in out


def test_a_sound_store_passes_and_is_not_changed(directory: Path, run: Run) -> None:
    before = snapshot(directory)
    code, report = run("fsck", directory)
    assert (code, report["ok"], report["objects"], report["bytes"], report["corrupt"]) == (0, True, 4, 4 * STRIDE, 0)
    assert run("ls", directory)[0] == 0
    assert snapshot(directory) == before


FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "payload": (lambda d: flip(segment(d), STRIDE + 4096 + 77), "INTEGRITY"),
    "header": (lambda d: flip(segment(d), STRIDE + 77), "INTEGRITY"),
    "magic": (lambda d: flip(segment(d), STRIDE), "FORMAT"),
    "truncated": (lambda d: segment(d).write_bytes(segment(d).read_bytes()[: 2 * STRIDE + 9000]), "TRUNCATED"),
    "moved": (lambda d: segment(d, number=9).write_bytes(segment(d, OTHER).read_bytes()), "IDENTITY"),
}


@pytest.mark.parametrize("what", FAULTS)
def test_a_fault_is_named_with_its_place_and_gc_removes_it(directory: Path, run: Run, what: str) -> None:
    damage, verdict = FAULTS[what]
    if what == "moved":  # otherwise the namespace's own object of that key comes first
        with LocalStore(directory, NAMESPACE) as store:
            store.delete([an_id(0)])
            store.collect()
    damage(directory)
    before = snapshot(directory)
    code, report = run("fsck", directory)
    (mine,) = [namespace for namespace in report["namespaces"] if namespace["digest"] == NAMESPACE.digest]
    assert code == 1
    assert not report["ok"]
    assert verdict in {fault["verdict"] for fault in mine["faults"]}
    assert all(Path(fault["file"]).exists() for fault in mine["faults"])
    assert snapshot(directory) == before
    whole = report["objects"]
    code, report = run("gc", directory)
    assert (code, report["corrupt"], report["objects"]) == (0, 0, whole)
    assert run("fsck", directory)[0] == 0
    with LocalStore(directory, NAMESPACE) as store:
        found = store.get(ObjectId("swa_window", bytes(32)), bytearray(len(PAYLOAD)))
        assert found.verdict is (Verdict.MISS if what == "truncated" else Verdict.OK)


def test_what_to_do_is_said(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(segment(directory), 5000)
    assert main(["store", "fsck", str(directory)]) == 1
    out = capsys.readouterr().out
    assert f"{segment(directory)}:0: INTEGRITY compressed_kv {an_id(0).key.hex()[:16]}: a checksum does not fit" in out
    assert f"fix: none of this is ever served; `kvfsm store gc {directory}` removes it and keeps the rest" in out


def test_of_a_namespace_whose_state_is_damaged_nothing_is_said_to_be_kept(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the state nobody knows whether the newest epoch was ended, and so it was."""
    fix = f"`kvfsm store gc {directory}` removes it, and what has expired, and "
    for namespace, kept in ((NAMESPACE, "keeps the rest"), (OTHER, "nothing is left then")):
        (directory / namespace.digest / "state.json").write_text("x", "utf-8")
        assert main(["store", "fsck", str(directory)]) == 1
        assert f"{fix}{kept}\n" in capsys.readouterr().out
    assert main(["store", "gc", str(directory)]) == 0
    assert "0 objects, 0 of 0 bytes in files" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (("  discard:", "  let_go:"), "it lacks the event 'discard'"),
        (("is_lossy", "is_rough"), "it lacks 'put_begin' of at_epoch, is_lossy, of_kind; 'recover' of"),
    ],
)
def test_a_spec_without_what_a_store_fires_is_told_where(
    edit: tuple[str, str], says: str, directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "mine"
    assert main(["init", str(spec)]) == 0
    for protocol in (spec / "protocols").glob("*.yaml"):
        protocol.unlink()
    path = spec / "objects" / "ondisk_prefix.yaml"
    path.write_text(path.read_text("utf-8").replace(*edit), "utf-8")
    before = snapshot(directory)
    capsys.readouterr()
    assert main(["store", "gc", str(directory), "--budget", "1", "--spec", str(spec)]) == 1
    out, err = capsys.readouterr()
    assert out == "" and f"{path}: ondisk_prefix can't be used here: {says}" in err and "; fix: " in err
    assert snapshot(directory) == before


def test_gc_removes_ended_epochs_and_leftovers(directory: Path, run: Run) -> None:
    with LocalStore(directory, NAMESPACE) as store:
        store.reset()
        store.put(an_id(9), PAYLOAD, meta={})
    segment(directory).with_name("state.json.tmp").write_bytes(b"left")
    with segment(directory).open("ab") as file:
        file.write(bytes(9000))
    code, report = run("fsck", directory)
    (mine,) = [namespace for namespace in report["namespaces"] if namespace["digest"] == NAMESPACE.digest]
    assert (code, mine["expired"], mine["leftover_bytes"]) == (0, 3, 9004)
    code, report = run("gc", directory)
    assert code == 0
    assert report["objects"] == 2
    assert sum(path.stat().st_size for path in directory.rglob("*.segment")) == 2 * STRIDE
    assert not list(directory.rglob("*.tmp"))


def test_gc_evicts_to_a_budget_children_before_parents(
    directory: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    with LocalStore(directory, NAMESPACE) as store:
        for number in (10, 11, 12):  # a chain, older than what comes after
            meta = {"parent": an_id(number - 1).key.hex()} if number > 10 else {}
            store.put(an_id(number), PAYLOAD, meta=meta)
        store.put(an_id(13), PAYLOAD, meta={})
    code, report = run("gc", directory, "--budget", str(2 * STRIDE + 1))
    assert code == 0 and [one["evicted"] for one in report["collected"]].count(5) == 1
    assert report["bytes"] == 2 * STRIDE + STRIDE  # and the other namespace's one
    with LocalStore(directory, NAMESPACE) as store:
        # By age 0, 1 and the window go first; then 10, 11 and 12, but from the chain's end.
        assert store.contains([an_id(number) for number in (10, 11, 12, 13)]).tolist() == [True, False, False, True]
    assert run("ls", directory, "--budget", "5")[0] == 2
    assert main(["store", "gc", str(directory), "--budget", "lots"]) == 2
    assert "no number of bytes" in capsys.readouterr().err


@pytest.fixture
def youngest_first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A spec whose stored objects go the other way round."""
    spec = tmp_path_factory.mktemp("edited") / "spec"
    assert main(["init", str(spec)]) == 0
    path = spec / "objects" / "ondisk_prefix.yaml"
    text = path.read_text("utf-8")
    assert "{by: last_use, first: lowest}" in text
    path.write_text(text.replace("{by: last_use, first: lowest}", "{by: last_use, first: highest}"), "utf-8")
    return spec


def test_gc_evicts_by_a_spec_of_ones_own(tmp_path: Path, youngest_first: Path, run: Run) -> None:
    left = {}
    for options in ((), ("--spec", str(youngest_first))):
        directory = tmp_path / str(len(options))
        with LocalStore(directory, NAMESPACE) as store:
            for number in range(4):
                store.put(an_id(number), PAYLOAD, meta={})
        code, report = run("gc", directory, "--budget", str(2 * STRIDE), *options)
        assert (code, report["objects"], report["bytes"]) == (0, 2, 2 * STRIDE)
        with LocalStore(directory, NAMESPACE) as store:
            left[options] = store.contains([an_id(number) for number in range(4)]).tolist()
    assert [*left.values()] == [[False, False, True, True], [True, True, False, False]]


def test_a_spec_is_for_eviction_and_has_to_be_one(
    directory: Path, tmp_path: Path, youngest_first: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = snapshot(directory)
    gc = ["store", "gc", str(directory), "--budget", "1"]
    assert main([*gc[:3], "--spec", str(youngest_first)]) == 2
    assert "give it to gc, with --budget" in capsys.readouterr().err
    assert main([*gc, "--spec", str(tmp_path / "nowhere")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    path = youngest_first / "objects" / "ondisk_prefix.yaml"
    path.write_text(path.read_text("utf-8").replace("by: last_use", "by: last_us"), "utf-8")
    assert main([*gc, "--spec", str(youngest_first)]) == 1
    assert "last_us" in capsys.readouterr().err
    path.unlink()
    for protocol in (youngest_first / "protocols").glob("*.yaml"):
        protocol.unlink()
    assert main([*gc, "--spec", str(youngest_first)]) == 2
    assert "has no ondisk_prefix" in capsys.readouterr().err
    assert snapshot(directory) == before


@pytest.mark.parametrize("namespace", [
    Namespace("tiny", {"compressed_kv": "a"}, "raw", format=2), Namespace("tiny", {"recurrent_state": "a"}, "raw"),
])  # fmt: skip
def test_what_a_later_version_stores_is_named_and_left_alone(
    directory: Path, namespace: Namespace, capsys: pytest.CaptureFixture[str]
) -> None:
    path = directory / namespace.digest
    path.mkdir()
    (path / "namespace.json").write_text(json.dumps(namespace.as_json()))
    (path / "00000001.segment").write_bytes(b"of the future" * 1000)
    before = snapshot(path)
    for what in ("ls", "fsck", "gc"):
        assert main(["store", what, str(directory)]) == 1
        out = capsys.readouterr().out
        assert "not all of that is known to this version" in out and "fix:" not in out
    assert snapshot(path) == before


def test_a_file_that_can_not_be_opened_is_named(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segment(directory, number=7).symlink_to(directory / "nowhere")
    assert main(["store", "ls", str(directory)]) == 2
    assert f"'{segment(directory, number=7)}' can't be read as a store: No such file" in capsys.readouterr().err


def look(files: FaultyFiles, path: Path) -> Report:
    return inspect(files, path, NAMESPACE, True, lambda done, total: None)


@pytest.mark.parametrize("what", ["collect", "reset"])
def test_a_writer_that_goes_on_does_not_disturb_a_look(what: str) -> None:
    """Its files may go between being listed and being opened, and what is said of one moment is true of it."""

    class Going(FaultyFiles):
        at = -1
        meanwhile: Callable[[], object]

        def __init__(self) -> None:
            super().__init__()
            self.looking: set[int] = set()

        def open(self, path: Path, *, write: bool) -> int:
            if not write:
                self.at -= 1
                if self.at == 0:
                    self.meanwhile()
            handle = super().open(path, write=write)
            self.looking |= set() if write else {handle}
            return handle

        def close(self, handle: int) -> None:
            super().close(handle)
            self.looking.discard(handle)

    disturbed = 0
    for at in range(1, 9):
        files = Going()
        with LocalStore("/disk", NAMESPACE, files, segment_bytes=2 * STRIDE) as store:
            for number in range(4):
                store.put(an_id(number), PAYLOAD, meta={})
            store.delete([an_id(0)])

            def meanwhile(store: LocalStore = store) -> None:
                if what == "collect":
                    store.collect()
                else:
                    store.reset()
                    store.put(an_id(5), PAYLOAD, meta={})

            files.meanwhile, files.at = meanwhile, at
            report = look(files, store.path)
            assert report.faults == ()
            found = {header.key for header in report.objects}
            went_on = {an_id(number).key for number in ((1, 2, 3) if what == "collect" else (5,))}
            assert found in ({an_id(number).key for number in (1, 2, 3)}, went_on)
            assert not files.looking
            disturbed += files.at <= 0
    assert disturbed > 3


def test_a_look_closes_what_it_opened_when_it_fails() -> None:
    files = FaultyFiles()
    with LocalStore("/disk", NAMESPACE, files) as store:
        store.put(an_id(0), PAYLOAD, meta={})
    files.reads, files.read_errors = 0, {1: errno.EIO}
    with pytest.raises(OSError, match="EIO"):
        look(files, store.path)
    assert not files.handles


def test_a_sector_that_can_not_be_read_is_a_fault_of_its_object() -> None:
    files = FaultyFiles()
    with LocalStore("/disk", NAMESPACE, files) as store:
        store.put_many([Item(an_id(number), PAYLOAD) for number in range(2)])
    files.reads = 0
    assert len(look(files, store.path).objects) == 2
    files.read_errors, files.reads = {files.reads - 1: errno.EIO}, 0  # the last read is that of an object
    report = look(files, store.path)
    assert [fault.verdict for fault in report.faults] == [Verdict.INTEGRITY] and len(report.objects) == 1


def test_an_unfinished_write_is_no_fault(directory: Path, run: Run) -> None:
    data = segment(directory).read_bytes()
    with LocalStore(directory, NAMESPACE) as store:
        store.put(an_id(5), PAYLOAD, meta={})
        grown = segment(directory).read_bytes()
        state = (store.path / "state.json").read_bytes()
    (segment(directory).parent / "state.json").write_bytes(state)  # as a kill leaves it: not written at a close
    segment(directory).write_bytes(grown[: len(data) + 9000])
    code, report = run("fsck", directory)
    assert (code, report["objects"]) == (0, 4)


def test_looking_is_allowed_while_somebody_writes_and_cleaning_is_not(
    directory: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    with LocalStore(directory, NAMESPACE):
        assert run("fsck", directory)[0] == 0
        assert main(["store", "gc", str(directory)]) == 2
        assert "in use by process" in capsys.readouterr().err


@pytest.mark.parametrize("inside", ["nowhere", "."])
def test_no_store_is_a_wrong_use(tmp_path: Path, inside: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "ls", str(tmp_path / inside)]) == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_a_lost_description_is_a_fault_that_opening_mends(directory: Path, run: Run) -> None:
    described = segment(directory).with_name("namespace.json")
    described.write_text("{}")
    code, report = run("fsck", directory)
    assert (code, report["corrupt"], report["objects"]) == (1, 1, 1)
    with LocalStore(directory, NAMESPACE) as store:
        assert store.contains([an_id(0)]).all()
    assert run("fsck", directory)[0] == 0
