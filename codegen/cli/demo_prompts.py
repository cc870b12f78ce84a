"""The demo's requests: prompts that share prefixes in the ways that real traffic does.

Tokens are drawn from a seeded generator; a tiny model with random weights has no use for words.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

VOCABULARY = 256


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt, and what it is there to show."""

    name: str
    about: str
    tokens: tuple[int, ...]


def requests(granule: int, answer: Callable[[Sequence[int]], Sequence[int]], seed: int = 7) -> tuple[Request, ...]:
    """The prompts of one model, in the order in which they arrive.

    Args:
        granule: tokens of a reusable block; the lengths are chosen around its multiples.
        answer: the model's answer to a prompt, which the second turn of a conversation repeats.
        seed: of the token generator.
    """
    draw = random.Random(seed)

    def words(count: int) -> tuple[int, ...]:
        return tuple(draw.randrange(1, VOCABULARY) for _ in range(count))

    system = words(3 * granule)  # ends exactly on a boundary: the next token needs the carried rows
    opening = system + words(granule + 9)
    reply = tuple(answer(opening))
    return (
        Request("system prompt", "a system prompt and a first question", opening),
        Request(
            "second turn",
            "the same conversation, with the answer and a follow-up",
            opening + reply + words(granule + 5),
        ),
        Request("branch", "the same system prompt, another question", system + words(granule - 3)),
        Request(
            "aligned",
            "ends exactly on a boundary; its last token is computed all the same",
            system + opening[3 * granule : 4 * granule],
        ),
        Request(
            "unaligned", "stops in the middle of a block that is cached", opening[: 2 * granule + granule // 2 + 1]
        ),
        Request("too short", "shorter than one block, so nothing can be reused", system[: granule - 2]),
    )
