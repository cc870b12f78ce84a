"""Mermaid text: it says what the spec says, and Mermaid itself draws it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvfsm.codegen.emit_mermaid import emit, escape, sequence_diagram, state_diagram
from kvfsm.codegen.picture import arrows
from kvfsm.codegen.sequence import sequence
from kvfsm.spec.language.load import Spec
from kvfsm.spec.language.model import Machine

Change = Callable[..., Machine]
WORDS = {
    "%%",
    "sequenceDiagram",
    "accTitle:", "accDescr:",
    "actor",
    "participant",
    "par",
    "and",
    "loop",
    "Note",
    "alt",
    "else",
    "end",
}


def drawn(text: str) -> str:
    """The SVG that Mermaid itself makes of a text, in an embedded JavaScript engine."""
    mermaidx = pytest.importorskip("mermaidx", reason="mermaidx is not installed: pip install 'kvfsm[dev]'")
    return str(mermaidx.render(text).svg())


def test_every_machine_and_protocol_has_a_text(spec: Spec) -> None:
    machines = [f"diagrams/{machine.name}.mmd" for machine in spec.generated]
    assert list(emit(spec)) == machines + [f"diagrams/protocols/{item.name}.mmd" for item in spec.protocols]
    assert emit(spec) == emit(spec)


def test_every_arrow_is_there(spec: Spec) -> None:
    for machine in spec.generated:
        text = state_diagram(machine)
        for arrow in arrows(machine):
            assert f"  s_{arrow.source} --> s_{arrow.target} : {arrow.steps[0].event}" in text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("when: at != boundary, refuse", "when: at > boundary, refuse"),
        ("{from: loading, when: ok, to: resident,", "{from: loading, when: not ok, to: resident,"),
        ("{from: loading, to: quarantined}", "{from: loading, to: failed}"),
    ],
)
def test_a_change_of_the_spec_changes_the_text(changed: Change, before: str, after: str) -> None:
    assert state_diagram(changed("swa_window", before, after)) != state_diagram(changed("swa_window"))


def test_escaped_text_holds_no_mark_of_mermaid() -> None:
    assert escape('a <b> & "c"; d: e # f % g\nh') == ("a #lt;b#gt; #amp; #quot;c#quot;#59; d#58; e #35; f #37; g h")


def test_mermaid_draws_every_machine(spec: Spec) -> None:
    for machine in spec.generated:
        svg = drawn(state_diagram(machine))
        assert all(state.name in svg for state in machine.states)


def test_mermaid_draws_protocols(spec: Spec) -> None:
    smallest = sorted(spec.protocols, key=lambda item: sum(len(program.steps) for program in item.programs))[:2]
    for protocol in smallest:  # the engine takes many seconds for a long one
        svg = drawn(sequence_diagram(sequence(protocol)))
        assert all(program.name in svg for program in protocol.programs)


def test_the_blocks_of_every_protocol_close(spec: Spec) -> None:
    for protocol in spec.protocols:
        lines = [line.strip() for line in sequence_diagram(sequence(protocol)).splitlines()]
        opened = sum(line.startswith(("par ", "loop ", "alt ")) for line in lines)
        assert opened == lines.count("end") > 0
        assert lines.count("else refused") == sum(line.startswith("alt ") for line in lines)
        assert all(line == "" or line.split(" ")[0] in WORDS or "->>" in line for line in lines)


def test_marks_in_prose_do_not_break_mermaid(changed: Change) -> None:
    machine = changed("swa_window", "about: sealed rows of one boundary", r"""about: 'a; "b": <c> --> #d; %% {e}'""")
    assert "resident" in drawn(state_diagram(machine))


def test_mermaid_refuses_a_broken_text(spec: Spec) -> None:
    text = state_diagram(spec.machines[0])
    drawn(text)
    with pytest.raises(RuntimeError, match="Parse error"):
        drawn(text.replace("  [*] --> ", "  [*] ->> "))
