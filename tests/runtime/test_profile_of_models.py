"""The tiny profiles account for every byte that `transformers` really keeps, at boundaries and between them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.integrations.tiny_models import NAMES, build, fix_threads, profile_name
from kvfsm.runtime.layout import Part
from kvfsm.runtime.profile import Profile

SEED = 5


def tiny_llama() -> Any:
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
    )
    return transformers.LlamaForCausalLM(config).eval()


def kept_bytes(layer: Any) -> int:
    """Bytes of every tensor of one cache layer; storage that two names share is counted once."""
    tensors: dict[int, int] = {}

    def visit(value: Any) -> None:
        if isinstance(value, dict):
            for inner in value.values():
                visit(inner)
        elif isinstance(value, torch.Tensor) and value.is_floating_point():
            tensors[id(value)] = value.numel() * value.element_size()

    visit(dict(vars(layer)))
    return sum(tensors.values())


def rows_at(profile: Profile, part: Part, position: int) -> int:
    """Rows that a live sequence has of this part."""
    match part.role:
        case "entries":
            return position // part.ratio
        case "window":
            assert profile.window is not None
            return min(position, profile.window - 1)
        case _:
            return part.live_rows(position)


def stated_bytes(profile: Profile, layer: int, position: int) -> int:
    parts = [part for layout in profile.layouts.values() for part in layout.parts if part.layer == layer]
    return sum(rows_at(profile, part, position) * part.row_bytes for part in parts)


@pytest.mark.parametrize("name", [*NAMES, "tiny-llama"])
def test_the_profile_accounts_for_every_byte(name: str) -> None:
    fix_threads()
    profile = PROFILES[profile_name(name)]
    model = tiny_llama() if name == "tiny-llama" else build(name)[0]
    cache = transformers.DynamicCache(config=model.config)
    tokens = torch.randint(0, 256, (1, 96), generator=torch.Generator().manual_seed(SEED))
    position = 0
    for length in (profile.granule, 64, 70, 71, 96):
        with torch.no_grad():
            model(input_ids=tokens[:, position:length], cache=cache, use_cache=True)
        position = length
        for index, layer in enumerate(cache.layers):
            assert kept_bytes(layer) == stated_bytes(profile, index, position), f"layer {index} at {position}"
    assert len(cache.layers) == 1 + max(layer for group in profile.groups for layer in group.layers)


def test_a_forgotten_part_is_noticed() -> None:
    """Negative control: without the indexer's carried rows the count is off."""
    profile = PROFILES["tiny_deepseek_v4"]
    part = profile.layouts["indexer_state"].part("overlap_gate", 2)
    assert part.live_rows(64) * part.row_bytes == 4 * 16 * 4
    rest = [p for layout in profile.layouts.values() for p in layout.parts if p.layer == 2 and p != part]
    assert sum(rows_at(profile, p, 64) * p.row_bytes for p in rest) < stated_bytes(profile, 2, 64)
