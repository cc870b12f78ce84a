"""The demo's verdicts: what counts as a fault, and what is printed and written as JSON."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from kvfsm.codegen.cli.demo_prompts import Request, requests
from kvfsm.codegen.cli.demo_report import ModelReport, Round, Served, as_json, print_end, print_model
from kvfsm.codegen.cli.demo_runs import Comparison

GOOD = Comparison(None, 0.0, 0.0)
OBJECTS = {"compressed_kv": "HIT", "uncompressed_tail": "HIT", "swa_window": "HIT", "indexer_state": "ABSENT"}
HIT = Served(Request("one", "", tuple(range(70))), "HIT", "", OBJECTS, 64, 0, True, GOOD)


def round_of(*served: Served, expected: int = 64, error_max: float = 0.0) -> Round:
    return Round("warm", "from memory", served, (expected,) * len(served), error_max)


def report_of(*rounds: Round, faults: tuple[str, ...] = ()) -> ModelReport:
    return ModelReport("tiny", "a shape", rounds, (("published", "3 blocks"),), faults)


def test_an_exact_reuse_that_agrees_is_bit_identical() -> None:
    assert round_of(HIT).faults() == []
    assert report_of(round_of(HIT)).bit_identical


def test_an_exact_reuse_that_differs_is_a_fault() -> None:
    wrong = replace(HIT, comparison=Comparison("logits from token 64 on differ", 0.5, 0.0))
    assert round_of(HIT, wrong).faults() == ["warm, one: not bit-identical: logits from token 64 on differ"]
    assert not report_of(round_of(HIT, wrong)).bit_identical


def test_an_approximate_reuse_may_differ_within_its_bound() -> None:
    near = replace(HIT, exact=False, comparison=Comparison("final cache: 1.keys differs", 1e-6, 1e-6))
    assert round_of(near, error_max=1e-4).faults() == []
    assert round_of(near, error_max=1e-7).faults() == ["warm, one: logits are off by 1e-06, more than 1e-07"]


def test_logits_that_are_no_numbers_are_a_fault_under_any_bound() -> None:
    broken = replace(HIT, exact=False, comparison=Comparison("logits differ", float("nan"), 0.0))
    assert len(round_of(broken, error_max=float("inf")).faults()) == 1


def test_reusing_too_little_is_a_fault() -> None:
    short = replace(HIT, reused=32, reason="INTERSECT")
    assert round_of(short).faults() == ["warm, one: reused 32 tokens instead of 64 (HIT INTERSECT)"]


def test_a_model_that_reused_nothing_is_not_called_bit_identical() -> None:
    missed = replace(HIT, first="MISS", reused=0)
    assert not report_of(round_of(missed, expected=0)).bit_identical


def test_a_fault_outside_the_rounds_counts() -> None:
    assert not report_of(round_of(HIT), faults=("audit: S1 violated",)).bit_identical


def test_json_has_the_fields_that_programs_rely_on() -> None:
    data = as_json({"ok": True, "text": ""}, [report_of(round_of(HIT))], 1.5)
    assert data["ok"] is True
    (model,) = data["models"]
    assert model["model"] == "tiny" and model["bit_identical"] is True
    (request,) = model["requests"]
    assert {key: request[key] for key in ("tokens", "reused", "recomputed", "exact")} == {
        "tokens": 70, "reused": 64, "recomputed": 6, "exact": True,
    }  # fmt: skip
    assert request["objects"] == OBJECTS


@pytest.mark.parametrize("spec_ok", [True, False])
def test_an_unsound_spec_makes_the_whole_demo_fail(spec_ok: bool) -> None:
    assert as_json({"ok": spec_ok, "text": ""}, [report_of(round_of(HIT))], 1.0)["ok"] is spec_ok


def test_the_page_names_objects_numbers_and_verdicts() -> None:
    wrong = replace(HIT, comparison=Comparison("logits from token 64 on differ", 0.5, 0.0))
    stream = io.StringIO()
    console = Console(file=stream, width=150)
    print_model(console, report_of(round_of(HIT), round_of(wrong)))
    print_end(console, True, [report_of(round_of(HIT))], 3.0)
    page = stream.getvalue()
    for told in (
        "tiny",
        "ABSENT",
        "70",
        "64",
        "bit-identical",
        "✗ warm, one: not bit-identical",
        "3 blocks",
        "1 model:",
    ):
        assert told in page


@pytest.mark.parametrize("granule", [16, 32])
def test_prompts_share_prefixes_and_end_where_they_say(granule: int) -> None:
    asked = {request.name: request.tokens for request in requests(granule, lambda tokens: [5, 6, 7])}
    system = asked["branch"][:96]
    assert all(tokens[:96] == system for name, tokens in asked.items() if name not in ("unaligned", "too short"))
    assert asked["second turn"][: len(asked["first turn"]) + 3] == (*asked["first turn"], 5, 6, 7)
    assert len(asked["aligned"]) % granule == 0
    assert len(asked["unaligned"]) % granule != 0
    assert len(asked["too short"]) < granule
    assert asked == {request.name: request.tokens for request in requests(granule, lambda tokens: [5, 6, 7])}
