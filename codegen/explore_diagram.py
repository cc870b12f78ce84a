"""A machine's states as a small Graphviz picture for the page of `kvfsm explore`.

Only the events that a protocol fires have arrows; states that they never touch stand apart in the last row. Colours are
left to the page, which tells states by their role and lights those that slots are in.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from ..spec.language.model import Machine
from ..spec.language.protocol import Protocol
from .picture import Role, arrows, in_place, role

_FONT = "Helvetica"
_CHARS = 22


def diagram(machine: Machine, fired: frozenset[str]) -> str:
    """The Graphviz source. Nodes carry the classes ``state`` and the role in lower case; titles are names of states."""
    drawn = [
        (arrow.source, arrow.target, events)
        for arrow in arrows(machine)
        if (events := [step.event for step in arrow.steps if step.event in fired])
    ]
    touched = {name for source, target, _ in drawn for name in (source, target)} | {machine.states[0].name}
    lines = [
        f"digraph {machine.name} {{",
        '  graph [bgcolor="transparent", nodesep=0.35, ranksep=0.4, pad=0.1]',
        f'  node [fontname="{_FONT}", fontsize=11, margin="0.16,0.07", shape=box, style="rounded,filled",',
        '        fillcolor="white"]',
        f'  edge [fontname="{_FONT}", fontsize=10, arrowsize=0.7]',
    ]
    for state in machine.states:
        stays = [step.event for step in in_place(machine, state.name) if step.event in fired]
        label = "\\n".join([state.name, *_wrapped(stays if state.name in touched else [])])
        apart = "" if state.name in touched else " apart"
        lines.append(f'  {state.name} [class="state {role_class(role(state))}{apart}", label="{label}"]')
    for source, target, events in drawn:
        label = "\\n".join(f" {line} " for line in _wrapped(dict.fromkeys(events)))
        lines.append(f'  {source} -> {target} [label="{label}"]')
    lines.append(f"  {{ rank=source; {machine.states[0].name} }}")
    apart_names = [state.name for state in machine.states if state.name not in touched]
    if apart_names:
        lines.append(f"  {{ rank=sink; {'; '.join(apart_names)} }}")
        anchor = drawn[-1][1] if drawn else machine.states[0].name
        lines += [f"  {anchor} -> {name} [style=invis]" for name in apart_names]
    return "\n".join([*lines, "}", ""])


def fired_events(protocol: Protocol, machine: str) -> frozenset[str]:
    """The events that a protocol fires at slots of a machine."""
    instances = {item.name for item in protocol.instances if item.machine.name == machine}
    return frozenset(
        fire.event
        for program in protocol.programs
        for step in program.steps
        for fire in step.fire
        if fire.instance in instances
    )


def role_class(kind: Role) -> str:
    """The role as a class of the page's style sheet."""
    return kind.name.lower()


def _wrapped(events: Iterable[str]) -> list[str]:
    return textwrap.wrap(", ".join(events), _CHARS, break_long_words=False, break_on_hyphens=False)
