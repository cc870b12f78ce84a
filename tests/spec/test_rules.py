"""Each rule finds what it is for and nothing else; the shipped machines break none.

Most rules have their negative control in ``tests/bad_specs``; here are the finer points.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kvfsm.spec.language import rules
from kvfsm.spec.language.problems import Problems

from .bad_specs import good, shipped
from .changed import changed

PINNED = "      - {from: resident, when: pins > 0, refuse: pinned}\n"
FULL = "      - {from: filling, when: rows + count > max(rows), refuse: full}\n"


def codes(problems: Problems) -> list[str]:
    return [problem.code for problem in problems.sorted()]


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_shipped_machines_keep_the_rule(rule: rules.Rule) -> None:
    problems = Problems()
    for machine in (*shipped().machines, good()[1]):
        rule(machine, problems)
    assert problems.found == []


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        (PINNED, "      - {from: resident, when: pins < 0 - 1, refuse: pinned}\n", "E307"),
        (PINNED, "      - {from: resident, when: pins > 0 and pins < 1, refuse: pinned}\n", "E307"),
        (FULL, FULL + "      - {from: filling, when: rows + count > 63, refuse: full}\n", "E307"),
        (FULL, FULL.replace("max(rows)", "max(rows) + 1"), "E308"),
        (FULL, "", "E308"),
        (FULL, FULL.replace("rows + count >", "rows >"), "E308"),
    ],
)
def test_sums_of_fields_and_arguments_are_understood(tmp_path: Path, old: str, new: str, code: str) -> None:
    _, problems = changed(tmp_path, (old, new))
    assert code in codes(problems)


@pytest.mark.parametrize(
    "new",
    [
        FULL.replace("rows + count > max(rows)", "count > max(rows) - rows"),
        FULL.replace("rows + count > max(rows)", "not rows + count <= 63"),
        FULL.replace("rows + count > max(rows)", "rows > 62 or rows + count > 62"),
        FULL.replace("rows + count > max(rows)", "'max(rows, 5) + count > 63'"),
    ],
)
def test_other_ways_to_say_the_same_pass(tmp_path: Path, new: str) -> None:
    _, problems = changed(tmp_path, (FULL, new))
    assert codes(problems) == []


def test_an_unconditional_any_lists_every_state(tmp_path: Path) -> None:
    frees = "      - {from: resident, to: free, do: {rows: 0, form: wide, lossy: false}}\n"
    machine, problems = changed(
        tmp_path,
        (PINNED, PINNED.replace("from: resident", "from: any")),
        (frees, frees + "      - {from: any, refuse: full}\n"),
        ("  evict_unchecked: {event: evict, drop_case: 1}\n", ""),
    )
    assert codes(problems) == []
    assert machine is not None
    assert set(machine.event("evict").listed()) == {"free", "filling", "resident"}


def test_a_guarded_any_lists_none(tmp_path: Path) -> None:
    page = good()[1]
    assert page.event("pin").listed() == ("resident",)


def test_all_problems_of_a_machine_are_noted(tmp_path: Path) -> None:
    _, problems = changed(
        tmp_path,
        ("refuse: retired", "refuse: retire"),
        ("    kernel: validate_pin\n", "    kernel: Validate\n"),
        ("that: pins > 1", "that: pinz > 1"),
        ("leaves: nothing", "leaves: something"),
    )
    assert codes(problems) == ["E213", "E201", "E115", "E204"]


def test_one_wrong_field_is_one_problem_though_much_reads_it(tmp_path: Path) -> None:
    _, problems = changed(tmp_path, ("  generation: 8\n", "  generation: eight\n"))
    assert codes(problems) == ["E114"]


def test_one_wrong_state_is_one_problem_though_much_names_it(tmp_path: Path) -> None:
    _, problems = changed(tmp_path, ("counts_as: cached", "counts_as: cache"))
    assert codes(problems) == ["E115"]


def test_a_generation_that_may_shrink_is_found(tmp_path: Path) -> None:
    _, problems = changed(tmp_path, ("do: {generation: generation + 1, rows: 0}", "do: {generation: 7, rows: 0}"))
    assert "E317" in codes(problems)


def test_an_old_handle_that_passes_in_one_state_is_found(tmp_path: Path) -> None:
    stale = (
        "    given: {expected: generation}\n    kernel: validate_pin\n    cases:\n"
        "      - {from: any, when: expected != generation, refuse: stale}\n"
    )
    only_there = stale.replace("from: any", "from: [filling, resident]")
    _, problems = changed(tmp_path, (stale, only_there), ("  pin_unchecked:   {event: pin, drop_case: 1}\n", ""))
    assert "E318" in codes(problems)


def test_a_mutant_that_is_an_illegal_machine_is_found(tmp_path: Path) -> None:
    _, problems = changed(tmp_path, append="  wraps: {event: pin, drop_case: 2}\n")
    assert codes(problems) == ["E319"]


def test_every_rule_is_listed_once() -> None:
    assert len({rule.__name__ for rule in rules.RULES}) == len(rules.RULES)
    assert all(rule.__doc__ for rule in rules.RULES)
