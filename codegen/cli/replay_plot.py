"""The comparison of the five queues with one line as an SVG: which share of the requests waited at most how long.

A row for each scenario, in it a panel for all requests and one for resident ones; the numbers stand below each panel.
The same comparison gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..canvas import Canvas
from .replay_compare import LINES, Comparison, Result

_EDGE, _TOP = 24, 92
_WIDTH, _HEIGHT = 400, 200  # of a panel
_AXIS, _ROW = 52, 340  # room left of a panel for its axis; from one row to the next
_GAP = 48
_COLOURS = dict(zip(LINES, ("#1F5FA8", "#B84A00"), strict=True))
_GREY = "#CCCCCC"
_STEPS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)


def plot(found: Comparison) -> str:
    """The SVG of a comparison that is complete."""
    canvas = Canvas()
    count, model = len(found.setting.trace.requests), found.setting.profile.name
    canvas.text(_EDGE, 36, "Five queues beside one line", "title")
    about = "share of requests that waited at most so long from their coming to their first step"
    canvas.text(_EDGE, 56, f"{count:,} requests on {model}, virtual time: {about}", "about")
    for place, line in enumerate(LINES):
        x = _EDGE + 110 * place
        canvas.shapes.append(canvas.line(x, 72, x + 22, 72, _COLOURS[line], 'stroke-width="2.5"'))
        canvas.text(x + 28, 76, line)
    top = max((result.wait.max for result in found.results), default=0.0) / 1000 or 1.0
    for row, scenario in enumerate(found.scenarios):
        pair = found.of(scenario)
        y = _TOP + _ROW * row
        canvas.text(_EDGE, y + 20, scenario.capitalize(), "name")
        resident = f"{pair[0].resident.count:,} resident requests, which waited for no bytes"
        for column, title in enumerate((f"all {pair[0].requests:,} requests", resident)):
            x = _EDGE + _AXIS + (_WIDTH + _AXIS + _GAP) * column
            waits = [(one.line, one.ordered_resident if column else one.ordered) for one in pair]
            _panel(canvas, x, y + 48, top, title, waits)
            _numbers(canvas, x, y + 48 + _HEIGHT + 46, pair, resident=bool(column))
    width = 2 * (_WIDTH + _AXIS) + _GAP + 2 * _EDGE
    return canvas.page("Five queues beside one line", width, _TOP + _ROW * len(found.scenarios) + 8, ())


def _panel(
    canvas: Canvas, x: int, y: int, top: float, title: str, lines: Sequence[tuple[str, Sequence[float]]]
) -> None:
    """One distribution for each line; ``top`` seconds are as wide as the panel."""
    canvas.text(x, y - 8, title, "about")
    for percent in (0, 25, 50, 75, 99):
        at = y + _HEIGHT - round(_HEIGHT * percent / 100)
        look = 'stroke-dasharray="3 3"' if percent == 99 else ""
        canvas.shapes.append(canvas.line(x, at, x + _WIDTH, at, _GREY, look))
        canvas.text(x - 6, at + 4, f"{percent} %", "small", "end")
    step = next((step for step in _STEPS if top / step <= 8), _STEPS[-1])
    for tick in range(int(top / step) + 1):
        at = x + round(_WIDTH * tick * step / top)
        canvas.shapes.append(canvas.line(at, y + _HEIGHT, at, y + _HEIGHT + 4, "#888888", ""))
        canvas.text(at, y + _HEIGHT + 17, f"{tick * step:g} s", "small", "middle")
    for name, waits in lines:
        if not waits:
            continue
        steps, high = [f"M{x},{y + _HEIGHT}"], 0.0
        for place, wait in enumerate(waits, 1):
            steps.append(f"H{x + _WIDTH * wait / 1000 / top:.1f}")
            high = _HEIGHT * place / len(waits)
            steps.append(f"V{y + _HEIGHT - high:.1f}")
        steps.append(f"H{x + _WIDTH}")
        canvas.shapes.append(f'<path d="{" ".join(steps)}" fill="none" stroke="{_COLOURS[name]}" stroke-width="2"/>')


def _numbers(canvas: Canvas, x: int, y: int, pair: Sequence[Result], resident: bool) -> None:
    """Mean and p99 below a panel; below that of all requests also what was done in a second."""
    for place, one in enumerate(pair):
        waits = one.resident if resident else one.wait
        words = f"{one.line}: wait mean {waits.mean / 1000:.2f} s, p99 {waits.p99 / 1000:.2f} s"
        if not resident:
            words += f"; {one.requests_per_second:.2f} requests, {one.tokens_per_second:,.0f} tokens a second"
        foot = y + 18 * place
        canvas.box(x, foot - 8, 8, 8, _COLOURS[one.line], _COLOURS[one.line], 0)
        canvas.text(x + 14, foot, words)
