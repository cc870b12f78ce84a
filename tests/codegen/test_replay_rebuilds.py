"""A replay whose pool of indexer keys is too small computes keys alone, and its time and its report say so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvfsm.codegen.cli import main, replay_setting
from kvfsm.codegen.cli.replay_tags import Tagger
from kvfsm.runtime.manager import Manager

A = 32  # tokens of a granule of tiny_deepseek_v32, and of a block here
ROWS = [(0, 10), (5000, 20), (10000, 10), (15000, 20)]  # two prompts of ten granules, in turn


def said(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *options: str, code: int = 0
) -> dict[str, Any]:
    """What a replay says, with room for the keys of one prompt and a half."""

    def scarce(profile: Any, slots: dict[str, int], *given: Any, **more: Any) -> Manager:
        return Manager(profile, {**slots, "indexer_state": 16}, *given, **more)

    monkeypatch.setattr(replay_setting, "Manager", scarce)
    trace = path / "trace.jsonl"
    rows = [
        {"timestamp": at, "input_length": 10 * A, "output_length": 1, "hash_ids": list(range(first, first + 10))}
        for at, first in ROWS
    ]
    trace.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    assert main(["replay", str(trace), "--model", "tiny_deepseek_v32", "--block", str(A), "--json", *options]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_keys_alone_are_computed_of_entries_that_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = said(tmp_path, capsys, monkeypatch)
    assert found["violations"] == [] and found["requests"] == 4
    assert found["evictions"]["compressed_kv"] == 0 and found["evictions"]["indexer_state"] > 0
    # Each comes twice. The second time all its entries are there, but for the granule of its last token, and few keys.
    assert found["reused_tokens"] == 2 * 9 * A
    assert found["rebuilt_tokens"] == found["computed_tokens"] - 2 * 10 * A - 2 * A > 0
    assert found["waits"]["indexer"]["count"] == 2


def test_pieces_are_no_larger_than_a_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = said(tmp_path, capsys, monkeypatch)
    pieces = said(tmp_path, capsys, monkeypatch, "--step-tokens", str(A))
    assert pieces["rebuilt_tokens"] == whole["rebuilt_tokens"] and pieces["violations"] == []
    assert pieces["steps"] > whole["steps"]


def test_entries_of_another_prefix_would_be_found_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look at what keys are computed from is no ornament."""
    real = Tagger.write

    def write(self: Tagger, kind: str, *given: Any) -> None:
        if kind != "compressed_kv":
            real(self, kind, *given)

    monkeypatch.setattr(Tagger, "write", write)
    found = said(tmp_path, capsys, monkeypatch, code=1)
    assert any("for its keys" in one["text"] for one in found["violations"])
