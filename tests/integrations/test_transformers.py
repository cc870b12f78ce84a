"""The adapter: restored caches equal cold ones to the last bit, and nothing that isn't theirs is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import DynamicCache

from kvfsm.codegen.cli.demo_runs import compare
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.integrations import tiny_models
from kvfsm.runtime.integrations.cache_state import capture, first_difference
from kvfsm.runtime.integrations.transformers import Mismatch, TransformersAdapter, chunks
from kvfsm.runtime.layout import Part

from .conftest import Subject
from .plain_slots import PlainStore
from .profiles import with_dtype, with_parts

SubjectOf = Callable[[str], Subject]
LABELS = (*tiny_models.NAMES, "tiny-deepseek-v4/bfloat16")


@pytest.mark.parametrize("length", [32, 64, 96, 128, 160])
@pytest.mark.parametrize("label", LABELS)
def test_a_restored_cache_is_the_cold_one_and_continues_like_it(label: str, length: int, subject_of: SubjectOf) -> None:
    subject = subject_of(label)
    cache = subject.adapter.restore(subject.store.lease(length))
    assert first_difference(capture(cache), subject.at[length]) is None
    comparison = compare(subject.warm(cache, length), subject.cold)
    assert comparison.difference is None


@pytest.mark.parametrize("label", tiny_models.NAMES)
def test_a_first_granule_alone_is_enough(label: str, subject_of: SubjectOf) -> None:
    subject = subject_of(label)
    length = subject.profile.granule
    assert compare(subject.warm(subject.adapter.restore(subject.store.lease(length)), length), subject.cold).identical


def test_keys_and_values_share_memory_again_where_they_did(v4: Subject) -> None:
    cache = v4.adapter.restore(v4.store.lease(96))
    shared = [layer.values is layer.keys for layer in cache.layers]
    assert shared == [False, True, True, True, True]
    assert [len(capture(cache)[f"{layer}.buffer_kv.compressor"][0]) for layer in (1, 2, 3, 4)] == [0, 0, 0, 0]


def test_a_restored_cache_owns_its_bytes(v4: Subject) -> None:
    cache = v4.adapter.restore(v4.store.lease(96))
    before = {kind: arena.bytes.copy() for kind, arena in v4.store.arenas.items()}
    v4.warm(cache, 96)
    for tensor in (cache.layers[0].keys, cache.layers[2].overlap_kv["compressor"]):
        tensor.fill_(7.0)
    for kind, arena in v4.store.arenas.items():
        assert np.array_equal(arena.bytes, before[kind])


def test_one_lease_serves_two_readers(v4: Subject) -> None:
    lease = v4.store.lease(128)
    first, second = v4.adapter.restore(lease), v4.adapter.restore(lease)
    assert compare(v4.warm(first, 128), v4.cold).identical
    assert compare(v4.warm(second, 128), v4.cold).identical


def test_generate_continues_a_restored_cache(v4: Subject) -> None:
    import torch

    cache = v4.adapter.restore(v4.store.lease(160))
    ids = torch.tensor([list(v4.tokens)])
    found = v4.model.generate(ids, cache=cache, max_new_tokens=4, do_sample=False)
    assert tuple(found[0, len(v4.tokens) :].tolist()) == v4.cold.answer


# What is refused


@pytest.mark.parametrize(
    ("model", "profile"),
    [(model, profile) for model in tiny_models.NAMES for profile in tiny_models.NAMES if model != profile],
)
def test_a_model_under_another_profile_is_refused(model: str, profile: str, subject_of: SubjectOf) -> None:
    with pytest.raises(Mismatch) as refused:
        TransformersAdapter(PROFILES[tiny_models.profile_name(profile)], subject_of(model).model)
    assert "expected" in str(refused.value) and "fix:" in str(refused.value)


def test_another_window_is_refused_by_name(v4: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(v4.model.config, "sliding_window", 17)
    with pytest.raises(Mismatch, match=r"config\.sliding_window: expected 16, found 17"):
        TransformersAdapter(v4.profile, v4.model)


def test_another_ratio_is_refused_by_name(v4: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {**v4.model.config.compress_rates, "heavily_compressed_attention": 32}
    monkeypatch.setattr(v4.model.config, "compress_rates", rates)
    with pytest.raises(Mismatch, match=r"compress_rates\['heavily_compressed_attention'\]: expected 16, found 32"):
        TransformersAdapter(v4.profile, v4.model)


def test_another_dtype_is_refused_by_name(v4: Subject) -> None:
    with pytest.raises(
        Mismatch, match=r"dtype: expected bfloat16, found float32\n  fix: build the model with dtype bf"
    ):
        TransformersAdapter(with_dtype(v4.profile, "bfloat16"), v4.model)


def test_another_row_shape_is_refused_by_name(v4: Subject) -> None:
    def narrower(kind: str, part: Part) -> Part:
        if kind != "indexer_state" or part.name != "keys":
            return part
        return replace(part, row_shape=(8,), row_bytes=32)

    with pytest.raises(Mismatch, match=r"indexer_state layer 2 part 'keys': row shape: expected \(8,\), found \(16,\)"):
        TransformersAdapter(with_parts(v4.profile, narrower), v4.model)


def raw_scores(kind: str, part: Part) -> Part:
    return replace(part, meaning="gate_raw") if part.name == "overlap_gate" else part


def test_a_profile_with_raw_scores_is_refused_because_here_the_bias_is_folded_in(v4: Subject) -> None:
    with pytest.raises(Mismatch, match=r"'overlap_gate': meaning: expected gate_raw, found gate_bias_folded"):
        TransformersAdapter(with_parts(v4.profile, raw_scores), v4.model)


@pytest.mark.parametrize("other", ["scores", "dtype"])
def test_slots_of_another_abi_are_refused_before_a_byte_is_read(other: str, v4: Subject) -> None:
    profile = with_parts(v4.profile, raw_scores) if other == "scores" else with_dtype(v4.profile, "bfloat16")
    lease = PlainStore(profile, 3).lease(96)
    with pytest.raises(Mismatch, match="layout of") as refused:
        v4.adapter.restore(lease)
    assert lease.reads == 0
    told = "meaning: gate_raw, not gate_bias_folded" if other == "scores" else "dtype: bfloat16, not float32"
    assert told in str(refused.value)


def test_raw_and_folded_scores_have_equal_shapes_yet_other_digests(v4: Subject) -> None:
    ours, theirs = v4.profile.layouts, with_parts(v4.profile, raw_scores).layouts
    assert ours["uncompressed_tail"].slot_bytes == theirs["uncompressed_tail"].slot_bytes
    assert ours["uncompressed_tail"].digest != theirs["uncompressed_tail"].digest
    assert ours["compressed_kv"].digest == theirs["compressed_kv"].digest


def test_publishing_at_another_position_is_refused(v4: Subject) -> None:
    cache = v4.adapter.restore(v4.store.lease(96))
    with pytest.raises(Mismatch, match=r"cache position: expected 128, the fill's boundary, found 96"):
        v4.adapter.publish_chunk(cache, PlainStore(v4.profile, 5).fill(3))


def test_publishing_two_granules_at_once_is_refused_where_carried_rows_are_gone(v4: Subject) -> None:
    store = PlainStore(v4.profile, 5)
    fill = store.fill(2)
    fill.slots = 2
    cache = v4.adapter.restore(v4.store.lease(96))
    with pytest.raises(Mismatch, match="publish after each granule"):
        v4.adapter.publish_chunk(cache, fill)


def test_a_cache_of_another_model_is_not_published(v4: Subject, subject_of: SubjectOf) -> None:
    other = subject_of("tiny-gpt-oss")
    cache = other.adapter.restore(other.store.lease(96))
    with pytest.raises(Mismatch, match=r"cache layers: expected .*CSACache, found"):
        v4.adapter.publish_chunk(cache, PlainStore(v4.profile, 5).fill(2))


def test_a_batch_is_not_published_as_its_first_sequence(v4: Subject) -> None:
    cache = DynamicCache(config=v4.model.config)
    v4.model(input_ids=torch.tensor([v4.tokens[:32], v4.tokens[32:64]]), cache=cache)
    with pytest.raises(Mismatch, match="expected a batch of 1, found a batch of 2"):
        v4.adapter.publish_chunk(cache, PlainStore(v4.profile, 5).fill(0))


def test_a_lease_without_windows_is_restored_by_replay_only(v4: Subject) -> None:
    lease = v4.store.lease(96)
    lease.replay = range(32, 96)
    with pytest.raises(Mismatch, match=r"restore_by_replay\(lease, tokens, 32\)"):
        v4.adapter.restore(lease)


@pytest.mark.parametrize(("tokens", "start", "text"), [(95, None, "at least 96, found 95"), (96, -32, "found -32")])
def test_a_replay_that_cannot_be_run_is_refused(tokens: int, start: int | None, text: str, v4: Subject) -> None:
    with pytest.raises(Mismatch, match=text):
        v4.adapter.restore_by_replay(v4.store.lease(96), v4.tokens[:tokens], start)


def test_several_granules_are_published_at_once_where_nothing_is_carried(subject_of: SubjectOf) -> None:
    subject = subject_of("tiny-deepseek-v32")
    store = PlainStore(subject.profile, 5)
    for last in (1, 3):
        fill = store.fill(last)
        fill.slots = 2
        subject.adapter.publish_chunk(subject.adapter.restore(subject.store.lease(32 * (last + 1))), fill)
    warm = subject.warm(subject.adapter.restore(store.lease(128)), 128)
    assert compare(warm, subject.cold).identical


def test_a_model_off_the_cpu_is_refused_by_name() -> None:
    model, profile = tiny_models.build("tiny-gpt-oss")
    with pytest.raises(Mismatch, match=r"model\.device: expected cpu, found meta"):
        TransformersAdapter(PROFILES[profile], model.to("meta"))


def test_chunks_cut_at_multiples_of_the_granule() -> None:
    assert list(chunks(0, 70, 32)) == [(0, 32), (32, 64), (64, 70)]
    assert list(chunks(64, 64, 32)) == []
