"""H-06: rounding down to the common granule is right, and hiding it is not.

Groups with blocks of 128, 4096, 32, 2 and 8 tokens share whole blocks at multiples of 4096 only. A prompt that holds no
such multiple before its last token is a miss with the reason GRANULE, and the message has the number.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvfsm.runtime import matching

GRANULE = 4096


def scenario(bench: Any) -> None:
    spans = (128, 4096, 32, 8)
    groups = [bench.group(f"s{span}", "compressed_kv", GRANULE, span, (n,)) for n, span in enumerate(spans)]
    profile = bench.profile(GRANULE, *groups, bench.tail(2, 2, (4,)), scores="raw")
    assert profile.lcm == profile.report().granule == GRANULE
    manager = bench.manager(profile, 16)
    for seed, (tokens, hit) in enumerate(((2048, 0), (4096, 0), (4097, 4096), (12000, 8192))):
        keys = manager.keys(bench.tokens(tokens, seed))
        row = manager.requests.admit(tokens)  # sealed as far as it fills granules
        assert manager.requests.publish(row, keys) == tokens // GRANULE
        manager.requests.finish(row)
        if len(keys):
            bench.put(manager, keys, 0, len(keys))
        answer = manager.match(keys, tokens)
        # sign of the defect: 2048, or another length that only the fine groups can hold
        assert answer.length == hit
        if not hit:
            assert (answer.kind, answer.reason, answer.layer) == ("MISS", "GRANULE", "whole block")
            assert f"A={GRANULE}" in answer.detail and str(tokens) in answer.detail
    assert manager.layers.refused["whole block"] == 2
    bench.audited(manager)


def test_H06_a_miss_for_want_of_a_granule_says_so(bench: Any) -> None:
    scenario(bench)


def test_H06_control_a_hit_of_the_whole_prompt_is_noticed(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "whole_block", lambda tokens, granule: tokens // granule)
    with pytest.raises(AssertionError, match="4096"):
        scenario(bench)
