"""Ranks as threads: they agree on what all can restore, in equally many exchanges, or are told why not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime import agreement as module
from kvfsm.runtime.agreement import Agreed, Agreement, Ask, Decision
from kvfsm.runtime.answers import Reason
from kvfsm.runtime.ballots import Head, Phase, Saying, greatest, heed, pack_sayings, unpack_sayings
from kvfsm.runtime.errors import KvfsmError, RankFailed, RankLost, RanksDiverged, Refused
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.ranks import Group, LocalGroup
from kvfsm.runtime.stores.local import LocalStore
from kvfsm.runtime.stores.store import Namespace

from .meddling import Meddling
from .side_by_side import side_by_side

PROFILE = PROFILES["tiny_deepseek_v4"]
A = PROFILE.granule
PROMPT = list(range(12 * A + 1))


def filled(cuts: Sequence[int], prompt: Sequence[int] = PROMPT, **options: Any) -> Manager:
    """A manager with fills that end at ``cuts``: these are the boundaries that it can restore."""
    manager = Manager(PROFILE, dict.fromkeys(PROFILE.kinds, 40), NumpyBackend(), **options)
    return fill(manager, cuts, prompt)


def fill(manager: Manager, cuts: Sequence[int], prompt: Sequence[int] = PROMPT) -> Manager:
    keys, start = manager.keys(prompt), 0
    for stop in sorted(cuts):
        manager.publish(manager.reserve(keys, start, stop))
        start = stop
    return manager


def together(
    managers: Sequence[Manager],
    part: Callable[[int, Agreement], Any],
    *,
    wrap: Callable[[int, Group], Group] = lambda rank, group: group,
    deadline: float = 60.0,
    **options: Any,
) -> list[Any]:
    """What ``part`` returns or raises on each rank, run at the same time."""
    groups = LocalGroup.make(len(managers), deadline=deadline)

    def run(rank: int) -> Any:
        try:
            return part(rank, Agreement(wrap(rank, groups[rank]), managers[rank], **options))
        except (KvfsmError, RuntimeError, ValueError, OSError) as error:
            if not isinstance(error, KvfsmError):
                groups[rank].leave()
            return error

    return side_by_side(len(managers), run)


def nothing_held(managers: Sequence[Manager]) -> bool:
    return all(not manager.receipts and manager.audit().ok for manager in managers)


CUTS = st.sets(st.integers(1, 12), max_size=5)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.tuples(CUTS, CUTS), min_size=1, max_size=4), st.integers(0, 12 * A + 1), st.integers(0, 70))
def test_the_agreed_length_is_the_greatest_in_the_intersection(
    cuts: list[tuple[set[int], set[int]]], tokens: int, draft: int
) -> None:
    other = [7, *PROMPT[1:]]
    managers = [fill(filled(first), second, other) for first, second in [(sorted(a), sorted(b)) for a, b in cuts]]

    def brute(prompt: Sequence[int], length: int) -> int:
        """By asking each rank for each cap."""
        common = set(range(1, 13))
        for manager in managers:
            keys = manager.keys(prompt)
            most = manager.match(keys, length, draft=draft).now // A
            common &= {b for b in range(1, most + 1) if manager.match(keys, length, at_most=b * A).now == b * A}
        return max(common, default=0)

    expected = [brute(PROMPT, tokens), brute(other, len(other))]

    def part(rank: int, agreement: Agreement) -> Any:
        keys = agreement.manager.keys(PROMPT), agreement.manager.keys(other)
        first = agreement.step([Ask(keys[0], tokens), Ask(keys[1])], draft=draft)
        again = agreement.step([Ask(keys[0], first.agreed[0].length + 1), Ask(keys[1], first.agreed[1].length + 1)])
        leased = [[0 if one.lease is None else one.lease.length for one in step.agreed] for step in (first, again)]
        first.release()
        again.release()
        return first, again, leased, agreement.exchanges

    results = together(managers, part)
    for first, again, leased, exchanges in results:
        assert [one.length // A for one in first.agreed] == expected
        assert [one.length for one in again.agreed] == [one.length for one in first.agreed]  # asked again with it
        assert leased == [[one.length for one in first.agreed]] * 2
        assert (first, again, exchanges) == (results[0][0], results[0][1], 4)
    assert nothing_held(managers)


def by_minimum(rows: Sequence[Any]) -> int:
    """The defect: each rank's greatest, and of these the least."""
    return min(int(np.flatnonzero(row)[-1]) + 1 if row.any() else 0 for row in rows)


