"""The demo's requests: prompts that share prefixes in the ways that real traffic does.

Tokens are drawn from a seeded generator; a tiny model with random weights has no use for words.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

VOCABULARY = 256
SYSTEM_PROMPT_TOKENS = 96


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt, and what it is there to show."""

    name: str
    about: str
    tokens: tuple[int, ...]


def requests(granule: int, answer: Callable[[Sequence[int]], Sequence[int]], seed: int = 7) -> tuple[Request, ...]:
    """The prompts of one model, in the order in which they arrive.

    ``granule`` is the length of a reusable block in tokens, around which the lengths are chosen; ``answer`` gives the
    model's answer to a prompt, which the second turn of a conversation repeats; ``seed`` is the token generator's.
    """
    draw = random.Random(seed)

    def words(count: int) -> tuple[int, ...]:
        return tuple(draw.randrange(1, VOCABULARY) for _ in range(count))

    blocks = -(-SYSTEM_PROMPT_TOKENS // granule)
    system = words(blocks * granule)  # ends on a boundary, where compressors still need their carried rows
    opening = system + words(granule + 9)
    turn = opening + tuple(answer(opening)) + words(granule + 5)
    middle = (blocks - 1) * granule + granule // 2 + 1
    return (
        Request("first turn", "a system prompt and a question", opening),
        Request("second turn", "the same conversation: answer and follow-up", turn),
        Request("branch", "the same system prompt, another question", system + words(granule - 3)),
        Request("aligned", "ends on a boundary; its last block is computed", opening[: (blocks + 1) * granule]),
        Request("unaligned", "stops in the middle of a cached block", opening[:middle]),
        Request("too short", "shorter than one block: nothing to reuse", system[: granule - 2]),
    )
