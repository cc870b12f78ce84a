"""`kvfsm replay`: hit rates worked out by hand and by a plain cache without bounds, small pools, bad lines, faults."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kvfsm.codegen.cli import main
from kvfsm.codegen.cli.replay_compare import UNTOUCHED
from kvfsm.codegen.cli.replay_pools import ample, stand_in
from kvfsm.codegen.cli.replay_report import mapping
from kvfsm.codegen.cli.replay_run import Replay, tiers_of
from kvfsm.codegen.cli.replay_tally import TIERS
from kvfsm.codegen.cli.replay_trace import RequestTrace, read_trace
from kvfsm.runtime.answers import Answer, AnswerKind, Claim, Plan
from kvfsm.runtime.fill import Fill
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.parking import Parking
from kvfsm.runtime.queues import Queues
from kvfsm.runtime.requests import RequestTable
from kvfsm.runtime.scheduler import Work

SLICE = Path(__file__).parents[1] / "data" / "mooncake_slice.jsonl"

Row = tuple[float, int, int, list[int]]


def line(at: float, prompt: int, answer: int, ids: Sequence[int]) -> str:
    fields = {"timestamp": at, "input_length": prompt, "output_length": answer, "hash_ids": list(ids)}
    return json.dumps(fields)


def written(path: Path, rows: Sequence[Row]) -> str:
    file = path / "trace.jsonl"
    file.write_text("".join(f"{line(*row)}\n" for row in rows), "utf-8")
    return str(file)


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["replay", *arguments, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


# ---- hit rates -------------------------------------------------------------------------------------------------------

BY_HAND: list[Row] = [  # blocks of 32 tokens on granules of 16
    (0, 80, 3, [1, 2, 3]),  # nothing is there
    (1, 96, 40, [1, 2, 4]),  # 64 tokens are those of the first
    (2, 64, 0, [1, 2]),  # all are there, and the last token is computed: 48
    (3, 20, 1, [1]),  # a whole granule of 20: 16
    (4, 40, 1, [5, 6]),  # nothing
    (5000, 96, 1, [1, 2, 3]),  # 80 of 96: nobody had the rest of block 3
]


def test_hit_rates_are_those_worked_out_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = written(tmp_path, BY_HAND)
    found = said(capsys, trace, "--model", "tiny_llama", "--block", "32")
    assert (found["ok"], found["complete"], found["requests"], found["violations"]) == (True, True, 6, [])
    assert found["prompt_tokens"] == 80 + 96 + 64 + 20 + 40 + 96
    assert found["reused_tokens"] == 64 + 48 + 16 + 80
    assert found["hit_rate"] == round(208 / 396, 6)
    assert found["by_tier"] == {"memory": 208, "packed": 0, "store": 0}
    assert found["by_kind"]["compressed_kv"]["tokens"] == 208
    assert found["by_kind"]["compressed_kv"]["verdicts"] == {"MISS": 2, "HIT": 4}
    assert found["unbounded_hit_rate"] == round((64 + 64 + 20 + 80) / 396, 6)  # to the token
    assert found["decoded_tokens"] == 3 + 40 + 0 + 1 + 1 + 1
    assert found["evictions"] == {"compressed_kv": 0} and found["rejected"] == {}


def test_windows_and_tails_hit_where_they_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = written(tmp_path, [  # blocks of 64 tokens on granules of 32: kept at 64, 128 and a prompt's last boundary
        (0, 160, 2, [1, 2, 3]),
        (1000, 128, 2, [1, 4]),  # 64
        (2000, 192, 2, [1, 2, 5]),  # 128
        (3000, 150, 2, [1, 2, 3]),  # 128
        (4000, 64, 2, [1]),  # KV of 32 is there, but no window at 32
    ])  # fmt: skip
    found = said(capsys, trace, "--model", "tiny-deepseek-v4", "--block", "64")
    assert found["reused_tokens"] == 64 + 128 + 128
    assert {kind: one["tokens"] for kind, one in found["by_kind"].items()} == {
        "compressed_kv": 352, "indexer_state": 352, "uncompressed_tail": 320, "swa_window": 320,
    }  # fmt: skip
    assert found["chunk"] == 64 and found["mapping"] == "each block of 64 tokens is cut into 2 granules of 32"
    finer = said(capsys, trace, "--model", "tiny-deepseek-v4", "--block", "64", "--chunk", "32")
    assert finer["reused_tokens"] == 64 + 128 + 128 + 32


def far_apart(path: Path, rows: Sequence[dict[str, Any]]) -> str:
    """The same requests, each of which comes when the one before has ended."""
    file = path / "apart.jsonl"
    file.write_text("".join(json.dumps(row | {"timestamp": 100_000 * n}) + "\n" for n, row in enumerate(rows)), "utf-8")
    return str(file)


def without_bounds(rows: Sequence[dict[str, Any]], granule: int, kept_every: int | None) -> int:
    """Reused tokens of a cache that never evicts; windows are kept every so many tokens, None: there are none."""
    filled: dict[int, int] = {}  # tokens of each block that somebody had
    kept: set[tuple[int, int]] = set()
    reused = 0
    for row in rows:
        ids, length = row["hash_ids"], row["input_length"]
        shared = 0
        for place, name in enumerate(ids):
            here = min(512, length - 512 * place)
            shared += min(here, filled.get(name, 0))
            if filled.get(name, 0) < 512:
                break
        most = min(shared, length - 1) // granule
        if kept_every is not None:
            while most and (most, ids[(most * granule - 1) // 512]) not in kept:
                most -= 1
            last = length // granule
            ends = {*range(0, last + 1, kept_every // granule), last} - {0}
            kept |= {(end, ids[(end * granule - 1) // 512]) for end in ends}
        reused += most * granule
        for place, name in enumerate(ids):
            filled[name] = max(filled.get(name, 0), min(512, length - 512 * place))
    return reused


@pytest.mark.parametrize(
    ("model", "kept_every", "limit"),
    [("llama", None, 250), ("deepseek_v32", None, 250), ("deepseek_v4_flash", 512, 120)],
)
def test_ample_pools_reuse_what_a_cache_without_bounds_does(
    model: str, kept_every: int | None, limit: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [json.loads(text) for text in SLICE.read_text("utf-8").splitlines()][:limit]
    found = said(capsys, far_apart(tmp_path, rows), "--model", model)
    assert found["reused_tokens"] == without_bounds(rows, PROFILES[model].granule, kept_every) > 0
    assert sum(found["evictions"].values()) == 0 and found["boundaries_lost"] == 0


def test_windows_in_blocks_hit_wherever_the_chain_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [json.loads(text) for text in SLICE.read_text("utf-8").splitlines()][:60]
    found = said(capsys, far_apart(tmp_path, rows), "--model", "gpt_oss")
    assert found["reused_tokens"] == without_bounds(rows, 16, None)
    assert sum(found["evictions"].values()) == 0 and found["boundaries_lost"] == 0


def test_live_requests_beside_each_other_change_no_hit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = written(tmp_path, BY_HAND)
    rates = {
        said(capsys, trace, "--model", "tiny_llama", "--block", "32", "--requests", str(count))["hit_rate"]
        for count in (1, 2, 8)
    }
    assert rates == {round(208 / 396, 6)}


# ---- the slice -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["deepseek_v4_flash", "tiny_gemma3"])
def test_the_slice_replays_under_pressure_and_its_events_are_steps_of_the_model(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    room = {"deepseek_v4_flash": "400", "tiny_gemma3": "9000"}[model]
    events = str(tmp_path / "events.jsonl")
    arguments = [str(SLICE), "--model", model, "--slots", room, "--limit", "30", "--audit", "3", "--trace-out", events]
    found = said(capsys, *arguments)
    assert found["ok"] and found["complete"] and found["audits"] >= 10
    assert found["requests"] + len(found["rejections"]) == 30
    assert all(found["evictions"].values())
    assert main(["validate", events]) == 0


def test_less_memory_means_fewer_hits(capsys: pytest.CaptureFixture[str]) -> None:
    rates = []
    for memory in ("5e9", "20e9", "80e9"):
        found = said(capsys, str(SLICE), "--model", "deepseek_v4_flash", "--limit", "60", "--memory", memory)
        assert found["ok"] and found["slots_bytes"] <= float(memory)
        rates.append(found["hit_rate"])
    assert rates == sorted(set(rates))


# ---- tiers -----------------------------------------------------------------------------------------------------------


def test_what_a_store_kept_is_a_hit_after_a_restart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, store = written(tmp_path, BY_HAND[:1] + BY_HAND[4:5]), str(tmp_path / "store")
    arguments = [trace, "--model", "tiny_llama", "--block", "32", "--store", store, "--slots", "20"]
    events = str(tmp_path / "events.jsonl")
    assert main(["replay", *arguments]) == 0
    out = capsys.readouterr().out
    assert "store        held 0 objects at the start\n" in out and "from         memory 0.00 %" in out
    again = said(capsys, *arguments, "--trace-out", events)
    assert again["store_objects"] == 5 + 2  # granules
    assert again["by_tier"] == {"memory": 0, "packed": 0, "store": 64 + 32}  # all but the last granule
    assert again["hit_rate_by_tier"] == {"memory": 0.0, "packed": 0.0, "store": round(96 / 120, 6)}
    kv, stored = again["by_kind"]["compressed_kv"], again["by_kind"]["ondisk_prefix"]
    assert kv["tokens"] == stored["tokens"] == 96 and kv["hit_rate"] == stored["hit_rate"] == again["hit_rate"]
    assert kv["from"] == stored["from"] == {"memory": 0, "packed": 0, "store": 96}
    assert kv["verdicts"] == {"PENDING": 2} and stored["verdicts"] == {"HIT": 2}
    waits = again["waits"]
    assert (waits["disk"]["count"], waits["resident"]["count"], waits["all"]["count"]) == (2, 0, 2)
    assert again["in_queues_ms"]["disk"] > 0
    assert main(["replay", *arguments]) == 0
    out = capsys.readouterr().out
    assert f"held {again['store_objects']} objects at the start, of earlier runs: what they share" in out
    assert "store 80.00 % (96 tokens)" in out and "store says   HIT 2" in out
    assert again["ok"] and main(["validate", events]) == 0
    assert main(["store", "fsck", store]) == 0


def test_what_has_ended_is_packed_and_comes_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = written(tmp_path, [(0, 80, 1, [1, 2, 3]), (9999, 80, 1, [1, 2, 3])])
    found = said(capsys, trace, "--model", "tiny_llama", "--block", "32", "--cold", "10")
    assert found["by_tier"] == {"memory": 0, "packed": 64, "store": 0}
    assert found["ok"] and found["packed_granules"] >= 5


def answer_of(now: int, plan: Plan | None) -> Answer:
    return Answer(AnswerKind.HIT_PENDING, 0, now, True, None, None, "", "", plan=plan)


def test_a_granule_counts_where_its_slowest_object_lay() -> None:
    import numpy as np

    def plan(wanted: dict[str, list[int]], expand: range) -> Plan:
        return Plan(Claim([], b"", ()), 6, {kind: np.array(places) for kind, places in wanted.items()}, expand, 99, 6)

    kinds = ("compressed_kv", "indexer_state", "swa_window")

    def lay(plan: Plan | None, reused: int) -> dict[str, tuple[int, ...]]:
        each, slowest = tiers_of(answer_of(32, plan), reused, 16, kinds)
        found = {kind: tuple(tiers[tier] for tier in TIERS) for kind, tiers in (each | {"all": slowest}).items()}
        assert {sum(tiers) for tiers in found.values()} == {reused}
        return found

    assert set(lay(None, 32).values()) == {(32, 0, 0)}
    packed = lay(plan({}, range(2, 5)), 80)
    assert packed["compressed_kv"] == packed["all"] == (32, 48, 0) and packed["indexer_state"] == (80, 0, 0)
    both = plan({"compressed_kv": [4, 5], "indexer_state": [3, 4, 5]}, range(2, 4))
    found = lay(both, 96)
    assert found["compressed_kv"] == (32, 32, 32) and found["indexer_state"] == (48, 0, 48)
    assert found["all"] == (32, 16, 48) and found["swa_window"] == (96, 0, 0)
    window = plan({"swa_window": [6]}, range(0))
    assert lay(window, 96)["all"] == lay(window, 96)["swa_window"] == (32, 0, 64)  # nothing behind 32 without it
    assert lay(window, 80)["all"] == (80, 0, 0)  # it goes on from another boundary after all
    assert lay(both, 32)["all"] == (32, 0, 0)  # it could not be loaded


# ---- too little room -------------------------------------------------------------------------------------------------


def test_short_traces_are_audited_as_they_go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = written(tmp_path, BY_HAND)
    audits = [
        said(capsys, trace, "--model", "tiny_llama", "--block", "32", *given)["audits"]
        for given in ([], ["--audit", "4"], ["--audit", "0"])
    ]
    assert audits == [6 + 1, 1 + 1, 1]


def test_a_pool_far_too_small_rejects_by_name_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = written(tmp_path, BY_HAND)
    found = said(capsys, trace, "--model", "tiny_llama", "--block", "32", "--slots", "4")
    assert found["ok"] and found["complete"]
    assert found["requests"] == 3 and found["rejected"] == {"CAPACITY": 3}  # lines 3, 4 and 5 fit in 64 tokens
    first = found["rejections"][0]
    assert first["line"] == 1
    assert first["why"] == "CAPACITY at pool: 5 slots of compressed_kv, and the pool has 4"
    assert main(["replay", trace, "--model", "tiny_llama", "--block", "32", "--slots", "4"]) == 0
    out = capsys.readouterr().out
    assert "3 rejected (CAPACITY 3)" in out and "    line 1: CAPACITY at pool: 5 slots of compressed_kv" in out
    assert "held" not in out and "more; --json" not in out  # no store, and all are told


def test_of_many_that_are_rejected_the_first_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = written(tmp_path, BY_HAND[:1] * 7)
    assert main(["replay", trace, "--model", "tiny_llama", "--block", "32", "--slots", "4"]) == 0
    out = capsys.readouterr().out
    assert out.count("CAPACITY at pool") == 5 and "    and 2 more; --json has all\n" in out


def test_a_comparison_without_a_look_at_the_store_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["replay", written(tmp_path, BY_HAND), "--model", "tiny_llama", "--block", "32", "--compare"]
    picture = tmp_path / "queues.svg"
    assert main([*arguments, "-o", str(picture)]) == 0
    for text in (capsys.readouterr().out, picture.with_suffix(".md").read_text("utf-8")):
        assert text.count(UNTOUCHED) == 2  # in each scenario
    assert main([*arguments, "--slots", "8"]) == 0
    assert UNTOUCHED not in capsys.readouterr().out


def test_waits_and_limits_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = written(tmp_path, [(0, 320, 2, list(range(10))), (0, 320, 2, list(range(20, 30)))])
    arguments = [trace, "--model", "tiny_llama", "--block", "32", "--requests", "1", "--prefill", "1000"]
    found = said(capsys, *arguments)
    assert found["in_flight"]["requests"] == {"most": 1, "limit": 1} and found["deferred"] == 1
    first = 20.0 + 320.0 + 2 * 20.0  # a step of all of its prompt, and two of a token each
    assert found["waits"]["resident"] == {"count": 2, "mean": first / 2, "p50": 0.0, "p99": first, "max": first}
    assert found["waits"]["all"] == found["waits"]["resident_only"] == found["waits"]["resident"]
    assert found["waits"]["disk"]["count"] == 0 and found["virtual_seconds"] == round(2 * first / 1000, 3)
    gone = said(capsys, *arguments, "--give-up", "200")
    assert (gone["requests"], gone["cancelled"], gone["live"]) == (1, 1, 0)
    assert main(["replay", *arguments]) == 0
    out = capsys.readouterr().out
    assert "at most 1 of 1 requests" in out and "resident 2 requests: mean 190 ms, p50 0, p99 380, max 380" in out


def test_more_room_than_a_trace_needs_is_not_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = written(tmp_path, BY_HAND)
    sizes = [
        said(capsys, trace, "--model", "tiny_deepseek_v4", "--block", "32", *room)["slots"]
        for room in ([], ["--slots", "1000000000"], ["--memory", "1e15"])
    ]
    assert sizes[0] == sizes[1] == sizes[2] and max(sizes[0].values()) < 100


def test_who_finds_no_room_waits_for_somebodys_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = written(tmp_path, [(0, 60, 2, [1, 2]), (0, 60, 2, [3, 4]), (0, 10, 2, [5])])
    found = said(capsys, trace, "--model", "tiny_llama", "--block", "32", "--slots", "5")
    assert (found["requests"], found["deferred"], found["preempted"]) == (3, 1, 0)


def test_the_youngest_gives_way_when_a_token_finds_no_room(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = written(tmp_path, [(0, 30, 40, [1]), (0, 30, 40, [2])])
    found = said(capsys, trace, "--model", "tiny_llama", "--block", "32", "--slots", "5")
    assert (found["requests"], found["rejected"], found["preempted"]) == (2, {}, 1)
    assert found["reused_tokens"] == 0  # what it had published itself is no hit
    assert found["decoded_tokens"] == 80


def test_who_outgrows_the_pool_alone_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = written(tmp_path, [(0, 30, 40, [1]), (0, 30, 90, [2]), (0, 30, 1, [3])])
    found = said(capsys, trace, "--model", "tiny_llama", "--block", "32", "--slots", "5")
    assert (found["requests"], found["rejected"]) == (2, {"CAPACITY": 1})
    assert found["rejections"][0]["line"] == 2 and found["complete"]


# ---- faults ----------------------------------------------------------------------------------------------------------


def test_a_manager_that_forgets_to_unpin_is_seen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Parking, "_unpin", lambda self, receipt: None)
    arguments = [str(SLICE), "--model", "llama", "--limit", "20", "--audit", "5"]
    found = said(capsys, *arguments, code=1)
    assert found["ok"] is False and found["violations"][0]["text"].startswith("S3: ")
    assert main(["replay", *arguments]) == 1
    assert capsys.readouterr().out.startswith("WRONG: ")


def test_bytes_that_change_under_a_reader_are_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish = RequestTable.publish

    def spoil(self: RequestTable, row: int, *given: Any, **named: Any) -> int:
        shared = publish(self, row, *given, **named)
        slot = self.table("compressed_kv", [row])[0, 0]
        self._manager.core.pools["compressed_kv"].arena.bytes[slot, 0] ^= 1
        return shared

    monkeypatch.setattr(RequestTable, "publish", spoil)
    found = said(capsys, written(tmp_path, BY_HAND[:2]), "--model", "tiny_llama", "--block", "32", code=1)
    assert found["violations"][0]["text"].startswith("S5: slot ")


def test_a_checkpoint_that_changes_before_it_is_gone_on_from_is_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish = Manager.publish

    def spoil(self: Manager, fill: Fill) -> None:
        publish(self, fill)
        self.core.pools["uncompressed_tail"].arena.bytes[fill.slots["uncompressed_tail"], 0] ^= 1

    trace = written(tmp_path, [(0, 160, 2, [1, 2, 3]), (1000, 128, 2, [1, 4])])
    arguments = [trace, "--model", "tiny-deepseek-v4", "--block", "64"]
    assert said(capsys, *arguments)["violations"] == []
    monkeypatch.setattr(Manager, "publish", spoil)
    found = said(capsys, *arguments, code=1)
    assert "of uncompressed_tail was given out for another prefix" in found["violations"][0]["text"]


def test_requests_that_wait_for_ever_are_a_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Queues, "turns", lambda self, queue, budget, **given: iter(()))
    found = said(capsys, written(tmp_path, BY_HAND), "--model", "tiny_llama", "--block", "32", code=1)
    assert found["violations"][0]["text"].startswith("T1: 6 requests wait") and found["complete"] is False
    assert (found["requests"], found["live"]) == (0, 6)


def test_a_refusal_that_is_not_for_room_is_a_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish = RequestTable.publish

    def forget(self: RequestTable, row: int, *given: Any, **named: Any) -> int:
        self._rows.epoch[row] -= 1
        return publish(self, row, *given, **named)

    monkeypatch.setattr(RequestTable, "publish", forget)
    found = said(capsys, written(tmp_path, BY_HAND), "--model", "tiny_llama", "--block", "32", code=1)
    assert "EPOCH" in found["violations"][0]["text"] and found["complete"] is False


def test_ctrl_c_reports_what_is_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin = Replay._begin

    def interrupted(self: Replay, work: Work) -> None:
        begin(self, work)
        if work.live.number == 2:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Replay, "_begin", interrupted)
    before = signal.getsignal(signal.SIGINT)
    arguments = [written(tmp_path, BY_HAND), "--model", "tiny_llama", "--block", "32", "--audit", "0"]
    found = said(capsys, *arguments, code=130)
    assert (found["ok"], found["complete"], found["prompt_tokens"], found["reused_tokens"]) == (True, False, 300, 128)
    assert found["audits"] == 1 and signal.getsignal(signal.SIGINT) is before


# ---- lines -----------------------------------------------------------------------------------------------------------

GOOD = line(10, 600, 1, [1, 2])


@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        ("hello", "this is no JSON: ", "give one object a line, such as {"),
        ("[1]", "this is a list and no object", "give one object a line"),
        (GOOD.replace("input_length", "input_lenght"), "'input_length' is missing", "rename 'input_lenght'"),
        ('{"timestamp": 1}', "'input_length' is missing", "add it, as in {"),
        ('{"timestamp": 1, "input_length": 600}', "'output_length' is missing", "add it, as in {"),
        (line(10, 0, 1, []), "'input_length' is 0", "give tokens of the prompt, 1 to "),
        (line(10, 600, -1, [1, 2]), "'output_length' is -1", "give tokens of the answer"),
        (GOOD.replace("600", "600.5"), "'input_length' is 600.5", "give tokens of the prompt"),
        (GOOD.replace("600", "true"), "'input_length' is true", "give tokens of the prompt"),
        (GOOD.replace("10,", "NaN,"), "'timestamp' is NaN", "give milliseconds"),
        (GOOD.replace("[1, 2]", "[1, null]"), "'hash_ids' is [1, null]", "an id for each block"),
        (line(10, 600, 1, [1]), "600 tokens in blocks of 512 are 2 blocks, and 'hash_ids' has 1",
         "--block; 600 would fit this line"),
        (line(10, 600, 1, [1, 2, 3]), "600 tokens in blocks of 512 are 2 blocks, and 'hash_ids' has 3",
         "--block; 200 to 299 would fit this line"),
        (line(9, 600, 1, [1, 2]), "'timestamp' is 9, after 10", "sort the lines by their timestamps"),
    ],
)  # fmt: skip
def test_a_wrong_line_is_told_with_its_place_and_a_fix(
    text: str, message: str, fix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(f"{GOOD}\n\n{text}\n", "utf-8")
    assert main(["replay", str(file), "--model", "tiny_llama", "--json"]) == 1
    out, err = capsys.readouterr()
    first, second = err.splitlines()
    assert first.startswith(f"{file}:3: {message}")
    assert second.startswith("  fix: ") and fix in second
    found = json.loads(out)
    assert found["ok"] is False and [problem["line"] for problem in found["problems"]] == [3]


def test_many_wrong_lines_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text("x\n" * 13, "utf-8")
    assert main(["replay", str(file), "--model", "tiny_llama"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "and 3 more"


def test_an_empty_trace_is_a_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.jsonl").touch()
    assert main(["replay", str(tmp_path / "empty.jsonl"), "--model", "tiny_llama"]) == 1
    assert "the trace holds no request" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["{trace}", "--model", "lama"], "there is no profile 'lama'; --model takes "),
        (["{folder}/none", "--model", "llama"], "can't be read"),
        (["{folder}", "--model", "llama"], "can't be read"),
        (["{trace}", "--model", "llama", "--slots", "0"], "give at least 1"),
        (["{trace}", "--model", "llama", "--slots", "9", "--memory", "9"], "not allowed with"),
        (["{trace}", "--model", "llama", "--memory", "1e6"], "one request and 512 tokens of a prefix take "),
        (["{trace}", "--model", "llama", "--memory", "lots"], "no number of bytes"),
        (["{trace}", "--model", "llama", "--requests", "5000"], "give at most 1000"),
        (["{trace}", "--model", "llama", "--chunk", "100"], "not a multiple of the granule 16; give 112"),
        (["{trace}", "--model", "llama", "--store", "{trace}"], "give another --store DIR"),
        (["{trace}", "--model", "llama", "--disk", "0"], "give a number above 0"),
        (["{trace}", "--model", "llama", "--stall", "9:8"], "give the earlier time first"),
        (["{trace}", "--model", "llama", "--stall", "9"], "such as 20000:30000"),
        (["{trace}", "--model", "llama", "--stall", "8:9"], "give --store DIR or --compare"),
        (["{trace}", "--model", "llama", "-o", "queues.svg"], "give both"),
        (["{trace}", "--model", "llama", "--compare", "--store", "x"], "leave out --store"),
        (["{trace}", "--model", "llama", "--compare", "-o", "{trace}/a/b.svg"], "give another -o FILE.svg"),
        (["{trace}", "--model", "llama", "--compare", "-o", "{folder}/b.md"], "says otherwise"),
        (["{trace}", "--model", "llama", "--trace-out", "{folder}/a/b"], "give another --trace-out FILE"),
    ],
)
def test_wrong_use_is_2(given: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(f"{GOOD}\n", "utf-8")
    assert main(["replay", *(text.format(trace=trace, folder=tmp_path) for text in given)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and told in err


# ---- what a trace means ----------------------------------------------------------------------------------------------


def read(*rows: Row, block: int = 32) -> RequestTrace:
    return read_trace("trace", [line(*row) for row in rows], block)


def test_prompts_agree_as_far_as_their_ids_do() -> None:
    trace = read((0, 80, 1, [7, 8, 9]), (0, 80, 1, [7, 8, 5]))
    first, second = (trace.tokens(asked).tolist() for asked in trace.requests)
    assert len(first) == len(second) == 80
    assert first[:64] == second[:64] and not set(first[64:]) & set(second[64:])
    answers = {*trace.answer(trace.requests[0]).tolist(), *trace.answer(trace.requests[1]).tolist()}
    assert len(answers) == 2 and not answers & {*first, *second}
    assert trace.shared() == [0, 64]


def test_an_id_behind_others_is_another_prefix() -> None:
    trace = read((0, 64, 0, [1, 2]), (0, 64, 0, [3, 2]))
    assert (trace.ids, trace.prefixes, trace.shared()) == (3, 4, [0, 0])


def test_a_granule_longer_than_a_block_joins_blocks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = written(tmp_path, [
        (0, 40, 0, [1, 2, 3, 4, 5]), (100, 33, 0, [1, 2, 3, 6, 7]), (200, 40, 0, [1, 2, 3, 4, 8]),
    ])  # fmt: skip
    found = said(capsys, trace, "--model", "tiny_llama", "--block", "8")
    assert found["mapping"].startswith("2 blocks of 8 tokens are joined to a granule of 16")
    assert found["reused_tokens"] == 16 + 32
    assert "straddle" in mapping(24, 16)


def test_the_stand_in_decides_as_the_profile_does() -> None:
    for name in PROFILES:
        profile, narrow = PROFILES[name], stand_in(PROFILES[name])
        assert (narrow.groups, narrow.granule, narrow.window_slots) == (
            profile.groups, profile.granule, profile.window_slots)  # fmt: skip
        assert narrow.kinds == profile.kinds and narrow.identity != profile.identity
        assert all(narrow.layouts[kind].slot_bytes <= 2048 for kind in narrow.kinds)
        assert ample(read((0, 80, 1, [7, 8, 9])), profile, 512, 4).keys() == set(profile.kinds)
