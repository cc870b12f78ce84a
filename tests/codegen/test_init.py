"""kvfsm init: a whole spec or none, and nothing is ever overwritten."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kvfsm.codegen.cli import main
from kvfsm.spec.language.load import load_spec


def test_a_new_spec_is_the_shipped_one_and_sound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "deep" / "my_spec"
    assert main(["init", str(target), "--machine", "ring_buffer"]) == 0
    said = capsys.readouterr().out
    assert f"kvfsm lint --spec {target}" in said
    assert f"kvfsm gen  --spec {target} --out" in said
    loaded = load_spec(target)
    assert loaded.problems == ()
    shipped = load_spec().required()
    names = [machine.name for machine in loaded.required().machines]
    assert names == [*(machine.name for machine in shipped.machines), "ring_buffer"]
    assert len(loaded.required().protocols) == len(shipped.protocols)
    assert [m.name for m in loaded.required().protocol_machines] == [m.name for m in shipped.protocol_machines]
    assert len(loaded.required().profiles) == len(shipped.profiles)
    assert [path.name for path in target.parent.iterdir()] == ["my_spec"]


def test_an_empty_folder_may_be_used_and_a_full_one_may_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "my_spec"
    target.mkdir()
    assert main(["init", str(target)]) == 0
    (target / "objects" / "swa_window.yaml").write_text("mine", "utf-8")
    assert main(["init", str(target)]) == 2
    assert "not empty" in capsys.readouterr().err
    assert (target / "objects" / "swa_window.yaml").read_text("utf-8") == "mine"


def test_a_machine_is_added_to_a_spec_that_is_there_and_never_twice(tmp_path: Path) -> None:
    target = tmp_path / "my_spec"
    assert main(["init", str(target)]) == 0
    assert main(["init", str(target), "--machine", "ring_buffer"]) == 0
    added = target / "objects" / "ring_buffer.yaml"
    added.write_text("mine", "utf-8")
    assert main(["init", str(target), "--machine", "ring_buffer"]) == 2
    assert added.read_text("utf-8") == "mine"
    assert [path for path in added.parent.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("name", ["Ring", "ring-buffer", "9ring", "ring__buffer", "class", "../ring", ""])
def test_a_name_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    assert main(["init", str(tmp_path / "my_spec"), "--machine", name]) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    assert main(["init", str(tmp_path / "my_spec"), "--machine", "swa_window"]) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "my_spec"
    target.write_text("mine", "utf-8")
    assert main(["init", str(target)]) == 2
    assert target.read_text("utf-8") == "mine"


def test_a_disk_that_fills_half_way_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copied = []
    copy = shutil.copyfile

    def failing(source: Path, target: Path) -> None:
        copied.append(target)
        if len(copied) == 5:
            raise OSError(28, "No space left on device", str(target))
        copy(source, target)

    monkeypatch.setattr(shutil, "copyfile", failing)
    assert main(["init", str(tmp_path / "my_spec")]) == 1
    assert "No space left on device" in capsys.readouterr().err
    assert len(copied) == 5
    assert list(tmp_path.iterdir()) == []
