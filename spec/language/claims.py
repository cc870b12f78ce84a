"""What machines and protocols share in what they claim: fairness, and faults that are none."""

from __future__ import annotations

from collections.abc import Collection

from .model import Equivalent
from .problems import Place, Problems
from .source import Node, entries_of, text_of


def something_is_fair(keys: Collection[str], at: Place, what: str, problems: Problems) -> None:
    """Note a ``leads_to`` that says neither what is fair nor what is strongly fair."""
    if "fair" not in keys and "strong" not in keys:
        fix = "say with 'fair:' or 'strong:' what is not starved; without it nothing need ever happen"
        problems.add("E113", at, f"{what} lacks 'fair' or 'strong'", fix)


def equivalents_of(node: Node | None, problems: Problems) -> tuple[Equivalent, ...]:
    """``equivalent: {fault: reason}``; whether there is such a fault, and whether it is one, a hunt finds out."""
    found = []
    for entry in entries_of(node, "'equivalent'", problems):
        reason = text_of(entry.value, f"the reason why '{entry.key.text}' is no fault", problems)
        if reason is not None:
            found.append(Equivalent(entry.key.text, reason, entry.key.at))
    return tuple(found)
