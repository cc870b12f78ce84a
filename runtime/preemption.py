"""What is left of a live request that was put back: enough to begin it again exactly where it was.

Its slots are everybody's again. To go on: ``match`` its committed tokens, ``acquire``, and ``admit`` or ``extend`` over
what the cache no longer has; what is computed again under the same chunk schedule is the same (T9).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum


@dataclass(frozen=True, slots=True)
class Preempted:
    """A request that holds nothing any more.

    Attributes:
        owner: who asked for it.
        tokens: that were committed; to be resumed at exactly these.
        published: whole granules at its start that others found when it went.
        rejected: draft tokens that were open, and went without a trace.
        unpublished: the refusal that kept those after ``published`` from being so; None where nothing did.
    """

    owner: str
    tokens: int
    published: int
    rejected: int
    unpublished: IntEnum | StrEnum | None
