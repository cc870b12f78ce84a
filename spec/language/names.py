"""Which words may be names, and which names generated code needs for itself."""

from __future__ import annotations

import keyword
import re

from .problems import Problems
from .source import Scalar

_SNAKE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_LENGTH_MAX = 40  # characters

_EXPRESSIONS = frozenset("and or not implies in if else true false min max any".split())
_YAML = frozenset("y n yes no on off null none".split())
_C = frozenset(
    """
    alignas alignof asm auto bool break case catch char class concept const constexpr continue default delete do double
    enum explicit export extern float for friend goto half inline int long mutable namespace new noexcept nullptr
    operator private protected public register requires restrict return short signed sizeof static struct switch
    template this throw try typedef typeid typename union unsigned using virtual void volatile wchar_t while
    int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t size_t
    """.split()
)
# Members of the generated classes, parameters of their methods, and functions that both call.
_GENERATED = frozenset(
    "self cls word words slot slots whole machine meta kernels explain event refusal fields states count_by_state "
    "check_number kv_get kv_put".split()
)


def name_of(key: Scalar, what: str, problems: Problems) -> str | None:
    """The text of ``key`` when it may name something, else None after noting why not.

    ``what`` is the kind of thing, such as "a state".
    """
    text = key.text
    if not _SNAKE.fullmatch(text) or len(text) > _LENGTH_MAX:
        fix = f"use lower_snake_case of at most {_LENGTH_MAX} characters" + _suggested(text)
        problems.add("E201", key.at, f"'{text}' cannot name {what}", fix)
        return None
    reason = _reserved(text)
    if reason is not None:
        problems.add(
            "E202", key.at, f"'{text}' cannot name {what}: it is {reason}", f"use another word, such as the_{text}"
        )
        return None
    return text


def _suggested(text: str) -> str:
    snake = re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text).lower()).strip("_")
    return f", such as {snake}" if _SNAKE.fullmatch(snake) and len(snake) <= _LENGTH_MAX else ""


def _reserved(text: str) -> str | None:
    if text in _EXPRESSIONS:
        return "a word of the expression language"
    if text in _YAML:
        return "a value to some readers of YAML"
    if keyword.iskeyword(text):
        return "a keyword of Python"
    if text in _C:
        return "a keyword of C, C++ or CUDA"
    if text in _GENERATED:
        return "a name that generated code needs"
    return None
