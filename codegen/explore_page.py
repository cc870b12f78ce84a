"""The page of `kvfsm explore`: one HTML file that holds everything it needs, and fetches nothing.

``page/`` holds what is the same for every protocol: the frame, the style sheet and the script. What differs is
``explore_script.py``'s model, the pictures of the machines, and runs to step through.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files

from ..spec.checking.stories.story import Story
from ..spec.checking.stories.story_json import as_data
from ..spec.checking.system import System
from ..spec.language.protocol import Protocol
from .explore_diagram import diagram, fired_events
from .explore_script import script
from .svg import Renderer

_ID = re.compile(r' (?:id|xlink:title)="[^"]*"')
_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)


def page(
    protocol: Protocol, system: System, runs: Sequence[tuple[str, Story]], pictures: Mapping[str, str]
) -> str:
    """The whole file.

    Args:
        protocol: what to step through.
        system: the same, laid flat.
        runs: names and stories to begin with, such as those of mutants.
        pictures: machine -> SVG element of its states; a machine without one is shown as a row of states.

    """
    data = {"runs": [{"name": name, "story": as_data(story)} for name, story in runs]}
    parts = {
        "@TITLE@": escape(f"{protocol.name}: {protocol.title}"),
        "@STYLE@": _asset("explore.css"),
        "@DIAGRAMS@": "\n".join(_hidden(pictures)),
        "@MODEL@": script(protocol, system, data),
        "@SCRIPT@": _asset("explore.js"),
    }
    marks = re.compile("|".join(parts))
    return marks.sub(lambda found: parts[found[0]], _asset("explore.html"))


def pictures_of(protocol: Protocol, renderer: Renderer) -> dict[str, str]:
    """The SVG element of each machine that the protocol uses."""
    machines = {item.machine.name: item.machine for item in protocol.instances}
    return {
        name: _element(renderer.draw(diagram(machine, fired_events(protocol, name))))
        for name, machine in machines.items()
    }


def _element(drawn: str) -> str:
    """The SVG element alone; as several stand in one page, without names of its parts."""
    return _ID.sub("", _COMMENT.sub("", drawn[drawn.index("<svg") :])).strip()


def _hidden(pictures: Mapping[str, str]) -> Iterable[str]:
    for name, svg in pictures.items():
        yield f'<div data-machine="{escape(name)}">{svg}</div>'


def _asset(name: str) -> str:
    return files(__package__).joinpath("page", name).read_text("utf-8").rstrip()
