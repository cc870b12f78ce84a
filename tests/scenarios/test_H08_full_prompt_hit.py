"""H-08: of a prompt that is found whole, the last granule is computed anew, on state of exactly the length before it.

The tail, the window and the entries that are restored all end at the hit; the request then has as many tokens as the
prompt in every kind, and no position was written twice.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvfsm.runtime import matching

PROMPT = 1024


def scenario(bench: Any, granule: int, block: int, window: int, hit: int) -> None:
    profile = bench.profile(
        granule, bench.group("compressed", "compressed_kv", granule, granule, ratio=4), bench.tail(4, granule),
        bench.window(block, block), window=window, window_policy="blocks", window_block=block, scores="raw",
    )  # fmt: skip
    manager = bench.manager(profile, 160)
    keys = manager.keys(bench.tokens(PROMPT))
    for place in range(len(keys)):
        bench.put(manager, keys, place, place + 1, tag=1)
    cached = bench.slots(manager, "compressed_kv", keys, 0, len(keys))

    answer = manager.match(keys, PROMPT)
    # sign of the defect: a hit of 1024, after which the last token is applied a second time
    assert (answer.length, PROMPT - answer.length) == (hit, PROMPT - hit)
    lease = manager.acquire(answer)
    assert lease.length == hit
    row = manager.requests.admit(hit, lease=lease)
    restored = manager.requests.coverage(row)
    assert (restored.tokens, restored.entries, restored.tail) == (hit, {4: hit // 4}, range(hit, hit))
    written = []
    for position in range(hit, PROMPT):
        manager.requests.step([row])
        written.append(manager.requests.resolve(row, position))
    covered = manager.requests.coverage(row)
    # sign of the defect: 1025 tokens in any kind
    assert (covered.tokens, covered.gaps, covered.entries) == (PROMPT, (), {4: PROMPT // 4})
    assert (covered.tail, covered.window.stop) == (range(PROMPT, PROMPT), PROMPT)
    recent = written[-block:]
    assert len(set(recent)) == len(recent)
    table = manager.requests.table("compressed_kv", [row])[0].tolist()
    assert len(table) == PROMPT // granule and table[: hit // granule] == cached[: hit // granule]
    assert not set(table[hit // granule :]) & set(cached)  # what is computed never goes where sealed bytes lie
    with manager.acquire(manager.match(keys, PROMPT)) as lease:
        assert (lease.view("compressed_kv", "rows", 0) == 1).all()
    bench.audited(manager)


def test_H08_the_last_block_is_computed_anew(bench: Any) -> None:
    scenario(bench, granule=16, block=16, window=64, hit=1008)


def test_H08_the_last_granule_of_a_hybrid_model_is_computed_anew(bench: Any) -> None:
    scenario(bench, granule=256, block=64, window=128, hit=768)


def test_H08_control_a_hit_of_the_whole_prompt_is_noticed(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "whole_block", lambda tokens, granule: tokens // granule)
    with pytest.raises(AssertionError, match="1024"):
        scenario(bench, granule=16, block=16, window=64, hit=1008)
