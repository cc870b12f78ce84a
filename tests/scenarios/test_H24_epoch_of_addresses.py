"""H-24: a reset that allocates fresh buffers leaves a captured graph with addresses that are nobody's any more.

A graph is captured in epoch 1 over base p. After a reset that clears in place it replays over base p, and reads zeros.
After one that allocates the memory anew it is refused (the report's STALE is EPOCH here, as for all that an epoch
ended) until it is captured again, and then replays over the new base.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvfsm.runtime.graphs import GraphRunner, HostRecording, Inputs, Launch

KV, BLOCK = "compressed_kv", 16


class Engine:
    """One request at a time; the step reads the byte of its last token."""

    def __init__(self, bench: Any, made: type[GraphRunner], **options: Any) -> None:
        self.manager = bench.manager(bench.profile(BLOCK, bench.group("full", KV, BLOCK, BLOCK)), 8, **options)
        self.read = np.zeros(1, np.uint8)
        self.runner = made(self.manager, self.step, [1])

    def step(self, launch: Launch, inputs: Inputs) -> None:
        launch(self.kernel, inputs.tables[KV], inputs.tables["positions"], inputs.part(KV, "rows", 0), self.read)

    @staticmethod
    def kernel(table: Any, positions: Any, rows: Any, read: Any) -> None:
        position = int(positions[0, 0])
        read[0] = rows[table[0, position // BLOCK], position % BLOCK, 0]

    @property
    def arena(self) -> Any:
        return self.manager.core.pools[KV].arena

    def serve(self, tag: int | None = None) -> int:
        """The byte that the graph reads of a request whose bytes are ``tag``, or were left as they are."""
        row = self.manager.requests.admit(3)
        try:
            if tag is not None:
                self.arena.bytes[self.manager.requests.table(KV, [row])[0]] = tag
            self.read[:] = 99
            self.runner.replay([row])
            return int(self.read[0])
        finally:
            self.manager.requests.finish(row)

    def baked_in(self) -> int:
        """The base that the recorded launch has."""
        recording = self.runner._captured[0][0]
        assert isinstance(recording, HostRecording)
        (launch,) = recording.launches
        base = launch.addresses[2]
        assert base is not None
        return base


def scenario(bench: Any, made: type[GraphRunner] = GraphRunner) -> None:
    engine = Engine(bench, made)
    manager, p = engine.manager, engine.arena.base
    captured = engine.runner.capture(1)
    assert (manager.memory.epoch, engine.baked_in(), captured.tensors[0].base) == (1, p, p)
    assert engine.serve(tag=9) == 9

    manager.reset(scrub=True)
    assert engine.serve() == 0 and not engine.arena.bytes.any()
    assert (manager.memory.epoch, engine.arena.base, engine.baked_in()) == (1, p, p)

    manager.reallocate({KV: 8})
    assert manager.memory.epoch == 2 and engine.arena.base != p
    # sign of the defect: the replay is accepted, and reads the base that was given back
    assert bench.refusal(engine.serve, 5) == "EPOCH"
    again = engine.runner.capture(1)
    assert engine.serve(tag=5) == 5 and engine.baked_in() == engine.arena.base
    assert any("base" in line for line in captured.differences(again)) and captured.digest != again.digest
    bench.audited(manager)


def same_address(bench: Any, made: type[GraphRunner] = GraphRunner) -> None:
    """Memory that comes back where it was is another memory all the same."""
    buffers = {KV: np.zeros(8 * 64, np.uint8)}
    engine = Engine(bench, made, buffers=buffers)
    captured = engine.runner.capture(1)
    engine.manager.reallocate({KV: 8}, buffers=buffers)
    assert engine.arena.base == captured.tensors[0].base
    assert bench.refusal(engine.serve, 5) == "EPOCH"
    assert engine.runner.capture(1) == captured
    assert engine.serve(tag=5) == 5


def test_H24_addresses_stay_or_the_graph_is_refused(bench: Any) -> None:
    scenario(bench)


def test_H24_an_address_that_comes_again_is_of_another_epoch(bench: Any) -> None:
    same_address(bench)


class Unchecked(GraphRunner):
    """Replays whatever was captured."""

    def _check(self, number: int) -> None:
        pass


class ByAddress(GraphRunner):
    """Goes by the signature alone."""

    def _must(self, event: str, number: int, **given: int) -> None:
        if event != "replay":
            super()._must(event, number, **given)


def test_H24_control_a_replay_without_checks_is_noticed(bench: Any) -> None:
    with pytest.raises(AssertionError, match="None == 'EPOCH'"):
        scenario(bench, Unchecked)


def test_H24_control_a_replay_that_goes_by_addresses_is_noticed(bench: Any) -> None:
    with pytest.raises(AssertionError, match="None == 'EPOCH'"):
        same_address(bench, ByAddress)
