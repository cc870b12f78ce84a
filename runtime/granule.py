"""The granule A: the least length that whole blocks of every group can hold, and what to do when spans don't agree.

A group's *span* is the number of raw tokens in one of its physical blocks. A prefix can only be reused up to a length
that is a whole number of blocks in every group, that is, up to a multiple of the least common multiple of all spans.
Spans that don't divide one another make that granule much longer than any block (1536 and 3456 give 13824), and short
prompts then never hit. That is correct but must not be silent: it is reported, refused, or the spans are lowered.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from .errors import KvfsmError

OnIncommensurate = Literal["report", "refuse", "pad"]


class ProfileError(KvfsmError, ValueError):
    """A profile, layout, pool or span that doesn't fit: where, what was found, and how to fix it."""

    def __init__(self, where: str, what: str, fix: str) -> None:
        super().__init__(f"{where}: {what}\n  fix: {fix}")
        self.where = where
        self.what = what
        self.fix = fix


@dataclass(frozen=True, slots=True)
class SpanReport:
    """One group's part in a ``GranuleReport``: ``span`` is the one in force, ``asked`` the one given (tokens)."""

    group: str
    asked: int
    span: int


@dataclass(frozen=True, slots=True)
class GranuleReport:
    """The granule in force and how it compares with the largest span; all lengths are in tokens."""

    granule: int
    spans: tuple[SpanReport, ...]

    @property
    def largest(self) -> int:
        """The longest block of any group."""
        return max(entry.span for entry in self.spans)

    @property
    def commensurate(self) -> bool:
        """Whether the longest block is itself a whole number of every other block."""
        return self.granule == self.largest

    def floor(self, tokens: int) -> int:
        """The greatest multiple of the granule at or below ``tokens``.

        >>> granule_report([1536, 3456]).floor(69_000)
        55296
        """
        return tokens - tokens % self.granule

    @property
    def text(self) -> str:
        """One line to print wherever a pool is configured."""
        spans = ", ".join(
            f"{entry.group}={entry.span}" + (f" (padded from {entry.asked})" if entry.span != entry.asked else "")
            for entry in self.spans
        )
        line = f"granule A={self.granule} tokens from spans {spans}; prompts of up to {self.granule} tokens never hit"
        if self.commensurate:
            return line
        times = f"{self.granule / self.largest:g}"
        return f"{line}. WARNING: spans that don't divide one another make A {times}x the largest of them"


def granule_report(
    spans: Mapping[str, int] | Iterable[int], *, incommensurate: OnIncommensurate = "report"
) -> GranuleReport:
    """The granule of some spans.

    Args:
        spans: tokens in one physical block of each group, by group name; plain numbers get the names "0", "1", ...
        incommensurate: what to do when the granule exceeds the largest span: "report" accepts it and warns in
            ``.text``; "refuse" raises; "pad" goes through the groups in order and lowers each span that neither divides
            nor is a multiple of the granule so far, to the longest one that divides it (its page keeps its bytes).

    Returns:
        The report; ``.granule`` is a multiple of every span in it.

    Raises:
        ProfileError: no spans, a span below 1, or incommensurate spans under "refuse".

    >>> granule_report([128, 4096, 32, 2, 8]).granule
    4096
    >>> granule_report([1536, 3456]).granule, granule_report([1536, 3456]).commensurate
    (13824, False)
    >>> granule_report([1536, 3456], incommensurate="pad").granule, granule_report([1536, 768]).granule
    (1536, 1536)
    """
    named = dict(spans) if isinstance(spans, Mapping) else {str(place): span for place, span in enumerate(spans)}
    if not named:
        raise ProfileError("granule", "there are no spans", "give the span of at least one group")
    for group, span in named.items():
        if span < 1:
            raise ProfileError(f"group {group!r}", f"a span of {span} tokens", "give at least 1 token")
    as_asked = tuple(SpanReport(group, span, span) for group, span in named.items())
    report = GranuleReport(math.lcm(*named.values()), as_asked)
    if report.commensurate or incommensurate == "report":
        return report
    padded = _lowered(named)
    if incommensurate == "refuse":
        fix = ", ".join(f"{entry.group}={entry.span}" for entry in padded if entry.span != entry.asked)
        raise ProfileError(
            "granule",
            f"spans {tuple(named.values())} give A={report.granule}, longer than the largest span {report.largest}",
            f'lower spans so that they divide one another ({fix}), or accept A with incommensurate="report"',
        )
    return GranuleReport(math.lcm(*(entry.span for entry in padded)), padded)


def _lowered(named: Mapping[str, int]) -> tuple[SpanReport, ...]:
    """Spans that divide one another; the first group keeps its own."""
    granule, entries = 1, []
    for group, span in named.items():
        if span % granule == 0:
            granule = fitting = span
        else:
            fitting = max(divisor for divisor in range(1, min(span, granule) + 1) if granule % divisor == 0)
        entries.append(SpanReport(group, span, fitting))
    return tuple(entries)
