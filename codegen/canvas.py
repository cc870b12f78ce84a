"""A page of SVG under construction: text, lines and boxes, with one style for every picture that is drawn here.

``sequence_svg.py`` and ``story_svg.py`` draw on it; state diagrams are laid out by Graphviz instead, see ``svg.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape

STYLE = """<style>
text { font-family: Helvetica, Arial, "Liberation Sans", sans-serif; font-size: 11px; fill: #222222 }
.title { font-size: 20px }
.about, .small { fill: #555555 }
.name { font-weight: bold; font-size: 13px }
.event { font-weight: bold }
.back { fill: #B84A00 }
.window { fill: #8F6200; font-weight: bold }
.actor { fill: white; font-weight: bold; font-size: 13px }
</style>
<defs>
<marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">
<path d="M0,0 L8,4 L0,8 z" fill="#444444"/></marker>
<marker id="back" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">
<path d="M0,0 L8,4 L0,8 z" fill="#B84A00"/></marker>
<pattern id="stripes" width="8" height="8" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
<rect width="8" height="8" fill="#FCF1D6"/><rect width="3" height="8" fill="#F3DDA0"/></pattern>
</defs>
"""


@dataclass(slots=True, kw_only=True)
class Canvas:
    """Shapes in the order in which they are drawn; a later one lies over an earlier one. All lengths are pixels."""

    shapes: list[str] = field(default_factory=list)

    def page(self, title: str, width: int, height: int, under: Iterable[str]) -> str:
        """The SVG element: a white page, what lies ``under`` all shapes, and the shapes."""
        size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n<title>{escape(title)}</title>\n'
        paper = f'<rect width="{width}" height="{height}" fill="white"/>'
        return head + STYLE + "\n".join([paper, *under, *self.shapes, "</svg>", ""])

    def text(self, x: int, y: int, text: str, kind: str = "", anchor: str = "start") -> None:
        """Words with their foot at ``y``."""
        self.shapes.append(f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>')

    def halo(self, x: int, y: int, text: str, kind: str, anchor: str = "start") -> None:
        """Text that stays readable over a line."""
        self.shapes.append(
            f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}" stroke="white" stroke-width="4" '
            f'stroke-linejoin="round" paint-order="stroke">{escape(text)}</text>'
        )

    def line(self, x: int, y: int, to_x: int, to_y: int, colour: str, look: str) -> str:
        """A straight line; the caller decides what it lies under."""
        return f'<line x1="{x}" y1="{y}" x2="{to_x}" y2="{to_y}" stroke="{colour}" {look}/>'

    def box(self, x: int, y: int, width: int, height: int, fill: str, line: str, rounded: int) -> None:
        """A filled rectangle."""
        self.shapes.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="{rounded}" fill="{fill}" stroke="{line}"/>'
        )
