"""`kvfsm check`: what people and programs read, exit codes, and what it says of bad input."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from kvfsm.codegen.cli import check, main
from kvfsm.codegen.cli.check_mutants import Mutant, lines
from kvfsm.codegen.cli.stopping import answered
from kvfsm.spec.checking.check import Report
from kvfsm.spec.checking.check import check_protocol as real_check
from kvfsm.spec.checking.hunt import KILLED, SAME, SURVIVES, UNDECIDED, Catch

REPO = Path(__file__).parents[2]
FIELDS = {
    "protocol", "bounds", "engine", "states", "transitions", "depth", "complete", "seconds", "properties", "mutants",
}  # fmt: skip


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A spec of one's own with two small protocols."""
    root = tmp_path / "own"
    for folder in ("objects", "safeguards", "protocols/machines"):
        shutil.copytree(REPO / "spec" / folder, root / folder, ignore=shutil.ignore_patterns("*.md"))
    shutil.copy(REPO / "spec" / "vocabulary.yaml", root)
    for name in ("toctou", "store"):
        shutil.copy(REPO / "spec" / "protocols" / f"{name}.yaml", root / "protocols")
    return root


def edit(root: Path, name: str, before: str, after: str) -> None:
    path = root / name
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))


def test_the_table_shows_what_holds(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "toctou", "--spec", str(own)]) == 0
    head, row, _, verdict = capsys.readouterr().out.splitlines()
    assert verdict == "1 protocol checked: all claims hold in every state within the bounds"
    assert head.split() == ["protocol", "bounds", "states", "transitions", "depth", "seconds", "claims"]
    assert row.startswith("toctou    slots 2, readers 2")
    assert "30,192" in row and "120,640" in row and row.endswith("hold")


def test_programs_read_every_field(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--json", "--spec", str(own)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is True
    assert [entry["protocol"] for entry in answer["protocols"]] == ["store", "toctou"]
    for entry in answer["protocols"]:
        assert set(entry) >= FIELDS
        assert {"always", "sometimes", "deadlock"} <= {item["kind"] for item in entry["properties"]}
        for item in entry["properties"]:
            assert {"name", "kind", "verdict", "how", "trace"} <= set(item)
            assert (item["verdict"], item["how"], item["trace"]) == ("holds", "explored", None)
    toctou = answer["protocols"][1]
    assert (toctou["states"], toctou["transitions"], toctou["depth"]) == (30192, 120640, 32)
    assert toctou["bounds"] == {"slots": 2, "readers": 2}


def test_a_broken_spec_is_told_as_a_story_and_in_files(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    guard = "{from: [resident, packed, expired], when: holds > %d, refuse: held}"
    edit(own, "objects/compressed_kv.yaml", guard % 0, guard % 1)
    out = tmp_path / "broken"
    assert main(["check", "store", "--spec", str(own), "-o", str(out)]) == 1
    said = capsys.readouterr().out
    assert "VIOLATED: " in said
    assert "breaks kv.transfer_protects (S3), always:" in said
    assert f"{own}/objects/compressed_kv.yaml:" in said
    stem = "store.kv.transfer_protects"
    names = {path.name for path in out.iterdir()}
    test = "test_store_kv_transfer_protects.py"
    assert {f"{stem}.txt", f"{stem}.json", f"{stem}.mmd", f"{stem}.svg", test} <= names
    assert json.loads((out / f"{stem}.json").read_text())["broken"]["name"] == "kv.transfer_protects"
    # The runtime here is that of the shipped spec, and the test says so rather than replaying another machine's story.
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(out / test)],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "compressed_kv was generated from another spec; run kvfsm gen" in done.stdout
    assert "from my_package.runtime import KINDS, Refusal" in done.stdout


def test_a_counterexample_is_replayed_on_the_package_of_its_own_spec(own: Path, tmp_path: Path) -> None:
    guard = "{from: [resident, packed, expired], when: holds > %d, refuse: held}"
    edit(own, "objects/compressed_kv.yaml", guard % 0, guard % 1)
    out = tmp_path / "broken"
    assert main(["gen", "--spec", str(own), "--out", str(tmp_path / "my_cache")]) == 0
    assert main(["check", "store", "--spec", str(own), "-o", str(out), "--package", "my_cache"]) == 1
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(out)],
        capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    edit(own, "objects/compressed_kv.yaml", guard % 1, guard % 0)
    assert main(["gen", "--spec", str(own), "--out", str(tmp_path / "my_cache")]) == 0
    done = subprocess.run(done.args, capture_output=True, text=True, check=False,
                          env=os.environ | {"PYTHONPATH": str(tmp_path)})  # fmt: skip
    assert "was generated from another spec; run kvfsm gen --spec SPEC --out my_cache" in done.stdout


