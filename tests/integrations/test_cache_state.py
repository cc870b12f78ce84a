"""Captures compare to the last bit and say where two caches differ."""

from __future__ import annotations

import torch

from kvfsm.runtime.integrations.cache_state import capture, first_difference, greatest_error, sha256

from .conftest import Subject


def test_a_capture_holds_every_kind_of_state(v4: Subject) -> None:
    fields = {name.split(".", 1)[1] for name in v4.at[96]}
    assert {
        "keys", "values", "cumulative_length", "compressed_kv.compressor", "compressed_kv.indexer",
        "buffer_kv.compressor", "buffer_gate.indexer", "overlap_kv.compressor", "overlap_gate.indexer",
        "entry_count.compressor", "entry_count.indexer", "values_are_keys",
    } <= fields  # fmt: skip


def test_a_capture_is_left_alone_by_later_passes(v4: Subject) -> None:
    cache = v4.adapter.restore(v4.store.lease(96))
    before = capture(cache)
    digest = sha256(before)
    v4.warm(cache, 96)
    assert sha256(before) == digest != sha256(capture(cache))


def test_negative_zero_is_not_zero() -> None:
    left, right = {"0.keys": torch.tensor([0.0])}, {"0.keys": torch.tensor([-0.0])}
    assert first_difference(left, left) is None
    assert first_difference(left, right) == "0.keys differs, by up to 0"
    assert sha256(left) != sha256(right)


def test_nan_equals_itself() -> None:
    state = {"0.keys": torch.tensor([float("nan")])}
    assert first_difference(state, {"0.keys": torch.tensor([float("nan")])}) is None


def test_shape_dtype_number_and_absence_are_differences() -> None:
    state = {"0.keys": torch.zeros(2, 3), "0.cumulative_length": 5}
    assert "float32(2, 3)" in str(first_difference(state, {**state, "0.keys": torch.zeros(3, 2)}))
    assert "float16" in str(first_difference(state, {**state, "0.keys": torch.zeros(2, 3).half()}))
    assert first_difference(state, {**state, "0.cumulative_length": 6}) == "0.cumulative_length is 5 against 6"
    assert first_difference(state, {"0.keys": state["0.keys"]}) == "0.cumulative_length is only in the first cache"


def test_the_greatest_error_is_of_one_field_or_of_all() -> None:
    left = {"0.keys": torch.zeros(2), "0.values": torch.zeros(2)}
    right = {"0.keys": torch.tensor([0.0, 0.5]), "0.values": torch.tensor([0.0, 2.0])}
    assert greatest_error(left, right) == 2.0
    assert greatest_error(left, right, "keys") == 0.5
    assert greatest_error(left, {"0.keys": torch.zeros(3)}) == float("inf")
    assert greatest_error(left, right, "values") == 2.0


def test_layers_are_compared_in_their_order() -> None:
    left = {f"{layer}.keys": torch.zeros(1) for layer in range(12)}
    right = {name: torch.ones(1) for name in left if name in ("2.keys", "10.keys")}
    assert str(first_difference(left, {**left, **right})).startswith("2.keys")
