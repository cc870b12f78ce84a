"""`kvfsm demo` as a user runs it: a command, its exit code, its JSON."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from kvfsm.spec.checking.traces.validate import Validator

REPO = Path(__file__).parents[2]


def run_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvfsm.codegen", "demo", *arguments]
    return subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False, timeout=300)


def test_demo_as_json_is_bit_identical_and_names_all_five_objects(tmp_path: Path, validator: Validator) -> None:
    events = tmp_path / "events.jsonl"
    done = run_demo("--model", "tiny-deepseek-v4", "--json", "--keep", str(tmp_path / "store"), "--trace", str(events))
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads(done.stdout)
    assert data["ok"] is True and data["spec"]["differing"] == []
    (model,) = data["models"]
    assert model["model"] == "tiny-deepseek-v4" and model["bit_identical"] is True and model["faults"] == []
    rounds = {request["round"] for request in model["requests"]}
    assert rounds == {"warm", "new process", "packed", "checkpoint(64)", "no windows", "packed to FP8"}
    for request in model["requests"]:
        assert list(request["objects"]) == [
            "compressed_kv", "uncompressed_tail", "swa_window", "indexer_state", "ondisk_prefix",
        ]  # fmt: skip
        assert request["reused"] + request["recomputed"] == request["tokens"]
        if request["exact"]:
            assert request["bit_identical"], request
    fresh = [request for request in model["requests"] if request["round"] == "new process"]
    assert [request["answer"] for request in fresh].count("HIT_PENDING") >= 1
    assert any(request["objects"]["ondisk_prefix"] in ("HIT", "PENDING") for request in fresh)
    assert sum(request["reused"] for request in fresh) > 5 * 64
    approximate = [request for request in model["requests"] if request["round"] == "no windows" and request["reused"]]
    assert approximate and all(not request["exact"] and request["logits_error"] < 1e-4 for request in approximate)
    assert any((tmp_path / "store").rglob("*.segment"))
    for path, least in ((events, 800), (tmp_path / "events.jsonl.new-process", 100)):
        with open(path, encoding="utf-8") as lines:
            verdict = validator.validate(lines)
        assert verdict.ok, verdict.first_illegal
        machines = {machine for machine, _, _ in verdict.taken}
        assert verdict.events > least and verdict.dropped == 0 and len(machines - {"ticket"}) == 5


def test_an_unknown_model_is_used_wrongly() -> None:
    done = run_demo("--model", "tiny-llama")
    assert done.returncode == 2
    assert "tiny-deepseek-v4" in done.stderr


def test_the_example_of_the_readme_runs() -> None:
    text = (REPO / "runtime" / "integrations" / "README.md").read_text("utf-8")
    example, _ = re.findall(r"```python\n(.*?)```", text, re.DOTALL)  # the other one is of ranks: test_torch_ranks.py
    checked = example + "\nassert warm.shape == cold.shape == (1, 4, 256)\n"
    done = subprocess.run([sys.executable, "-c", checked], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
