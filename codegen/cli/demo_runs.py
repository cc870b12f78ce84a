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
    """What one run computed from token ``start`` on, and the caches that it saw.

    ``logits`` by first token of the chunk; ``answer`` the decoded tokens; ``state`` the final cache; ``restored`` the
    cache at ``start``, empty for a cold run; ``boundaries`` the cache after each whole granule, where that was asked.
    """

    start: int
    logits: dict[int, torch.Tensor]
    answer: tuple[int, ...]
    state: CacheState
    restored: CacheState
    boundaries: dict[int, CacheState]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A warm run against its cold reference: ``difference`` is None when every bit agrees.

    Errors are greatest absolute differences: of logits, and of the rows of the cache right after it was restored;
    ``logits_size`` is the greatest absolute logit of the reference. Digests are of each run's final cache.
    """

    difference: str | None
    logits_error: float
    rows_error: float
    cache_sha256: str = ""
    reference_sha256: str = ""
    logits_size: float = 0.0

    @property
    def identical(self) -> bool:
        """Whether logits, restored cache and final cache agree to the last bit."""
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
    *,
    keep_boundaries: bool = False,
) -> Trace:
    """Prefill tokens [start, len) in canonical chunks over a cache that ends at ``start``, then decode greedily.

    ``cache`` is moved on in place; ``decode`` tokens are answered; ``on_chunk`` is told after each chunk of the prompt.
    """
    restored = capture(cache) if start else {}
    logits: dict[int, torch.Tensor] = {}
    boundaries: dict[int, CacheState] = {}
    for begin, end in chunks(start, len(tokens), granule):
        logits[begin] = _forward(model, cache, tokens[begin:end])
        if keep_boundaries and end % granule == 0:
            boundaries[end] = capture(cache)
        if on_chunk is not None:
            on_chunk(cache, begin, end)
    answer: list[int] = []
    for step in range(decode):
        answer.append(int(logits[max(logits)][0, -1].argmax()))
        logits[len(tokens) + step] = _forward(model, cache, answer[-1:])
    return Trace(start, logits, tuple(answer), capture(cache), restored, boundaries)


def compare(warm: Trace, cold: Trace) -> Comparison:
    """The restored cache, the logits of every chunk that the warm run computed, and the final caches, bit for bit."""
    ours, theirs = sha256(warm.state), sha256(cold.state)
    differences = []
    logits_error = rows_error = logits_size = 0.0
    for begin, logits in warm.logits.items():
        expected = cold.logits.get(begin)
        if expected is None or expected.shape != logits.shape:
            told = f"the reference has no chunk at token {begin} of that length"
            return Comparison(told, float("inf"), float("inf"), ours, theirs)
        if not torch.equal(as_bytes(logits), as_bytes(expected)):
            differences.append(f"logits from token {begin} on differ")
        logits_size = max(logits_size, float(expected.abs().max()))
        logits_error = max(logits_error, float((logits.double() - expected.double()).abs().max()))
    if warm.start:
        reference = cold.boundaries.get(warm.start)
        if reference is None:
            told = f"the reference kept no cache at token {warm.start} to hold the restored one against"
            return Comparison(told, float("inf"), float("inf"), ours, theirs)
        rows_error = greatest_error(warm.restored, reference)
        if found := first_difference(warm.restored, reference):
            differences.append(f"restored cache: {found}")
    if found := first_difference(warm.state, cold.state):
        differences.append(f"final cache: {found}")
    if ours != theirs and not differences:
        differences.append("digests of the final caches differ")
    return Comparison(differences[0] if differences else None, logits_error, rows_error, ours, theirs, logits_size)


def _forward(model: Any, cache: Any, tokens: Sequence[int]) -> torch.Tensor:
    logits: torch.Tensor = model(input_ids=torch.tensor([list(tokens)]), cache=cache, use_cache=True).logits
    return logits
