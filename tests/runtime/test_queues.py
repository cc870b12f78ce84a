"""Five queues: one place for each request, holders first, weights kept, nobody waits for ever."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvfsm.runtime.answers import Answer, AnswerKind, Claim, ObjectAnswer, Plan
from kvfsm.runtime.queues import Queue, Queues, compute_queue_of, queue_of


def answer(replay: range | None = None, **verdicts: str) -> Answer:
    objects = {kind: ObjectAnswer(verdict, 0, None) for kind, verdict in verdicts.items()}
    return Answer(AnswerKind.HIT, 64, 64, True, replay, None, "alignment", "", MappingProxyType(objects))


@pytest.mark.parametrize(
    ("said", "queue"),
    [
        (answer(compressed_kv="HIT", swa_window="HIT"), Queue.RESIDENT),
        (answer(compressed_kv="HIT", swa_window="REPLAY", replay=range(32)), Queue.TAIL_WINDOW),
        (answer(compressed_kv="HIT", indexer_state="REBUILD", replay=range(32)), Queue.INDEXER),
        (answer(compressed_kv="PACKED", indexer_state="REBUILD"), Queue.COMPRESSED),
        (answer(compressed_kv="PACKED", indexer_state="PENDING"), Queue.DISK),
    ],
)
def test_the_first_outstanding_object_decides(said: Answer, queue: Queue) -> None:
    assert queue_of(said) is queue


def test_queues_are_one_schedulers() -> None:
    queues = Queues()
    queues.serve()
    with pytest.raises(ValueError, match=r"another scheduler's; give each scheduler Queues\(\) of its own"):
        queues.serve()


@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        ({"weights": [("a", 1.0)]}, TypeError, "weights is a list; give numbers by owner"),
        ({"weights": {1: 1.0}}, TypeError, "an owner is an? int; give names"),
        ({"weights": {"a": "2"}}, TypeError, "the weight of 'a' is a str; give a number above 0"),
        ({"weights": {"a": float("inf")}}, ValueError, "owner 'a' has weight inf; give a number above 0"),
        ({"ageing": "1"}, TypeError, "ageing is a str; give a number of at least 0"),
        ({"ageing": float("nan")}, ValueError, "ageing=nan"),
        ({"patience": 2.5}, TypeError, "patience is 2.5; give a whole number of at least 0"),
        ({"patience": True}, TypeError, "patience is True"),
    ],
)
def test_options_that_can_not_be_meant(options: dict[str, Any], kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        Queues(**options)


def served(queues: Queues, queue: Queue, budget: float) -> list[int]:
    """Grant every turn that a budget allows."""
    found = []
    for request in queues.turns(queue, budget):
        queues.granted(request)
        found.append(request)
    return found


def test_holders_come_before_those_who_hold_nothing() -> None:
    queues = Queues()
    queues.put(1, Queue.DISK, cost=1, now=0)
    queues.put(2, Queue.DISK, cost=1, now=1, holds=True)
    assert served(queues, Queue.DISK, 10) == [2, 1]


def test_what_holders_have_spent_counts_in_their_round() -> None:
    queues = Queues()
    for request in range(4):
        queues.put(request, Queue.RESIDENT, cost=2, now=request, holds=request == 3)

    def turns(holders: bool) -> list[int]:
        found = []
        for request in queues.turns(Queue.RESIDENT, 4, holders=holders):
            queues.granted(request)
            found.append(request)
        return found

    assert (turns(True), turns(False)) == ([3], [0])
    assert (turns(True), turns(False)) == ([], [1, 2])


def test_a_turn_that_others_have_not_granted_yet_keeps_its_place_and_is_paid_once() -> None:
    queues = Queues()
    for request in (1, 2):
        queues.put(request, Queue.RESIDENT, cost=2, now=0)

    def taken(budget: float) -> list[int]:
        found = []
        for request in queues.turns(Queue.RESIDENT, budget):
            queues.granted_here(request)
            found.append(request)
        return found

    assert (taken(2), queues.is_granted_here(1), queues.is_granted_here(2)) == ([1], True, False)
    assert taken(2) == [1, 2], "the round before has paid for the first"
    queues.granted(2), queues.granted(1)
    assert len(queues) == 0 and not queues.is_granted_here(1)


def test_the_oldest_of_a_queue_is_known() -> None:
    queues = Queues()
    assert queues.oldest(Queue.DISK) == float("inf")
    for request, now in ((1, 5), (2, 3)):
        queues.put(request, Queue.DISK, cost=1, now=now)
    assert queues.oldest(Queue.DISK) == 3


def test_a_plan_that_expands_waits_for_it_whatever_the_objects_say() -> None:
    said = replace(answer(compressed_kv="HIT"), plan=Plan(Claim([], b"", ()), 3, {}, range(1, 3), 100, 3))
    assert (queue_of(said), compute_queue_of(said)) == (Queue.COMPRESSED, Queue.RESIDENT)


def test_a_stalled_disk_holds_up_nobody_else() -> None:
    queues = Queues()
    for request in range(8):
        queues.put(request, Queue.DISK if request < 7 else Queue.RESIDENT, cost=1, now=request)
    assert served(queues, Queue.DISK, 0) == []
    assert served(queues, Queue.RESIDENT, 1) == [7]


def test_twice_the_weight_gets_twice_the_cost_granted() -> None:
    queues = Queues({"large": 2.0})
    for request in range(60):
        queues.put(request, Queue.RESIDENT, cost=3, now=0, owner="large" if request % 2 else "small")
    first = served(queues, Queue.RESIDENT, 3 * 30)
    assert Counter("large" if request % 2 else "small" for request in first) == {"large": 20, "small": 10}


def test_who_comes_late_has_saved_nothing_up() -> None:
    queues = Queues()
    for request in range(10):
        queues.put(request, Queue.RESIDENT, cost=1, now=0, owner="early")
    assert served(queues, Queue.RESIDENT, 5) == [0, 1, 2, 3, 4]
    for request in range(10, 15):
        queues.put(request, Queue.RESIDENT, cost=1, now=1, owner="late")
    owners = Counter("late" if request >= 10 else "early" for request in served(queues, Queue.RESIDENT, 4))
    assert owners == {"early": 2, "late": 2}


def test_ageing_brings_a_costly_owner_forward() -> None:
    def order(ageing: float) -> list[int]:
        queues = Queues({"poor": 0.1}, ageing=ageing)
        queues.put(0, Queue.RESIDENT, cost=1, now=0, owner="poor")
        queues.put(1, Queue.RESIDENT, cost=1, now=0, owner="poor")  # its turn begins at 10
        for request in range(2, 8):
            queues.put(request, Queue.RESIDENT, cost=1, now=100 + request, owner="rich")
        return served(queues, Queue.RESIDENT, 8)

    assert order(0.0).index(1) == 7
    assert order(1.0).index(1) == 1


def test_one_that_does_not_fit_is_passed_so_often_and_then_waited_for() -> None:
    queues = Queues(patience=2)
    queues.put(1, Queue.DISK, cost=9, now=0)
    for request in (2, 3, 4, 5):
        queues.put(request, Queue.DISK, cost=1, now=request, owner="other")

    def step() -> list[int]:
        got = []
        for request in queues.turns(Queue.DISK, 1):
            if request == 1:
                queues.passed(1)
            else:
                queues.granted(request)
                got.append(request)
        return got

    assert [step() for _ in range(4)] == [[2], [3], [], []]
    queues.put(6, Queue.DISK, cost=1, now=9, holds=True)
    assert step() == [6]  # who holds slots waits for nobody


def test_a_turn_that_costs_more_than_the_budget_is_granted_alone() -> None:
    queues = Queues()
    queues.put(1, Queue.DISK, cost=100, now=0)
    queues.put(2, Queue.DISK, cost=1, now=0, owner="other")
    assert served(queues, Queue.DISK, 10) == [1]


def test_who_is_removed_has_paid_nothing() -> None:
    queues = Queues()
    for request in range(3):
        queues.put(request, Queue.RESIDENT, cost=10, now=0, owner="a")
    queues.put(9, Queue.RESIDENT, cost=10, now=0, owner="b")
    queues.remove(0)
    queues.remove(1)
    assert served(queues, Queue.RESIDENT, 10) == [2]  # as if it had been the first


def test_what_leaves_without_a_grant_costs_nothing_and_what_the_budget_leaves_over_is_told() -> None:
    queues, offered = Queues(), list[int]()
    for request in range(5):
        queues.put(request, Queue.DISK, cost=10, now=0)
    for request in queues.turns(Queue.DISK, 20):
        offered.append(request)
        (queues.remove if request < 2 else queues.granted)(request)
    assert offered == [0, 1, 2, 3] and queues.cut(Queue.DISK)
    assert served(queues, Queue.DISK, 20) == [4] and not queues.cut(Queue.DISK)
    queues.put(5, Queue.DISK, cost=10, now=0)
    assert served(queues, Queue.DISK, 0) == [] and not queues.cut(Queue.DISK)  # no later round has more


def test_the_first_turn_of_a_round_can_be_given_to_anybody() -> None:
    queues = Queues()
    for request in range(3):
        queues.put(request, Queue.DISK, cost=1, now=request)
    assert list(queues.turns(Queue.DISK, 10, first=2)) == [2, 0, 1]


def test_one_whose_turn_keeps_nothing_from_others_is_passed_without_end() -> None:
    queues = Queues(patience=0)
    for request in range(3):
        queues.put(request, Queue.RESIDENT, cost=1, now=request)

    def round_(*, stops: bool) -> list[int]:
        found = []
        for request in queues.turns(Queue.RESIDENT, 10):
            found.append(request)
            queues.passed(request, stops=stops)
        return found

    assert [round_(stops=False), round_(stops=True), round_(stops=False)] == [[0, 1, 2], [0], [0, 1, 2]]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Queues({"a": 0}), "weight 0"),
        (lambda: Queues(ageing=-1), "ageing=-1"),
        (lambda: Queues().put(1, Queue.DISK, cost=-1, now=0), "costs -1"),
    ],
)
def test_bad_options_are_named(call: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        call()  # type: ignore[operator]


def test_a_request_is_put_once() -> None:
    queues = Queues()
    queues.put(1, Queue.DISK, cost=1, now=0)
    with pytest.raises(ValueError, match="in queue 'disk' already"):
        queues.put(1, Queue.RESIDENT, cost=1, now=0)


Operation = tuple[str, int, Queue, int, str, bool]
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["put", "move", "remove", "serve"]),
        st.integers(0, 5),
        st.sampled_from(list(Queue)),
        st.integers(0, 4),
        st.sampled_from(["a", "b"]),
        st.booleans(),
    ),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(OPERATIONS)
def test_each_request_is_in_exactly_one_queue_whatever_happens(operations: list[Operation]) -> None:
    queues, model = Queues({"a": 3.0}, ageing=0.5), {}
    for now, (what, request, queue, cost, owner, holds) in enumerate(operations):
        if what == "put" and request not in model:
            queues.put(request, queue, cost=cost, now=now, owner=owner, holds=holds)
            model[request] = queue
        elif what == "move" and request in model:
            queues.granted(request)
            queues.put(request, queue, cost=cost, now=now, owner=owner, holds=holds)
            model[request] = queue
        elif what == "remove" and request in model:
            queues.remove(request)
            del model[request]
        elif what == "serve":
            waiting = {number for number, where in model.items() if where is queue}
            got = served(queues, queue, float("inf"))
            assert set(got) == waiting and len(got) == len(waiting)
            for number in got:
                del model[number]
        assert {number: queues.where(number) for number in range(6) if number in queues} == model
        assert len(queues) == len(model) == sum(queues.depth(each) for each in Queue)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(1, 5)), min_size=1, max_size=60))
def test_no_owner_is_ahead_by_more_than_two_turns(asked: list[tuple[str, int]]) -> None:
    """While two owners both wait, what each was granted, over its weight, differs by no more than a turn of each."""
    weights = {"a": 1.0, "b": 2.0, "c": 0.5}
    queues, costs = Queues(weights), dict(enumerate(asked))
    for request, (owner, cost) in costs.items():
        queues.put(request, Queue.RESIDENT, cost=cost, now=0, owner=owner)
    got: Counter[str] = Counter()
    while len(queues):
        left = Counter(owner for request, (owner, _) in costs.items() if request in queues)
        for one in left:
            for other in left:
                bound = 5 / weights[one] + 5 / weights[other]
                assert got[one] / weights[one] - got[other] / weights[other] <= bound
        (request,) = served(queues, Queue.RESIDENT, 0.1)
        owner, cost = costs[request]
        got[owner] += cost
