"""A story as a Mermaid sequence diagram: copies that act on the left, slots on the right, one turn after the other."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import wrap

from ..spec.checking.stories.story import Attempt, Story, Turn
from ..spec.checking.stories.story_text import change_text
from .emit_mermaid import escape

_CHARS = 48


def story_diagram(story: Story) -> str:
    """The ``sequenceDiagram``; a bar on a copy's line is its window between check and use."""
    lines = [
        "%% Written by kvfsm check: a run of the protocol, not the protocol itself.",
        "sequenceDiagram",
        f"  accTitle: {escape(title(story))}",
    ]
    lines += [f"  actor {_actor(who)} as {escape(who)}" for who in story.lanes]
    lines += [f"  participant {_slot(slot)} as {escape(slot)}" for slot in slots_of(story)]
    for turn in story.turns:
        if story.loop == turn.number:
            lines.append("  loop over and over")
        lines += [f"  {line}" for line in _turn(story, turn)]
    if story.loop is not None:
        lines.append("  end")
    if story.broken is not None:
        broken = story.broken
        says = f" ({broken.says})" if broken.says else ""
        parts = [f"breaks {broken.claim}{says}", broken.that, *broken.bindings]
        parts += [f"{name} = {value}" for name, value in broken.values]
        lines.append(f"  Note over {_everybody(story)}: {_lines(parts, 80)}")
    return "\n".join([*lines, ""])


def title(story: Story) -> str:
    """What the picture is called."""
    if story.broken is None:
        return f"A run of {story.protocol}"
    return f"How {story.broken.claim} breaks in {story.protocol}"


def slots_of(story: Story) -> tuple[str, ...]:
    """The slots that the story touches or reads, in the order of first mention."""
    found: dict[str, None] = {}
    for turn in story.turns:
        found.update(dict.fromkeys(turn.looks))
        found.update({attempt.target: None for attempt in turn.attempts})
    return tuple(sorted(found))


def _turn(story: Story, turn: Turn) -> Iterable[str]:
    actor = _actor(turn.who)
    for window in story.windows:
        if window.closed == turn.number and window.who == turn.who:
            yield f"deactivate {actor}"
    chosen = ", ".join(f"{name}={value}" for name, value in turn.choices)
    own = [change_text(change) for change in turn.changes if change.cell.startswith(f"{turn.actor}[{turn.copy}].")]
    phrases = [f"{turn.number}. {turn.step}{f' ({chosen})' if chosen else ''}"]
    phrases += [f"looks at {', '.join(turn.looks)}"] if turn.looks else []
    phrases += [f"cannot, goes on at {turn.then}"] if turn.outcome == "otherwise" else []
    yield f"Note over {actor}: {_lines([*phrases, *own], 36)}"
    for attempt in turn.attempts:
        yield from _attempt(actor, attempt)
    if turn.outcome == "refused":
        yield f"Note over {actor}: nothing of the step is done#59; goes on at {escape(turn.then)}"
    for slot in slots_of(story):
        words = [change_text(change).removeprefix(f"{slot}.") for change in turn.changes
                 if change.cell.startswith(f"{slot}.")]
        if words:
            yield f"Note over {_slot(slot)}: {_lines(words, 36)}"
    for window in story.windows:
        if window.opened == turn.number and window.who == turn.who:
            yield f"activate {actor}"


def _attempt(actor: str, attempt: Attempt) -> Iterable[str]:
    args = ", ".join(f"{name} {value}" for name, value in attempt.shown)
    call = f"{attempt.event}{f' ({args})' if args else ''}"
    yield f"{actor}->>{_slot(attempt.target)}: {_lines([call], _CHARS)}"
    if attempt.refusal is not None:
        yield f"{_slot(attempt.target)}-->>{actor}: {_lines([f'{attempt.refusal}: {attempt.why}'], _CHARS)}"


def _lines(phrases: Iterable[str], width: int) -> str:
    return "<br/>".join(escape(line) for phrase in phrases for line in wrap(phrase, width, break_on_hyphens=False))


def _everybody(story: Story) -> str:
    names = [*(_actor(who) for who in story.lanes), *(_slot(slot) for slot in slots_of(story))]
    return names[0] if len(names) == 1 else f"{names[0]},{names[-1]}"


def _actor(who: str) -> str:
    return f"a_{who.replace(' ', '_')}"


def _slot(slot: str) -> str:
    return f"s_{slot.replace('[', '_').replace(']', '')}"
