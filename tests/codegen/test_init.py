"""kvfsm init: a whole spec or none, and nothing is ever overwritten."""

from __future__ import annotations

import re
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


def test_what_a_copy_says_of_itself_is_true(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its pages point at what is there, and none tells what was found in another spec, as CHECKED.md does."""
    target = tmp_path / "my_spec"
    assert main(["init", str(target)]) == 0
    assert f"kvfsm check evict --spec {target}" in capsys.readouterr().out
    assert not (target / "CHECKED.md").exists()
    pages = sorted(target.rglob("*.md"))
    assert [page.relative_to(target).as_posix() for page in pages] == ["README.md", "models/README.md"]
    for page in pages:
        for link in re.findall(r"\]\(([^)#]+)", page.read_text("utf-8")):
            assert link.startswith("https://") or (page.parent / link).exists(), f"{page} points at {link}"
    text = (target / "README.md").read_text("utf-8")
    listed = re.findall(r"^    (\S+) {2,}", text.partition("## A machine")[0], re.MULTILINE)
    assert {"vocabulary.yaml", "objects/", "protocols/"} <= set(listed)
    assert all(list(target.glob(name.rstrip("/"))) for name in listed), listed
    assert {path.name for path in target.iterdir() if path.is_dir()} <= {name.split("/")[0] for name in listed}
    assert "## A protocol" in text


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
