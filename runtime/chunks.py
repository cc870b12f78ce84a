"""What an external store that keeps coarse chunks may load beside what is in memory already."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChunkLoad:
    """Tokens to load, and the indices in the request's block list that they go to; both empty when there is nothing."""

    tokens: range
    blocks: range


def plan_load(local: int, external: int, chunk: int, block: int | None = None) -> ChunkLoad:
    """Which part of an external hit to load, so that no block that is sealed here is ever a destination.

    A last chunk that is not whole counts for nothing; what is left of the external hit begins where the local one ends.

    Args:
        local: tokens that are valid in memory, whole blocks.
        external: tokens that the external store holds.
        chunk: tokens of one of its chunks.
        block: tokens of one block here; a chunk by default.

    Raises:
        ValueError: a local hit that is no whole number of blocks, or chunks that aren't.

    >>> plan_load(288, 512, 256, 16)
    ChunkLoad(tokens=range(288, 512), blocks=range(18, 32))
    >>> plan_load(14816, 14820, 256, 16).blocks
    range(926, 926)
    """
    block = chunk if block is None else block
    if local % block or chunk % block:
        raise ValueError(f"a local hit of {local} tokens and chunks of {chunk}; give multiples of the block, {block}")
    stop = max(local, external - external % chunk)
    return ChunkLoad(range(local, stop), range(local // block, stop // block))
