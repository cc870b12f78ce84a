"""Tiny models with random weights: the real architectures of `transformers`, small enough for a laptop's CPU.

Each is a real hybrid: compressed, indexed, sliding-window and full-attention layers in the order that their large
siblings use. They compute nonsense, but they compute it exactly, which is all that a cache needs to be tested.

Three traps are avoided here, because each would let a broken restore go unnoticed:

- tensors that `transformers` initialises to zero (position biases, attention sinks, norm scales) are drawn at random;
- indexers have 16 heads, since with few heads ReLU scores tie at exactly 0 and `topk` breaks ties by memory layout;
- the top-k is far smaller than the number of entries, since "all of them" hides a wrong selection.

Bits depend on the number of threads as well, so callers that compare bits call `fix_threads` first.
The profiles in ``spec/models/tiny_*.yaml`` describe the caches of exactly these models.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers

from .places import CSA, FULL, HCA, SLIDING

__all__ = ["DTYPES", "NAMES", "build", "fix_threads", "profile_name"]

DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}

VOCABULARY = 256
POSITIONS_MAX = 4096


def build(name: str, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Any, str]:
    """A model in evaluation mode with weights that follow from ``seed`` alone, and the name of its profile.

    Args:
        name: one of ``NAMES``, with dashes as on the command line.
        seed: of every random draw; the global generator is left as it was.
        dtype: of the weights, and hence of the cache.

    Raises:
        KeyError: no such model; the message lists those there are.
    """
    try:
        make = _MAKERS[name]
    except KeyError:
        raise KeyError(f"no tiny model is named {name!r}; there are: {', '.join(NAMES)}") from None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make().eval().to(dtype)
    _randomise_what_starts_constant(model, torch.Generator().manual_seed(seed + 1))
    model.requires_grad_(False)
    return model, profile_name(name)


def profile_name(name: str) -> str:
    """The profile of a model: its name as the spec writes it.

    >>> profile_name("tiny-deepseek-v4")
    'tiny_deepseek_v4'
    """
    return name.replace("-", "_")


def fix_threads(count: int = 1) -> None:
    """Fix the number of threads of this process: another number gives other bits.

    One thread is also the fastest here: the matrices are tiny.
    """
    torch.set_num_threads(count)


def _deepseek_v4() -> Any:
    """Two CSA, one HCA and one pure window layer behind a hash-routed bottom layer; about 314,000 parameters."""
    layer_types = [SLIDING, HCA, CSA, HCA, CSA]
    config = transformers.DeepseekV4Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        moe_intermediate_size=32,
        num_hidden_layers=len(layer_types),
        num_attention_heads=4,
        head_dim=32,
        q_lora_rank=32,
        o_groups=2,
        o_lora_rank=16,
        n_routed_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=POSITIONS_MAX,
        layer_types=layer_types,
        mlp_layer_types=["hash_moe"] + ["moe"] * 4,
        sliding_window=16,
        compress_rates={CSA: 4, HCA: 16},
        partial_rotary_factor=0.25,
        index_n_heads=16,
        index_head_dim=16,
        index_topk=4,
        hc_mult=2,
        hc_sinkhorn_iters=4,
        initializer_range=0.2,
        eos_token_id=None,
        pad_token_id=None,
        bos_token_id=0,
    )
    model = transformers.DeepseekV4ForCausalLM(config)
    model.set_experts_implementation("eager")
    return model


def _deepseek_v32() -> Any:
    """Full latent attention with an indexer in every layer; the rope part of a key travels in ``values``."""
    config = transformers.DeepseekV32Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=64,
        moe_intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        n_shared_experts=1,
        n_routed_experts=4,
        kv_lora_rank=32,
        q_lora_rank=32,
        qk_rope_head_dim=8,
        qk_nope_head_dim=16,
        v_head_dim=16,
        n_group=2,
        topk_group=1,
        num_experts_per_tok=2,
        first_k_dense_replace=1,
        max_position_embeddings=POSITIONS_MAX,
        index_topk=8,
        index_head_dim=16,
        index_n_heads=16,
        initializer_range=0.2,
        eos_token_id=None,
        pad_token_id=None,
        bos_token_id=0,
        attn_implementation="eager",
    )
    model = transformers.DeepseekV32ForCausalLM(config)
    model.set_experts_implementation("eager")
    return model


def _gpt_oss() -> Any:
    """Window and full attention in turn, two KV heads, attention sinks."""
    config = transformers.GptOssConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=32,
        num_hidden_layers=4,
        num_local_experts=4,
        num_experts_per_tok=2,
        head_dim=16,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=16,
        layer_types=[SLIDING, FULL, SLIDING, FULL],
        max_position_embeddings=POSITIONS_MAX,
        initializer_range=0.2,
        attn_implementation="eager",
    )
    model = transformers.GptOssForCausalLM(config)
    model.set_experts_implementation("eager")
    return model


def _gemma3() -> Any:
    """Five window layers for each full one in the large model; two for one here. Norms on queries and keys."""
    config = transformers.Gemma3TextConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        query_pre_attn_scalar=16,
        sliding_window=16,
        layer_types=[SLIDING, SLIDING, FULL, SLIDING, SLIDING, FULL],
        max_position_embeddings=POSITIONS_MAX,
        initializer_range=0.2,
        eos_token_id=None,
        pad_token_id=None,
        bos_token_id=0,
        attn_implementation="eager",
    )
    return transformers.Gemma3ForCausalLM(config)


_MAKERS: dict[str, Callable[[], Any]] = {
    "tiny-deepseek-v4": _deepseek_v4,
    "tiny-deepseek-v32": _deepseek_v32,
    "tiny-gpt-oss": _gpt_oss,
    "tiny-gemma3": _gemma3,
}

NAMES: tuple[str, ...] = tuple(_MAKERS)


def _randomise_what_starts_constant(model: Any, generator: torch.Generator) -> None:
    """Give every tensor that starts as zeros or ones values of its own; a constant one could hide a lost row."""
    with torch.no_grad():
        for _, parameter in model.named_parameters():
            if bool((parameter == parameter.flatten()[0]).all()):
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
                scale = 0.1 if bool(parameter.flatten()[0] != 0) else 1.0
                parameter.add_((scale * noise).to(parameter.dtype))
        for name, buffer in model.named_buffers():
            if name.endswith("tid2eid"):  # the hash router's table: token -> experts
                experts = model.config.n_routed_experts
                rows = [torch.randperm(experts, generator=generator)[: buffer.shape[1]] for _ in range(buffer.shape[0])]
                buffer.copy_(torch.stack(rows))
