"""A protocol as an SVG: pools of slots are lifelines, each kind of actor has a scene of its own under the others.

Left stands what a step chooses, waits for and remembers; right, the events that it fires; a box is one atomic step.
The window between check and use is a striped band, a refusal a dashed arrow back. Plain arithmetic, no renderer needed.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass

from .canvas import Canvas
from .sequence import Message, Moment, Scene, Sequence, Window, guard_text

_TEXT_LEFT, _TEXT_CHARS = 24, 46  # where a step's words start, and how many fit on a line
_ACTOR_X = 350
_POOL_GAP = 210  # from one lifeline to the next
_ARGS_CHARS = 34
_LINE = 14  # height of a line of text
_EDGE = 24  # free space around everything
_DOTTED = 'stroke-dasharray="2 3"'



def draw(picture: Sequence) -> str:
    """The SVG element of one protocol's picture."""
    page = _Page(picture)
    page.heading()
    for scene in picture.scenes:
        page.scene(scene)
    return page.svg()


@dataclass(slots=True)
class _Page(Canvas):
    """Shapes under construction: ``y`` is how far down the page is filled; lifelines are drawn under everything."""

    picture: Sequence
    lifelines_from: int = 0
    y: int = _EDGE

    @property
    def width(self) -> int:
        """The page's width in pixels."""
        return self.x(self.picture.pools[-1].name) + _POOL_GAP // 2 + _EDGE

    def x(self, pool: str) -> int:
        """Where a pool's lifeline stands."""
        names = [item.name for item in self.picture.pools]
        return _ACTOR_X + _POOL_GAP * (names.index(pool) + 1)

    def heading(self) -> None:
        """Title, about, and the heads of the lifelines."""
        self.y += 14
        self.text(_TEXT_LEFT, self.y, self.picture.title, "title")
        self.y += 10
        for line in textwrap.wrap(self.picture.about, (self.width - 2 * _EDGE) // 6):
            self.y += _LINE
            self.text(_TEXT_LEFT, self.y, line, "about")
        self.y += 18
        for pool in self.picture.pools:
            count = f"{pool.slots} slot{'s' if pool.slots > 1 else ''} of {pool.machine}"
            self.box(self.x(pool.name) - 85, self.y, 170, 40, "#F4F4F4", "#555555", rounded=6)
            self.text(self.x(pool.name), self.y + 17, pool.name, "name", "middle")
            self.text(self.x(pool.name), self.y + 32, count, "small", "middle")
        self.y += 40
        self.lifelines_from = self.y

    def scene(self, scene: Scene) -> None:
        """One actor's steps, under a bar with its name."""
        self.y += 26
        copies = f", {scene.count} of them" if scene.count > 1 else ""
        others = [role for role in scene.plays if role != scene.actor]
        plays = f"plays {', '.join(others)};  " if others else ""
        self.box(_EDGE - 8, self.y, self.width - 2 * _EDGE + 16, 26, "#3A4A5A", "#3A4A5A", rounded=4)
        self.text(_TEXT_LEFT, self.y + 17, f"{scene.actor}{copies}", "actor")
        self.text(self.width - _TEXT_LEFT, self.y + 17, f"{plays}over and over", "actor", "end")
        self.y += 34
        start = self.y
        place = len(self.shapes)
        for moment in scene.moments:
            if moment.window is not None:
                self.window(moment.window, moment)
            self.moment(moment)
        line = (
            f'<line x1="{_ACTOR_X}" y1="{start - 8}" x2="{_ACTOR_X}" y2="{self.y}" stroke="#3A4A5A" stroke-width="3"/>'
        )
        self.shapes.insert(place, line)

    def moment(self, moment: Moment) -> None:
        """One atomic step: words on the left, events on the right, a box around both."""
        top = self.y + 4
        place = len(self.shapes)
        left = top + 17
        self.text(_TEXT_LEFT, left, moment.name, "name")
        for line in _words(moment):
            left += _LINE
            self.text(_TEXT_LEFT, left, line, "small")
        self.y = top + 8
        for message in moment.messages:
            self.message(message)
        if moment.messages and (moment.refused is not None or moment.refusals):
            self.refusal(moment)
        if moment.then is not None:
            left += _LINE
            self.text(_TEXT_LEFT, left, f"then {moment.then}")
        self.shapes.append(
            f'<circle cx="{_ACTOR_X}" cy="{top + 13}" r="5" fill="white" stroke="#3A4A5A" stroke-width="2"/>'
        )
        self.y = max(self.y, left) + 10
        frame = f'<rect x="{_EDGE - 8}" y="{top}" width="{self.width - 2 * _EDGE + 16}" height="{self.y - top}" rx="6" '
        self.shapes.insert(place, frame + 'fill="#EEF1F4" fill-opacity="0.75" stroke="#C9D1D9"/>')

    def message(self, message: Message) -> None:
        """An arrow from the actor to a slot, with the event over its end and the arguments under it."""
        end = self.x(message.pool)
        self.y += 18
        label = f"{message.event} [{message.slot}]"
        self.halo(end - 12, self.y - 4, label, "event", "end")
        self.shapes.append(self.line(_ACTOR_X + 6, self.y, end - 1, self.y, "#444444", 'marker-end="url(#arrow)"'))
        for line in textwrap.wrap(", ".join(message.args), _ARGS_CHARS):
            self.y += _LINE - 1
            self.halo(end - 12, self.y, line, "small", "end")

    def refusal(self, moment: Moment) -> None:
        """A dashed arrow back: which words, and where the actor goes on."""
        self.y += 22
        start = max(self.x(message.pool) for message in moment.messages)
        goes = f"goes on at {moment.refused.step}" if moment.refused is not None else "waits"
        nothing = ", nothing of the step is done" if len(moment.messages) > 1 else ""
        head = f"refused{nothing}: {goes}"
        chars = max(40, (start - _ACTOR_X) // 6)
        effects = moment.refused.effects if moment.refused is not None else ()
        self.halo(_ACTOR_X + 14, self.y - 4, head, "back")
        look = 'stroke-dasharray="5 3" marker-end="url(#back)"'
        self.shapes.append(self.line(start, self.y, _ACTOR_X + 6, self.y, "#B84A00", look))
        for line in textwrap.wrap(f"with {', '.join(effects)}" if effects else "", chars):
            self.y += _LINE - 1
            self.halo(_ACTOR_X + 14, self.y, line, "back")
        for line in textwrap.wrap(", ".join(moment.refusals), chars):
            self.y += _LINE - 1
            self.halo(_ACTOR_X + 14, self.y, line, "small")

    def window(self, window: Window, moment: Moment) -> None:
        """The band between check and use."""
        self.y += 6
        self.box(_EDGE - 8, self.y, self.width - 2 * _EDGE + 16, 24, "url(#stripes)", "#C79A2B", rounded=4)
        text = (
            f"window between check and use: after {' and '.join(window.checked)} and before {moment.name}, "
            f"others may change {', '.join(window.pools)}"
        )
        self.halo(_TEXT_LEFT, self.y + 16, text, "window")
        self.y += 26

    def svg(self) -> str:
        """Everything, lifelines first so that they lie underneath."""
        self.y += _EDGE
        lines = [
            self.line(self.x(pool.name), self.lifelines_from, self.x(pool.name), self.y - _EDGE, "#888888", _DOTTED)
            for pool in self.picture.pools
        ]
        return self.page(self.picture.title, self.width, self.y, lines)


def _words(moment: Moment) -> Iterable[str]:
    """What a step chooses, waits for and remembers."""
    phrases = []
    if moment.chooses:
        phrases.append(f"choose any {', '.join(moment.chooses)}")
    if moment.when is not None:
        phrases.append(guard_text(moment))
    if moment.effects:
        phrases.append(f"remember {', '.join(moment.effects)}")
    for phrase in phrases:
        yield from textwrap.wrap(phrase, _TEXT_CHARS, subsequent_indent="   ", break_on_hyphens=False)
