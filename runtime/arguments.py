"""Arguments of public calls: what is of the wrong type is told by its name, beside what to give in its place."""

from __future__ import annotations

import operator
from typing import Any


def check_is(name: str, given: object, kinds: type | tuple[type, ...], fix: str) -> None:
    """Raise TypeError unless ``given`` is of one of some classes.

    >>> check_is("keys", [1, 2], bytes, "bytes")
    Traceback (most recent call last):
    TypeError: keys is a list; give bytes
    """
    if not isinstance(given, kinds):
        raise TypeError(f"{name} is {_told(given)}; give {fix}")


def check_has(name: str, given: object, protocol: type, fix: str) -> None:
    """Raise TypeError unless ``given`` is an object with every method of a protocol."""
    if isinstance(given, type):
        raise TypeError(f"{name} is {_told(given)}; give {fix}")
    methods = [method for method, code in vars(protocol).items() if callable(code) and not method.startswith("_")]
    if lacking := [method for method in methods if not hasattr(given, method)]:
        raise TypeError(f"{name} is {_told(given)}, which has no {', '.join(lacking)}; give {fix}")


def check_call(name: str, given: object, fix: str) -> None:
    """Raise TypeError for what can't be called."""
    if not callable(given):
        raise TypeError(f"{name} is {_told(given)}; give {fix}")


def check_whole(name: str, given: Any, fix: str) -> None:
    """Raise TypeError for what is no whole number."""
    if isinstance(given, bool) or not hasattr(given, "__index__"):
        raise TypeError(f"{name} is {given!r}; give {fix}")


def check_count(name: str, given: Any, least: int) -> int:
    """``given`` as an int. TypeError for what is no whole number, ValueError for one below ``least``.

    >>> check_count("rows", -1, 0)
    Traceback (most recent call last):
    ValueError: rows is -1; give a whole number of at least 0
    """
    fix = f"a whole number of at least {least}"
    check_whole(name, given, fix)
    if (count := operator.index(given)) < least:
        raise ValueError(f"{name} is {count}; give {fix}")
    return count


def _told(given: object) -> str:
    if given is None:
        return "None"
    if isinstance(given, type):
        return f"the class {given.__name__}"
    name = type(given).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"
