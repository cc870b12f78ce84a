"""Stories as pictures and as tests: what is drawn is there, and what is replayed is what the runtime does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kvfsm.codegen.story_mermaid import slots_of, story_diagram
from kvfsm.codegen.story_pytest import model_only, replay_test
from kvfsm.codegen.story_svg import draw
from kvfsm.spec.checking.grounding import ground
from kvfsm.spec.checking.stories.story import Story, tell
from kvfsm.spec.language.load import Spec

from ..spec.checking.runs import mutant_story, random_walk

SEED = 7


@pytest.fixture(scope="module")
def late_pin(spec: Spec) -> Story:
    """A reader pins what was evicted and published anew since it looked."""
    return mutant_story(spec.protocol("evict"), "pin_ignores_generation")


def test_an_svg_has_a_row_for_each_turn_and_a_bar_for_each_window(late_pin: Story) -> None:
    page = ElementTree.fromstring(draw(late_pin))
    said = " ".join(" ".join(part.itertext()) for part in page.iter("{http://www.w3.org/2000/svg}text"))
    for turn in late_pin.turns:
        assert f"{turn.number}  {turn.who} {turn.step}" in said
    for slot in slots_of(late_pin):
        assert slot in said
    assert draw(late_pin).count("window between check and use") == len(late_pin.windows) == 1
    assert "breaks lease_holds (S3)" in said


def test_the_head_of_a_lane_has_the_whole_name(spec: Spec) -> None:
    """Also of an actor whose name takes two lines, beside a slot of the same first word."""
    protocol = spec.protocol("read")
    system = ground(protocol)
    story = tell(protocol, system, random_walk(system, 60, SEED))
    page = ElementTree.fromstring(draw(story))
    texts = page.iter("{http://www.w3.org/2000/svg}text")
    heads = " ".join("".join(part.itertext()) for part in texts if part.get("class") == "actor")
    assert "window_evictor 0" in story.lanes
    assert heads == " ".join(who.replace("_", " ") for who in story.lanes)


def test_mermaid_draws_a_story(late_pin: Story) -> None:
    mermaidx = pytest.importorskip("mermaidx", reason="mermaidx is not installed: pip install 'kvfsm[dev]'")
    text = story_diagram(late_pin)
    assert text.count("activate a_reader_0") - text.count("deactivate a_reader_0") == 1
    drawn = str(mermaidx.render(text).svg())
    assert "evictor 0" in drawn
    assert "breaks lease_holds" in drawn


def run_pytest(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_replays_pass_on_the_runtime_as_they_stand(spec: Spec, tmp_path: Path) -> None:
    """A mutant's story ends where the runtime refuses; a plain run goes to its end."""
    count = 0
    for protocol in spec.protocols:
        if model_only(protocol, spec.machines):
            continue
        system = ground(protocol)
        plain = replay_test(tell(protocol, system, random_walk(system, 80, SEED)), protocol, spec.machines)
        (tmp_path / f"test_{protocol.name}_run.py").write_text(plain)
        count += 1
    for name, mutant in (("evict", "pin_ignores_generation"), ("publish", "emit_ignores_generation")):
        text = replay_test(mutant_story(spec.protocol(name), mutant), spec.protocol(name), spec.machines)
        (tmp_path / f"test_{name}_{mutant}.py").write_text(text)
        assert "refused as stale; the replay ends there" in " ".join(text.split())
        count += 1
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout
    assert f"{count} passed" in done.stdout


def test_a_replay_fails_when_the_runtime_does_something_else_or_is_of_another_spec(
    spec: Spec, late_pin: Story, tmp_path: Path
) -> None:
    text = replay_test(late_pin, spec.protocol("evict"), spec.machines)
    assert '== "pin kv[0]: stale"' in text
    (tmp_path / "test_wrong.py").write_text(text.replace('== "pin kv[0]: stale"', "is None"))
    start = text.index('"compressed_kv": "') + len('"compressed_kv": "')
    (tmp_path / "test_other.py").write_text(text[:start] + "0" * 64 + text[start + 64 :])
    done = run_pytest(tmp_path)
    assert "2 failed" in done.stdout
    assert "'pin kv[0]: stale' is None" in done.stdout
    assert "was generated from another spec; run kvfsm gen" in done.stdout


def test_protocols_with_machines_of_their_own_are_model_only(spec: Spec) -> None:
    assert model_only(spec.protocol("toctou"), spec.machines) == ("block",)
    assert model_only(spec.protocol("evict"), spec.machines) == ()
