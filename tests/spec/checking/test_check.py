"""Checking a protocol: verdicts, what an early end leaves unknown, and the story of what breaks."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from kvfsm.spec.checking import check
from kvfsm.spec.checking.check import Report, check_protocol, too_large, with_proofs
from kvfsm.spec.checking.exploration import HOLDS, UNKNOWN, VIOLATED
from kvfsm.spec.checking.limits import Limits
from kvfsm.spec.checking.proof import Obstacle, Proof
from kvfsm.spec.checking.stories.story_text import text
from kvfsm.spec.language.expressions import Truth
from kvfsm.spec.language.load import resized
from kvfsm.spec.language.protocol import Protocol

from .shipped import grounded, mutated, spec

CODE = "E422"


def toctou() -> Protocol:
    return spec().protocol("toctou")


@cache
def whole() -> Report:
    return check_protocol(toctou())


@cache
def broken() -> Report:
    return check_protocol(mutated(toctou(), "unchecked_pin"))


def test_the_reference_model_has_the_counts_it_is_known_for() -> None:
    report = whole()
    assert (report.states, report.transitions, report.depth) == (30_192, 120_640, 32)
    assert report.ok and report.complete
    assert {finding.verdict for finding in report.findings} == {HOLDS}
    assert {finding.how for finding in report.findings} == {"explored"}
    assert report.idle == ()


def test_states_that_differ_by_numbers_may_count_once() -> None:
    report = check_protocol(toctou(), symmetry=True)
    assert (report.states, report.renumbered, report.ok) == (8_254, True, True)


def test_the_faulty_reference_model_breaks_in_five_steps() -> None:
    (finding, *_) = broken().broken
    assert finding.trace is not None
    assert finding.kind == "always"
    assert len(finding.trace.turns) == 5
    assert finding.trace.broken is not None
    assert finding.trace.broken.claim == finding.name
    assert not broken().ok


def test_symmetry_tells_the_same_story_in_numbers_of_its_own() -> None:
    report = check_protocol(mutated(toctou(), "unchecked_pin"), symmetry=True)
    assert [finding.name for finding in report.broken] == [finding.name for finding in broken().broken]
    for finding, other in zip(report.broken, broken().broken, strict=True):
        assert finding.trace is not None and other.trace is not None
        assert len(finding.trace.turns) == len(other.trace.turns)


def test_a_search_that_ends_early_is_no_pass() -> None:
    report = check_protocol(toctou(), limits=Limits(states=500))
    assert not report.complete and not report.ok
    assert UNKNOWN in {finding.verdict for finding in report.findings}
    assert all(f.verdict != HOLDS or f.kind == "sometimes" for f in report.findings)
    assert {finding.how for finding in report.findings if finding.verdict == UNKNOWN} == {"sampled"}


def test_a_violation_that_was_seen_counts_although_the_search_ended_early() -> None:
    report = check_protocol(mutated(toctou(), "unchecked_pin"), limits=Limits(states=5_000))
    assert not report.complete
    assert [finding.verdict for finding in report.broken] == [VIOLATED] * len(report.broken) != []


def test_a_protocol_that_is_too_large_is_told_at_the_bound_to_lower() -> None:
    report = check_protocol(toctou(), limits=Limits(states=500))
    problem = too_large(report, toctou(), lambda name, value: resized(spec(), "toctou", {name: value})[0])
    assert problem.code == CODE
    assert (problem.place.file, problem.place.length) == ("spec/protocols/toctou.yaml", len("slots"))
    assert "500 states" in problem.text
    assert problem.fix.startswith("lower bound 'slots', now 2: half of it takes ")


def test_a_protocol_that_is_far_too_large_is_not_even_begun() -> None:
    wide, _ = resized(spec(), "toctou", {"slots": 64, "readers": 64})
    assert wide is not None
    report = check_protocol(wide)
    assert (report.states, report.complete, report.ok) == (0, False, False)
    assert {finding.verdict for finding in report.findings} == {UNKNOWN}
    problem = too_large(report, wide, lambda name, value: resized(spec(), "toctou", {name: value})[0])
    assert "bits, and no more than 512 are searched" in problem.text


def test_a_loop_that_starves_is_told_as_one() -> None:
    """Without fairness nobody has to move, so that every promise breaks."""
    protocol = spec().protocol("store")
    unfair = replace(protocol, leads_to=tuple(replace(item, fair=()) for item in protocol.leads_to))
    assert all(finding.verdict == HOLDS for finding in check_protocol(protocol).findings)
    findings = {finding.name: finding for finding in check_protocol(unfair).findings}
    ends = findings["write_ends"]
    assert ends.verdict == VIOLATED and ends.trace is not None
    assert ends.trace.stutters or ends.trace.loop is not None
    assert ends.trace.broken is not None
    assert ends.trace.broken.kind == "leads_to"


def test_a_claim_that_is_never_met_is_violated_and_has_no_story() -> None:
    protocol = toctou()
    first = next(item for item in protocol.properties if item.kind == "sometimes")
    never = replace(first, that=Truth(False, first.at))
    changed = replace(protocol, properties=tuple(never if item is first else item for item in protocol.properties))
    finding = next(finding for finding in check_protocol(changed).findings if finding.name == first.name)
    assert (finding.verdict, finding.trace) == (VIOLATED, None)
    assert "never tried" in finding.note


def test_an_interrupt_leaves_what_is_known() -> None:
    def stop(progress: object) -> None:
        raise KeyboardInterrupt

    report = check_protocol(spec().protocol("pack"), on_progress=stop)
    assert report.interrupted and not report.ok
    assert report.states > 0


def test_an_interrupt_among_promises_keeps_what_the_search_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(exploration: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(check, "check_promises", stop)
    stages: list[str] = []
    report = check_protocol(toctou(), on_stage=stages.append)
    assert stages == ["following leads_to through 120,640 transitions"]
    assert report.interrupted and not report.ok
    verdicts = {finding.name: finding.verdict for finding in report.findings}
    assert (verdicts["lease_holds"], verdicts["reading_ends"]) == (HOLDS, UNKNOWN)


def test_a_promise_that_fails_says_why_its_fair_steps_are_not_taken() -> None:
    """The block goes under its reader, so that nobody takes the lease back; who may stop at will is not listed."""
    report = check_protocol(mutated(spec().protocol("evict"), "evict_ignores_leases"))
    story = next(item.trace for item in report.findings if item.name == "leases_end")
    assert story is not None and story.stutters
    assert dict(story.stuck) == {
        "reader 0 release": "unpin kv[0] is refused as illegal: free does not take unpin",
        "reader 1 release": "it is at match",
    }
    assert "\n  reader 0 release: unpin kv[0] is refused as illegal: free does not take unpin\n" in text(story)
    assert "evictor 0 at" not in text(story)


def test_a_proof_counts_for_every_size_and_an_obstacle_is_told() -> None:
    command = grounded("toctou").commands[0]
    obstacle = Obstacle(command, "reader=0", {"block[0].pins": 1}, ("block[0].pins = 1",))
    proofs = {
        "lease_holds": Proof("lease_holds", True, ("slots", "readers"), None),
        "pins_count_readers": Proof("pins_count_readers", False, ("slots", "readers"), obstacle),
        "pin_holds": Proof("pin_holds", False, ("slots", "readers"), Obstacle(None, "reader=1", {})),
    }
    report = with_proofs(whole(), proofs)
    findings = {finding.name: finding for finding in report.findings}
    assert (findings["lease_holds"].how, findings["pins_count_readers"].how) == ("proved", "explored")
    assert findings["pins_count_readers"].note == (
        f"explored, not proved: '{command.label}' would break it for reader=0 where block[0].pins = 1; "
        "if no run gets there, a lemma can say so"
    )
    assert report.notes[-2:] == (
        "1 of 2 claims about every state are proved for any number of slots and readers, "
        "at the widths that fields have here",
        "the lemma 'pin_holds' is not proved, and helps no other claim: it does not hold at first for reader=1",
    )


def test_a_proof_does_not_hide_what_was_seen_to_break() -> None:
    proofs = {finding.name: Proof(finding.name, True, (), None) for finding in broken().findings}
    assert with_proofs(broken(), proofs).broken == broken().broken
