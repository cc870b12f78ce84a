"""`kvfsm validate`: exit codes, JSON, and what a person reads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from kvfsm.codegen.cli import main
from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.trace import EventTrace

SPEC = Path(__file__).parents[2] / "spec"
PROFILE = PROFILES["tiny_deepseek_v4"]


def worked(capacity: int = 1 << 16) -> tuple[Manager, EventTrace]:
    trace = EventTrace(capacity)
    manager = Manager(PROFILE, dict.fromkeys(PROFILE.kinds, 8), NumpyBackend(), trace=trace)
    keys = manager.keys(list(range(100)))
    manager.publish(manager.reserve(keys, 0, 3))
    with manager.acquire(manager.match(keys)):
        manager.core.pools["swa_window"].table.evict([0])  # refused: somebody reads it
    return manager, trace


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "events.jsonl"
    worked()[1].write(path)
    return path


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    manager, trace = worked()
    table = manager.core.pools["swa_window"].table
    table.words[0] ^= np.uint64(1 << 40)
    table.evict([0])
    path = tmp_path / "bad.jsonl"
    trace.write(path)
    return path


def test_a_path_of_the_model_is_well(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(good)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == "well: 39 events on 6 pools are steps of the model, from the start"
    assert second.split(";")[0].strip() == "1 of them refusals"


def test_a_ring_that_ran_over_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "events.jsonl"
    worked(10)[1].write(path)
    assert main(["validate", str(path)]) == 0
    told = capsys.readouterr().out.splitlines()[0]
    assert told == "well: 10 events on 6 pools are steps of the model, from where 29 older ones had left off"


def test_json_has_the_fields_that_programs_rely_on(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(good), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["ok"], said["events"], said["first_illegal"], said["dropped"]) == (True, 39, None, 0)
    assert said["by_event"]["swa_window.evict"] == 1 and sum(said["by_event"].values()) == 39


def test_the_first_event_that_is_none_is_told_with_its_reasons(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(bad)]) == 1
    out, err = capsys.readouterr()
    first, *why = out.splitlines()
    line = len(bad.read_text("utf-8").splitlines()) - 1
    assert first.startswith(f"{bad}:{line}: the word of slot 0 of swa_window changed without an event")
    assert why[-1].strip() == "differs in:    boundary 3 -> 2"
    assert err.strip() == "39 events before it are steps of the model"


def test_the_first_event_that_is_none_is_told_as_json(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(bad), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    illegal = said["first_illegal"]
    assert said["ok"] is False and said["events"] == 39
    assert (illegal["kind"], illegal["machine"], illegal["slot"], illegal["event"]) == (
        "changed_without_event", "swa_window", 0, "evict")  # fmt: skip


def test_a_trace_of_another_spec_is_a_fault(good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "spec"
    shutil.copytree(SPEC, other, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    assert main(["validate", str(good), "--spec", str(other)]) == 0
    machine = other / "objects" / "swa_window.yaml"
    text = machine.read_text("utf-8")
    machine.write_text(text.replace("when: at != boundary", "when: at > boundary"), "utf-8")
    assert text != machine.read_text("utf-8")
    assert main(["validate", str(good), "--spec", str(other)]) == 1
    told = "the trace follows another 'swa_window' than this spec's: its states, guards or effects differ"
    said = capsys.readouterr()
    assert f"{good}:1: {told}" in said.out
    assert "or try it against these with --edited" in said.out


def test_a_trace_is_tried_against_edited_guards(
    good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A guard less takes the trace still, another guard does not; other fields make another trace of it."""
    other = tmp_path / "spec"
    shutil.copytree(SPEC, other, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    machine = other / "objects" / "swa_window.yaml"
    text = machine.read_text("utf-8")
    line = "      - {from: resident, when: at != boundary, refuse: position}\n"
    assert line in text
    machine.write_text(text.replace(line, ""), "utf-8")
    assert main(["validate", str(good), "--spec", str(other), "--edited"]) == 0
    assert "note: " in capsys.readouterr().err
    machine.write_text(text.replace(line, line.replace("at != boundary", "at == boundary")), "utf-8")
    assert main(["validate", str(good), "--spec", str(other), "--edited"]) == 1
    assert "pin" in capsys.readouterr().out
    machine.write_text(text.replace("boundary: 23", "boundary: 22"), "utf-8")
    assert main(["validate", str(good), "--spec", str(other), "--edited"]) == 1
    assert "the fields of its word differ" in capsys.readouterr().out


def test_a_wrong_spec_is_told(good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "spec"
    shutil.copytree(SPEC, other, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    machine = other / "objects" / "swa_window.yaml"
    machine.write_text(machine.read_text("utf-8").replace("at != boundary", "at != boundry"), "utf-8")
    assert main(["validate", str(good), "--spec", str(other), "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["ok"] is False and "E204" in err


@pytest.mark.parametrize("what", ["no file", "a folder", "no spec"])
def test_wrong_use_is_2(good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    arguments = {
        "no file": [str(tmp_path / "none.jsonl")],
        "a folder": [str(tmp_path)],
        "no spec": [str(good), "--spec", str(tmp_path / "none")],
    }[what]
    assert main(["validate", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("kvfsm")


@pytest.mark.parametrize(
    "content", [b"", b"{}\n", b"\xff\xfe\x00", b"hello\n" * 3], ids=["empty", "json", "bytes", "text"]
)
def test_what_is_no_trace_is_a_fault_in_line_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(content)
    assert main(["validate", str(path)]) == 1
    said = capsys.readouterr()
    assert said.out.startswith(f"{path}:1: the ")
    assert said.err == "", "there is nothing to count"
