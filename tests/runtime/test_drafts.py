"""Drafts: room beyond committed tokens that no word knows of, and that leaves no trace when it is given back (S18)."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from kvfsm.runtime.answers import Reason
from kvfsm.runtime.drafts import Drafts, pending_row
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.requests import GUARD

from .rows import PAGED, all_free, audited, compressing, exactly, in_blocks, make, roomy, seen, slots_of

NAMES = tuple(roomy())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tokens", [1, 7, 15, 16, 30, 31, 32, 33, 64, 90])
def test_rejected_drafts_leave_every_group_as_it_was(name: str, tokens: int) -> None:
    manager = make(roomy()[name])
    requests = manager.requests
    row = requests.admit(tokens)
    for _ in range(5):
        requests.step([row])
    count = min(int(requests.draft_room([row])[0]), 40)
    before, free = exactly(manager, row), {kind: pool.free for kind, pool in manager.core.pools.items()}
    for drafts in range(count + 1):
        requests.propose([row], drafts)
        assert requests.tokens[row] == tokens + 5 and requests.drafts[row] == drafts
        audited(manager)
        requests.reject([row])
        assert exactly(manager, row) == before
        assert {kind: pool.free for kind, pool in manager.core.pools.items()} == free
    audited(manager)


@pytest.mark.parametrize("name", ["deepseek_v4_flash", "deepseek_v4_pro", "deepseek_v4_pro_bf16"])
def test_models_that_predict_one_token_ahead_have_room_for_it_at_every_position(name: str) -> None:
    profile = PROFILES[name]
    manager = make(profile, slots=2)
    row = manager.requests.admit(profile.granule - 130)
    for _ in range(260):  # over the end of a granule, and of two windows of the widest ratio
        assert manager.requests.draft_room([row])[0] >= 1
        manager.requests.step([row])


def test_a_profile_sized_for_drafts_has_room_for_them_at_every_position() -> None:
    manager = make(PROFILES["tiny_deepseek_v4"])
    requests, row = manager.requests, manager.requests.admit(1)
    rooms = []
    for _ in range(70):
        rooms.append(int(requests.draft_room([row])[0]))
        requests.step([row])
    assert min(rooms) == 4
    requests.propose([row], 4)
    for tokens in range(1, 71):
        start = requests.admit(tokens)
        assert requests.draft_room([start])[0] >= 4
        requests.finish(start)


def test_a_reject_that_forgets_the_window_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = make(in_blocks())
    row = manager.requests.admit(30)
    before = exactly(manager, row)
    manager.requests.propose([row], 8)
    assert manager.requests._window is not None
    monkeypatch.setattr(manager.requests._window, "settle_drafts", lambda *given: None)
    manager.requests.reject([row])
    assert exactly(manager, row) != before


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(3))
def test_accepted_drafts_are_the_steps_that_they_stand_for(name: str, seed: int) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    manager, twin = make(roomy()[name], slots=100), make(roomy()[name], slots=100)
    rows = [manager.requests.admit(tokens) for tokens in (3, 17, 32)]
    for tokens in (3, 17, 32):
        twin.requests.admit(tokens)
    for _ in range(40):
        room = manager.requests.draft_room(rows)
        counts = [chance.randint(0, min(9, one)) for one in room.tolist()]
        manager.requests.propose(rows, counts)
        stays = [chance.randint(0, count) for count in counts]
        if chance.random() < 0.3:
            stays = counts
        manager.requests.accept(rows, stays)
        for row, count in zip(rows, stays, strict=True):
            for _ in range(count):
                twin.requests.step([row])
        more = [row for row in rows if chance.random() < 0.5]
        manager.requests.step(np.array(more, np.intp))
        twin.requests.step(np.array(more, np.intp))
        for row in rows:
            assert seen(manager, row) == seen(twin, row)
        assert manager.audit().counts == twin.audit().counts
        audited(manager)
    for row in rows:
        manager.requests.finish(row)
    assert all_free(manager)


@pytest.mark.parametrize("name", NAMES)
def test_drafts_have_places_of_their_own(name: str) -> None:
    """Every draft resolves, and to rows that nothing that is needed at the committed tokens has."""
    manager = make(roomy()[name])
    requests, granule = manager.requests, manager.profile.granule
    for tokens in range(1, 3 * granule, 5):
        row = requests.admit(tokens)
        count = min(12, int(requests.draft_room([row])[0]))
        window = manager.profile.window
        needed = range(0 if window is None else max(0, tokens - window + 1), tokens)
        before = {position: requests.resolve(row, position) for position in needed} if window is not None else {}
        requests.propose([row], count)
        for kind in PAGED:
            if kind in manager.profile.kinds:
                assert len(requests.table(kind, [row])[0]) >= -(-(tokens + count) // granule)
                assert (requests.table(kind, [row])[0] != GUARD).all()
        if window is not None:
            places = [requests.resolve(row, position) for position in range(tokens, tokens + count)]
            assert len(set(places)) == count and not set(places) & set(before.values())
            with pytest.raises(Refused):
                requests.resolve(row, tokens + count)
        requests.finish(row)
    assert all_free(manager)


@pytest.mark.parametrize("pending", [15, 16, 22, 40])
def test_drafts_have_rows_of_their_own_in_the_tail(pending: int) -> None:
    """As many as fit, and with one more a row would be written twice."""
    manager = make(compressing(pending, retained=40))
    parts = manager.profile.layouts["uncompressed_tail"].parts

    def written_twice(tokens: int, drafts: int) -> bool:
        """Whether tokens that wait in the tail, or drafts, share a row of some part."""
        for part in parts:
            waiting = range(tokens // part.ratio * part.ratio, tokens + drafts)
            rows = [pending_row(part.ratio, part.rows, position) for position in waiting]
            own = [row for row in rows if row is not None]
            if len(own) > len(set(own)):
                return True
        return False

    for tokens in range(1, 70):
        row = manager.requests.admit(tokens)
        tail, _, _ = manager.requests._drafts.room(np.array([row]))
        assert not written_twice(tokens, int(tail[0]))
        assert written_twice(tokens, int(tail[0]) + 1)
        manager.requests.finish(row)


def test_drafts_that_would_overwrite_what_is_needed_are_refused_and_told_how_many_fit() -> None:
    manager = make(compressing(pending=3, retained=0))
    row = manager.requests.admit(30)
    before = exactly(manager, row)
    said = r"room for 0 drafts after 30 tokens, not for 1: .* of its swa_window; .*`retained:`"
    with pytest.raises(Refused, match=said) as full:
        manager.requests.propose([row], 1)
    assert full.value.refusal is Reason.GAP and exactly(manager, row) == before
    manager = make(compressing(pending=3, retained=9))
    row = manager.requests.admit(29)
    said = r"room for 3 drafts after 29 tokens, not for 4: .* its uncompressed_tail; .*`drafts:`"
    with pytest.raises(Refused, match=said):
        manager.requests.propose([row], 4)  # token 32 would begin the next stretch, where row 28 lies
    manager.requests.propose([row], 3)
    audited(manager)


def test_a_ring_without_spare_blocks_takes_drafts_as_long_as_the_oldest_block_is_read() -> None:
    manager = make(PROFILES["tiny_gpt_oss"])
    for tokens in range(40, 48):
        row = manager.requests.admit(tokens)
        fits = int(manager.requests.draft_room([row])[0])
        assert fits == 48 - tokens + 8 * (tokens == 47)  # token 47 reads [32, 47): block 3 is read no more
        manager.requests.propose([row], fits)
        manager.requests.reject([row])
        with pytest.raises(Refused, match=f"room for {fits} drafts"):
            manager.requests.propose([row], fits + 1)
        manager.requests.finish(row)
    assert all_free(manager)


def test_a_proposal_that_finds_no_slots_changes_nothing() -> None:
    manager = make(in_blocks(), slots=7)
    rows = [manager.requests.admit(16), manager.requests.admit(32)]
    before = [exactly(manager, row) for row in rows]
    with pytest.raises(Refused) as full:
        manager.requests.propose(rows, [4, 8])  # two window blocks, and one is free
    assert full.value.refusal is Reason.POOL_FULL
    assert [exactly(manager, row) for row in rows] == before and not manager.requests.drafts.any()
    audited(manager)


def test_open_drafts_are_never_published() -> None:
    manager = make(compressing())
    requests = manager.requests
    tokens = list(range(96))
    row = requests.admit(60)
    requests.propose([row], 10)  # up to 70: granule 1 would be whole
    assert requests.publish(row, manager.keys(tokens)) == 1
    assert requests.shared_tokens([row])[0] == 32 and requests.drafts[row] == 10
    assert manager.boundaries(manager.keys(tokens)).tolist() == []  # tail and window have moved on
    audited(manager)
    requests.accept([row], 4)  # exactly at the boundary
    requests.propose([row], 10)
    assert requests.publish(row, manager.keys(tokens)) == 2
    assert manager.match(manager.keys(tokens)).now == 64
    lease = manager.acquire(manager.match(manager.keys(tokens)))
    requests.reject([row])
    audited(manager)
    manager.release(lease)
    requests.finish(row)
    audited(manager)


def test_the_window_of_a_boundary_is_published_whole_under_open_drafts() -> None:
    """Blocks that drafts have put aside are still those of the boundary."""
    manager = make(in_blocks(retained=16))
    requests, pool = manager.requests, manager.core.pools["swa_window"]
    row = requests.admit(64)
    width, first = requests.window_width, requests.window_blocks([row])[0]
    for block, slot in zip(first.tolist(), requests.window_table([row])[0].tolist(), strict=True):
        pool.arena.bytes[slot] = block
    requests.propose([row], 16)
    assert (requests.window_blocks([row])[0] != first).any()
    keys = manager.keys(list(range(65)))
    assert requests.publish(row, keys) == 4
    lease = manager.acquire(manager.match(keys))
    assert lease.length == 64
    read = pool.arena.bytes[lease.slots["swa_window"], 0].tolist()
    assert read == list(range(8))[1 - width :]
    manager.release(lease)
    requests.reject([row])
    audited(manager)


@pytest.mark.parametrize("name", NAMES)
def test_a_row_goes_back_and_ends_with_drafts_open(name: str) -> None:
    manager, twin = make(roomy()[name]), make(roomy()[name])
    for one in (manager, twin):
        assert one.requests.admit(33) == 0
        one.requests.step([0])
        one.requests.step([0])
    manager.requests.propose([0], 3)
    manager.requests.rollback(0, 34)
    twin.requests.rollback(0, 34)
    assert seen(manager, 0) == seen(twin, 0) and not manager.requests.drafts.any()
    manager.requests.propose([0], 2)
    manager.requests.finish(0)
    audited(manager)
    assert all_free(manager)


def test_a_refused_rollback_leaves_drafts_open() -> None:
    manager = make(compressing())
    row = manager.requests.admit(33)
    manager.requests.propose([row], 3)
    before = exactly(manager, row)
    with pytest.raises(Refused):
        manager.requests.rollback(row, 30)
    assert exactly(manager, row) == before and manager.requests.drafts[row] == 3


def test_rows_that_rejected_drafts_overwrote_are_not_gone_back_to() -> None:
    """The window's spare rows are what a rollback reads; drafts use them."""
    manager = make(compressing(retained=12))
    row = manager.requests.admit(33)
    for _ in range(12):
        manager.requests.step([row])
    manager.requests.propose([row], 12)
    manager.requests.reject([row])
    with pytest.raises(Refused, match="window rows before 30 are gone"):
        manager.requests.rollback(row, 40)
    again = make(compressing(retained=12))
    row = again.requests.admit(33)
    for _ in range(12):
        again.requests.step([row])
    again.requests.rollback(row, 40)