def test_the_least_of_the_greatest_is_another_number(monkeypatch: pytest.MonkeyPatch) -> None:
    managers = [filled((3, 5)), filled((3, 8)), filled((3, 5, 8))]

    def part(rank: int, agreement: Agreement) -> Decision:
        decision = agreement.step([Ask(agreement.manager.keys(PROMPT))])
        decision.release()
        return decision

    right = together(managers, part)
    assert [one.agreed[0].length // A for one in right] == [3, 3, 3]
    # the defect planted: 5 is no boundary of rank 1, which can take no lease there; all hear so, and fall back to 0
    monkeypatch.setattr(module, "greatest", by_minimum)
    wrong = together(managers, part)
    assert [(one.agreed[0].length, one.votes) for one in wrong] == [(0, 3)] * 3
    assert by_minimum([np.array([0, 0, 1, 0, 1, 0, 0, 0]), np.array([0, 0, 1, 0, 0, 0, 0, 1])]) == 5
    assert nothing_held(managers)


def test_a_rank_keeps_the_lease_that_it_looked_with_and_gives_a_longer_one_up() -> None:
    managers = [filled((2, 6)), filled((2, 6, 9)), filled((2, 6))]
    pools = [manager.core.pools["compressed_kv"].table for manager in managers]
    seen: list[list[int]] = [[] for _ in managers]

    def wrap(rank: int, group: Group) -> Group:
        return Meddling(group, lambda call: seen[rank].append(int((pools[rank].fields("pins") > 0).sum())))

    def part(rank: int, agreement: Agreement) -> int:
        decision = agreement.step([Ask(agreement.manager.keys(PROMPT))])
        held = len(agreement.manager.receipts)
        decision.release()
        return held

    assert together(managers, part, wrap=wrap) == [1, 1, 1]
    assert seen == [[6, 6], [9, 6], [6, 6]]  # granules leased when it says what it has, and when it confirms
    assert nothing_held(managers)


@pytest.mark.parametrize("votes", [1, 3])
def test_what_one_rank_loses_between_look_and_lease_all_fall_back_from(votes: int) -> None:
    """Rank 0 holds its greatest, 8, and loses its window at 6 when it has said that it has it."""
    managers = [filled((2, 6, 8)), filled((2, 6)), filled((2, 6))]

    def lose(rank: int, group: Group) -> Group:
        def before(call: int) -> None:
            if rank == 0 and call == 1:
                keys = managers[0].keys(PROMPT)
                with managers[0].acquire(managers[0].match(keys, at_most=2 * A)):  # what is at 2 is not let go
                    managers[0].evict("swa_window", 1)

        return Meddling(group, before)

    def part(rank: int, agreement: Agreement) -> Any:
        decision = agreement.step([Ask(agreement.manager.keys(PROMPT)), Ask(agreement.manager.keys(PROMPT), 3 * A)])
        held = sorted(receipt.boundary for receipt, _ in agreement.manager.receipts.values())
        decision.release()
        return [one.length // A for one in decision.agreed], decision.votes, agreement.exchanges, held, decision.stream

    results = together(managers, part, wrap=lose, votes=votes)
    assert results[0][:4] == (([2, 2], 2, 4, [2, 2]) if votes == 3 else ([0, 2], 1, 2, [2]))
    assert results[1] == results[0] and results[2] == results[0]
    assert nothing_held(managers)


class Losing(Manager):
    """Whatever it was asked for is gone when it is to be leased."""

    def acquire(self, answer: Any, *, owner: str = "") -> Any:
        raise Refused(Reason.STALE, "lease", "gone")


def test_who_always_loses_ends_at_nothing_after_the_last_vote() -> None:
    losing = fill(Losing(PROFILE, dict.fromkeys(PROFILE.kinds, 40), NumpyBackend()), (2, 4, 6))
    managers = [filled((2, 4, 6, 8)), losing, filled((2, 4, 6))]

    def part(rank: int, agreement: Agreement) -> Any:
        decision = agreement.step([Ask(agreement.manager.keys(PROMPT))])
        return decision.agreed, decision.votes, agreement.exchanges

    assert together(managers, part) == [((Agreed(0, True, None, (), 6 * A),), 3, 6)] * 3
    assert nothing_held(managers)


def test_a_rank_without_room_takes_part_and_the_request_waits_on_all() -> None:
    managers = [filled((2, 6)) for _ in range(3)]

    def part(rank: int, agreement: Agreement) -> Any:
        keys = agreement.manager.keys(PROMPT)
        decision = agreement.step([Ask(keys), Ask(keys, admit=rank == 0), Ask(keys)])
        decision.release()
        return [(one.length // A, one.refused_by) for one in decision.agreed], agreement.exchanges

    assert together(managers, part) == [([(6, ()), (0, (1, 2)), (6, ())], 2)] * 3
    assert nothing_held(managers)


def test_exact_is_what_holds_on_every_rank() -> None:
    managers = [filled((2, 6)), filled((2, 6), cold=12)]
    keys = managers[1].keys(PROMPT)
    assert managers[1].pack(keys, lossy=True) == 6
    managers[1].expand(keys)

    def part(rank: int, agreement: Agreement) -> Any:
        [one] = agreement.step([Ask(agreement.manager.keys(PROMPT))]).agreed
        assert one.lease is not None
        found = one.length // A, one.exact, one.lease.exact
        agreement.manager.release(one.lease)
        return found

    assert together(managers, part) == [(6, False, True), (6, False, False)]


def test_what_all_could_load_is_agreed_on_beside_what_all_have(tmp_path: Path) -> None:
    with ExitStack() as stack:
        stores = [stack.enter_context(LocalStore(tmp_path / str(rank), Namespace.of(PROFILE))) for rank in range(3)]
        cuts = [(2, 4, 7, 9), (2, 7, 9), (2, 4, 7)]
        for store, cut in zip(stores, cuts, strict=True):
            filled(cut, store=store)
        managers = [filled((), store=store) for store in stores]
        fill(managers[0], (2, 4))
        fill(managers[1], (2,))

        def part(rank: int, agreement: Agreement) -> Any:
            manager, keys = agreement.manager, agreement.manager.keys(PROMPT)
            [first] = agreement.step([Ask(keys)], stored=True).agreed
            plan = manager.match(keys, at_most=first.reachable).plan
            assert plan is not None
            manager.load(plan)
            last = agreement.step([Ask(keys)])
            last.release()
            return first.length // A, first.reachable // A, last.agreed[0].length // A

        assert together(managers, part) == [(0, 7, 7)] * 3
        assert nothing_held(managers)


# ---- ranks that don't do the same ------------------------------------------------------------------------------------


def diverging(part: Callable[[int, Agreement, list[Ask]], Any]) -> list[str]:
    """What three ranks are told, of which rank 1 does something else; nothing is held afterwards."""
    managers = [filled((2, 6)) for _ in range(3)]

    def run(rank: int, agreement: Agreement) -> Any:
        keys = [agreement.manager.keys(PROMPT[:count]) for count in (200, 300, 100)]
        return part(rank, agreement, [Ask(one) for one in keys])

    results = together(managers, run)
    assert nothing_held(managers)
    assert [type(error) for error in results] == [RanksDiverged] * 3
    assert str(results[0]) == str(results[1]) == str(results[2])
    return [str(results[0]), *results[0].said]


def test_a_step_left_out_is_told() -> None:
    def part(rank: int, agreement: Agreement, asks: list[Ask]) -> None:
        if rank != 1:
            agreement.step(asks).release()
        agreement.step([])

    text, *_ = diverging(part)
    assert text.startswith("ranks differ in request 0 of step 0: rank 0, 2: its digest is ")
    assert ", of 3 requests; rank 1: it has none, of 0 requests" in text


def test_another_exchange_of_the_same_step_is_told() -> None:
    def part(rank: int, agreement: Agreement, asks: list[Ask]) -> None:
        if rank == 1:
            agreement.vote(True)
        else:
            agreement.step(asks)

    text, *_ = diverging(part)
    assert text.startswith("ranks differ in which exchange this is: rank 0, 2: says in vote 1 of step 0, on 3 requests")
    assert "; rank 1: confirms in vote 1 of step 0, on 0 requests" in text


@pytest.mark.parametrize("more", [0, 1, 2])
def test_one_request_more_is_told_by_the_first_that_differs(more: int) -> None:
    def part(rank: int, agreement: Agreement, asks: list[Ask]) -> None:
        agreement.step(asks if rank == 1 else [one for place, one in enumerate(asks) if place != more])

    text, *_ = diverging(part)
    assert text.startswith(f"ranks differ in request {more} of step 0: rank 0, 2: ")
    assert ("rank 0, 2: it has none, of 2 requests" in text) == (more == 2) and ", of 3 requests" in text


def test_another_order_is_told_by_the_first_request_that_differs() -> None:
    def part(rank: int, agreement: Agreement, asks: list[Ask]) -> None:
        agreement.step([asks[0], asks[2], asks[1]] if rank == 1 else asks)

    assert diverging(part)[0].startswith("ranks differ in request 1 of step 0: rank 0, 2: its digest is ")


def test_other_options_are_told() -> None:
    text, *_ = diverging(lambda rank, agreement, asks: agreement.step(asks, draft=int(rank == 1)))
    assert text.startswith("ranks differ in options of step 0, ")


def test_another_length_of_the_same_prompt_is_told() -> None:
    def part(rank: int, agreement: Agreement, asks: list[Ask]) -> None:
        agreement.step([replace(asks[0], tokens=150 if rank == 1 else 180)])

    assert "request 0" in diverging(part)[0]


def test_other_decisions_before_are_told() -> None:
    def part(rank: int, agreement: Agreement, asks: list[Ask]) -> None:
        agreement.step(asks).release()
        if rank == 1:
            agreement._stream = bytes(32)
        agreement.step(asks)

    text, *_ = diverging(part)
    assert text.startswith("ranks differ in what they decided before: ") and "0000000000000000" in text


def test_the_stream_tells_decisions_and_their_order_apart() -> None:
    def streams(cuts: Sequence[int], counts: Sequence[int]) -> list[bytes]:
        def part(rank: int, agreement: Agreement) -> list[bytes]:
            decisions = [agreement.step([Ask(agreement.manager.keys(PROMPT[:count]))]) for count in counts]
            return [decision.stream for decision in decisions if decision.release() is None]

        first, second = together([filled(cuts), filled(cuts)], part)
        assert first == second
        return list(first)

    base = streams((2, 6), (300, 300, 200))
    assert len(set(base)) == 3  # also where the same is asked and decided again
    assert streams((2, 6), (300, 300, 200)) == base
    other = streams((2, 5), (300, 300, 200))  # the same is asked, and something else decided
    assert not set(base) & set(other)
    assert streams((2, 6), (300, 200, 300))[0] == base[0]
    assert streams((2, 6), (300, 200, 300))[2] != base[2]


def test_a_loop_of_agreements_that_one_rank_leaves_early_is_told() -> None:
    """The defect: an agreement a request, until this rank's own batch is full."""

    def part(rank: int, agreement: Agreement, asks: list[Ask]) -> None:
        for taken, ask in enumerate(asks):
            if rank == 1 and taken == 2:
                break
            agreement.step([ask]).release()
        agreement.step(asks)

    text, *_ = diverging(part)
    assert "differ in request 0 of step 2: " in text and ", of 1 request; rank 1: " in text
    assert text.endswith(", of 3 requests")


def test_a_conditional_exchange_is_told() -> None:
    """The defect: a rank that has nothing saves itself its confirmation."""

    class Sparing(Agreement):
        def _exchange(self, head: Head, body: Callable[[], bytes]) -> list[bytes]:
            if head.phase is Phase.CONFIRM and self.group.rank == 1:
                body()
                return [b"\1"] * self.group.size
            return super()._exchange(head, body)

    managers = [filled((2, 6)), filled(()), filled((2, 6))]

    def part(rank: int, agreement: Agreement) -> Any:
        sparing = Sparing(agreement.group, agreement.manager)
        for _ in range(2):
            sparing.step([Ask(agreement.manager.keys(PROMPT))]).release()

    results = together(managers, part)
    assert [type(error) for error in results] == [RanksDiverged] * 3
    assert "confirms in vote 1 of step 0" in str(results[0]) and "says in vote 1 of step 1" in str(results[0])
    assert nothing_held(managers)


def test_a_message_of_something_else_is_told() -> None:
    def part(rank: int, agreement: Agreement) -> Any:
        if rank == 1:
            agreement.group.all_gather(b"gradients")
        else:
            agreement.step([])

    results = together([filled(()) for _ in range(3)], part)
    assert [type(error) for error in results] == [RanksDiverged, type(None), RanksDiverged]
    assert "rank 1: something else" in str(results[0])


# ---- ranks that fail, come late or are gone --------------------------------------------------------------------------


def test_a_rank_that_fails_says_so_and_the_next_step_goes_on() -> None:
    managers = [filled((2, 6)) for _ in range(3)]

    def part(rank: int, agreement: Agreement) -> Any:
        manager, keys = agreement.manager, agreement.manager.keys(PROMPT)
        if rank == 1:
            manager.boundaries = _raises(OSError("the disk is on fire"))  # type: ignore[method-assign]
        try:
            agreement.step([Ask(keys)])
        except (OSError, RankFailed) as error:
            first: Any = error
        if rank == 1:
            del manager.boundaries
        last = agreement.step([Ask(keys)])
        last.release()
        return type(first), str(first), last.agreed[0].length // A, last.step, agreement.exchanges

    results = together(managers, part)
    said = "rank 1 gave the step up: OSError: the disk is on fire"
    assert [one[:2] for one in results] == [(RankFailed, said), (OSError, "the disk is on fire"), (RankFailed, said)]
    assert [one[2:] for one in results] == [(6, 1, 3)] * 3
    assert nothing_held(managers)


def _raises(error: Exception) -> Callable[..., Any]:
    def call(*args: Any, **named: Any) -> Any:
        raise error

    return call


def test_keys_of_another_model_are_refused_on_every_rank() -> None:
    managers = [filled((2, 6)) for _ in range(2)]

    def part(rank: int, agreement: Agreement) -> Any:
        keys = agreement.manager.keys(PROMPT)
        keys.identity = "another"
        return agreement.step([Ask(keys)])

    for error in together(managers, part):
        assert isinstance(error, Refused | RankFailed) and "IDENTITY" in str(error)


@pytest.mark.parametrize("exchange", [1, 2])
def test_a_rank_that_is_gone_is_named_and_nothing_stays_leased(exchange: int) -> None:
    managers = [filled((2, 6)) for _ in range(4)]

    class Gone(KvfsmError):
        pass

    def wrap(rank: int, group: Group) -> Group:
        def before(call: int) -> None:
            if rank == 2 and call == exchange:
                assert isinstance(group, LocalGroup)
                group.leave()
                raise Gone

        return Meddling(group, before)

    def part(rank: int, agreement: Agreement) -> Any:
        ask = Ask(agreement.manager.keys(PROMPT))
        try:
            agreement.step([ask])
        except RankLost as error:
            with pytest.raises(RuntimeError, match=r"has ended; begin one with a new group \(rank 2 is lost"):
                agreement.step([ask])
            return error.ranks, error.why

    results = together(managers, part, wrap=wrap)
    assert isinstance(results[2], Gone)
    assert results[:2] + results[3:] == [((2,), "it has left")] * 3
    assert nothing_held(managers)


def test_a_slow_rank_is_waited_for() -> None:
    managers = [filled((2, 6)) for _ in range(4)]
    others = threading.Barrier(4)

    def wrap(rank: int, group: Group) -> Group:
        def before(call: int) -> None:
            if rank == 3 and call == 1:
                others.wait(60)  # until the other three are about to make their call

        return Meddling(group, before)

    def part(rank: int, agreement: Agreement) -> Any:
        if rank != 3:
            others.wait(60)
        decision = agreement.step([Ask(agreement.manager.keys(PROMPT))])
        decision.release()
        return decision.agreed[0].length // A

    assert together(managers, part, wrap=wrap) == [6, 6, 6, 6]


def test_who_does_not_come_within_the_deadline_is_named_and_is_told_when_it_comes() -> None:
    managers = [filled((2, 6)) for _ in range(3)]
    given_up = threading.Barrier(3)

    def part(rank: int, agreement: Agreement) -> Any:
        if rank == 1:
            given_up.wait(60)
        try:
            agreement.step([Ask(agreement.manager.keys(PROMPT))])
        except RankLost as error:
            if rank != 1:
                given_up.wait(60)
            return error.ranks, error.why

    late = "no answer within 0.5 s"
    itself = f"that is this rank itself, and the others wait for it no more ({late})"
    assert together(managers, part, deadline=0.5) == [((1,), late), ((1,), itself), ((1,), late)]
    assert nothing_held(managers)


def test_two_threads_in_one_agreement_are_refused() -> None:
    said: list[str] = []

    def before(call: int) -> None:
        with pytest.raises(RuntimeError, match="another thread is in a step"):
            agreement.step([])
        said.append("refused")

    [group] = LocalGroup.make(1)
    agreement = Agreement(Meddling(group, before), filled(()))
    assert agreement.step([]).step == 0
    assert said == ["refused", "refused"]


@pytest.mark.parametrize("votes", [0, 256])
def test_the_number_of_votes_is_bounded(votes: int) -> None:
    with pytest.raises(ValueError, match=f"votes={votes}"):
        Agreement(LocalGroup.make(1)[0], filled(()), votes=votes)


# ---- messages --------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data(), st.lists(st.integers(0, 70), max_size=5), st.integers(1, 2))
def test_what_is_said_is_what_is_heard(data: st.DataObject, lengths: list[int], sets: int) -> None:
    rows = [[data.draw(st.lists(st.booleans(), min_size=n, max_size=n)) for _ in range(sets)] for n in lengths]
    sayings = [Saying(data.draw(st.booleans()), tuple(np.array(row, bool) for row in some)) for some in rows]
    heard = unpack_sayings(pack_sayings([b"tags"] * len(lengths), sayings), lengths, sets)
    assert [one.admit for one in heard] == [one.admit for one in sayings]
    assert [[row.tolist() for row in one.sets] for one in heard] == rows


def test_nobody_has_no_boundary_at_all() -> None:
    assert greatest([np.zeros(0, bool), np.zeros(0, bool)]) == greatest([np.array([True]), np.array([False])]) == 0


def test_a_message_in_the_place_of_another_rank_is_told() -> None:
    head = Head(Phase.SAY, 1, 0, 0, 0, bytes(16), bytes(8))
    assert heed(head, [head.message(b""), replace(head, rank=1).message(b"body")]) == [b"", b"body"]
    with pytest.raises(RanksDiverged, match="who is who"):
        heed(head, [head.message(b""), head.message(b"")])
    with pytest.raises(RanksDiverged, match="rank 1: something else"):
        heed(head, [head.message(b""), b"short"])


def test_keys_are_no_asks_and_the_step_is_still_to_come() -> None:
    manager = filled(())
    agreement = Agreement(LocalGroup.make(1)[0], manager)
    keys = manager.keys(list(range(20)))
    with pytest.raises(TypeError, match=r"a step of Keys; give an Ask for each request, such as Ask\(keys\)"):
        agreement.step([keys])  # type: ignore[list-item]
    assert agreement.step([Ask(keys)]) is not None and nothing_held([manager])


# ---- rounds and votes, of schedulers --------------------------------------------------------------------------------


def test_a_round_tells_all_what_came_of_the_agreed_lengths_and_leases_nothing() -> None:
    managers = [filled(cuts) for cuts in ([3, 5], [3, 8])]

    def part(rank: int, agreement: Agreement) -> Any:
        keys, seen = agreement.manager.keys(PROMPT), []

        def begin(agreed: tuple[Agreed, ...]) -> bytes:
            seen.append(([(one.length, one.refused_by) for one in agreed], len(agreement.manager.receipts)))
            return bytes([10 + rank, len(agreed)])

        asks = [Ask(keys), Ask(keys, A + 1), Ask(keys, admit=rank == 0), Ask(keys, at_most=2 * A)]
        said = agreement.round(asks, begin)
        nobody = agreement.round([], lambda agreed: b"")
        return seen, said, nobody, agreement.exchanges

    agreed = [(3 * A, ()), (0, ()), (0, (1,)), (0, ())]
    expected = [(agreed, 0)], [bytes([10, 4]), bytes([11, 4])], [b"", b""], 4
    assert together(managers, part) == [expected, expected]


def test_a_vote_passes_where_all_say_yes() -> None:
    def part(rank: int, agreement: Agreement) -> list[bool]:
        return [agreement.vote(True), agreement.vote(rank != 1), agreement.vote(False)]

    assert together([filled([]) for _ in range(3)], part) == [[True, False, False]] * 3


def test_ranks_that_say_more_or_less_in_a_round_have_parted() -> None:
    found = together(
        [filled([]) for _ in range(2)], lambda rank, agreement: agreement.round([], lambda lengths: bytes(rank))
    )
    assert [str(one) for one in found] == ["ranks differ in how much they say: rank 0: 0 bytes; rank 1: 1 bytes"] * 2


@pytest.mark.parametrize("other", ["round", "vote"])
def test_a_rank_that_can_not_begin_a_step_tells_the_others_which_go_on(other: str) -> None:
    def part(rank: int, agreement: Agreement) -> Any:
        with pytest.raises(OSError if rank == 1 else RankFailed, match="no memory"):
            if rank == 1:
                agreement.fail(OSError("no memory"))
            elif other == "round":
                agreement.round([Ask(agreement.manager.keys(PROMPT))], lambda lengths: b"")
            else:
                agreement.vote(True)
        return agreement.vote(True)

    assert together([filled([]) for _ in range(3)], part) == [True] * 3


def test_what_must_be_the_same_of_a_request_is_compared() -> None:
    def part(rank: int, agreement: Agreement) -> Any:
        keys = agreement.manager.keys(PROMPT)
        return agreement.step([Ask(keys), Ask(keys, also=b"running" if rank else b"waiting")])

    found = together([filled([]) for _ in range(2)], part)
    assert all(isinstance(one, RanksDiverged) and "request 1 of step 0" in str(one) for one in found), found
