"""Tiny models follow from their seed alone and avoid what would let a broken restore pass."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import torch

from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.integrations import tiny_models


def digest(model: Any) -> str:
    found = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        found.update(name.encode() + tensor.contiguous().view(torch.uint8).numpy().tobytes() if tensor.ndim else b"")
    return found.hexdigest()


@pytest.mark.parametrize("name", tiny_models.NAMES)
def test_weights_follow_from_the_seed_and_leave_the_global_generator_alone(name: str) -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    first, _ = tiny_models.build(name)
    assert torch.equal(torch.rand(1), expected)
    second, _ = tiny_models.build(name)
    other, _ = tiny_models.build(name, seed=1)
    assert digest(first) == digest(second) != digest(other)


@pytest.mark.parametrize("name", tiny_models.NAMES)
def test_no_tensor_is_constant(name: str) -> None:
    model, _ = tiny_models.build(name)
    constant = [
        key
        for key, tensor in model.named_parameters()
        if tensor.numel() > 1 and bool((tensor == tensor.flatten()[0]).all())
    ]
    assert constant == []


@pytest.mark.parametrize("name", ["tiny-deepseek-v4", "tiny-deepseek-v32"])
def test_indexers_choose_few_of_many_with_enough_heads(name: str) -> None:
    model, profile = tiny_models.build(name)
    entries = 96 // PROFILES[profile].groups_of("indexer_state")[0].ratio
    assert model.config.index_n_heads >= 16
    assert model.config.index_topk * 4 <= entries


@pytest.mark.parametrize("name", tiny_models.NAMES)
def test_each_has_its_profile(name: str) -> None:
    _, profile = tiny_models.build(name)
    assert PROFILES[profile].name == profile


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(KeyError, match="tiny-gpt-oss"):
        tiny_models.build("tiny-gpt-os")
