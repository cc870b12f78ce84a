"""What kernels answer where no event decides. Shares a byte with ``Refusal``, whose codes lie below."""

from __future__ import annotations

from enum import IntEnum


class CallRefusal(IntEnum):
    """``kv_call`` of kvfsm_base.cuh."""

    RELEASED = 252
    """No pin is held any more: it was given back."""
    CONTENDED = 253
    """Others changed the word at every try; nothing was done, and the caller may try again."""
    BAD_ARGUMENT = 254
    """An argument that its field can't hold, or numbers that no machine or array has."""
    NO_SLOT = 255
    """There is no such slot."""
