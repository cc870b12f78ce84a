"""H-36: what a request has received is part of it until it is freed; being put back neither reloads nor forgets.

Blocks of 16 and a prompt of 200 tokens, 13 blocks. Eight of them, 128 tokens, are loaded; three slots are free, so
that the other five don't fit. In the next step four more are freed. The request stands at 128 tokens throughout, there
is one load in all, eight blocks are held while it waits, and then five are allocated and 72 tokens computed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvfsm.runtime.answers import Reason
from kvfsm.runtime.errors import Refused

KV, BLOCK, PROMPT = "compressed_kv", 16, 200


class Scheduler:
    """Schedules one request: loads what the store has, and computes the rest when there is room for it."""

    def __init__(self, manager: Any, prompt: list[int]) -> None:
        self.manager, self.keys = manager, manager.keys(prompt)
        self.row: int | None = None
        self.loads = 0

    def step(self) -> int:
        """Tokens that are computed in this step; 0 when the request is put back."""
        requests = self.manager.requests
        if self.row is None:
            answer = self.manager.match(self.keys, PROMPT)
            if answer.plan is not None:
                self.loads += 1
                answer = self.manager.load(answer.plan)
            self.row = requests.admit(answer.now, lease=self.manager.acquire(answer))
        more = PROMPT - self.computed
        try:
            requests.extend(self.row, more)
        except Refused as refused:
            assert refused.refusal is Reason.POOL_FULL
            self.put_back()
            return 0
        return more

    def put_back(self) -> None:
        """The row keeps what it has."""

    @property
    def computed(self) -> int:
        """Tokens whose state the request has."""
        return 0 if self.row is None else int(self.manager.requests.tokens[self.row])

    @property
    def held(self) -> list[int]:
        """Its blocks."""
        found: list[int] = [] if self.row is None else self.manager.requests.table(KV, [self.row])[0].tolist()
        return found


class Forgetful(Scheduler):
    """Remembers in a variable of the step what was received."""

    def put_back(self) -> None:
        assert self.row is not None
        self.manager.requests.finish(self.row)
        self.row = None


def scenario(bench: Any, open_store: Any, scheduler: type[Scheduler]) -> None:
    profile = bench.profile(BLOCK, bench.group("full", KV, BLOCK, BLOCK))
    store, prompt = open_store(profile), bench.tokens(PROMPT)
    writer = bench.manager(profile, 8, store=store)
    bench.put(writer, writer.keys(prompt), 0, 8, tag=7)

    manager = bench.manager(profile, 15, store=store)
    pool, other = manager.core.pools[KV], manager.requests.admit(4 * BLOCK)
    request = scheduler(manager, prompt)
    assert request.step() == 0
    # sign of the defect: nothing computed, or a second load
    assert (request.computed, request.loads, len(request.held), pool.free) == (128, 1, 8, 3)
    received = request.held
    assert manager.evict(KV, 15) == 0 and request.step() == 0  # nobody takes them, and nothing is loaded again
    assert (request.computed, request.loads, request.held) == (128, 1, received)
    assert (manager.read(KV, "rows", 0, np.array(received)) == 7).all()

    manager.requests.finish(other)
    assert pool.free == 7
    assert request.step() == 72
    assert (request.computed, request.loads, pool.free) == (200, 1, 2)
    assert request.held[:8] == received and len(request.held) == 13
    bench.audited(manager)


def test_H36_a_request_that_is_put_back_keeps_what_it_received(bench: Any, open_store: Any) -> None:
    scenario(bench, open_store, Scheduler)


def test_H36_control_progress_that_a_step_forgets_is_noticed(bench: Any, open_store: Any) -> None:
    with pytest.raises(AssertionError, match=r"\(0, 1, 0, 3\) == \(128, 1, 8, 3\)"):
        scenario(bench, open_store, Forgetful)
