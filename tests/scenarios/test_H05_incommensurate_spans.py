"""H-05: spans that don't divide one another make the granule long; that is computed, reported, and never cheated."""

from __future__ import annotations

from typing import Any

import pytest

from kvfsm.runtime.profile import ProfileError, granule_report


def two_spans(bench: Any, granule: int, draft_span: int) -> Any:
    return bench.profile(
        granule,
        bench.group("target", "compressed_kv", granule, 1536, layers=(0,)),
        bench.group("draft", "compressed_kv", granule, draft_span, layers=(1,)),
    )


def test_H05_hits_are_multiples_of_the_granule_in_force(bench: Any) -> None:
    profile = two_spans(bench, 13824, 3456)
    manager = bench.manager(profile, 8)
    keys = manager.keys(bench.tokens(69000))
    bench.put(manager, keys, 0, len(keys))
    answer = manager.match(keys, 69000)
    # sign of the defect: 67584, which is no multiple of 3456
    assert answer.length == 55296 and answer.length % 3456 == 0
    assert "A=13824" in answer.detail
    assert profile.report().granule == 13824 and "WARNING" in profile.report().text


def test_H05_a_padded_span_brings_the_granule_down(bench: Any) -> None:
    profile = two_spans(bench, 1536, 768)
    manager = bench.manager(profile, 64)
    keys = manager.keys(bench.tokens(69000))
    bench.put(manager, keys, 0, len(keys))
    assert manager.match(keys, 69000).length == 67584
    assert "WARNING" not in profile.report().text


def test_H05_incommensurate_spans_can_be_refused(bench: Any) -> None:
    with pytest.raises(ProfileError, match="A=13824"):
        granule_report([1536, 3456], incommensurate="refuse")
    with pytest.raises(ProfileError, match="granule 1536 is not a multiple"):
        two_spans(bench, 1536, 3456)
