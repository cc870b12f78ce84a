"""The page of `kvfsm explore` in a browser: it steps as the system does, and shows where things stand."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvfsm.codegen.cli import main
from kvfsm.codegen.explore_page import page as written
from kvfsm.spec.checking.grounding import ground
from kvfsm.spec.checking.stories.story import Story
from kvfsm.spec.checking.stories.story_json import as_data
from kvfsm.spec.language.load import Spec

from ..spec.checking.runs import mutant_story, random_walk
from .browser import Page, browser

SEED = 11
ACCENT = (0x00, 0x67, 0xA3)  # of the light theme, in explore.css
pytestmark = pytest.mark.xdist_group("browser")  # one browser, and one page that is written once


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def evict(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of evict, as the command writes it."""
    path = tmp_path_factory.mktemp("pages") / "evict.html"
    assert main(["explore", "evict", "-o", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def late_pin(spec: Spec) -> Story:
    return mutant_story(spec.protocol("evict"), "pin_ignores_generation")


def run_named(page: Page, part: str) -> str:
    """The fragment that opens a run, by a part of its name."""
    names = page.value("[...document.querySelectorAll('#runs option')].map(item => item.textContent)")
    return f"#run={next(place for place, name in enumerate(names) if part in name) - 1}"


def test_the_page_steps_as_the_system_does(spec: Spec, page: Page, tmp_path: Path) -> None:
    """Successors, claims, and what the page says of events, along a walk through every protocol."""
    for protocol in spec.protocols:
        system = ground(protocol)
        path = tmp_path / f"{protocol.name}.html"
        path.write_text(written(protocol, system, [], {}))
        page.open(path)
        states = [system.initial, *(state for _, state in random_walk(system, 120, SEED))]
        page.value(f"globalThis.walk = {json.dumps(states)}; null")
        expected = [[[number, list(after)] for number, after in system.successors(state)] for state in states]
        assert page.value("walk.map(state => successors(state))") == expected, protocol.name
        claims = [[[bool(system.function(expr)(state)) for expr in claim.exprs] for claim in system.claims]
                  for state in states]
        told = page.value("walk.map(s => MODEL.claims.map(claim => claim.exprs.map(expr => Boolean(expr(s)))))")
        assert told == claims, protocol.name
        # The protocol as written, which the page explains steps with, agrees with the commands that it takes.
        assert page.value(
            """walk.flatMap(state => COPIES.flatMap(copy => {
                const next = successors(state);
                const {found} = options(state, next, copy.actor, copy.copy);
                const own = next.filter(([number]) => MODEL.commands[number].actor === copy.actor
                    && MODEL.commands[number].copy === copy.copy);
                const wrong = found.filter(({command, attempts}) =>
                    (command.outcome === "refused") !== attempts.some(each => each.refusal)
                    || (command.outcome !== "otherwise" && attempts.length !== command.fired.length)
                    || command.fired.some(([instance, slot, event, number], place) =>
                        attempts[place].slot !== `${instance}[${slot}]` || attempts[place].event !== event
                        || (number === null) !== (attempts[place].refusal !== null)));
                return found.length === own.length ? wrong.map(each => each.number) : ["lost", copy.who];
            }))"""
        ) == [], protocol.name


def test_every_step_that_cannot_be_taken_has_a_reason(page: Page, evict: Path) -> None:
    page.open(evict)
    blocked = "document.querySelectorAll('[data-copy=\"reader 0\"] .blocked')"
    reasons = page.value(f"[...{blocked}].map(item => item.textContent)")
    assert reasons == ["slot=0; slot=1 waits until kv[slot].state == resident"]


def test_a_run_lights_the_states_that_slots_are_in(page: Page, evict: Path) -> None:
    page.open(evict)
    page.open(evict, f"{run_named(page, 'pin_ignores_generation')}&at=6")
    lit = """Object.fromEntries([...document.querySelectorAll('[data-instance="kv"] g.state.lit')]
        .map(node => [node.querySelector("title").textContent, node.dataset.slots]))"""
    assert page.value(lit) == {"resident": "0", "free": "1"}
    assert page.value("document.querySelector('[data-slot=\"kv[0]\"] .pill').textContent") == "resident"
    assert page.value("document.querySelector('[data-copy=\"reader 0\"] .step.lit').dataset.step") == "release"
    status = page.value("document.querySelector('[data-claim=\"lease_holds\"] .status').textContent")
    assert status == "broken here for reader=0"
    assert page.value("document.querySelector('#banner').textContent").startswith("breaks lease_holds (S3)")


def test_the_picture_shows_what_the_document_says(page: Page, evict: Path) -> None:
    page.open(evict)
    page.value("document.documentElement.dataset.theme = 'light'")
    assert len(page.picture(0, 0, 700, 400).colours()) > 50
    box = """(name => { const box = [...document.querySelectorAll('[data-instance="kv"] g.state')]
        .find(node => node.querySelector("title").textContent === name).querySelector("path").getBoundingClientRect();
        return [box.left - 3, box.top - 3, box.width + 6, box.height + 6] })"""
    shown = {name: page.picture(*page.value(f"{box}('{name}')")).colours() for name in ("free", "filling")}
    assert [ACCENT in shown[name] for name in shown] == [True, False], "free is lit, and filling is not"
    light = page.picture(2, 300, 4, 4).colours()
    page.value("document.documentElement.dataset.theme = 'dark'")
    dark = page.picture(2, 300, 4, 4).colours()
    assert max(map(sum, dark)) < 150 < 600 < min(map(sum, light))


def test_keys_step_and_go_back(page: Page, evict: Path) -> None:
    page.open(evict)
    at = "[run.cursor, run.turns.length]"
    assert page.value("Object.values(keyed).map(option => option.command.step)") == ["publish"]
    page.press("a")
    assert page.value(at) == [1, 1]
    page.press("a")
    assert page.value(at) == [2, 2]
    page.press("ArrowLeft")
    page.press("ArrowLeft")
    assert page.value(at) == [0, 2]
    assert page.value("current().every(value => value === 0)") is True
    page.press("End")
    assert page.value(at) == [2, 2]
    page.press("Home")
    page.press("ArrowRight")
    assert page.value(at) == [1, 2]
    page.press("b")  # another branch from here
    assert page.value(at) == [2, 2]
    page.press(" ")
    assert page.value(at) == [3, 3]
    page.press("?")
    assert page.value("document.querySelector('#keys').open") is True


def test_a_counterexample_is_loaded_from_what_check_printed(page: Page, evict: Path, late_pin: Story) -> None:
    page.open(evict)
    properties = [{"trace": None}, {"trace": as_data(late_pin)}]
    report = {"ok": False, "protocols": [{"protocol": "evict", "properties": properties}]}
    assert page.value(f"loadText({json.dumps(json.dumps(report))})") is None
    assert page.value("run.turns.length") == 6
    assert page.value("run.turns.map(turn => turn.foreign)") == [
        *[None] * 5, "as written, pin kv[0] is refused as stale: expected != generation"
    ]
    assert page.value("document.querySelector('[data-turn=\"6\"]').classList.contains('foreign')") is True
    assert page.value(f"loadText({json.dumps(json.dumps(as_data(late_pin)))})") is None
    assert page.value("loadText('{')").startswith("that is not JSON: ")
    assert page.value("loadText('{}')") == "there is no run in it"
    other = {**as_data(late_pin), "protocol": "read"}
    assert page.value(f"loadText({json.dumps(json.dumps(other))})") == "those are runs of read; this page is of evict"


def test_a_step_that_ends_elsewhere_says_in_what(page: Page, evict: Path, late_pin: Story) -> None:
    """The first step of a story is told to leave another state than it does."""
    page.open(evict)
    told = as_data(late_pin)
    change = next(change for change in told["steps"][0]["changes"] if change["cell"].endswith(".generation"))
    change["value"] += 1
    assert page.value(f"loadText({json.dumps(json.dumps(told))})") is None
    assert page.value("run.turns[0].foreign") == f"as written, {change['cell']} is 1 after it, not 2"


def test_a_picture_grows_with_a_click_and_stays_so(page: Page, evict: Path) -> None:
    page.open(evict)
    for large in (True, False):
        page.value("document.querySelector('.diagram').click()")
        page.value("render()")
        assert page.value("document.querySelector('.diagram').classList.contains('large')") is large


def test_windows_are_those_of_the_story(page: Page, evict: Path, late_pin: Story) -> None:
    page.open(evict)
    assert page.value(f"loadText({json.dumps(json.dumps(as_data(late_pin)))})") is None
    found = page.value("windows(run.turns).filter(item => item.disturbed.length && item.closed !== null)")
    assert found == [
        {"who": window.who, "slot": slot, "opened": window.opened, "closed": window.closed,
         "disturbed": list(window.disturbed)}
        for window in late_pin.windows for slot in window.slots
    ]
    page.value("go(4)")
    assert page.value("document.querySelector('[data-copy=\"reader 0\"] p.window').textContent") == (
        "relies on kv[0] since step 2, changed in step 4"
    )


def test_a_page_fetches_nothing(evict: Path) -> None:
    text = evict.read_text()
    assert re.findall(r"""(?:src|href)\s*=\s*["'](?!#)""", text) == []
    assert "fetch(" not in text and "XMLHttpRequest" not in text and "@import" not in text and "url(" not in text


def test_words_of_a_spec_cannot_end_the_script(spec: Spec, page: Page, tmp_path: Path) -> None:
    from dataclasses import replace

    protocol = replace(spec.protocol("evict"), title="</script><b id='hole'>", about="<!-- <script> &amp; 'x'")
    path = tmp_path / "odd.html"
    path.write_text(written(protocol, ground(protocol), [], {}))
    page.open(path)
    assert page.value("document.querySelector('#hole')") is None
    assert "</script><b id='hole'>" in page.value("document.querySelector('#title').textContent")
    assert page.value("document.querySelector('#about').textContent") == "<!-- <script> &amp; 'x'"


def test_without_graphviz_the_states_stand_in_a_row(spec: Spec, page: Page, tmp_path: Path) -> None:
    protocol = spec.protocol("evict")
    path = tmp_path / "plain.html"
    path.write_text(written(protocol, ground(protocol), [], {}))
    page.open(path)
    assert page.value("[...document.querySelectorAll('.pills .lit')].map(item => item.dataset.state)") == ["free"]


def test_wrong_use_is_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", "evcit"]) == 2
    assert "closest: evict" in capsys.readouterr().err
    assert main(["explore", "evict", "-o", str(tmp_path)]) == 2
    assert f"'{tmp_path}' is a folder; name a file" in capsys.readouterr().err


def test_a_protocol_that_is_too_large_has_no_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "toctou.html"
    assert main(["explore", "toctou", "--bound", "slots=64", "--bound", "readers=64", "-o", str(path)]) == 1
    said = capsys.readouterr().err
    assert "spec/protocols/toctou.yaml:" in said and ": E422 'toctou' is too large to step through: " in said
    assert "^^^^^\n  fix: lower bound 'slots', now 64 or 'readers', now 64" in said
    assert not path.exists()
