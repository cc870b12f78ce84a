"""A story as plain data, ready for ``json.dumps``; the page of `kvfsm explore` reads the same."""

from __future__ import annotations

from typing import Any

from .story import Attempt, Break, Story, Turn, Window


def as_data(story: Story) -> dict[str, Any]:
    """The story; a state is told by its changes, from the initial state on, in which every cell is 0."""
    return {
        "protocol": story.protocol,
        "bounds": dict(story.bounds),
        "steps": [_turn(turn) for turn in story.turns],
        "windows": [_window(window) for window in story.windows],
        "broken": _broken(story.broken) if story.broken is not None else None,
        "waiting": dict(story.waiting),
        "loop": story.loop,
        "stutters": story.stutters,
        "stuck": dict(story.stuck),
    }


def _turn(turn: Turn) -> dict[str, Any]:
    return {
        "number": turn.number,
        "actor": turn.actor,
        "copy": turn.copy,
        "step": turn.step,
        "choices": dict(turn.choices),
        "outcome": turn.outcome,
        "looks": list(turn.looks),
        "events": [_attempt(attempt) for attempt in turn.attempts],
        "changes": [
            {"cell": change.cell, "before": change.before, "after": change.after, "value": change.value}
            for change in turn.changes
        ],
        "then": turn.then,
    }


def _attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        "slot": attempt.target,
        "machine": attempt.machine,
        "event": attempt.event,
        "args": dict(attempt.shown),
        "case": attempt.case,
        "refusal": attempt.refusal,
        "why": attempt.why,
    }


def _window(window: Window) -> dict[str, Any]:
    return {
        "actor": window.actor,
        "copy": window.copy,
        "slots": list(window.slots),
        "opened": window.opened,
        "closed": window.closed,
        "disturbed": list(window.disturbed),
    }


def _broken(broken: Break) -> dict[str, Any]:
    return {
        "name": broken.claim,
        "kind": broken.kind,
        "says": broken.says,
        "that": broken.that,
        "for": list(broken.bindings),
        "values": dict(broken.values),
    }
