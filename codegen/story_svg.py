"""A story as an SVG: swim lanes of the copies that act, lifelines of the slots, and a row for each turn.

Left of a row stand the words; an arrow is an event, a dashed one back its refusal, a dotted one a look. The window
between check and use is a striped bar on the copy's lane. Under the last row stands what broke.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field

from ..spec.checking.stories.story import Attempt, Story, Turn
from ..spec.checking.stories.story_text import change_text
from .canvas import Canvas
from .story_mermaid import slots_of, title

_EDGE = 24
_WORDS_LEFT, _WORDS_CHARS = 24, 48
_LANES_LEFT = 340
_LANE, _SLOT = 84, 200  # from one lane, and from one lifeline, to the next
_LINE = 14
_NAME_CHARS = 11
_INK, _GREY = "#3A4A5A", "#888888"


def draw(story: Story) -> str:
    """The SVG element of one story."""
    page = _Page(story)
    page.heading()
    for turn in story.turns:
        page.turn(turn)
    return page.svg()


def _named(actor: str) -> list[str]:
    """The name of an actor in lines that fit the head of a lane."""
    return textwrap.wrap(actor.replace("_", " "), _NAME_CHARS)


@dataclass(slots=True)
class _Page(Canvas):
    """Shapes under construction; ``y`` is how far down the page is filled, ``rows`` where each turn's dot stands."""

    story: Story
    y: int = _EDGE
    top: int = 0
    rows: list[int] = field(default_factory=list)
    frames: list[str] = field(default_factory=list)  # behind the rows, and under everything

    @property
    def width(self) -> int:
        """The page's width in pixels."""
        return max(720, self.slot_x(len(slots_of(self.story)) - 1) + 150 + _EDGE)

    def lane_x(self, who: str) -> int:
        """Where a copy's lane stands."""
        return _LANES_LEFT + _LANE * self.story.lanes.index(who)

    def slot_x(self, place: int) -> int:
        """Where the lifeline of a slot stands."""
        return _LANES_LEFT + _LANE * max(len(self.story.lanes) - 1, 0) + _SLOT * place + 170

    def heading(self) -> None:
        """Title, bounds, and the heads of lanes and lifelines."""
        story = self.story
        self.y += 14
        self.text(_WORDS_LEFT, self.y, title(story), "title")
        self.y += 20
        bounds = ", ".join(f"{name} {value}" for name, value in story.bounds)
        count = f"{len(story.turns)} step{'' if len(story.turns) == 1 else 's'}"
        self.text(_WORDS_LEFT, self.y, f"{count}{f'; {bounds}' if bounds else ''}", "about")
        self.y += 18
        names = [_named(who.rpartition(" ")[0]) for who in story.lanes]
        tall = 22 + _LINE * max(map(len, names), default=1)
        for who in story.lanes:
            actor, _, copy = who.rpartition(" ")
            self.box(self.lane_x(who) - _LANE // 2 + 4, self.y, _LANE - 8, tall, _INK, _INK, rounded=6)
            for place, line in enumerate([*_named(actor), copy]):
                self.text(self.lane_x(who), self.y + 15 + place * _LINE, line, "actor", "middle")
        for place, slot in enumerate(slots_of(story)):
            self.box(self.slot_x(place) - 60, self.y, 120, tall, "#F4F4F4", "#555555", rounded=6)
            self.text(self.slot_x(place), self.y + 4 + tall // 2, slot, "name", "middle")
        self.y += tall
        self.top = self.y
        self.y += 12

    def turn(self, turn: Turn) -> None:
        """One row: words, the copy's dot, its events, and what they changed."""
        if self.story.loop == turn.number:
            self.y += 18
            self.halo(_WORDS_LEFT, self.y, "from here on, over and over:", "window")
        top = self.y + 6
        left = top + 18
        chosen = ", ".join(f"{name}={value}" for name, value in turn.choices)
        self.text(_WORDS_LEFT, left, f"{turn.number}  {turn.who} {turn.step}", "name")
        for line in self._words(turn, chosen):
            left += _LINE
            self.text(_WORDS_LEFT + 16, left, line, "small")
        row = top + 14
        self.rows.append(row)
        self.y = row
        here = self.lane_x(turn.who)
        for at, slot in enumerate(slots_of(self.story)):
            if slot in turn.looks:
                self.shapes.append(self.line(here, row, self.slot_x(at), row, _GREY, 'stroke-dasharray="1 4"'))
                self.halo(self.slot_x(at) - 8, row - 5, "looks", "small", "end")
                self.shapes.append(f'<circle cx="{self.slot_x(at)}" cy="{row}" r="3" fill="white" stroke="{_GREY}"/>')
        for number, attempt in enumerate(turn.attempts):
            self.attempt(turn, attempt, first=number == 0 and not turn.looks)
        self.changes(turn)
        self.shapes.append(f'<circle cx="{here}" cy="{row}" r="6" fill="{_INK}" stroke="white" stroke-width="2"/>')
        self.y = max(self.y, left) + 12
        self.frames.append(
            f'<rect x="{_EDGE - 8}" y="{top - 4}" width="{self.width - 2 * _EDGE + 16}" height="{self.y - top}" rx="6" '
            'fill="#EEF1F4" fill-opacity="0.75" stroke="#C9D1D9"/>'
        )

    def _words(self, turn: Turn, chosen: str) -> list[str]:
        own = [change for change in turn.changes if change.cell.startswith(f"{turn.actor}[{turn.copy}].")]
        phrases = [f"chooses {chosen}"] if chosen else []
        phrases += [change_text(change).partition(".")[2] for change in own]
        if turn.outcome == "otherwise":
            phrases.append("its condition does not hold")
        return [line for phrase in phrases for line in textwrap.wrap(phrase, _WORDS_CHARS, break_on_hyphens=False)]

    def attempt(self, turn: Turn, attempt: Attempt, first: bool) -> None:
        """An arrow to the slot, and a dashed one back when it is refused."""
        start, end = self.lane_x(turn.who), self.slot_x(slots_of(self.story).index(attempt.target))
        self.y += 0 if first else 20
        self.halo(end - 12, self.y - 4, attempt.event, "event", "end")
        self.shapes.append(self.line(start + 7, self.y, end - 1, self.y, "#444444", 'marker-end="url(#arrow)"'))
        args = ", ".join(f"{name} {value}" for name, value in attempt.shown)
        for line in textwrap.wrap(args, 34):
            self.y += _LINE - 1
            self.halo(end - 12, self.y, line, "small", "end")
        if attempt.refusal is not None:
            self.y += 18
            self.halo(start + 14, self.y - 4, f"{attempt.refusal}: {attempt.why}", "back")
            look = 'stroke-dasharray="5 3" marker-end="url(#back)"'
            self.shapes.append(self.line(end, self.y, start + 7, self.y, "#B84A00", look))

    def changes(self, turn: Turn) -> None:
        """What became of each slot, beside its lifeline."""
        bottom = self.y
        for place, slot in enumerate(slots_of(self.story)):
            y = bottom
            for change in turn.changes:
                if change.cell.rpartition(".")[0] == slot:
                    y += _LINE
                    field = change.cell.rpartition(".")[2]
                    kind = "event" if field == "state" else "small"
                    self.halo(self.slot_x(place) + 8, y - 8, f"{field} {change.before} → {change.after}", kind)
            self.y = max(self.y, y)

    def svg(self) -> str:
        """Everything, lifelines and windows first so that they lie underneath."""
        end = self.y + 8
        under = [
            self.line(self.slot_x(place), self.top, self.slot_x(place), end, _GREY, 'stroke-dasharray="2 3"')
            for place in range(len(slots_of(self.story)))
        ]
        under += [
            self.line(self.lane_x(who), self.top, self.lane_x(who), end, _INK, 'stroke-width="2" stroke-opacity="0.35"')
            for who in self.story.lanes
        ]
        bars = []
        for window in self.story.windows:
            start = self.rows[window.opened - 1]
            stop = self.rows[window.closed - 1] if window.closed is not None else end
            bars.append(
                f'<rect x="{self.lane_x(window.who) - 8}" y="{start}" width="16" height="{stop - start}" '
                f'fill="url(#stripes)" stroke="#C79A2B"><title>window between check and use</title></rect>'
            )
        self._break()
        self.y += _EDGE
        return self.page(title(self.story), self.width, self.y, [*self.frames, *under, *bars])

    def _break(self) -> None:
        broken = self.story.broken
        if broken is None:
            return
        chars = (self.width - 2 * _EDGE) // 6
        says = f" ({broken.says})" if broken.says else ""
        lines = textwrap.wrap(broken.that, chars)
        lines += textwrap.wrap("; ".join(f"for {binding}" for binding in broken.bindings), chars)
        lines += textwrap.wrap(", ".join(f"{name} = {value}" for name, value in broken.values), chars)
        self.y += 16
        height = 30 + _LINE * len(lines)
        self.box(_EDGE - 8, self.y, self.width - 2 * _EDGE + 16, height, "#FBE4D8", "#B84A00", rounded=6)
        self.y += 19
        self.text(_WORDS_LEFT, self.y, f"breaks {broken.claim}{says}", "name")
        for line in lines:
            self.y += _LINE
            self.text(_WORDS_LEFT, self.y, line)
        self.y += 11
