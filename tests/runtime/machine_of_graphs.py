"""Requests on one manager whose steps are replayed from graphs, against a model that knows which bytes go where.

The step writes a row's tag to the place of its last token, in each kind: by the tables, as kernels do, and without a
look at which rows are live. The model goes by ``manager.requests``. A replay or capture changes what the model says,
and besides that scratch alone; or it is refused and nothing changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.graphs import GraphRunner, Inputs, Launch
from kvfsm.runtime.lease import Lease
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.requests import GUARD
from kvfsm.runtime.topology import Form, numbers_of, signature_of

BUCKETS = (1, 3, 6)
SIZES = (6, 9, 14)
MADE_UP = 0xEE
Bytes = dict[str, Any]


def places(profile: Any, kind: str, position: int, width: int) -> tuple[int, int]:
    """Entry of a kind's table, and byte in the slot, for a position."""
    if kind == "uncompressed_tail":
        return 0, position % profile.widest_ratio
    if kind == "swa_window":
        block = profile.window_block
        return (0, position % 16) if block is None else (position // block % width, position % block)
    return position // profile.granule, position % profile.granule


class Graphs(RuleBasedStateMachine):
    """One manager, one runner."""

    profile: ClassVar[str]
    runner_class: ClassVar[type[GraphRunner]] = GraphRunner
    reached: ClassVar[Counter[str]]

    @initialize()
    def begin(self) -> None:
        self.model = PROFILES[self.profile]
        self.manager = Manager(self.model, dict.fromkeys(self.model.kinds, 9), NumpyBackend(), rows=8)
        self.tags = np.full((BUCKETS[-1], 1), MADE_UP, np.uint8)
        self.runner = self.runner_class(self.manager, self.step, BUCKETS)
        self.captured: dict[int, int] = {}  # bucket -> epoch
        self.rows: list[int] = []
        self.leases: list[Lease] = []
        self.prompts = 0
        self.calm = 0  # steps since the memory moved

    # ---- the step -------------------------------------------------------------------------------------------------

    def step(self, launch: Launch, inputs: Inputs) -> None:
        positions = inputs.tables["positions"]
        for kind in self.runner.tables.widths if hasattr(self, "runner") else ():
            arena = self.manager.core.pools[kind].arena.bytes
            launch(self.kernel, kind, inputs.tables[kind], positions, self.tags[: inputs.bucket], arena)

    def kernel(self, kind: str, table: Any, positions: Any, tags: Any, arena: Any) -> None:
        for row, (position,) in enumerate(positions.tolist()):
            entry, byte = places(self.model, kind, position, table.shape[1])
            slot = int(table[row, entry])
            assert slot != GUARD, f"{kind} of row {row} resolves the guard"
            arena[slot, byte] = tags[row, 0]

    # ---- the model ------------------------------------------------------------------------------------------------

    def bytes(self) -> Bytes:
        return {kind: pool.arena.bytes.copy() for kind, pool in self.manager.core.pools.items()}

    def expected(self, before: Bytes, rows: list[int]) -> Bytes:
        requests = self.manager.requests
        for n, row in enumerate(rows):
            position = int(requests.tokens[row]) - 1
            for kind in before:
                if kind == "uncompressed_tail":
                    slots = requests.tail_table([row])
                elif kind == "swa_window":
                    slots = requests.window_table([row])[0]
                else:
                    slots = requests.table(kind, [row])[0]
                entry, byte = places(self.model, kind, position, len(slots))
                before[kind][slots[entry], byte] = self.tags[n, 0]
        return before

    def same_but_scratch(self, expected: Bytes) -> None:
        scratch = self.manager.set_aside()
        for kind, found in self.bytes().items():
            differ = np.flatnonzero((found != expected[kind]).any(axis=1))
            assert set(differ.tolist()) <= {scratch[kind]}, f"{kind} slots {differ.tolist()} were written"

    def refused(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> str | None:
        before = self.bytes()
        try:
            call(*arguments, **named)
        except Refused as refused:
            self.same_but_scratch(before)
            self.reached[refused.refusal.name] += 1
            return refused.refusal.name
        return None

    # ---- rules ----------------------------------------------------------------------------------------------------

    @rule(bucket=st.sampled_from(BUCKETS))
    def capture(self, bucket: int) -> None:
        before = self.bytes()
        self.tags[:] = MADE_UP
        self.runner.capture(bucket)
        self.same_but_scratch(before)
        self.captured[bucket] = self.manager.memory.epoch
        self.reached["captured"] += 1

    @rule(blocks=st.integers(0, 3), more=st.sampled_from((0, 0, 1, 7, 15)), leased=st.booleans())
    def admit(self, blocks: int, more: int, leased: bool) -> None:
        lease = self.leases.pop() if leased and self.leases else None
        tokens = max(1, blocks * self.model.granule + more)
        if lease is not None:
            tokens = max(tokens, lease.length + 1)
        try:
            self.rows.append(self.manager.requests.admit(tokens, lease=lease))
        except Refused:
            if lease is not None:
                self.leases.append(lease)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def decode(self, data: Any) -> None:
        """A step of some rows, and its replay."""
        rows = data.draw(st.lists(st.sampled_from(self.rows), unique=True, min_size=1, max_size=BUCKETS[-1]))
        try:
            self.manager.requests.step(rows)
        except Refused:
            return
        self.replay(rows, data.draw(st.integers(1, 200)))

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), tag=st.integers(1, 200))
    def again(self, data: Any, tag: int) -> None:
        """The same token once more, as after a failed step; not one that is published."""
        rows = data.draw(st.lists(st.sampled_from(self.rows), unique=True, max_size=BUCKETS[-1]))
        shared = self.manager.requests.shared_tokens(rows) >= self.manager.requests.tokens[rows]
        if shared.any():
            try:
                self.runner.replay(rows)
            except ValueError as error:
                assert "published" in str(error)
                self.reached["published"] += 1
                return
            raise AssertionError("a published token was written again")
        self.replay(rows, tag)

    def replay(self, rows: list[int], tag: int) -> None:
        self.tags[:] = MADE_UP
        self.tags[: len(rows), 0] = np.arange(tag, tag + len(rows))
        bucket = self.runner.bucket_of(len(rows))
        before = self.bytes()
        refusal = self.refused(self.runner.replay, rows)
        if bucket not in self.captured:
            assert refusal == "ILLEGAL", refusal
        elif self.captured[bucket] != self.manager.memory.epoch:
            assert refusal == "EPOCH", f"{refusal}, not EPOCH"
        else:
            assert refusal is None, refusal
            self.same_but_scratch(self.expected(before, rows))
            self.reached["padded" if len(rows) < bucket else "whole"] += 1

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def publish(self, data: Any) -> None:
        row = data.draw(st.sampled_from(self.rows))
        tokens = int(self.manager.requests.tokens[row])
        self.prompts += 1
        keys = self.manager.keys(np.arange(tokens + 1) + 1000 * self.prompts)
        if self.refused(self.manager.requests.publish, row, keys) is None and tokens >= self.model.granule:
            answer = self.manager.match(keys)
            if answer.now and len(self.leases) < 2:
                self.leases.append(self.manager.acquire(answer))
                self.reached["leased"] += 1

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def finish(self, data: Any) -> None:
        self.manager.requests.finish(self.rows.pop(data.draw(st.integers(0, len(self.rows) - 1))))

    @precondition(lambda self: self.leases)
    @rule()
    def release(self) -> None:
        self.manager.release(self.leases.pop())

    @rule(scrub=st.booleans())
    def reset(self, scrub: bool) -> None:
        where = {kind: pool.arena.base for kind, pool in self.manager.core.pools.items()}
        self.manager.reset(scrub=scrub)
        assert where == {kind: pool.arena.base for kind, pool in self.manager.core.pools.items()}
        for pool in self.manager.core.pools.values() if scrub else ():
            assert not pool.arena.bytes[pool.free_slots].any()

    @precondition(lambda self: self.calm > 8)
    @rule(size=st.sampled_from((None, *SIZES)), void=st.booleans())
    def reallocate(self, size: int | None, void: bool) -> None:
        manager, before = self.manager, self.bytes()
        epoch, held = manager.memory.epoch, bool(self.rows or self.leases)
        slots = None if size is None else dict.fromkeys(self.model.kinds, size)
        refusal = self.refused(manager.reallocate, slots, void=void)
        if held and not void:
            assert (refusal, manager.memory.epoch) == ("PINNED", epoch)
            return
        assert (refusal, manager.memory.epoch) == (None, epoch + 1)
        if size is None:
            assert all((pool.arena.bytes == before[kind]).all() for kind, pool in manager.core.pools.items())
        for lease in self.leases:
            assert self.refused(manager.release, lease) == "STALE"
        self.rows, self.leases, self.calm = [], [], 0
        self.reached["kept" if size is None else "moved"] += 1

    # ---- what always holds ----------------------------------------------------------------------------------------

    @invariant()
    def scratch_is_nobodys(self) -> None:
        if not hasattr(self, "runner"):
            return
        manager, requests = self.manager, self.manager.requests
        self.calm += 1
        violations = manager.audit().violations
        assert violations == (), violations
        for kind, slot in manager.set_aside().items():
            assert slot not in manager.core.pools[kind].free_slots
        scratch = manager.set_aside()
        for kind in self.runner.tables.paged:
            assert scratch[kind] not in requests.table(kind, self.rows)
        if "swa_window" in scratch:
            assert scratch["swa_window"] not in requests.window_table(self.rows)
        if "uncompressed_tail" in scratch:
            assert scratch["uncompressed_tail"] not in requests.tail_table(self.rows)

    @invariant()
    def numbers_are_the_signatures(self) -> None:
        if not hasattr(self, "runner") or not self.runner.tables.fits(self.manager):
            return
        bucket = BUCKETS[-1]
        numbers = numbers_of(self.manager, self.runner.tables, bucket, Form(self.model))
        assert np.array_equal(numbers, signature_of(self.manager, self.runner.tables, bucket).numbers)
        assert not self.manager.memory.running
