"""SPIN, Rumur, TLC and Z3 read the exports, and find what we find: the same states, the same verdicts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from kvfsm.spec.checking.engines.transitions import transitions_of
from kvfsm.spec.checking.exploration import Exploration
from kvfsm.spec.checking.explore import explore
from kvfsm.spec.checking.exports import murphi, peers, promela, smt, tla
from kvfsm.spec.checking.exports.moves import in_sequence, moves_of
from kvfsm.spec.checking.exports.naming import Naming
from kvfsm.spec.checking.exports.peers import PEERS, Failed, Missing, Outcome, run_rumur, run_spin, run_tlc
from kvfsm.spec.checking.folding import FALSE, TRUE, negation, number
from kvfsm.spec.checking.system import NOWHERE, System
from kvfsm.spec.language.expressions import Arithmetic, Choice, Compare, Extreme

from .hand_made import cell, claim, flag, is_, system
from .shipped import grounded, spec

NAMES = sorted(protocol.name for protocol in spec().protocols)
OFTEN = ("evict", "limits_keys", "load", "pack", "reopen", "stream", "toctou")


@cache
def explored(name: str) -> Exploration:
    return explore(grounded(name))


def asked(peer: str, it: System, folder: Path) -> Outcome:
    try:
        return PEERS[peer](it, folder)
    except Missing as problem:
        pytest.skip(str(problem))


def pairs() -> Iterator[object]:
    """SPIN on every protocol; the others on some, and on all with the long tests: each starts a compiler or a JVM."""
    for name in NAMES:
        for peer in PEERS:
            late = peer != "SPIN" and name not in OFTEN
            yield pytest.param(name, peer, marks=pytest.mark.long if late else ())


@pytest.mark.parametrize(("name", "peer"), list(pairs()))
def test_a_peer_finds_as_many_states_of_a_shipped_protocol_as_we_do(name: str, peer: str, tmp_path: Path) -> None:
    ours, theirs = explored(name), asked(peer, grounded(name), tmp_path)
    assert not theirs.violated, theirs.story
    assert not ours.violations
    assert theirs.states == ours.states, f"{peer} {theirs.version}"
    if peer == "Rumur":
        source, _, target = transitions_of(ours)  # exports leave out what changes nothing
        assert theirs.transitions == int((source != target).sum())


@pytest.mark.long
@pytest.mark.parametrize("peer", ["SPIN", "Rumur"])
@pytest.mark.parametrize(
    ("name", "bound", "states"), [("toctou", "slots", 931_200), ("publish", "writers", None), ("read", "readers", None)]
)
def test_a_peer_finds_as_many_states_in_raised_bounds(
    name: str, bound: str, states: int | None, peer: str, tmp_path: Path
) -> None:
    size = dict(grounded(name).bounds)[bound] + 1
    raised = grounded(name, **{bound: size})
    ours, theirs = explore(raised), asked(peer, raised, tmp_path)
    assert theirs.states == ours.states > explored(name).states
    assert states in (None, ours.states)


@pytest.mark.parametrize("peer", PEERS)
def test_a_count_of_a_system_that_lacks_a_command_differs(peer: str, tmp_path: Path) -> None:
    whole = grounded("rollback")
    theirs = asked(peer, replace(whole, commands=whole.commands[:-1]), tmp_path)
    assert theirs.states < explored("rollback").states


FAULTS = (("toctou", "unchecked_pin"), ("toctou", "evict_ignores_pins"), ("store", None), ("rollback", "keys_stay"))


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize(("name", "mutant"), FAULTS)
def test_verdicts_agree_on_faults(peer: str, name: str, mutant: str | None, tmp_path: Path) -> None:
    faulty = grounded(name, mutant)
    ours = explore(faulty, stop_at_first=True)
    theirs = asked(peer, faulty, tmp_path)
    assert theirs.violated == bool(ours.violations) == (mutant is not None)
    if mutant is not None:
        assert any(name.replace(".", "_") in theirs.story.replace(".", "_") for name in ours.violations)


def test_spin_and_rumur_tell_the_shortest_run(tmp_path: Path) -> None:
    faulty = grounded("toctou", "unchecked_pin")
    ours = explore(faulty, stop_at_first=True)
    steps, first = min((len(ours.path(index)), name) for name, index in ours.violations.items())
    spin, rumur = asked("SPIN", faulty, tmp_path), asked("Rumur", faulty, tmp_path)
    assert f"{first} does not hold" in spin.story
    assert rumur.story.count(" fired.") - rumur.story.count("Startstate") == steps


# What must arise, and what is promised.


def test_spin_shows_the_way_to_what_must_arise(tmp_path: Path) -> None:
    text = promela.export(grounded("toctou"))
    try:
        assert run_spin("#define REACH_shared\n" + text, tmp_path).violated
    except Missing as problem:
        pytest.skip(str(problem))


def test_rumur_counts_what_must_arise(tmp_path: Path) -> None:
    never = system([a := cell("a", 1)], {"go": ([is_(a, 0)], {"a": number(1)})}, claim("sometimes", FALSE))
    ever = replace(never, claims=(claim("sometimes", is_(a, 1)),))
    assert "hit 1 times" in asked("Rumur", ever, tmp_path).story
    assert asked("Rumur", never, tmp_path).violated


def test_tlc_shows_the_way_to_what_must_arise(tmp_path: Path) -> None:
    it = grounded("toctou", slots=1, readers=2)
    wanted = tla.configuration(it).replace("\\* INVARIANT never_shared", "INVARIANT never_shared")
    try:
        assert "Invariant never_shared is violated" in run_tlc(tla.export(it), wanted, tmp_path).story
    except Missing as problem:
        pytest.skip(str(problem))


@pytest.mark.parametrize(("specification", "holds"), [("fair_reading_ends", True), ("Spec", False)])
def test_tlc_holds_a_promise_to_be_kept_on_fair_runs_only(specification: str, holds: bool, tmp_path: Path) -> None:
    it = grounded("toctou", slots=1, readers=1)
    asked_for = tla.configuration(it).replace("SPECIFICATION Spec", f"SPECIFICATION {specification}", 1)
    asked_for += "PROPERTY reading_ends\n"
    try:
        assert run_tlc(tla.export(it), asked_for, tmp_path).violated != holds
    except Missing as problem:
        pytest.skip(str(problem))


# Small systems for what no shipped protocol has.

A, B = cell("a", 3), cell("b", 3)
SURE = flag("sure")


def both_ways(peer: str, folder: Path, bad: System, good: System) -> None:
    """A peer finds the first violated, as we do, and in the second all states that we find."""
    theirs, ours = asked(peer, bad, folder), explore(bad)
    assert theirs.violated and ours.violations
    theirs, ours = asked(peer, good, folder), explore(good)
    assert not theirs.violated, theirs.story
    assert not ours.violations and theirs.states == ours.states


@pytest.mark.parametrize("peer", PEERS)
def test_where_nobody_can_move_nobody_has_to(peer: str, tmp_path: Path) -> None:
    moves = {"go": ([Compare("<", A.read(), number(3), NOWHERE)], {"a": Arithmetic("+", A.read(), number(1), NOWHERE)})}
    bad = system([A], moves, claim("deadlock", is_(A, 2), name="deadlock"))
    both_ways(peer, tmp_path, bad, replace(bad, claims=(claim("deadlock", is_(A, 3), name="deadlock"),)))


@pytest.mark.parametrize("peer", PEERS)
def test_a_command_that_changes_nothing_is_no_way_out(peer: str, tmp_path: Path) -> None:
    moves = {
        "go": ([is_(A, 0)], {"a": number(3)}),
        "copy": ([Compare(">", A.read(), number(0), NOWHERE)], {"b": A.read()}),
        "idle": ([is_(A, 3)], {}),
    }
    bad = system([A, B], moves, claim("deadlock", is_(B, 0), name="deadlock"))
    both_ways(peer, tmp_path, bad, replace(bad, claims=(claim("deadlock", is_(B, 3), name="deadlock"),)))


@pytest.mark.parametrize("peer", PEERS)
def test_updates_happen_at_once(peer: str, tmp_path: Path) -> None:
    """Two cells are exchanged, a third takes one from before, and a truth value is turned round."""
    c = cell("c", 3)
    moves = {
        "start": ([is_(A, 0), is_(B, 0)], {"a": number(1), "b": number(2)}),
        "swap": (
            [Compare("!=", A.read(), B.read(), NOWHERE)],
            {"a": B.read(), "c": A.read(), "b": A.read(), "sure": negation(SURE.read())},
        ),
    }
    apart = negation(Compare("==", A.read(), B.read(), NOWHERE))
    good = system([A, B, c, SURE], moves, claim("always", Compare("<=", c.read(), number(2), NOWHERE)))
    never = Choice(SURE.read(), negation(apart), TRUE, NOWHERE)
    bad = replace(good, claims=(claim("always", never, name="atomic"),))
    both_ways(peer, tmp_path, bad, good)


@pytest.mark.parametrize("peer", PEERS)
def test_cells_that_nothing_reads_belong_to_the_state(peer: str, tmp_path: Path) -> None:
    moves = {
        "count": (
            [Compare("<", A.read(), number(3), NOWHERE)],
            {"a": Arithmetic("+", A.read(), number(1), NOWHERE), "sure": TRUE},
        ),
        "count_quietly": (
            [Compare("<", A.read(), number(3), NOWHERE)],
            {"a": Arithmetic("+", A.read(), number(1), NOWHERE)},
        ),
    }
    it = system([A, SURE], moves)
    assert asked(peer, it, tmp_path).states == explore(it).states == 7


@pytest.mark.parametrize("peer", PEERS)
def test_arithmetic_may_leave_the_range_on_the_way(peer: str, tmp_path: Path) -> None:
    wide = cell("wide", 900)
    below = Arithmetic("-", Arithmetic("-", A.read(), number(5), NOWHERE), B.read(), NOWHERE)
    kept = Extreme("min", (Extreme("max", (below, number(0)), NOWHERE), number(3)), NOWHERE)
    moves = {
        "a": ([Compare("<", A.read(), number(3), NOWHERE)], {"a": Arithmetic("+", A.read(), number(1), NOWHERE)}),
        "b": ([is_(A, 3)], {"b": Arithmetic("%", Arithmetic("+", B.read(), number(1), NOWHERE), number(4), NOWHERE)}),
        "wide": ([is_(B, 2)], {"wide": Arithmetic("*", A.read(), number(300), NOWHERE)}),
        "back": ([is_(wide, 900)], {"a": kept}),
    }
    it = system([A, B, wide], moves, claim("always", Compare("<=", below, number(0), NOWHERE)))
    assert asked(peer, it, tmp_path).states == explore(it).states


# SMT.


def answer(text: str) -> str:
    z3 = pytest.importorskip("z3", reason="needs the package z3-solver")
    solver = z3.Solver()
    solver.from_string(text)
    return str(solver.check())


@pytest.mark.parametrize("steps", range(6))
def test_z3_finds_a_violation_in_exactly_as_many_steps_as_we_do(steps: int) -> None:
    faulty = grounded("toctou", "unchecked_pin")
    ours = explore(faulty, stop_at_first=True)
    shortest = min(len(ours.path(index)) for index in ours.violations.values())
    assert answer(smt.export(faulty, steps)) == ("sat" if steps >= shortest else "unsat")
    assert answer(smt.export(grounded("toctou"), steps)) == "unsat"


@pytest.mark.parametrize("name", [name for name in NAMES if name != "toctou"])
def test_z3_reads_each_protocol_and_finds_nothing_in_three_steps(name: str) -> None:
    assert answer(smt.export(grounded(name), 3)) == "unsat"


def test_z3_judges_states_that_nothing_leaves() -> None:
    moves = {"go": ([is_(A, 0)], {"a": number(3)})}
    it = system([A], moves, claim("deadlock", is_(A, 0), name="deadlock"))
    assert [answer(smt.export(it, steps)) for steps in (0, 1, 2)] == ["unsat", "sat", "sat"]


# The texts.


def test_commands_are_told_apart_and_named_by_who_does_what() -> None:
    it = grounded("toctou")
    assert "/* reader 0 pin, refused */" in promela.export(it)
    assert 'rule "reader 0 pin, refused"' in murphi.export(it)
    assert "; reader 0 pin, refused" in smt.export(it)
    actions = [line for line in tla.export(it).splitlines() if line.startswith("reader_0_pin") and line.endswith("==")]
    assert actions == [f"reader_0_pin{end} ==" for end in ("_refused", "", "_refused_2", "_2")]


def test_values_have_their_names() -> None:
    for text in (promela, murphi, tla, smt):
        assert "block_0_state" in text.export(grounded("toctou"))
        assert "block_state_compressing" in text.export(grounded("toctou"))


def test_a_tla_module_is_named_as_it_is_asked_to_be() -> None:
    it = grounded("toctou")
    assert tla.export(it).startswith("---- MODULE toctou ----\n")
    assert tla.export(it, "mine").startswith("---- MODULE mine ----\n")


def test_names_that_look_alike_are_told_apart() -> None:
    one = cell("a", 3)
    other = replace(one, name="it[0].a!", owner="it")
    naming = Naming(system([one, other], {}), reserved=["claim"])
    assert list(naming.cells.values()) == ["it_0_a", "it_0_a_2"]
    assert [naming.take("claim"), naming.take("claim")] == ["claim_2", "claim_3"]


def test_updates_are_put_in_an_order_in_which_none_reads_what_was_written() -> None:
    it = system([A, B], {"shift": ([], {"a": B.read(), "b": number(1)}), "swap": ([], {"a": B.read(), "b": A.read()})})
    shift, swap = (in_sequence(command) for command in it.commands)
    assert [name for name, _ in shift.steps] == ["it[0].a", "it[0].b"] and shift.kept == ()
    assert swap.kept == ("it[0].a",)
    turned = replace(it.commands[0], updates=it.commands[0].updates[::-1])
    assert in_sequence(turned) == shift


def test_moves_leave_out_what_changes_nothing() -> None:
    idle = {"idle": ([is_(A, 1)], {}), "again": ([is_(A, 1)], {"a": number(1)}), "copy": ([], {"a": B.read()})}
    moves = moves_of(system([A, B], idle))
    assert list(moves) == [2]
    assert moves[2].guard == (Compare("!=", A.read(), B.read(), NOWHERE),)
    for name in OFTEN:
        source, command, target = transitions_of(explored(name))
        assert set(moves_of(grounded(name))) >= set(command[source != target].tolist())


@pytest.mark.parametrize("run", [run_spin, run_rumur])
def test_a_text_that_a_peer_cannot_read_is_an_error(run: Callable[[str, Path], Outcome], tmp_path: Path) -> None:
    with pytest.raises((Missing, Failed)) as caught:
        run("this is no model", tmp_path)
    if isinstance(caught.value, Missing):
        pytest.skip(str(caught.value))
    assert re.search(r"model\.", str(caught.value))


def test_spin_without_memory_for_all_states_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "available_bytes", lambda: 2 << 20)
    try:
        with pytest.raises(Failed, match="reached -DMEMLIM bound"):
            run_spin(promela.export(grounded("toctou")), tmp_path)
    except Missing as problem:
        pytest.skip(str(problem))
