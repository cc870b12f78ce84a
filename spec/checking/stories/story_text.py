"""A story as plain text: one lane for each copy that acts, with the window between check and use marked in it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from .story import Attempt, Break, Change, Story, Turn

ACTS, WINDOW, PASSES = "●", "║", "·"
_WIDTH = 110
_LANE = 2  # columns of a lane


def text(story: Story) -> str:
    """The whole story, without a line break at its end."""
    lines = list(_heading(story))
    for turn in story.turns:
        if story.loop == turn.number:
            lines.append(f"{_between(story, turn.number - 1)}from here on, over and over:")
        lines += _turn(story, turn)
    if story.broken is not None:
        lines += ["", *break_lines(story.broken)]
    if story.stuck:
        lines.append("no step that must not be starved can be taken:")
        lines += [line for who, why in story.stuck for line in _wrapped(f"{who}: {why}", "  ")]
    elif story.broken is not None and (story.stutters or story.broken.kind == "deadlock"):
        waits = ", ".join(f"{who} at {step}" for who, step in story.waiting)
        lines += _wrapped(f"nobody who could change this moves: {waits}", "  ")
    return "\n".join(line.rstrip() for line in lines)


def break_lines(broken: Break) -> Iterable[str]:
    """What broke, for whom, and the values."""
    says = f" ({broken.says})" if broken.says else ""
    yield f"breaks {broken.claim}{says}, {broken.kind}:"
    yield from _wrapped(broken.that, "  ")
    if broken.bindings:
        yield from _wrapped(f"for {'; '.join(broken.bindings)}", "  ")
    if broken.values:
        yield from _wrapped("here " + ", ".join(f"{name} = {value}" for name, value in broken.values), "  ")


def turn_line(turn: Turn) -> str:
    """Who does what: "reader 0 acquire (slot=1): pin kv[1] (expected 1), refused as stale, goes on at match"."""
    chosen = ", ".join(f"{name}={value}" for name, value in turn.choices)
    did = [attempt_text(attempt) for attempt in turn.attempts]
    if turn.looks:
        did.append(f"looks at {', '.join(turn.looks)}")
    if turn.outcome == "otherwise":
        did.append(f"cannot, goes on at {turn.then}")
    elif turn.outcome == "refused":
        did.append(f"goes on at {turn.then}")
    head = f"{turn.who} {turn.step}{f' ({chosen})' if chosen else ''}"
    return f"{head}: {'; '.join(did)}" if did else head


def attempt_text(attempt: Attempt) -> str:
    """One event, its arguments, and how it went."""
    args = ", ".join(f"{name} {value}" for name, value in attempt.shown)
    call = f"{attempt.event} {attempt.target}{f' ({args})' if args else ''}"
    if not attempt.fits:
        return f"{call}, whose value does not fit"
    return call if attempt.refusal is None else f"{call}, refused as {attempt.refusal}: {attempt.why}"


def change_text(change: Change) -> str:
    """Such as "kv[0].state free -> resident"."""
    return f"{change.cell} {change.before} -> {change.after}"


def _heading(story: Story) -> Iterable[str]:
    bounds = ", ".join(f"{name} {value}" for name, value in story.bounds)
    count = len(story.turns)
    yield f"{story.protocol}{f' ({bounds})' if bounds else ''}: {count} step{'' if count == 1 else 's'}"
    for place, who in enumerate(story.lanes):
        yield f"     {_cells([_rail(place, at) for at in range(len(story.lanes))])} {who}"
    for window in story.windows:
        steps = ", ".join(map(str, window.disturbed))
        use = f"and uses it in step {window.closed}" if window.closed is not None else "and relies on it still"
        saw = f"{window.who} looked at {', '.join(window.slots)} in step {window.opened}"
        yield f"     {WINDOW} {saw} {use}: changed in step {steps}"


def _rail(place: int, at: int) -> str:
    return "┌" if place == at else "│" if at < place else "─"


def _turn(story: Story, turn: Turn) -> Iterable[str]:
    marks = [ACTS if who == turn.who else _mark(story, who, turn.number) for who in story.lanes]
    body = textwrap.wrap(turn_line(turn), _WIDTH, subsequent_indent="    ", break_on_hyphens=False)
    yield f"{turn.number:4} {_cells(marks)} {body[0]}"
    rest = _between(story, turn.number)
    yield from (f"{rest}{line}" for line in body[1:])
    if turn.changes:
        yield from (f"{rest}    {line}" for line in _filled([change_text(change) for change in turn.changes]))


def _between(story: Story, number: int) -> str:
    """The margin of lines after a turn: lanes whose window is open then."""
    open_now = [
        WINDOW
        if any(
            window.who == who and window.opened <= number and (window.closed is None or number < window.closed)
            for window in story.windows
        )
        else PASSES
        for who in story.lanes
    ]
    return f"     {_cells(open_now)} "


def _mark(story: Story, who: str, number: int) -> str:
    return WINDOW if any(window.who == who and window.covers(number) for window in story.windows) else PASSES


def _filled(items: Sequence[str]) -> list[str]:
    """Items with commas between them, as many a line as fit, none broken."""
    lines = [items[0]]
    for item in items[1:]:
        if len(lines[-1]) + len(item) + 2 <= _WIDTH - 4:
            lines[-1] += f", {item}"
        else:
            lines[-1] += ","
            lines.append(item)
    return lines


def _cells(marks: Sequence[str]) -> str:
    return "".join(f"{mark:{_LANE}}" for mark in marks)


def _wrapped(words: str, margin: str) -> list[str]:
    return textwrap.wrap(words, _WIDTH, initial_indent=margin, subsequent_indent=margin + "  ", break_on_hyphens=False)
