"""The command line frame: help, exit codes, and what lint, gen and explain answer."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvfsm.codegen import cli
from kvfsm.codegen.cli import VERBS, explain, main
from kvfsm.codegen.cli.explain import explanations
from kvfsm.codegen.cli.glossary import ANSWERS, PROPERTIES, TERMS
from kvfsm.runtime.answers import AnswerKind, ObjectAnswer
from kvfsm.spec.language.load import Spec

TOY = Path(__file__).parents[1] / "golden" / "toy" / "spec"


def test_help_shows_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"    {verb.name}" in out for verb in VERBS)


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb.built], ids=lambda verb: verb.name)
def test_a_verb_helps(verb: cli.Verb, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb.name, "--help"]) == 0
    assert f"usage: kvfsm {verb.name}" in capsys.readouterr().out


@pytest.mark.parametrize("verb", [verb for verb in VERBS if not verb.built], ids=lambda verb: verb.name)
def test_a_verb_of_later_says_so(verb: cli.Verb, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb.name]) == 2
    assert "is not built yet" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["gne"], ["gen", "--chekc"], ["explain"]])
def test_wrong_use_is_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2


def test_it_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "kvfsm.codegen", "lint", "--spec", str(TOY)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "well: 1 machines, 0 protocols, 0 model profiles\n")


def test_an_interrupt_ends_cleanly(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from kvfsm.codegen.cli import lint

    def interrupted(args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(lint, "run", interrupted)
    assert main(["lint"]) == 130
    assert capsys.readouterr().err == "kvfsm lint: stopped\n"


def test_an_interrupt_while_a_verb_is_imported_ends_as_cleanly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(verb: cli.Verb) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.Verb, "module", interrupted)
    assert main(["lint"]) == 130
    assert capsys.readouterr().err == "kvfsm lint: stopped\n"


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    (tmp_path / "objects").mkdir()
    (tmp_path / "vocabulary.yaml").write_text((TOY / "vocabulary.yaml").read_text())
    text = (TOY / "objects" / "toy.yaml").read_text()
    (tmp_path / "objects" / "toy.yaml").write_text(text.replace("when: pins > 0", "when: pin > 0"))
    return tmp_path


def test_lint_prints_place_and_fix(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "--spec", str(broken)]) == 1
    out = capsys.readouterr().out
    assert "toy.yaml:" in out
    assert "fix: " in out


def test_lint_answers_programs(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "--json", "--spec", str(broken)]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is False
    assert set(answer["problems"][0]) == {"code", "file", "line", "column", "message", "fix"}


def test_gen_writes_nothing_from_a_broken_spec(
    broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "package"
    assert main(["gen", "--spec", str(broken), "--out", str(out)]) == 1
    assert not out.exists()
    assert "fix: " in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "--spec", str(tmp_path / "none")]) == 2
    assert "kvfsm init" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("E204", "E204: "),
        ("swa_window", "machine 'swa_window': Sliding-window attention window"),
        ("swa_window.pin", "6. resident when at != boundary: refused as position"),
        ("resident", "state 'resident' of compressed_kv"),
        ("stale", "refusal 'stale' (code 2)"),
        ("S3", "swa_window.lease_protects: always pins > 0 implies state in [resident, expired]"),
        ("S3", "nobody evicts it"),
        ("S15", "this spec claims it nowhere"),
        ("evictor", "actor 'evictor'"),
        ("publish", "protocol 'publish'"),
        ("tiny_llama", "full: compressed_kv in 3 layers, a row for 1 token"),
        ("swa_window.boundary", "guards that read it: slide, rewind, pin"),
        ("POOL_FULL", "not enough can be evicted"),
        ("CAPACITY", "never: it is more than the pools"),
        ("BACKPRESSURE", "not now: as many are under way"),
        ("GAP", "`drafts:` or"),
        ("FULL", "refusal 'full' (code"),
        ("FULL", "a limit of `Limits` is reached"),
        ("TRUNCATED", "the file ends before the object does"),
        ("generation", "counts the owners of a slot"),
        ("DEFER", "not now, and nothing was taken"),
        ("Poisoned", "error Poisoned"),
        ("RankLost", "did not answer within the deadline"),
        ("HIT_PENDING", "give `answer.plan` to `load`"),
        ("block", "only protocols use it; written in spec/protocols/machines/block.yaml"),
        ("block.pin", "refused as stale"),
        ("E421", "wrong"),
    ],
)
def test_explain_knows(
    word: str, says: str, spec: Spec, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explain, "loaded_spec", lambda _: SimpleNamespace(spec=spec))  # loaded once for all words
    assert main(["explain", word]) == 0
    assert says in capsys.readouterr().out


def test_every_property_that_the_spec_names_is_explained(spec: Spec) -> None:
    owners = [*spec.machines, *spec.protocols]
    named = {claim.says for owner in owners for claim in (*owner.properties, *owner.leads_to) if claim.says}
    assert len(named) > 10
    assert named <= set(PROPERTIES)


def test_every_answer_of_the_manager_is_explained() -> None:
    assert {kind.value for kind in AnswerKind} <= set(ANSWERS)


def test_every_word_that_the_readmes_shout_is_explained(spec: Spec) -> None:
    """And every verdict of one object, as the docstring of its class lists them."""
    texts = [Path("runtime", *parts, "README.md") for parts in ((), ("stores",), ("integrations",))]
    words = {word for path in texts for word in re.findall(r"`([A-Z_]{3,})`", path.read_text("utf-8"))} - {"KINDS"}
    verdicts = set(re.findall(r"\b[A-Z]{3,}\b", ObjectAnswer.__doc__ or ""))
    assert {"FULL", "REBUILD", "TRUNCATED"} <= words and {"EVICTED", "REPLAY"} <= verdicts
    assert [word for word in sorted(words | verdicts) if not list(explanations(spec, word))] == []


def test_a_term_is_told_as_the_runtime_means_it(spec: Spec) -> None:
    for term, says in TERMS.items():
        heads = [head for head, *_ in explanations(spec, term)]
        assert f"{term}, in the runtime" in heads and says


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert re.fullmatch(r"kvfsm \d+\.\d+\.\d+\n", capsys.readouterr().out)


@pytest.mark.parametrize("verb", ["lint", "gen", "draw"])
def test_a_path_that_is_no_spec_is_told_from_one_that_lies_in_one(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", str(tmp_path / "mine")]) == 0
    for inside in ("objects", "objects/swa_window.yaml"):
        assert main([verb, "--spec", str(tmp_path / "mine" / inside)]) == 2
        assert f"did you mean --spec {tmp_path / 'mine'}?" in capsys.readouterr().err
    assert main([verb, "--spec", str(tmp_path)]) == 2
    assert "is no spec" in capsys.readouterr().err


def test_draw_into_a_file_is_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    assert main(["draw", "-o", str(tmp_path / "file")]) == 2
    assert "is a file; name a folder" in capsys.readouterr().err


def test_explain_points_at_a_picture_that_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "toctou"]) == 0
    assert "drawn in diagrams/protocols/toctou.svg; written in " in capsys.readouterr().out
    assert main(["init", str(tmp_path / "mine")]) == 0
    capsys.readouterr()
    assert main(["explain", "toctou", "--spec", str(tmp_path / "mine")]) == 0
    assert "`kvfsm draw` draws it; written in " in capsys.readouterr().out


def test_explain_names_the_nearest_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "quarantine"]) == 2
    assert "closest: quarantined" in capsys.readouterr().err
