"""A story says of every step what the protocol says, and of a break what makes it one."""

from __future__ import annotations

import json
from functools import cache

import pytest

from kvfsm.spec.checking.grounding import ground
from kvfsm.spec.checking.stories.story import Story, Window, tell
from kvfsm.spec.checking.stories.story_json import as_data
from kvfsm.spec.checking.stories.story_text import text, turn_line
from kvfsm.spec.language.protocol import Protocol

from .runs import mutant_story, random_walk
from .shipped import spec

SEED = 20261129


@cache
def late_pin() -> Story:
    return mutant_story(spec().protocol("evict"), "pin_ignores_generation")


def protocols() -> tuple[Protocol, ...]:
    return spec().protocols


@pytest.mark.parametrize("protocol", protocols(), ids=lambda protocol: protocol.name)
def test_events_go_in_the_story_as_the_system_lets_them_go(protocol: Protocol) -> None:
    """Arguments, reasons and cases come from the protocol and the interpreter; what they come to, from the system."""
    system = ground(protocol)
    path = random_walk(system, 150, SEED)
    story = tell(protocol, system, path)
    assert len(story.turns) == len(path)
    for turn, (number, after) in zip(story.turns, path, strict=True):
        command = system.commands[number]
        went = [(a.instance, a.slot, a.event, a.case if a.refusal is None else None) for a in turn.attempts]
        assert went == [(fired.instance, fired.slot, fired.event, fired.case) for fired in command.fired]
        assert turn.outcome == command.outcome
        assert (turn.outcome == "refused") == any(attempt.refusal is not None for attempt in turn.attempts)
        if turn.outcome == "applied":
            words = {attempt.target: dict(attempt.after) for attempt in turn.attempts}
            for cell, value in zip(system.cells, after, strict=True):
                if f"{cell.owner}[{cell.number}]" in words and cell.is_slot:
                    assert words[f"{cell.owner}[{cell.number}]"][cell.field] == value, (turn.number, cell.name)


def test_a_story_ends_where_the_claim_breaks_and_shows_the_values() -> None:
    broken = late_pin().broken
    assert broken is not None
    assert (broken.claim, broken.kind, broken.says, broken.bindings) == ("lease_holds", "always", "S3", ("reader=0",))
    assert dict(broken.values) == {
        "reader[0].at": "release",
        "reader[0].slot": "0",
        "kv[0].generation": "2",
        "reader[0].seen": "1",
    }


def test_the_window_between_check_and_use_is_marked() -> None:
    assert late_pin().windows == (Window("reader", 0, ("kv[0]",), opened=2, closed=6, disturbed=(4, 5)),)


def test_a_refusal_says_why() -> None:
    story = mutant_story(spec().protocol("publish"), "emit_ignores_generation")
    turn = next(turn for turn in story.turns if turn.outcome == "refused")
    (refused,) = turn.attempts
    assert (refused.event, refused.refusal, refused.why) == ("seal", "stale", "expected != generation")
    assert turn_line(turn) == (
        "writer 0 seal: seal kv[0] (expected 1, layers 1, is_lossy false), refused as stale: expected != generation; "
        "goes on at catch_up"
    )


def test_only_what_changed_is_told() -> None:
    first = late_pin().turns[0]
    assert [(change.cell, change.before, change.after) for change in first.changes] == [
        ("kv[0].state", "free", "resident"),
        ("kv[0].generation", "0", "1"),
        ("kv[0].landed", "0", "1"),
    ]


def test_the_text_of_a_story_reads_so() -> None:
    assert text(late_pin()).splitlines()[:12] == [
        "evict (blocks 2, readers 2): 6 steps",
        "     ┌ ─ ─  reader 0",
        "     │ ┌ ─  root 0",
        "     │ │ ┌  evictor 0",
        "     ║ reader 0 looked at kv[0] in step 2 and uses it in step 6: changed in step 4, 5",
        "   1 · ● ·  root 0 publish: take kv[0] (wanted_layout 0, wanted_form expanded); seal kv[0] (expected 1, "
        "layers 1, is_lossy",
        "     · · ·      false)",
        "     · · ·      kv[0].state free -> resident, kv[0].generation 0 -> 1, kv[0].landed 0 -> 1",
        "   2 ● · ·  reader 0 match (slot=0): looks at kv[0]",
        "     ║ · ·      reader[0].at match -> acquire, reader[0].seen 0 -> 1",
        "   3 ║ · ●  evictor 0 choose (slot=0): looks at kv[0]",
        "     ║ · ·      evictor[0].at choose -> evict",
    ]


def test_the_data_of_a_story_rebuilds_its_states() -> None:
    protocol = spec().protocol("publish")
    system = ground(protocol)
    path = random_walk(system, 60, SEED)
    data = json.loads(json.dumps(as_data(tell(protocol, system, path))))
    values = {cell.name: 0 for cell in system.cells}
    for step, (_, after) in zip(data["steps"], path, strict=True):
        values.update({change["cell"]: change["value"] for change in step["changes"]})
        assert tuple(values.values()) == after


def test_a_story_without_a_break_says_nothing_of_one() -> None:
    protocol = spec().protocol("evict")
    system = ground(protocol)
    story = tell(protocol, system, random_walk(system, 10, SEED))
    assert story.broken is None
    assert "breaks" not in text(story)
