"""Scripts of actors over one slot: played by kernels under every schedule, and explored as a protocol of the spec.

A script is a list of events with their arguments, each followed by a deed on the slot's bytes; its actor stops at the
first that is refused. The same scripts become threads that call ``kv_words::change`` of words.cu, and actors of a
protocol whose steps fire the events of the same YAML. What both can reach must be the same.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from kvfsm.kernels.launch import Argument, Kernel, LaunchPlan
from kvfsm.kernels.source import source_of
from kvfsm.kernels.words import HEADERS, event_number
from kvfsm.runtime.generated import KINDS
from kvfsm.spec.checking.explore import explore
from kvfsm.spec.checking.grounding import ground
from kvfsm.spec.checking.system import System
from kvfsm.spec.language.load import load_spec
from kvfsm.spec.language.model import Argument as SpecArgument
from kvfsm.spec.language.model import Machine

from ..hostcuda.host import HostBuffer, HostLauncher, Sources

ACTOR = Kernel(
    name="actor",
    file="words.cu",
    headers=HEADERS,
    threads=32,
    arguments=(
        Argument("word", "u64*"),
        Argument("steps", "u32"),
        Argument("events", "const u32*"),
        Argument("arguments", "const i64*"),
        Argument("deeds", "const u32*"),
        Argument("values", "const u64*"),
        Argument("payload", "u64*"),
        Argument("refusals", "u8*"),
        Argument("seen", "u64*"),
    ),
)
NO_EVENT, NOTHING, READ, WRITE = 2**32 - 1, 0, 1, 2
UNSEEN = 99

SPEC = Path(__file__).parents[2] / "spec"
NARROW = {"pins": 2, "holds": 1, "generation": 2, "layout": 1, "landed": 1, "version": 1, "boundary": 1, "position": 1,
          "rows": 1}  # fmt: skip
"""Bits of the fields of a machine in the protocol; scripts stay within."""


END_OF_HELPERS = "}  // namespace kv_words\n"


def actor_source(kind: str) -> Sources:
    """The actors of one machine, on top of what words.cu has before its kernels."""

    def source(kernel: Kernel) -> str:
        helpers, end, _ = source_of(kernel).partition(END_OF_HELPERS)
        own = Path(__file__).with_name("actors.cu")
        text = own.read_text("utf-8").replace("KIND", kind)
        return f'{helpers}{end}#line 1 "tests/kernels/{own.name}"\n{text}'

    return source


@dataclass(frozen=True, slots=True)
class Step:
    """An event, or None, with its arguments by name, and what is done to the bytes after it."""

    event: str | None
    given: Mapping[str, int] = field(default_factory=dict)
    deed: int = NOTHING
    value: int = 0


@dataclass(frozen=True, slots=True)
class Script:
    """What one actor does. ``generation``: of the bytes that a reader means to read."""

    steps: tuple[Step, ...]
    generation: int = 0


Refused = tuple[int | None, ...]
"""For each actor the step that was refused, None: it came to its end."""


@dataclass(frozen=True, slots=True)
class Play:
    """Scripts over one slot of a machine, resident in generation 1 at first."""

    kind: str
    scripts: tuple[Script, ...]

    @property
    def word(self) -> int:
        """Of the slot at first."""
        table = KINDS[self.kind]
        whole = {"landed": 1} if any(each.name == "landed" for each in table.LAYOUT.fields) else {}
        return table.LAYOUT.pack(state=table.STATES["RESIDENT"], generation=1, **whole)


@dataclass(frozen=True, slots=True)
class Reached:
    """What there is to reach: words of the slot, and at the end its word and who was refused where."""

    words: set[int]
    ends: set[tuple[int, Refused]]


class Stage:
    """Scripts as launches over one word and two words of bytes, which say their generation."""

    def __init__(self, launcher: HostLauncher, play: Play) -> None:
        self.kind, self.scripts = play.kind, play.scripts
        self.word = launcher.upload(np.array([play.word], np.uint64))
        self.payload = launcher.upload(np.ones(2, np.uint64))
        self.refusals: list[HostBuffer] = []
        self.seen: list[HostBuffer] = []
        self.reached = Reached(set(), set())
        self.plans = [self._plan(launcher, script) for script in play.scripts]

    def _plan(self, launcher: HostLauncher, script: Script) -> LaunchPlan:
        about, n = KINDS[self.kind].EVENTS, len(script.steps)
        arguments = np.zeros((max(len(event.given) for event in about.values()), n), np.int64)
        numbers = np.full(n, NO_EVENT, np.uint32)
        for place, step in enumerate(script.steps):
            if step.event is not None:
                numbers[place] = event_number(self.kind, step.event)
                row = [step.given[given.name] for given in about[step.event].given]
                arguments[: len(row), place] = row
        deeds = np.array([step.deed for step in script.steps], np.uint32)
        values = np.array([step.value for step in script.steps], np.uint64)
        self.refusals.append(launcher.upload(np.zeros(n, np.uint8)))
        self.seen.append(launcher.upload(np.full(2, UNSEEN, np.uint64)))
        given = [launcher.upload(array).pointer for array in (numbers, arguments, deeds, values)]
        after = (self.payload.pointer, self.refusals[-1].pointer, self.seen[-1].pointer)
        return LaunchPlan(ACTOR, (1, 1, 1), (self.word.pointer, n, *given, *after))

    @property
    def refused(self) -> Refused:
        """As it is now."""
        steps = (np.flatnonzero(buffer.array) for buffer in self.refusals)
        return tuple(int(found[0]) if found.size else None for found in steps)

    def note_step(self) -> None:
        """To be called between steps: which words there are."""
        self.reached.words.add(int(self.word.array[0]))

    def note_end(self) -> None:
        """To be called at the end: which way it went."""
        self.note_step()
        self.reached.ends.add((int(self.word.array[0]), self.refused))

    def readers_read_what_they_meant(self) -> None:
        """Whoever read, read both words of the generation that it had asked for."""
        for script, buffer in zip(self.scripts, self.seen, strict=True):
            seen = buffer.array.tolist()
            assert seen in ([UNSEEN, UNSEEN], [script.generation] * 2), (
                f"bytes of generation {script.generation} were asked for, and {seen} were read"
            )

    def no_pin_is_left(self) -> None:
        fields = KINDS[self.kind].LAYOUT.unpack(int(self.word.array[0]))
        assert fields["pins"] == 0, f"{fields['pins']} pins are left on {fields}"


def modelled(folder: Path, plays: Mapping[str, Play]) -> dict[str, Reached]:
    """What the protocols of some plays reach, by the checker's search; ``folder`` is filled with a spec of them."""
    for kind in {play.kind for play in plays.values()}:
        (folder / "objects").mkdir(exist_ok=True)
        shutil.copy(SPEC / "objects" / f"{kind}.yaml", folder / "objects")
    shutil.copy(SPEC / "vocabulary.yaml", folder)
    (folder / "protocols").mkdir()
    for name, play in plays.items():
        (folder / "protocols" / f"{name}.yaml").write_text(protocol(name, play))
    spec = load_spec(folder, for_checking=True).required()
    return {name: _searched(ground(spec.protocol(name)), play) for name, play in plays.items()}


