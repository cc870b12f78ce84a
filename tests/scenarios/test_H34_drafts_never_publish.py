"""H-34: sealing, compression and checkpoints look at committed tokens only; rejected drafts leave no trace.

Blocks of 16, ratio 4, 30 tokens committed. Four drafts are proposed, for positions 30 to 33: they complete entry 7 and
block 1 on the device. One is accepted and three are rejected. Others find 16 tokens, there are 7 entries and 7 keys of
the indexer, rows 28, 29 and 30 wait in the tail, and nothing is kept for 32. With the true token 31, entry 7 is made
anew from the true row, block 1 is sealed, and others find 32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvfsm.runtime.errors import Refused
from kvfsm.runtime.profile_plan import GroupPlan, PartPlan
from kvfsm.runtime.requests import RequestTable

KV, INDEXER, TAIL = "compressed_kv", "indexer_state", "uncompressed_tail"
BLOCK, RATIO, ROWS = 16, 4, 8
DRAFT = 200
"""Tags of draft rows begin here; a committed row of position p has tag p."""


class Device:
    """Writes a row for each token into the tail, and an entry and its key, the greatest tag, where four are there."""

    def __init__(self, manager: Any, row: int) -> None:
        self.manager, self.row = manager, row

    def write(self, position: int, tag: int) -> None:
        """Whether the token is a draft or not is nothing that the device knows."""
        tail = self.rows(TAIL)[self.manager.requests.tail_table([self.row])[0]]
        tail[position % ROWS] = tag
        if position % RATIO == RATIO - 1:
            entry = max(tail[at % ROWS] for at in range(position - RATIO + 1, position + 1))
            for kind in (KV, INDEXER):
                slot = self.manager.requests.table(kind, [self.row])[0, position // BLOCK]
                self.rows(kind)[slot, position % BLOCK // RATIO] = entry

    def entries(self, kind: str) -> list[int]:
        """All that the row's blocks hold."""
        found: list[int] = self.rows(kind)[self.manager.requests.table(kind, [self.row])[0]].reshape(-1).tolist()
        return found

    def rows(self, kind: str) -> Any:
        """One byte a row, uint8 [slots, rows]."""
        arena = self.manager.core.pools[kind].arena
        return arena.part(self.manager.profile.layouts[kind].part("rows", 0))[:, :, 0]


def scenario(bench: Any) -> None:
    pending = (PartPlan("rows", ROWS, (1,), "uint8", "tag", "pending"),)
    profile = bench.profile(
        BLOCK,
        bench.group("kv", KV, BLOCK, BLOCK, ratio=RATIO),
        bench.group("keys", INDEXER, BLOCK, BLOCK, ratio=RATIO),
        GroupPlan("tail", TAIL, (0,), pending, RATIO, BLOCK), scores="raw",
    )  # fmt: skip
    manager = bench.manager(profile, 8)
    requests = manager.requests
    keys = manager.keys(bench.tokens(49))
    row = requests.admit(BLOCK)
    device = Device(manager, row)
    for position in range(BLOCK):
        device.write(position, position)
    assert requests.publish(row, keys) == 1
    for position in range(BLOCK, 30):
        requests.step([row])
        device.write(position, position)

    def published() -> tuple[int, int]:
        """Tokens whose blocks are sealed, and tokens that others find."""
        sealed = requests.publish(row, keys) * BLOCK
        return sealed, manager.match(keys).now

    requests.propose([row], 4)
    for position in range(30, 34):
        device.write(position, DRAFT + position)
    # sign of the defect: block 1 is published with rows of drafts
    assert published() == (16, 16)
    device.write(30, 30)  # it is accepted: the true token is what was drafted
    requests.accept([row], 1)

    covered = requests.coverage(row)
    assert requests.tokens[row] == 31 and published() == (16, 16)
    assert (covered.entries, covered.indexed, covered.tail, covered.gaps) == ({4: 7}, 7, range(28, 31), ())
    tail = device.rows(TAIL)[requests.tail_table([row])[0]]
    assert [int(tail[position % ROWS]) for position in covered.tail] == [28, 29, 30]
    assert manager.boundaries(keys).tolist() == [1]
    assert manager.core.pools[KV].in_state(requests.table(KV, [row])[0, 1:], "filling").all()
    assert requests.table(KV, [row]).shape == (1, 2)  # the block of position 32 went back

    device.write(31, 31)
    requests.step([row])
    covered = requests.coverage(row)
    assert (covered.entries, covered.indexed, covered.tail) == ({4: 8}, 8, range(32, 32))
    # sign of the defect: entry 7 is made with the rejected row
    assert device.entries(KV) == device.entries(INDEXER) == list(range(3, 32, 4))
    assert published() == (32, 32)
    held = bench.slots(manager, KV, keys, 1, 2)
    assert manager.core.pools[KV].in_state(np.array(held), "resident").all()
    requests.finish(row)
    bench.audited(manager)


def test_H34_rejected_drafts_leave_no_trace(bench: Any) -> None:
    scenario(bench)


def test_H34_control_drafts_that_count_as_committed_are_noticed(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens are counted as they are written, and taken back when they turn out wrong: too late."""

    def written_is_committed(self: RequestTable, rows: list[int], count: int) -> None:
        for _ in range(count):
            self.step(rows)

    def taken_back(self: RequestTable, rows: list[int], count: int) -> None:
        with pytest.raises(Refused, match="were compressed"):
            self.rollback(rows[0], int(self.tokens[rows[0]]) - 4 + count)

    monkeypatch.setattr(RequestTable, "propose", written_is_committed)
    monkeypatch.setattr(RequestTable, "accept", taken_back)
    with pytest.raises(AssertionError, match=r"assert \(32, 16\) == \(16, 16\)"):
        scenario(bench)


def test_H34_control_an_entry_that_keeps_the_rejected_row_is_noticed(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry that is there already is not made again."""
    write = Device.write

    def only_once(self: Device, position: int, tag: int) -> None:
        if not (position == 31 and tag == 31):
            write(self, position, tag)

    monkeypatch.setattr(Device, "write", only_once)
    with pytest.raises(AssertionError, match="231"):
        scenario(bench)
