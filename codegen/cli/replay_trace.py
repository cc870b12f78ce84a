"""A request trace in the form that Mooncake publishes: JSON lines, and the prefixes that they share.

A line is a request: ``timestamp`` in milliseconds, ``input_length`` and ``output_length`` in tokens, and ``hash_ids``,
an id for each block of the prompt. An id stands for its block and all before it; the last block may be part full.
What the tokens were is not told, and does not matter: equal prefixes get equal tokens here, others get others.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

BLOCK = 512
"""Tokens of a block in the traces that Mooncake publishes; the lines do not say it."""

EXAMPLE = '{"timestamp": 0, "input_length": 600, "output_length": 20, "hash_ids": [0, 1]}'
FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")
_TOKENS_MAX = 1 << 26  # of one request


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: tokens of its prompt and answer, and its blocks as numbers that stand for prefixes.

    ``number`` counts requests from 0, ``line`` lines from 1; ``at`` is in milliseconds.
    """

    number: int
    line: int
    at: float
    prompt: int
    answer: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a line, and how to mend it."""

    file: str
    line: int
    message: str
    fix: str

    def as_json(self) -> dict[str, Any]:
        """The fields as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}\n  fix: {self.fix}"


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """All requests in the order of their times, and what is wrong with the lines.

    ``prefixes`` counts distinct blocks with all before them, ``ids`` distinct ids: fewer, where an id stands behind
    different ones, which makes it different prefixes.
    """

    block: int
    requests: tuple[Asked, ...]
    prefixes: int
    ids: int
    problems: tuple[Problem, ...]

    def tokens(self, asked: Asked) -> npt.NDArray[np.int32]:
        """The prompt, int32 [prompt]: two prompts agree exactly as far as their blocks do."""
        return np.repeat(np.array(asked.blocks, np.int32), self.block)[: asked.prompt]

    def answer(self, asked: Asked) -> npt.NDArray[np.int32]:
        """The answer, int32 [answer]: nobody else's, since a trace doesn't say what later prompts took from it."""
        return np.full(asked.answer, self.prefixes + asked.number, np.int32)

    def shared(self) -> list[int]:
        """Tokens of each prompt, in whole or last blocks, that an earlier prompt had too."""
        seen: dict[int, int] = {}  # tokens that were seen of a block
        found = []
        for asked in self.requests:
            tokens, whole = 0, True
            for place, block in enumerate(asked.blocks):
                have = min(self.block, asked.prompt - place * self.block)
                if whole:
                    tokens += min(have, seen.get(block, 0))
                    whole = seen.get(block, 0) == self.block
                seen[block] = max(have, seen.get(block, 0))
            found.append(tokens)
        return found


def read_trace(file: str, lines: Iterable[str], block: int = BLOCK, limit: int | None = None) -> RequestTrace:
    """Read a trace; ``limit`` requests of it at most. Blank lines are skipped, wrong ones become problems."""
    requests: list[Asked] = []
    problems: list[Problem] = []
    numbers: dict[tuple[int, int | str], int] = {}
    last = 0.0
    for line, text in enumerate(lines, 1):
        if limit is not None and len(requests) >= limit:
            break
        if not text.strip():
            continue
        try:
            found = _fields(text, block, last)
        except _Wrong as wrong:
            problems.append(Problem(file, line, wrong.message, wrong.fix))
            continue
        blocks, before = [], -1
        for name in found["hash_ids"]:
            before = numbers.setdefault((before, name), len(numbers))
            blocks.append(before)
        last = found["timestamp"]
        requests.append(
            Asked(len(requests), line, last, found["input_length"], found["output_length"], tuple(blocks))
        )
    if not requests and not problems:
        problems.append(Problem(file, 1, "the trace holds no request", f"give lines such as {EXAMPLE}"))
    return RequestTrace(block, tuple(requests), len(numbers), len({name for _, name in numbers}), tuple(problems))


class _Wrong(Exception):
    """A line is wrong."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.message, self.fix = message, fix


def _fields(text: str, block: int, last: float) -> dict[str, Any]:
    """The checked fields of a line; raises _Wrong."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _Wrong(f"this is no JSON: {error}", f"give one object a line, such as {EXAMPLE}") from None
    if not isinstance(found, dict):
        raise _Wrong(f"this is {_kind(found)} and no object", f"give one object a line, such as {EXAMPLE}")
    for name in FIELDS:
        if name not in found:
            near = difflib.get_close_matches(name, [each for each in map(str, found) if each not in FIELDS], 1)
            raise _Wrong(f"'{name}' is missing", f"rename '{near[0]}'" if near else f"add it, as in {EXAMPLE}")
    _check(found, "timestamp", _is_time, "milliseconds from the start, a number of at least 0")
    _check(found, "input_length", lambda value: _is_count(value, 1), f"tokens of the prompt, 1 to {_TOKENS_MAX}")
    _check(found, "output_length", lambda value: _is_count(value, 0), f"tokens of the answer, 0 to {_TOKENS_MAX}")
    _check(found, "hash_ids", _is_ids, "a list of whole numbers, or of texts: an id for each block")
    length, count = found["input_length"], len(found["hash_ids"])
    if count != -(-length // block):
        what = f"{length} tokens in blocks of {block} are {-(-length // block)} blocks, and 'hash_ids' has {count}"
        raise _Wrong(what, _fitting(length, count))
    if found["timestamp"] < last:
        what = f"'timestamp' is {found['timestamp']}, after {last}"
        raise _Wrong(what, "sort the lines by their timestamps")
    return found


def _check(found: dict[str, Any], name: str, good: Callable[[Any], bool], expected: str) -> None:
    if not good(found[name]):
        shown = json.dumps(found[name])
        shown = shown if len(shown) <= 40 else f"{shown[:37]}..."
        raise _Wrong(f"'{name}' is {shown}", f"give {expected}")


def _is_time(value: Any) -> bool:
    return _is_number(value) and math.isfinite(value) and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= _TOKENS_MAX


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, int | str) and not isinstance(one, bool) for one in value)


def _fitting(length: int, count: int) -> str:
    """Which blocks would fit a line."""
    low = -(-length // count) if count else 0
    if not low or -(-length // low) != count:
        return f"give an id for each block of the {length} tokens, the last part full"
    high = (length - 1) // (count - 1) if count > 1 else length
    span = f"{low} to {high}" if high > low else f"{low}"
    return f"give an id for each block, or say how large the blocks are: --block; {span} would fit this line"


def _kind(value: Any) -> str:
    names = {list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), "null")
