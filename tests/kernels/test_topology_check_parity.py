"""A check at the head of a captured graph refuses, and tells of, what the reference does."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kvfsm.kernels.launch import Launcher
from kvfsm.kernels.reading import Check
from kvfsm.kernels.topology_check import (
    RECORD,
    Ring,
    Rows,
    Violations,
    What,
    check_topology,
    check_topology_plan,
)
from kvfsm.runtime.generated import KINDS, Refusal

from .pools import PINNED, Uploaded, check_of


class Outcome:
    def __init__(self, refused: list[int], told: npt.NDArray[np.void]) -> None:
        self.refused, self.told = refused, told

    @property
    def whats(self) -> set[What]:
        return {What(int(one["what"])) for one in self.told}


class Batch:
    """A table of four rows, two of them live, over eight slots of which the last is scratch, and its signature."""

    width, slots, span, guard, scratch, rows = 5, 8, 16, -1, 7, 4

    def __init__(self, kind: str, is_ring: bool) -> None:
        self.kind, self.is_ring = kind, is_ring
        layout, states = KINDS[kind].LAYOUT, KINDS[kind].STATES
        self.words = np.array([layout.pack(state=states["RESIDENT"], generation=1)] * self.slots, np.uint64)
        self.words[2] = self.words[5] = layout.pack(state=states["FILLING"], generation=1)  # what the rows write to
        self.table = np.full((self.rows, self.width), self.scratch, np.int32)
        self.table[0] = (0, 1, 2, self.guard, self.guard)
        self.table[1] = (3, 4, 5, 6, self.guard) if is_ring else (3, 4, 0, 1, 5)
        self.expected = np.ones((self.rows, self.width), np.uint32)
        self.positions = np.array([35, 130 if is_ring else 79, 0, 0], np.int64)
        self.live = np.array([2], np.int64)
        self.captured = np.arange(300, dtype=np.int64) * 4096
        self.present = self.captured.copy()
        self.epoch = np.array([5], np.int64)

    def run(self, launcher: Launcher, capacity: int = 64, consumed: int = 0, **options: Any) -> Outcome:
        """Launch, and compare with the reference."""
        up, refused = Uploaded(launcher), np.array([0, 0, 9, 0], np.uint8)
        right, ring = refused.copy(), Violations(np.zeros(capacity, RECORD), consumed, consumed)
        rows = (self.span, self.is_ring, self.guard, self.scratch)
        words, expected = options.pop("words", self.words), options.pop("expected", self.expected)
        check_topology(
            Rows(self.table, self.live, self.positions, *rows), self.captured, self.present, int(self.epoch[0]), 5,
            right, ring, kind=self.kind, slots=self.slots, words=words, expected=expected, **options,
        )  # fmt: skip
        records, cursor = np.zeros((capacity, 8), np.uint32), np.array([consumed], np.uint64)
        taken = np.array([consumed], np.uint64)
        plan = check_topology_plan(
            Rows(up(self.table), up(self.live), up(self.positions), *rows), self.rows, self.width, up(self.captured),
            up(self.present), len(self.present), up(self.epoch), 5, up(refused),
            Ring(up(records), up(cursor), up(taken), capacity), kind=self.kind, slots=self.slots,
            words=up.maybe(words), expected=up.maybe(expected), **options,
        )  # fmt: skip
        launcher.launch(plan)
        np.testing.assert_array_equal(up.now(refused), right)
        count = int(up.now(cursor)[0])
        found = Violations(up.now(records).view(RECORD).reshape(-1), count, consumed)
        assert (count, found.lost) == (ring.cursor, ring.lost)
        told, expected_ones = found.take(), ring.take()
        if not ring.cursor - consumed > capacity:
            assert sorted(told.tolist()) == sorted(expected_ones.tolist())
        return Outcome(right.tolist(), told)


@pytest.fixture(params=[(kind, ring) for kind in PINNED for ring in (False, True)], ids=str)
def batch(request: pytest.FixtureRequest) -> Batch:
    return Batch(*request.param)


def test_a_batch_as_it_was_captured_passes(launcher: Launcher, batch: Batch) -> None:
    outcome = batch.run(launcher)
    assert (outcome.refused, len(outcome.told)) == ([0, 0, 0, 0], 0)


def test_a_capture_itself_passes_over_scratch_alone(launcher: Launcher, batch: Batch) -> None:
    batch.table[:], batch.live[0], batch.positions[:] = batch.scratch, 0, 0
    assert batch.run(launcher).refused == [0, 0, 0, 0]


def test_tables_checked_after_another_keep_what_it_refused(launcher: Launcher, batch: Batch) -> None:
    assert batch.run(launcher, is_first=False).refused == [0, 0, 9, 0]


def test_a_changed_signature_refuses_every_row_and_is_told_once(launcher: Launcher, batch: Batch) -> None:
    batch.present[[0, 299]] += 64
    outcome = batch.run(launcher)
    assert outcome.refused == [Refusal.LAYOUT] * 4
    assert sorted(one["column"] for one in outcome.told) == [0, 299]


def test_another_epoch_refuses_every_row(launcher: Launcher, batch: Batch) -> None:
    batch.epoch[0] = 6
    outcome = batch.run(launcher)
    assert (outcome.refused, outcome.whats) == ([Refusal.EPOCH] * 4, {What.EPOCH})


@pytest.mark.parametrize("live", [-1, 5])
def test_a_wrong_count_of_live_rows_refuses_every_row(launcher: Launcher, batch: Batch, live: int) -> None:
    batch.live[0] = live
    outcome = batch.run(launcher)
    assert outcome.refused == [Refusal.ILLEGAL] * 4
    assert What.LIVE in outcome.whats


@pytest.mark.parametrize("position", [-1, -16, -(2**63)])
def test_a_position_before_the_first_refuses_its_row_alone(launcher: Launcher, batch: Batch, position: int) -> None:
    batch.positions[1] = position
    outcome = batch.run(launcher)
    assert (outcome.refused, outcome.whats) == ([0, Refusal.ILLEGAL, 0, 0], {What.POSITION})
    assert outcome.told["found"].tolist() == [position]
    batch.table[1, 0] = batch.guard
    assert batch.run(launcher).whats == {What.POSITION, What.MISSING}


MISTAKES = {
    What.ENTRY: (0, 1, 8),
    What.MISSING: (0, 2, -1),
    What.SCRATCH: (1, 1, 7),
    What.PADDING: (2, 4, 3),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_a_wrong_entry_refuses_its_row_alone(launcher: Launcher, batch: Batch, what: What) -> None:
    row, column, slot = MISTAKES[what]
    batch.table[row, column] = slot
    outcome = batch.run(launcher)
    assert outcome.whats == {what}
    assert [bool(code) for code in outcome.refused] == [at == row for at in range(4)]
    assert [(int(one["row"]), int(one["column"]), int(one["found"])) for one in outcome.told] == [(row, column, slot)]


def test_a_slot_that_moved_refuses_its_row_alone(launcher: Launcher, batch: Batch) -> None:
    batch.expected[1, 1] = 2
    outcome = batch.run(launcher)
    assert (outcome.refused, outcome.whats) == ([0, Refusal.STALE, 0, 0], {What.WORD})
    assert batch.run(launcher, expected=None).refused == [0, 0, 0, 0]
    batch.words[4] = 0
    assert batch.run(launcher, expected=None).refused == [0, Refusal.ILLEGAL, 0, 0]
    assert batch.run(launcher, words=None, expected=None).refused == [0, 0, 0, 0]


@pytest.mark.parametrize("consumed", [0, 5, 2**40 + 3])
def test_a_ring_without_room_counts_and_overwrites_nothing(launcher: Launcher, batch: Batch, consumed: int) -> None:
    batch.present[:100] += 1
    outcome = batch.run(launcher, capacity=16, consumed=consumed)
    assert len(outcome.told) == 16
    assert all(one["what"] == What.NUMBER and one["wanted"] == one["found"] - 1 for one in outcome.told)


def test_any_table_at_all(launcher: Launcher, batch: Batch, rng: np.random.Generator) -> None:
    batch.table = rng.integers(-2, batch.slots + 2, size=batch.table.shape).astype(np.int32)
    batch.positions = rng.integers(-20, 200, size=batch.rows)
    batch.live[0] = rng.integers(batch.rows + 1)
    check: Check[npt.NDArray[Any]] = check_of(rng, batch.kind, batch.slots, batch.table.size)
    batch.words, batch.expected = check.words, check.expected.reshape(batch.table.shape)
    batch.run(launcher)
