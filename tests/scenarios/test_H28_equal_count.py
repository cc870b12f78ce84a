"""H-28: how often ranks agree in a step follows from its requests; a full batch of one rank changes what it says."""

from __future__ import annotations

from typing import Any

import pytest

from kvfsm.runtime.agreement import Agreement, Ask
from kvfsm.runtime.errors import RanksDiverged
from kvfsm.runtime.ranks import LocalGroup

from ..runtime.side_by_side import side_by_side


def two_ranks(bench: Any, part: Any) -> list[Any]:
    profile = bench.profile(16, bench.group("full", "compressed_kv", 16, 16))
    groups = LocalGroup.make(2)

    def rank(n: int) -> Any:
        manager = bench.manager(profile, 16)
        waiting = [manager.keys(bench.tokens(65, seed)) for seed in range(3)]
        for keys in waiting:
            bench.put(manager, keys, 0, 4)
        try:
            result = part(n, Agreement(groups[n], manager), waiting)
        except RanksDiverged as error:
            result = error
        assert not manager.receipts
        bench.audited(manager)
        return result

    return side_by_side(2, rank)


def test_H28_a_full_batch_changes_no_count(bench: Any) -> None:
    def one_step(rank: int, agreement: Agreement, waiting: list[Any]) -> Any:
        room = 2 if rank == 1 else 3
        decision = agreement.step([Ask(keys, admit=place < room) for place, keys in enumerate(waiting)])
        decision.release()
        order = [(one.length, one.refused_by) for one in decision.agreed]
        return agreement.exchanges, order, decision.stream

    first, second = two_ranks(bench, one_step)
    # sign of the defect: 3 against 2
    assert first[0] == second[0] == 2
    assert first[1] == second[1] == [(64, ()), (64, ()), (0, (1,))]
    assert first[2] == second[2]  # of the requests, their order, and what was decided on each


def test_H28_a_loop_that_a_full_batch_ends_early_is_told_at_once(bench: Any) -> None:
    """The defect itself: an agreement for each waiting request, until this rank's batch is full."""

    def loop(rank: int, agreement: Agreement, waiting: list[Any]) -> None:
        for place, keys in enumerate(waiting):
            if rank == 1 and place == 2:
                break
            agreement.step([Ask(keys)]).release()
        agreement.step([])  # the next step of the scheduler

    for error in two_ranks(bench, loop):
        with pytest.raises(RanksDiverged, match=r"request 0 of step 2: rank 0: .*, of 1 request; rank 1: it has none"):
            raise error
