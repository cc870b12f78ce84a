"""What a word of the spec is called in each target."""

from __future__ import annotations

import keyword
from collections.abc import Collection

C_WORDS = frozenset(
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t class compl "
    "const const_cast constexpr continue decltype default delete do double dynamic_cast else enum explicit export "
    "extern false float for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr "
    "operator or or_eq private protected public register reinterpret_cast restrict return short signed sizeof "
    "static static_assert static_cast struct switch template this thread_local throw true try typedef typeid "
    "typename union unsigned using virtual void volatile wchar_t while xor xor_eq".split()
)


def class_name(word: str) -> str:
    """``swa_window`` as ``SwaWindow``."""
    return "".join(part.capitalize() for part in word.split("_"))


def constant(word: str) -> str:
    """``too_many_readers`` as ``TOO_MANY_READERS``."""
    return word.upper()


def k_name(*words: str) -> str:
    """``resident`` as ``kResident``, ``pins`` and ``shift`` as ``kPinsShift``: a compile-time constant in CUDA."""
    return "k" + "".join(map(class_name, words))


def python_name(word: str, taken: Collection[str] = ()) -> str:
    """``word``, with an underscore behind it if Python or ``taken`` has another use for it."""
    return f"{word}_" if keyword.iskeyword(word) or word in taken else word


def c_name(word: str, taken: Collection[str] = ()) -> str:
    """``word``, with an underscore behind it if C++ or ``taken`` has another use for it."""
    return f"{word}_" if word in C_WORDS or word in taken else word