def test_what_drafts_give_back_waits_for_the_device() -> None:
    manager = make(in_blocks())
    requests, ended = manager.requests, []
    row = requests.admit(30)
    requests.propose([row], 10)
    mine = {kind: set(held) for kind, held in slots_of(manager, row).items()}
    requests.accept([row], 1, done=lambda: bool(ended))
    gone = {kind: held - set(slots_of(manager, row)[kind]) for kind, held in mine.items()}
    assert all(gone.values())
    for kind, slots in gone.items():
        assert not slots & set(manager.core.pools[kind].free_slots.tolist())
    audited(manager)
    ended.append(True)
    requests.finish(row)
    assert all_free(manager)
    audited(manager)


@pytest.mark.parametrize("call", ["step", "extend", "propose"])
def test_open_drafts_are_decided_before_the_row_goes_on(call: str) -> None:
    manager = make(compressing())
    row = manager.requests.admit(20)
    manager.requests.propose([row], 2)
    calls: dict[str, Any] = {
        "step": lambda table: table.step([row]),
        "extend": lambda table: table.extend(row, 3),
        "propose": lambda table: table.propose([row], 1),
    }
    with pytest.raises(ValueError, match=r"rows \[0\] have open drafts; accept or reject them"):
        calls[call](manager.requests)
    manager.requests.reject([row])
    calls[call](manager.requests)


