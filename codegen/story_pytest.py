"""A story as a pytest file that replays it on the runtime's tables, event by event.

What the runtime has to answer is computed here from the spec's machines at full width. Where that is what the story
tells, the replay goes on; at the first step where it is not, because the story is a mutant's or because the protocol
narrows a field, the test states what the spec as written does instead, and ends.

Only protocols whose machines the runtime has can be replayed; the others are *model only*.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..spec.checking.stories.story import Attempt, Story, Turn
from ..spec.checking.stories.story_text import turn_line
from ..spec.language.digest import machine_digest
from ..spec.language.interpreter import Outcome, step
from ..spec.language.model import Machine
from ..spec.language.protocol import Protocol
from ..spec.language.word import unpack
from .layout import bracketed, comment, docstring, indented, text_of

RUNTIME = "kvfsm.runtime.generated"
_HELPERS = '''\
def fire(tables: dict[str, Table], *calls: tuple[str, int, str, dict[str, int]]) -> str | None:
    """Fire events in order, all or none; the refusal, or None when all were applied."""
    before = {name: table.words.copy() for name, table in tables.items()}
    for pool, slot, event, arguments in calls:
        code = int(tables[pool].fire(event, [slot], **arguments)[0])
        if code:
            for name, table in tables.items():
                table.words[:] = before[name]
            return f"{event} {pool}[{slot}]: {Refusal(code).name.lower()}"
    return None


def slot(table: Table, number: int) -> dict[str, int | str]:
    """The state of a slot, and its fields that are not 0."""
    values = table.LAYOUT.unpack(int(table.words[number]))
    state = table.STATES(values.pop("state")).name.lower()
    return {"state": state} | {name: value for name, value in values.items() if value}
'''


def model_only(protocol: Protocol, machines: Sequence[Machine]) -> tuple[str, ...]:
    """The machines of a protocol of which no code is generated; a story is replayed when there are none."""
    known = {machine.name for machine in machines}
    return tuple(dict.fromkeys(item.machine.name for item in protocol.instances if item.machine.name not in known))


def replay_test(story: Story, protocol: Protocol, machines: Sequence[Machine], runtime: str = RUNTIME) -> str:
    """The text of the test.

    Args:
        story: what to replay.
        protocol: the protocol as written, even when the story is a mutant's.
        machines: those of which code is generated, at full width.
        runtime: the module that has ``KINDS`` and ``Refusal``.

    """
    assert not model_only(protocol, machines)
    wide = {machine.name: machine for machine in machines}
    pools = {item.name: wide[item.machine.name] for item in protocol.instances}
    slots = {item.name: item.slots for item in protocol.instances}
    narrow = {item.name: item.machine for item in protocol.instances}
    replay = _Replay(pools, narrow)
    body: list[str] = []
    for turn in story.turns:
        body += ["", *comment(f"{turn.number}. {turn_line(turn)}", 4)]
        if turn.attempts:
            body += replay.turn(turn)
        if replay.ended:
            break
    kinds = {machine.name: machine_digest(machine) for machine in pools.values()}
    broken = story.broken
    name = "_".join(("test", story.protocol, *([broken.claim.replace(".", "_")] if broken is not None else ["run"])))
    head = f"A run of '{story.protocol}'"
    if broken is not None:
        head = f"How '{broken.claim}' breaks in '{story.protocol}'"
    said = f"The claim: {broken.that}" if broken is not None else "Nothing breaks."
    end = replay.ended or "Every step goes on the runtime as it does in the story."
    lines = [
        *docstring(f"{head}, replayed on the runtime.", 0, (said, end)),
        "",
        "from __future__ import annotations",
        "",
        f"from {runtime} import KINDS, Refusal",
        "from kvfsm.runtime.table import Table",
        "",
        *bracketed("DIGESTS = {", [f'"{kind}": "{digest}"' for kind, digest in kinds.items()], "}"),
        *_other_spec(runtime),
        "",
        "",
        f"def {name}() -> None:",
        *indented([
            "for kind, digest in DIGESTS.items():",
            '    assert KINDS[kind].DIGEST == digest, f"{kind} {OTHER_SPEC}"',
            *bracketed(
                "tables: dict[str, Table] = {",
                [f'"{pool}": KINDS["{machine.name}"]({slots[pool]})' for pool, machine in pools.items()],
                "}",
                4,
            ),
            *body,
        ]),
        "",
        "",
        *_HELPERS.rstrip().split("\n"),
    ]
    return text_of(lines)


def _other_spec(runtime: str) -> list[str]:
    """The constant that says what to do when the runtime is not of the spec that the story is of."""
    if runtime != RUNTIME:
        where = runtime.removesuffix(".runtime").replace(".", "/")
        return [f'OTHER_SPEC = "was generated from another spec; run kvfsm gen --spec SPEC --out {where}"']
    return [
        "OTHER_SPEC = (",
        '    "was generated from another spec; run kvfsm gen. If yours is in a package of your own, import from that "',
        '    "above: from my_package.runtime import KINDS, Refusal. kvfsm check --package my_package writes it so"',
        ")",
    ]


class _Replay:
    """The words that the runtime has by now, computed by the interpreter."""

    def __init__(self, wide: Mapping[str, Machine], narrow: Mapping[str, Machine]) -> None:
        self.wide = wide
        self.narrow = narrow
        self.words: dict[tuple[str, int], int] = {}
        self.ended: str | None = None  # why no more of the story can be replayed

    def turn(self, turn: Turn) -> Iterable[str]:
        """The lines that fire one turn's events, and what must come of them."""
        words = dict(self.words)
        refusal: str | None = None
        fired: list[Attempt] = []
        for attempt in turn.attempts:
            where = (attempt.instance, attempt.slot)
            word = words.get(where, 0)
            outcome = self._outcome(self.wide, attempt, word)
            same = outcome.refusal == attempt.refusal and attempt.fits
            same = same and unpack(self.wide[attempt.instance], outcome.word) == dict(attempt.after)
            fired.append(attempt)
            if not same:
                self._part(turn, attempt, word, outcome)
            words[where] = outcome.word
            if outcome.refusal is not None:
                refusal = f"{attempt.event} {attempt.target}: {outcome.refusal}"
                words = self.words
                break
            if self.ended is not None:
                break
        self.words = words
        if self.ended is not None:
            yield from comment("The spec as written parts from the story here, and the replay ends.", 4)
        answer = "is None" if refusal is None else f'== "{refusal}"'
        yield from bracketed("assert fire(", ["tables", *map(self._call, fired)], f") {answer}", 4)
        for pool, slot in dict.fromkeys((attempt.instance, attempt.slot) for attempt in fired):
            yield from self._fields(pool, slot, words.get((pool, slot), 0))

    def _part(self, turn: Turn, attempt: Attempt, word: int, outcome: Outcome) -> None:
        """Note why the replay ends at this turn."""
        narrow = self._outcome(self.narrow, attempt, word)
        if narrow.refusal is not None and narrow.refusal == attempt.refusal:
            cause = "the protocol narrows a field of it, and the runtime's is wider"
        else:
            cause = "the story is that of a spec with a fault in it"
        theirs = f"refused as {attempt.refusal}" if attempt.refusal is not None else "applied"
        ours = f"refused as {outcome.refusal}" if outcome.refusal is not None else "applied, with the fields asserted"
        self.ended = (
            f"In the story, step {turn.number} has {attempt.event} {attempt.target} {theirs}: {cause}. "
            f"By the spec as written it is {ours}; the replay ends there."
        )

    def _outcome(self, machines: Mapping[str, Machine], attempt: Attempt, word: int) -> Outcome:
        """What a machine does; a word is the same number of each field at either width."""
        machine = machines[attempt.instance]
        if machines is self.narrow:
            values = unpack(self.wide[attempt.instance], word)
            if any(values[field.name] > field.max for field in machine.fields):
                return Outcome(word, "", None)
            word = sum(values[field.name] << field.shift for field in machine.fields)
        return step(machine, word, attempt.event, dict(attempt.args))

    def _fields(self, pool: str, slot: int, word: int) -> Iterable[str]:
        machine = self.wide[pool]
        values = unpack(machine, word)
        state = machine.states[values.pop("state")].name
        items = [f'"state": "{state}"', *(f'"{name}": {value}' for name, value in values.items() if value)]
        yield from bracketed(f'assert slot(tables["{pool}"], {slot}) == {{', items, "}", 4)

    def _call(self, attempt: Attempt) -> str:
        flags = {item.name for item in self.wide[attempt.instance].event(attempt.event).given if item.is_bool}
        args = ", ".join(f'"{name}": {bool(value) if name in flags else value}' for name, value in attempt.args)
        return f'("{attempt.instance}", {attempt.slot}, "{attempt.event}", {{{args}}})'
