"""The reference in Markdown says everything that a machine's YAML says."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from kvfsm.codegen.emit_markdown import emit, page
from kvfsm.spec.language.load import Spec
from kvfsm.spec.language.model import Machine
from kvfsm.spec.targets.text import render

Change = Callable[..., Machine]


def test_there_is_a_page_for_each_machine_and_an_index_with_all_pictures(spec: Spec) -> None:
    pages = emit(spec)
    assert pages == emit(spec)
    index = pages["diagrams/README.md"]
    pictures = [f"{machine.name}.svg" for machine in spec.generated]
    pictures += [f"protocols/{protocol.name}.svg" for protocol in spec.protocols]
    assert all(f"({picture})" in index for picture in pictures)
    assert sorted(pages) == sorted(["diagrams/README.md", *(f"diagrams/{item.name}.md" for item in spec.generated)])


def test_every_name_case_and_guard_is_on_the_page(spec: Spec) -> None:
    for machine in spec.generated:
        text = page(machine, spec)
        names = [*machine.states, *machine.fields, *machine.meta, *machine.properties, *machine.mutants]
        assert all(f"`{item.name}`" in text for item in names)
        for event in machine.events:
            section = text.split(f"\n### {event.name}\n")[1].split("\n#")[0]
            assert len(re.findall(r"^\| \d+ \|", section, re.MULTILINE)) == len(event.cases)
            for case in event.cases:
                assert case.when is None or render(case.when) in section
                assert case.refuse is None or f"refused: **{case.refuse}**" in section


def test_tables_keep_their_columns(spec: Spec) -> None:
    for text in emit(spec).values():
        for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
            columns = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
            assert len(columns) == 1, block


def test_links_lead_to_headings_and_files_that_are_planned(spec: Spec) -> None:
    pages = emit(spec)
    for machine in spec.generated:
        text = pages[f"diagrams/{machine.name}.md"]
        headings = set(re.findall(r"^### (\w+)$", text, re.MULTILINE))
        assert set(re.findall(r"\(#(\w+)\)", text)) <= headings


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("when: at != boundary, refuse", "when: at > boundary, refuse"),
        ("to: free, do: {boundary: 0}", "to: free"),
        ("generation: 20", "generation: 18"),
        ("that: pins > 1", "that: pins > 2"),
        ("event: pin, drop_case: 6", "event: pin, drop_case: 7"),
        ("first: lowest", "first: highest"),
    ],
)
def test_a_change_of_the_spec_changes_the_page(spec: Spec, changed: Change, before: str, after: str) -> None:
    assert page(changed("swa_window", before, after), spec) != page(changed("swa_window"), spec)


def test_a_deliberate_fault_is_told_by_what_it_changes(spec: Spec) -> None:
    text = page(spec.machine("swa_window"), spec)
    assert "| `pin_ignores_generation` | [pin](#pin) | case 1 is missing |" in text
    assert "| `abort_frees_at_once` | [load_abort](#load_abort) | case 2: → `free` |" in text


def test_prose_cannot_break_out_of_its_place(spec: Spec) -> None:
    machine = spec.machine("swa_window")
    state = replace(machine.states[0], about="a | b <script> *c*")
    text = page(replace(machine, states=(state, *machine.states[1:])), spec)
    assert r"a \| b &lt;script&gt; \*c\*" in text
