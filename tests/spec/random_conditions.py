"""Random conditions over the names of ``expressions_of``, for comparing ways of deciding them."""

from __future__ import annotations

import random

_NUMBERS = ("a", "b", "c")


def random_number(source: random.Random, depth: int = 2) -> str:
    """The text of a number; products and divisions only by constants, as in specs."""
    if depth == 0 or source.random() < 0.35:
        return source.choice((*_NUMBERS, str(source.randrange(9)), "max(a)"))
    left, right = random_number(source, depth - 1), random_number(source, depth - 1)
    match source.randrange(7):
        case 0 | 1:
            return f"({left} + {right})"
        case 2:
            return f"({left} - {right})"
        case 3:
            return f"{source.choice(('min', 'max'))}({left}, {right})"
        case 4:
            return f"({left} if {random_condition(source, depth - 1)} else {right})"
        case 5:
            return f"({source.choice(_NUMBERS)} {source.choice(('//', '%'))} {source.randrange(1, 5)})"
        case _:
            return f"({left} * {source.randrange(4)})"


def random_condition(source: random.Random, depth: int = 2) -> str:
    """The text of a condition."""
    if depth == 0 or source.random() < 0.4:
        left, right = random_number(source, max(depth - 1, 0)), random_number(source, max(depth - 1, 0))
        return f"{left} {source.choice(('==', '!=', '<', '<=', '>', '>='))} {right}"
    left, right = random_condition(source, depth - 1), random_condition(source, depth - 1)
    match source.randrange(6):
        case 0:
            return f"(({left}) and ({right}))"
        case 1:
            return f"(({left}) or ({right}))"
        case 2:
            return f"(({left}) implies ({right}))"
        case 3:
            return f"not ({left})"
        case 4:
            return f"(p == ({left}))"
        case _:
            word = source.choice(("in", "not in"))
            return f"({source.choice(_NUMBERS)} {word} [{source.randrange(8)}, {source.choice(_NUMBERS)}])"
