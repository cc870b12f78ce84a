"""Promises hold when every fair run keeps them; a run that breaks one is shown, and is a run."""

from __future__ import annotations

import dataclasses

import pytest

from kvfsm.spec.checking.exploration import Exploration
from kvfsm.spec.checking.explore import explore
from kvfsm.spec.checking.fairness import check_promises
from kvfsm.spec.checking.folding import equal, number
from kvfsm.spec.checking.grounding import ground
from kvfsm.spec.checking.lasso import Lasso
from kvfsm.spec.checking.limits import Limits
from kvfsm.spec.checking.system import Cell, Command, Promise, System
from kvfsm.spec.language.expressions import INT
from kvfsm.spec.language.problems import Place
from kvfsm.spec.language.protocol import Protocol

from .shipped import grounded, spec

AT = Place("ring.yaml", 1, 1)


def walker(arrows: dict[str, tuple[int, int]], **promise: tuple[str, ...]) -> System:
    """One cell "x" and named commands that move it from one value to another; 9 is the goal, and 1 the source.

    ``fair`` and ``strong`` name groups of commands; a group is all commands whose name starts with it.
    """
    cell = Cell("x", "x", 0, "x", INT, 9, (), True)
    commands = tuple(
        Command("mover", 0, name, (), "applied", (), (equal(cell.read(), number(source)),), (("x", number(target)),))
        for name, (source, target) in arrows.items()
    )

    def groups(names: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(index for index, command in enumerate(commands) if command.step.startswith(name)) for name in names
        )

    goal = Promise(
        "arrives",
        None,
        ((equal(cell.read(), number(1)), equal(cell.read(), number(9))),),
        ("",),
        groups(promise.get("fair", ())),
        groups(promise.get("strong", ())),
        AT,
    )
    return System("ring", (), (cell,), commands, (), (goal,), ())


def broken(system: System) -> Lasso | None:
    return check_promises(explore(system, engine="numpy"))["arrives"]


LINE = {"start": (0, 1), "go": (1, 2), "end": (2, 9)}
RING = {"start": (0, 1), "turn": (1, 2), "back": (2, 1), "leave": (2, 9)}


def test_who_is_not_fair_may_stop_for_ever() -> None:
    found = broken(walker(LINE))
    assert found is not None and found.loop == ()
    assert [command for command, _ in found.path] == [None, 0]


def test_the_run_stops_where_fairness_ends() -> None:
    found = broken(walker(LINE, fair=("go",)))
    assert found is not None and found.loop == ()
    assert [command for command, _ in found.path] == [None, 0, 1]


def test_weak_fairness_moves_what_can_always_move() -> None:
    assert broken(walker(LINE, fair=("go", "end"))) is None


def test_weak_fairness_does_not_end_a_ring_that_can_be_left_now_and_then() -> None:
    found = broken(walker(RING, fair=("turn", "back", "leave")))
    assert found is not None
    assert sorted(command for command, _ in found.loop) == [1, 2]
    assert found.loop[-1][1] == found.path[-1][1], "it goes round"


def test_strong_fairness_ends_that_ring() -> None:
    assert broken(walker(RING, fair=("turn", "back"), strong=("leave",))) is None


def test_strong_fairness_is_kept_by_a_smaller_loop_that_never_passes_the_exit() -> None:
    """Two rings share state 1; only the one through 2 has an exit, so the run goes round the other for ever."""
    rings = {**RING, "aside": (1, 3), "home": (3, 1)}
    found = broken(walker(rings, fair=("turn", "back", "aside", "home"), strong=("leave",)))
    assert found is not None
    assert {command for command, _ in found.loop} == {4, 5}, "'turn' is impossible at 3, so going aside is fair to it"


def test_a_ring_without_any_exit_is_found_beside_one_with_an_exit() -> None:
    rings = {**RING, "aside": (1, 3), "round": (3, 4), "again": (4, 3)}
    found = broken(walker(rings, fair=("turn", "back", "round", "again"), strong=("leave",)))
    assert found is not None
    assert {command for command, _ in found.loop} == {5, 6}


@pytest.mark.parametrize("protocol", spec().protocols, ids=lambda protocol: protocol.name)
def test_shipped_promises_hold(protocol: Protocol) -> None:
    found = check_promises(explore(ground(protocol), engine="numpy"))
    assert found == dict.fromkeys((item.name for item in protocol.leads_to), None)


@pytest.mark.parametrize(
    ("protocol", "promise"),
    [(p, item.name) for p in spec().protocols for item in p.leads_to],
    ids=lambda x: str(x)[:20],
)
def test_no_shipped_promise_holds_without_fairness(protocol: Protocol, promise: str) -> None:
    """Negative control: when everybody may stop, nothing need ever happen; and what is told is a run."""
    item = next(item for item in protocol.leads_to if item.name == promise)
    lazy = dataclasses.replace(protocol, leads_to=(dataclasses.replace(item, fair=(), strong=()),))
    exploration = explore(ground(lazy), engine="numpy")
    lasso = check_promises(exploration)[promise]
    assert lasso is not None
    is_a_run_that_misses_the_goal(exploration, lasso)


def is_a_run_that_misses_the_goal(exploration: Exploration, lasso: Lasso) -> None:
    system = exploration.system
    promise = next(item for item in system.promises if item.name == lasso.promise)
    source, target = promise.pairs[promise.bindings.index(lasso.binding)]
    states = [exploration.state(index) for _, index in (*lasso.path, *lasso.loop)]
    steps = [command for command, _ in (*lasso.path, *lasso.loop)]
    assert states[0] == system.initial and steps[0] is None
    for before, command, after in zip(states, steps[1:], states[1:], strict=False):
        assert (command, after) in list(system.successors(before))
    assert system.function(source)(states[lasso.source])
    assert not any(system.function(target)(state) for state in states[lasso.source :])


def test_two_that_reserve_piecemeal_wait_for_each_other_for_ever() -> None:
    """Both are loaded, all blocks are theirs, each lacks one more, and nobody can move."""
    system = grounded("queue", "reserves_piecemeal")
    found = explore(system, engine="numpy")
    at = {name: system.place[name] for name in ("request[0].state", "request[1].state", "pool[0].count")}
    ready = spec().machine("queued").state("ready").code
    waits = {"request[0].state": ready, "request[1].state": ready, "pool[0].count": 4}
    states = (found.state(index) for index in range(found.states))
    both = [state for state in states if all(state[at[name]] == value for name, value in waits.items())]
    assert any(not list(system.successors(state)) for state in both)
    lasso = check_promises(found)["holder_is_promoted"]
    assert lasso is not None
    is_a_run_that_misses_the_goal(found, lasso)


def test_promises_need_every_state() -> None:
    protocol = spec().protocol("store")
    part = explore(ground(protocol), engine="numpy", limits=Limits(states=100))
    with pytest.raises(ValueError, match="every state"):
        check_promises(part)