def test_a_protocol_without_runtime_is_model_only(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(own, "protocols/machines/block.yaml", "epoch != expected", "epoch < expected")
    out = tmp_path / "broken"
    code = main(["check", "toctou", "--spec", str(own), "-o", str(out)])
    said = capsys.readouterr()
    assert code == 1, said.err
    assert "toctou: model only, as the runtime has no block: nothing to replay" in said.out
    assert not list(out.glob("test_*.py"))
    assert list(out.glob("*.svg"))


def test_bounds_change_on_the_command_line_and_deep(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bounds = ["--bound", "slots=1", "--bound", "readers=1"]
    assert main(["check", "toctou", "--spec", str(own), *bounds, "--json"]) == 1  # two readers share nothing any more
    small = json.loads(capsys.readouterr().out)["protocols"][0]
    assert small["bounds"] == {"slots": 1, "readers": 1}
    text = (own / "protocols" / "toctou.yaml").read_text()
    deep = next(line for line in text.splitlines() if line.startswith("deep:")) if "\ndeep:" in text else ""
    (own / "protocols" / "toctou.yaml").write_text(
        text.replace(f"{deep}\n" if deep else "", "").replace(
            "bounds: {slots: 2, readers: 2}\n", "bounds: {slots: 1, readers: 1}\ndeep: {readers: 2}\n"
        )
    )
    assert main(["check", "toctou", "--spec", str(own), "--deep", "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["protocols"][0]["bounds"] == {"slots": 1, "readers": 2}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["toctuo"], "there is no protocol 'toctuo'; use one of: store, toctou (closest: toctou)"),
        (["toctou", "--bound", "slotz=3"], "E401 there is no bound 'slotz' to change"),
        (["--bound", "slotz=3"], "no protocol has a bound 'slotz'; use one of: readers, slots (closest: slots)"),
        (["toctou", "--bound", "slots=65"], "E116 the slots of instance 'block' is 65"),
        (["toctou", "--bound", "slots"], "--bound takes NAME=N, such as slots=3, not 'slots'"),
        (["toctou", "--bound", "slots=²"], "--bound takes NAME=N, such as slots=3, not 'slots=²'"),
        (["--package", "my-cache"], "--package takes a name to import, such as my_cache, not 'my-cache'"),
        (["--states", "0"], "--states must be more than 0"),
    ],
)
def test_wrong_use_is_2_and_says_what_is_right(
    own: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert main(["check", *arguments, "--spec", str(own)]) == 2
    assert says in capsys.readouterr().err


WITHOUT_A_GPU = Mock(**{"cuda.runtime.getDeviceCount.side_effect": RuntimeError("no driver")})


@pytest.mark.parametrize("module", [None, WITHOUT_A_GPU], ids=["not installed", "no GPU"])
def test_the_engine_cupy_says_what_it_lacks(
    own: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, module: Any
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", module)  # None: as if it were not installed
    assert main(["check", "--engine", "cupy", "--spec", str(own)]) == 2
    says = capsys.readouterr().err
    assert "--engine c" in says
    assert ("needs the package 'cupy' and a GPU" if module is None else "finds no GPU (no driver)") in says


@pytest.mark.parametrize(
    ("before", "after", "code"),
    [
        ("event: unpin", "event: unpinn", "E407"),
        ("block[reader.slot].epoch == reader.seen", "block[reader.slot].epok == reader.seen", "E2"),
        ("do: {slot: 0, seen: 0}\n  allocator", "do: {slot: 0, seen: seen + 1}\n  allocator", "E412"),
    ],
    ids=["a missing event", "a missing field", "an unbounded counter"],
)
def test_a_protocol_with_a_mistake_is_located_and_mended(
    own: Path, capsys: pytest.CaptureFixture[str], before: str, after: str, code: str
) -> None:
    edit(own, "protocols/toctou.yaml", before, after)
    assert main(["check", "toctou", "--spec", str(own)]) == 1
    said = capsys.readouterr().err
    assert f"{own}/protocols/toctou.yaml:" in said
    assert f": {code}" in said
    assert "fix: " in said


def test_a_guard_can_be_deleted_although_a_mutant_names_its_case(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the edit leaves behind is noted, and keeps nothing from being told; lint and the hunt still insist on it."""
    line = "      - {from: [resident, packed, expired], when: holds > 0, refuse: held}\n"
    edit(own, "objects/compressed_kv.yaml", line, "")
    assert main(["check", "store", "--spec", str(own)]) == 1
    said = capsys.readouterr()
    assert "breaks kv.transfer_protects (S3), always:" in said.out
    assert f"note: {own}/objects/compressed_kv.yaml:" in said.err
    assert "E216 mutant 'evict_forgets_loss' names case 3, but 'evict' has 2" in said.err
    assert "`kvfsm lint` says more" in said.err
    assert main(["explore", "toctou", "--spec", str(own), "-o", str(tmp_path / "page.html")]) == 0
    assert "note: " in capsys.readouterr().err
    for command in (["lint"], ["check", "store", "--mutants"]):
        assert main([*command, "--spec", str(own)]) == 1
        assert "moves the numbers of those below it" in "".join(capsys.readouterr())


def test_a_word_that_nobody_uses_any_more_is_a_note(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (own / "vocabulary.yaml").write_text((own / "vocabulary.yaml").read_text().rstrip() + "\n  nobody_says_so: once\n")
    assert main(["check", "toctou", "--spec", str(own), "--states", "10"]) == 1
    said = capsys.readouterr()
    assert "note: " in said.err and "E311 no case refuses as 'nobody_says_so'" in said.err
    assert "INCOMPLETE" in said.out
    assert main(["lint", "--spec", str(own)]) == 1


def test_programs_are_told_what_is_wrong_with_a_spec(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(own, "protocols/toctou.yaml", "event: unpin", "event: unpinn")
    assert main(["check", "--json", "--spec", str(own)]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["ok"], answer["protocols"]) == (False, [])
    (problem,) = answer["problems"]
    assert (problem["code"], problem["file"]) == ("E407", f"{own}/protocols/toctou.yaml")
    assert {"line", "column", "message", "fix"} <= set(problem)


def test_a_model_too_large_is_incomplete_and_says_what_to_lower(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "toctou", "--spec", str(own), "--states", "1000"]) == 1
    said = capsys.readouterr().out
    assert "INCOMPLETE" in said
    assert f"{own}/protocols/toctou.yaml:" in said
    assert "E422 'toctou' is too large to explore" in said
    assert "fix: raise --states or leave it out; or lower bound 'slots', now 2" in said


def test_of_many_counterexamples_the_shortest_is_told_and_the_rest_named(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(own, "protocols/machines/block.yaml", "epoch != expected", "epoch < expected")
    edit(own, "objects/compressed_kv.yaml", "{from: [resident, packed, expired], when: holds > 0, refuse: held}",
         "{from: [resident, packed, expired], when: holds > 1, refuse: held}")  # fmt: skip
    assert main(["check", "--spec", str(own)]) == 1
    said = capsys.readouterr().out
    *_, verdict = said.splitlines()
    counted = re.findall(r"breaks (\S+) in (\d+) steps", said)
    assert len(counted) >= 2
    name, steps = min(counted, key=lambda item: int(item[1]))
    violated = "2 of 2 protocols violated: store, toctou"
    assert re.match(rf"{violated}; the shortest run is that of \w+\.{name}, {steps} steps$", verdict)
    assert len(re.findall(r"^breaks ", said, re.MULTILINE)) == 1, "one story, the shortest"
    assert f"The shortest of {len(counted)} counterexamples (-v prints all" in said
    assert main(["check", "--spec", str(own), "-v"]) == 1
    everything = capsys.readouterr().out
    assert len(re.findall(r"^breaks ", everything, re.MULTILINE)) == len(counted)
    assert everything.splitlines()[-1] == verdict


def test_what_cannot_be_written_is_told_before_the_search(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "afile"
    file.write_text("")
    monkeypatch.setattr(check, "check_protocol", lambda *args, **more: pytest.fail("searched"))
    for asked in (["-o", str(file / "x")], ["-o", str(file)], ["--table", str(file / "x")], ["--table", str(tmp_path)]):
        assert main(["check", "toctou", "--spec", str(own), *asked]) == 1
        assert "kvfsm check: cannot write" in capsys.readouterr().err


def test_an_old_counterexample_goes_when_the_claim_holds(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "broken"
    edit(own, "protocols/machines/block.yaml", "epoch != expected", "epoch < expected")
    assert main(["check", "toctou", "--spec", str(own), "-o", str(out)]) == 1
    assert list(out.glob("toctou.*.json"))
    (out / "notes.txt").write_text("mine")
    (out / "store.kv.transfer_protects.txt").write_text("of a protocol that is not checked now")
    edit(own, "protocols/machines/block.yaml", "epoch < expected", "epoch != expected")
    assert main(["check", "toctou", "--spec", str(own), "-o", str(out)]) == 0
    assert sorted(path.name for path in out.iterdir()) == ["notes.txt", "store.kv.transfer_protects.txt"]
    assert "as the claim holds now" in capsys.readouterr().err


def test_ctrl_c_is_answered_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """By another thread, before the computation ends; and no more when nothing is being checked."""
    with pytest.raises(KeyboardInterrupt), answered("kvfsm check"):
        signal.raise_signal(signal.SIGINT)
        time.sleep(5)
    assert capsys.readouterr().err == "kvfsm check: stopping ...\n"
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
        time.sleep(5)
    assert capsys.readouterr().err == ""


def test_ctrl_c_reports_what_is_known(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(protocol: object, **options: object) -> Report:
        if getattr(protocol, "name", "") == "toctou":
            raise KeyboardInterrupt
        return real_check(protocol, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(check, "check_protocol", stopped)
    assert main(["check", "--spec", str(own)]) == 130
    said = capsys.readouterr()
    assert "store " in said.out
    assert said.err.endswith("kvfsm check: stopped; not looked at: toctou\n")


def test_progress_goes_to_stderr(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check, "_LINE_SECONDS", -1.0)
    assert main(["check", "toctou", "--spec", str(own)]) == 0
    assert "a second, " in capsys.readouterr().err


def test_mutants_are_told_with_what_killed_them(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", "toctou", "--spec", str(own), "--bound", "slots=1", "--mutants", "--json"])
    answer = json.loads(capsys.readouterr().out)
    mutants = {item["name"]: item for item in answer["protocols"][0]["mutants"]}
    assert (mutants["unchecked_pin"]["killed"], mutants["unchecked_pin"]["by"]) == (True, "lease_holds")
    assert mutants["unchecked_pin"]["depth"] == 5
    assert any(name.startswith("toctou reader.") for name in mutants), "faults of steps are made as well"


@pytest.mark.parametrize("options", [[], ["--prove"], ["--mutants"]], ids=["alone", "prove", "mutants"])
def test_what_needs_scipy_says_so(
    own: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    if "--prove" in options:
        pytest.importorskip("z3", reason="needs the package z3-solver")
    monkeypatch.setitem(sys.modules, "scipy.sparse", None)  # as if it were not installed
    assert main(["check", "toctou", "--spec", str(own), *options]) == 1
    says = "checking leads_to needs scipy; fix: pip install 'kvfsm[checking]'"
    told = capsys.readouterr()
    if "--mutants" in options:
        assert told.err == f"kvfsm check: {says}\n"
    else:
        assert f"'reading_ends' unknown: {says}" in told.out


def test_proofs_without_z3_say_so(
    own: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "z3", None)
    assert main(["check", "toctou", "--spec", str(own), "--prove"]) == 2
    assert capsys.readouterr().err == "kvfsm check: --prove needs Z3\n  fix: pip install 'kvfsm[proofs]'\n"


def test_a_fault_that_goes_unnoticed_says_what_to_do() -> None:
    def made(outcome: str) -> Mutant:
        return Mutant("p", False, Catch(f"p a.b: {outcome}", outcome, "p", None, None), None)

    well = list(lines([made(KILLED)]))
    assert well[-1] == "1 mutants: 1 killed, 0 equivalent, 0 not noticed"
    *_, count, meaning, todo = lines([made(KILLED), made(SURVIVES)])
    assert count.endswith("1 not noticed")
    assert meaning == "  survives: runs change, and every claim holds all the same"
    assert "add a claim that breaks with it" in todo and "'equivalent:' with the reason" in todo
    said = "\n".join(lines([made(SAME), made(UNDECIDED)]))
    assert "  without effect: no run changes" in said and "  undecided: too many states" in said


def test_what_is_proved_is_told_as_proved(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("z3", reason="needs the package z3-solver")
    assert main(["check", "toctou", "--spec", str(own), "--prove", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["protocols"]
    how = {item["name"]: item["how"] for item in entry["properties"]}
    assert "proved" in how.values()
    assert how["shared"] == "explored", "that something happens is seen, not proved"
