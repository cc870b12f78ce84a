"""Sequence diagrams of protocols: the steps, the windows between check and use, and refusals."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html import escape

from kvfsm.codegen.sequence import Moment, guard_text, sequence
from kvfsm.codegen.sequence_svg import draw
from kvfsm.spec.language.load import Spec


def moment(spec: Spec, protocol: str, actor: str, step: str) -> Moment:
    picture = sequence(spec.protocol(protocol))
    scene = next(scene for scene in picture.scenes if scene.actor == actor)
    return next(moment for moment in scene.moments if moment.name == step)


def test_every_step_of_every_actor_is_there(spec: Spec) -> None:
    for protocol in spec.protocols:
        steps = [(scene.actor, moment.name) for scene in sequence(protocol).scenes for moment in scene.moments]
        assert steps == [(program.name, step.name) for program in protocol.programs for step in program.steps]


def test_the_window_lies_between_match_and_acquire(spec: Spec) -> None:
    acquire = moment(spec, "read", "reader", "acquire")
    assert acquire.window is not None
    assert acquire.window.checked == ("match",)
    assert acquire.window.pools == ("kv", "index", "tail", "window")
    assert acquire.refused is not None
    assert acquire.refused.step == "match"
    assert acquire.refused.text.startswith("match, with slot = 0, kv_seen = 0, ")
    assert "stale" in acquire.refusals


def test_a_guard_says_what_becomes_of_the_step_where_it_fails(spec: Spec) -> None:
    assert guard_text(moment(spec, "generate", "decoder", "append")).startswith("if tokens < 4; else go on at ")
    assert guard_text(moment(spec, "evict", "reader", "match")) == "wait until kv[slot].state == resident"


def test_a_step_that_checks_and_fires_at_once_opens_no_window(spec: Spec) -> None:
    assert moment(spec, "read", "kv_evictor", "evict").window is None
    assert moment(spec, "read", "reader", "release").window is None


def test_without_the_check_there_is_no_window(spec: Spec) -> None:
    protocol = spec.protocol("read")
    reader = protocol.program("reader")
    blind = replace(reader.step("match"), when=None, do=())
    steps = tuple(blind if step.name == "match" else step for step in reader.steps)
    programs = tuple(replace(item, steps=steps) if item is reader else item for item in protocol.programs)
    scene = sequence(replace(protocol, programs=programs)).scenes[0]
    assert all(moment.window is None for moment in scene.moments)


def test_the_drawing_is_well_formed_and_says_every_event(spec: Spec) -> None:
    for protocol in spec.protocols:
        picture = sequence(protocol)
        svg = draw(picture)
        root = ElementTree.fromstring(svg)
        texts = [text for element in root.iter() if (text := element.text)]
        for scene in picture.scenes:
            for item in scene.moments:
                assert item.name in texts
                assert all(f"{message.event} [{message.slot}]" in texts for message in item.messages)
        windows = sum(item.window is not None for scene in picture.scenes for item in scene.moments)
        assert sum(text.startswith("window between check and use") for text in texts) == windows


def test_no_text_leaves_the_page(spec: Spec) -> None:
    for protocol in spec.protocols:
        root = ElementTree.fromstring(draw(sequence(protocol)))
        width = int(root.attrib["width"])
        for element in root.iter("{http://www.w3.org/2000/svg}text"):
            size = 5.6 * len(element.text or "")  # of a letter at 11 pixels, on average
            start = float(element.attrib["x"]) - (size if element.attrib["text-anchor"] == "end" else 0)
            if element.attrib["text-anchor"] != "middle":
                assert start >= 0 and start + size <= width + 1, element.text


def test_drawing_is_deterministic_and_follows_the_protocol(spec: Spec) -> None:
    picture = sequence(spec.protocol("read"))
    assert draw(picture) == draw(picture)
    assert draw(replace(picture, title="Other <title>")) != draw(picture)
    assert escape("Other <title>") in draw(replace(picture, title="Other <title>"))