def _searched(system: System, play: Play) -> Reached:
    exploration = explore(system)
    assert exploration.complete
    reached = Reached(set(), set())
    for index in range(exploration.states):
        values = dict(zip((cell.name for cell in system.cells), exploration.state(index), strict=True))
        if not values["slot[0].generation"]:
            continue  # not published yet
        fields = {name.removeprefix("slot[0]."): value for name, value in values.items() if name.startswith("slot[0].")}
        word = KINDS[play.kind].LAYOUT.pack(**fields)
        reached.words.add(word)
        if all(values[f"actor{place}[0].over"] for place in range(len(play.scripts))):
            # Cells that are 0 in every state are left out: of an actor who is never refused.
            at = [values.get(f"actor{place}[0].refused", 0) for place in range(len(play.scripts))]
            reached.ends.add((word, tuple(step - 1 if step else None for step in at)))
    return reached


def protocol(name: str, play: Play) -> str:
    """A play as YAML: each actor goes once through its steps, or to the end from where it is refused."""
    layout, machine = KINDS[play.kind].LAYOUT, load_spec().required().machine(play.kind)
    narrow = ", ".join(f"{f.name}: {NARROW[f.name]}" for f in layout.fields if f.name in NARROW)
    lines = [
        f"protocol: {name}",
        "title: As kernels play it",
        "about: Scripts over one slot.",
        "bounds: {slots: 1}",
        "machines:",
        f"  slot: {{machine: {play.kind}, slots: slots, narrow: {{{narrow}}}}}",
        "actors:",
    ]
    published = publishing(play.kind)
    lines += [*_head("publisher", machine, [event for event, _ in published]), "    steps:"]
    fires = ", ".join(_fire(machine, event, given) for event, given in published)
    lines += ["      publish:", '        when: "slot[0].generation == 0"', f"        fire: [{fires}]"]
    for place, script in enumerate(play.scripts):
        events = [step.event for step in script.steps if step.event is not None]
        lines += [*_head(f"actor{place}", machine, events), "    locals: {over: bool, refused: u3}", "    steps:"]
        for number, step in enumerate(script.steps):
            lines.append(f"      step{number}:")
            if number == 0:
                lines.append('        when: "slot[0].generation > 0 and not over"')
            if step.event is not None:
                lines.append(f"        fire: [{_fire(machine, step.event, step.given)}]")
                lines.append(f"        refused: {{then: end, do: {{refused: {number + 1}}}}}")
        lines += ["      end:", "        do: {over: true}"]
    return "\n".join([*lines, "always:", '  within: {that: "slot[i].pins <= max(slot[i].pins)"}', ""])


def _head(actor: str, machine: Machine, events: Sequence[str]) -> list[str]:
    """An actor who plays everybody that these events need."""
    roles = dict.fromkeys(machine.event(event).by[0] for event in events)
    return [f"  {actor}:", "    count: 1", f"    plays: [{', '.join(roles)}]"]


def _fire(machine: Machine, event: str, given: Mapping[str, int]) -> str:
    arguments = ", ".join(f"{a.name}: {_value(machine, a, given[a.name])}" for a in machine.event(event).given)
    return f'{{on: "slot[0]", event: {event}{f", with: {{{arguments}}}" if arguments else ""}}}'


def _value(machine: Machine, argument: SpecArgument, value: int) -> str:
    if argument.is_bool:
        return "true" if value else "false"
    names = machine.field(argument.like).names if argument.like is not None else ()
    return names[value] if names else str(value)


def publishing(kind: str) -> list[tuple[str, dict[str, int]]]:
    """Events that publish the slot of a play, in generation 1."""
    sealed = {
        "compressed_kv": {"layers": 1},
        "indexer_state": {"layers": 1, "kv_version": 0},
        "uncompressed_tail": {"at": 0, "with_rows": 0, "has_carry": 0},
        "swa_window": {"at": 0},
    }
    return [("take", taking(kind)), ("seal", {"expected": 1, "is_lossy": 0} | sealed[kind])]


def taking(kind: str) -> dict[str, int]:
    """Arguments of a machine's take."""
    return {given.name: 0 for given in KINDS[kind].EVENTS["take"].given}
