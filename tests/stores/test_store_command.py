"""`kvfsm store`: lists, checks without changing anything, cleans."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvfsm.codegen.cli import main
from kvfsm.runtime.stores.local import LocalStore
from kvfsm.runtime.stores.store import Item, Namespace, ObjectId, Verdict

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
