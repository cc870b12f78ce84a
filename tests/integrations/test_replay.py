"""Windows rebuilt from tokens: right to rounding once every layer's reach is replayed, and called approximate."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvfsm.codegen.cli.demo_runs import compare
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.integrations import tiny_models
from kvfsm.runtime.integrations.cache_state import capture, greatest_error
from kvfsm.runtime.integrations.replay import frozen, run_frozen
from kvfsm.runtime.integrations.transformers import Mismatch
from kvfsm.runtime.policy import replay_range

from .conftest import Subject

SubjectOf = Callable[[str], Subject]
ROUNDING = 1e-5  # float32, sums in another order over five layers


@pytest.mark.parametrize("length", [96, 128, 160])
@pytest.mark.parametrize("name", ["tiny-deepseek-v4", "tiny-gpt-oss", "tiny-gemma3"])
def test_replay_gives_the_window_back_to_rounding(name: str, length: int, subject_of: SubjectOf) -> None:
    subject = subject_of(name)
    lease = subject.store.lease(length)
    cache = subject.adapter.restore_by_replay(lease, subject.tokens)
    assert cache.get_seq_length() == length
    for field in ("keys", "values"):
        assert greatest_error(capture(cache), subject.at[length], field) < ROUNDING
    comparison = compare(subject.warm(cache, length), subject.cold)
    assert comparison.logits_error < ROUNDING


def test_replay_is_not_exact(v4: Subject) -> None:
    """Which is why an answer that rests on it says so."""
    lengths = (96, 128, 160)
    found = [
        compare(v4.warm(v4.adapter.restore_by_replay(v4.store.lease(length), v4.tokens), length), v4.cold).identical
        for length in lengths
    ]
    assert not all(found)


def test_replay_reads_no_window_and_keeps_what_was_cached(v4: Subject) -> None:
    lease = v4.store.lease(160)
    asked: list[str] = []
    view = lease.view

    def watched(kind: str, part: str, layer: int) -> object:
        asked.append(kind)
        return view(kind, part, layer)

    lease.view = watched  # type: ignore[method-assign,assignment]
    found = capture(v4.adapter.restore_by_replay(lease, v4.tokens))
    assert "swa_window" not in asked
    for name in ("2.compressed_kv.compressor", "2.compressed_kv.indexer", "2.overlap_gate.compressor"):
        assert greatest_error({name: found[name]}, v4.at[160], name.split(".")[1]) == 0.0
    assert found["2.entry_count.indexer"] == 40


def test_too_short_a_replay_is_refused_for_good_reason(v4: Subject) -> None:
    lease = v4.store.lease(160)
    with pytest.raises(Mismatch, match=r"start of the replay: expected one in \[0, 64\], found 128"):
        v4.adapter.restore_by_replay(lease, v4.tokens, start=128)
    cache = v4.adapter._restore(lease, 128)
    run_frozen(v4.model, cache, v4.tokens, 128, 160, 32)
    assert greatest_error(capture(cache), v4.at[160]) > 0.1


def test_a_longer_replay_is_allowed(v4: Subject) -> None:
    cache = v4.adapter.restore_by_replay(v4.store.lease(160), v4.tokens, start=0)
    assert greatest_error(capture(cache), v4.at[160]) < ROUNDING


def test_freezing_ends_even_when_a_pass_fails(v4: Subject) -> None:
    cache = v4.adapter.restore(v4.store.lease(64))
    with pytest.raises(ZeroDivisionError), frozen(cache, 64):
        raise ZeroDivisionError
    assert compare(v4.warm(cache, 64), v4.cold).identical


@pytest.mark.parametrize(("boundary", "expected"), [(32, 32), (64, 64), (96, 96), (128, 96), (4096, 96)])
def test_replay_is_whole_granules_and_at_most_everything(boundary: int, expected: int) -> None:
    """Five layers with windows of 16, granules of 32."""
    assert replay_range(PROFILES["tiny_deepseek_v4"], boundary) == range(boundary - expected, boundary)


def test_every_model_with_a_window_counts_its_window_layers() -> None:
    lengths = {name: len(replay_range(PROFILES[tiny_models.profile_name(name)], 160)) for name in tiny_models.NAMES}
    assert lengths == {"tiny-deepseek-v4": 96, "tiny-deepseek-v32": 0, "tiny-gpt-oss": 32, "tiny-gemma3": 64}
