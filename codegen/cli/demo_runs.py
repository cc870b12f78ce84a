"""Runs of a model over one prompt: cold from the first token, or warm from a restored boundary, on one schedule.

Bits depend on how a prompt is cut into chunks. All runs cut at multiples of the granule, so the chunk [a, b) of a warm
run has a twin [a, b) in the cold run, and their logits can be compared byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...runtime.integrations.cache_state import CacheState, as_bytes, capture, first_difference, greatest_error, sha256
from ...runtime.integrations.transformers import chunks

OnChunk = Callable[[Any, int, int], None]
"""Called with the cache and the chunk [begin, end) after each chunk of a prompt."""


@dataclass(frozen=True, slots=True)
class Trace:
    """What one run computed from token ``start`` on: logits by first token of the chunk, answer, final cache."""

    start: int
    logits: dict[int, torch.Tensor]
    answer: tuple[int, ...]
    state: CacheState

    @property
    def logits_sha256(self) -> str:
        """Digest of all logits, in order."""
        return sha256({f"{begin}.logits": logits for begin, logits in self.logits.items()})

    @property
    def cache_sha256(self) -> str:
        """Digest of the final cache."""
        return sha256(self.state)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A warm run against its cold reference: ``difference`` is None when every bit agrees."""

    difference: str | None
    logits_error: float
    window_error: float

    @property
    def identical(self) -> bool:
        """Whether logits and final cache agree to the last bit."""
        return self.difference is None


@torch.no_grad()
def run(
    model: Any,
    cache: Any,
    tokens: Sequence[int],
    start: int,
    granule: int,
    decode: int,
    on_chunk: OnChunk | None = None,
) -> Trace:
    """Prefill tokens [start, len) in canonical chunks over a cache that ends at ``start``, then decode greedily.

    Args:
        model: a causal language model.
        cache: holds [0, start); moved on in place.
        tokens: the prompt, longer than ``start``.
        start: a multiple of the granule.
        granule: tokens of a chunk.
        decode: tokens to answer with.
        on_chunk: told after each chunk of the prompt.
    """
    logits: dict[int, torch.Tensor] = {}
    for begin, end in chunks(start, len(tokens), granule):
        logits[begin] = _forward(model, cache, tokens[begin:end])
        if on_chunk is not None:
            on_chunk(cache, begin, end)
    answer: list[int] = []
    for step in range(decode):
        answer.append(int(logits[max(logits)][0, -1].argmax()))
        logits[len(tokens) + step] = _forward(model, cache, answer[-1:])
    return Trace(start, logits, tuple(answer), capture(cache))


def compare(warm: Trace, cold: Trace) -> Comparison:
    """Logits of every chunk that the warm run computed, and both final caches, bit for bit."""
    difference = None
    error = 0.0
    for begin, ours in warm.logits.items():
        theirs = cold.logits.get(begin)
        if theirs is None or theirs.shape != ours.shape:
            return Comparison(f"the reference has no chunk at token {begin} of that length", float("inf"), float("inf"))
        if difference is None and not torch.equal(as_bytes(ours), as_bytes(theirs)):
            difference = f"logits from token {begin} on differ"
        error = max(error, float((ours.double() - theirs.double()).abs().max()))
    found = first_difference(warm.state, cold.state)
    if difference is None and found is not None:
        difference = f"final cache: {found}"
    if difference is None and (warm.cache_sha256 != cold.cache_sha256 or warm.answer != cold.answer):
        difference = "digests of the final caches differ"
    return Comparison(difference, error, greatest_error(warm.state, cold.state, "keys"))


def _forward(model: Any, cache: Any, tokens: Sequence[int]) -> torch.Tensor:
    logits: torch.Tensor = model(input_ids=torch.tensor([list(tokens)]), cache=cache, use_cache=True).logits
    return logits
