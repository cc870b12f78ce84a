"""`kvfsm export`: what it writes and where, in which bounds, and what it says when it is used wrongly."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvfsm.codegen.cli import lint, main
from kvfsm.spec.checking.explore import explore
from kvfsm.spec.checking.exports.peers import PEERS, Failed, Missing, Outcome
from kvfsm.spec.checking.system import System
from kvfsm.spec.language.load import Loaded, load_spec

STARTS = {"promela": "/* rollback ", "murphi": "-- rollback ", "smt": "; rollback ", "tla": "---- MODULE rollback "}


@pytest.fixture(scope="module")
def shipped() -> Loaded:
    return load_spec()


@pytest.fixture(autouse=True)
def read_once(shipped: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shipped spec in its own bounds is read once for all tests here."""

    def read(directory: Path | None, for_checking: bool = False) -> Loaded:
        return shipped if directory is None else load_spec(directory, for_checking=for_checking)

    monkeypatch.setattr(lint, "load_spec", read)


@pytest.mark.parametrize("language", STARTS)
def test_a_protocol_is_printed(language: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", language, "rollback"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(STARTS[language])
    assert ("#################### the .cfg file:\nSPECIFICATION Spec\n" in out) == (language == "tla")


def test_tla_is_written_with_its_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "tla", "rollback", "-o", str(tmp_path / "mine.tla")]) == 0
    assert (tmp_path / "mine.tla").read_text("utf-8").startswith("---- MODULE mine ----\n")
    assert (tmp_path / "mine.cfg").read_text("utf-8").startswith("SPECIFICATION Spec\nINVARIANTS\n")
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("wrote ") == 2


def test_bounds_faults_and_steps_are_those_that_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "promela", "toctou", "--bound", "slots=1", "--bound", "readers=3"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("/* toctou (slots = 1, readers = 3)\n")
    assert "reader_2_at" in text and "block_1_state" not in text
    assert main(["export", "smt", "toctou", "--steps", "2"]) == 0
    text = capsys.readouterr().out
    assert "move@1" in text and "move@2" not in text.split("; one step")[1]
    assert main(["export", "murphi", "toctou"]) == 0
    sound = capsys.readouterr().out
    assert main(["export", "murphi", "toctou", "--mutant", "unchecked_pin"]) == 0
    assert capsys.readouterr().out != sound


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["promela", "tocto"], "(closest: toctou)"),
        (["promela", "toctou", "--bound", "slot=2"], "(closest: slots)"),
        (["promela", "toctou", "--bound", "slots"], "--bound takes NAME=N, such as slots=3, not 'slots'"),
        (["promela", "toctou", "--bound", "slots=99"], "use a number from 1 to 64"),
        (["promela", "toctou", "--mutant", "unpin"], "(closest: unchecked_pin)"),
        (["smt", "toctou", "--steps", "-1"], "a run has 0 steps or more, not -1"),
        (["smt", "toctou", "--run"], "--run is for promela, tla and murphi"),
        (["tla", "toctou", "-o", "my-own.tla"], "TLC wants a module named as its file, and 'my-own' cannot name one"),
    ],
)
def test_wrong_use_is_told(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_a_disk_that_does_not_take_the_text_is_no_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "promela", "toctou", "-o", "/dev/null/a.pml"]) == 1
    assert "kvfsm export: cannot write /dev/null/a.pml" in capsys.readouterr().err


def outcome(states: int, violated: bool = False) -> Outcome:
    return Outcome("1.0", states, 0, violated, 0.0, "")


@pytest.mark.parametrize(
    ("mutant", "found", "code", "last"),
    [
        (None, lambda system: outcome(explore(system).states), 0, "they agree"),
        (None, lambda system: outcome(explore(system).states - 1), 1, "they differ"),
        (None, lambda system: outcome(explore(system).states, violated=True), 1, "they differ"),
        ("keys_stay", lambda system: outcome(7, violated=True), 1, "they agree"),
        ("keys_stay", lambda system: outcome(7), 1, "they differ"),
    ],
)
def test_run_compares_what_the_other_checker_found(
    mutant: str | None,
    found: object,
    code: int,
    last: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert callable(found)
    monkeypatch.setitem(PEERS, "SPIN", lambda system, folder: found(system))
    faults = [] if mutant is None else ["--mutant", mutant]
    assert main(["export", "promela", "rollback", "--run", *faults]) == code
    assert capsys.readouterr().out.splitlines()[-1] == last


@pytest.mark.parametrize(("problem", "code"), [(Missing("spin is not installed"), 2), (Failed("syntax error"), 1)])
def test_run_says_what_is_missing_or_failed(
    problem: Exception, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(system: System, folder: Path) -> Outcome:
        raise problem

    monkeypatch.setitem(PEERS, "SPIN", fails)
    assert main(["export", "promela", "rollback", "--run"]) == code
    assert str(problem) in capsys.readouterr().err
