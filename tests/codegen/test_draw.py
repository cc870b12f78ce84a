"""kvfsm draw and what gen --check says of pictures."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from kvfsm.codegen import svg
from kvfsm.codegen.cli import draw as verb
from kvfsm.codegen.cli import main
from kvfsm.codegen.drawings import drawings, is_current, stale
from kvfsm.codegen.plan import placed, plan
from kvfsm.codegen.sequence import sequence
from kvfsm.codegen.sequence_svg import draw
from kvfsm.codegen.svg import Renderer, sign
from kvfsm.spec.language.load import Spec

REPO = Path(__file__).parents[2]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, spec: Spec) -> None:
    """A renderer that draws nothing much, and the spec already read."""
    monkeypatch.setattr(verb, "find_renderer", lambda: Renderer("quick", lambda source: "<svg></svg>"))


def test_the_committed_pictures_are_those_of_the_spec(spec: Spec) -> None:
    assert stale(REPO, plan(spec), missing=True) == []
    for protocol in spec.protocols:
        path = REPO / "diagrams" / "protocols" / f"{protocol.name}.svg"
        body = path.read_text("utf-8").split("\n", 1)[1]
        assert body == draw(sequence(protocol)), f"{path} is not what would be drawn now; `kvfsm draw` draws it"


def test_draws_all_then_leaves_them_alone_then_mends_one(
    tmp_path: Path, quick: None, spec: Spec, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "pictures"
    assert main(["draw", "-o", str(folder), "--check"]) == 1
    assert not folder.exists()
    assert main(["draw", "-o", str(folder)]) == 0
    planned = drawings(placed(spec))
    assert "[1/" in capsys.readouterr().err, "progress is on stderr"
    assert all(is_current(folder / Path(item.path).relative_to("diagrams"), item.source) for item in planned)

    one = folder / "swa_window.svg"
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.svg")}
    one.write_text(one.read_text("utf-8").replace("</svg>", "<g/></svg>"), "utf-8")
    assert main(["draw", "-o", str(folder), "--check", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["ok"] is False
    assert [Path(item["path"]).name for item in said["files"] if item["status"] == "stale"] == ["swa_window.svg"]
    assert main(["draw", "-o", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["renderer"] == "quick"
    touched = [path for path, time in before.items() if path.stat().st_mtime_ns != time]
    assert touched == [one]


def test_a_picture_that_nothing_asks_for_is_removed_but_not_somebody_elses(
    tmp_path: Path, quick: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["draw", "-o", str(tmp_path)]) == 0
    (tmp_path / "gone.svg").write_text(sign("<svg></svg>\n", "old"), "utf-8")
    (tmp_path / "mine.svg").write_text("<svg></svg>\n", "utf-8")
    assert main(["draw", "-o", str(tmp_path), "--check"]) == 1
    assert main(["draw", "-o", str(tmp_path)]) == 0
    assert not (tmp_path / "gone.svg").exists()
    assert (tmp_path / "mine.svg").exists()


def test_somebody_elses_picture_is_never_drawn_over(
    tmp_path: Path, quick: None, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "swa_window.svg"
    own.write_text("<svg>mine</svg>")
    assert main(["draw", "-o", str(tmp_path)]) == 2
    assert "swa_window.svg' was not drawn by kvfsm" in capsys.readouterr().err
    assert own.read_text() == "<svg>mine</svg>"
    assert list(tmp_path.iterdir()) == [own]


def test_without_a_renderer_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> Renderer:
        raise svg.NoRenderer("drawing needs Graphviz\n  fix: pip install 'kvfsm[diagrams]'")

    monkeypatch.setattr(verb, "find_renderer", missing)
    assert main(["draw", "-o", str(tmp_path)]) == 2
    assert "kvfsm[diagrams]" in capsys.readouterr().err


def test_gen_check_sees_a_picture_of_another_spec(tmp_path: Path, spec: Spec) -> None:
    planned = plan(spec)
    shutil.copytree(REPO / "diagrams", tmp_path / "diagrams")
    assert stale(tmp_path, planned, missing=True) == []
    path = "diagrams/swa_window.dot"
    changed = planned | {path: planned[path].replace("at\\ !=\\ boundary", "at\\ >\\ boundary")}
    assert changed != planned
    assert stale(tmp_path, changed, missing=True) == ["diagrams/swa_window.svg"]
    (tmp_path / "diagrams" / "protocols" / "read.svg").unlink()
    assert stale(tmp_path, planned, missing=True) == ["diagrams/protocols/read.svg"]
    assert stale(tmp_path, planned, missing=False) == []


def test_no_such_spec_is_wrong_use(tmp_path: Path) -> None:
    assert main(["draw", "--spec", str(tmp_path / "none"), "-o", str(tmp_path)]) == 2