def test_counts_that_make_no_sense_are_named() -> None:
    manager = make(compressing())
    rows = [manager.requests.admit(20), manager.requests.admit(20)]
    manager.requests.propose(rows, [2, 3])
    with pytest.raises(ValueError, match=r"have \[2, 3\] drafts; give at most so many to accept, not \[3, 3\]"):
        manager.requests.accept(rows, 3)
    with pytest.raises(ValueError, match="named more than once"):
        manager.requests.accept([rows[0], rows[0]], 1)
    manager.requests.accept(rows, [2, 0])
    assert manager.requests.tokens[rows].tolist() == [22, 20]
    with pytest.raises(ValueError, match="give 0 or more"):
        manager.requests.propose(rows, -1)
    with pytest.raises(ValueError, match="hold no request"):
        manager.requests.propose([5], 1)
    manager.requests.reject([])
    audited(manager)


def test_room_that_is_not_checked_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Drafts, "check", lambda *given: None)
    manager = make(compressing(retained=0))
    row = manager.requests.admit(30)
    needed = {manager.requests.resolve(row, position) for position in range(15, 30)}
    manager.requests.propose([row], 4)
    assert {manager.requests.resolve(row, position) for position in range(30, 34)} & needed


@pytest.mark.parametrize("name", ["tiny_llama", "tiny_deepseek_v32"])
def test_without_tail_and_window_the_pools_bound_the_drafts(name: str) -> None:
    manager = make(PROFILES[name], slots=8)
    requests, row = manager.requests, manager.requests.admit(5)
    room = int(requests.draft_room([row])[0])
    assert room == 8 * manager.profile.granule - 5
    for count in (room + 1, 2**62, 2**63 - 1):  # the last ones overflow when they are added to anything
        with pytest.raises(Refused) as refused:
            requests.propose([row], count)
        assert refused.value.refusal is Reason.CAPACITY and requests.drafts[row] == 0
    requests.propose([row], room)
    requests.accept([row], room)
    assert requests.tokens[row] == room + 5 and requests.draft_room([row])[0] == 0
    audited(manager)
