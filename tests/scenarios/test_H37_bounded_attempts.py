"""H-37: a failed load voids the verdict 'present'; attempts are bounded, and then the request computes.

Eight blocks are listed as present and their bytes are gone. At most two loads are made, whoever moves the bytes. What
is stored again after the first failure is found, and its own bytes are read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvfsm.runtime.attempts import Attempts

KV = "compressed_kv"
Drive = Callable[[Any, Any, Any], None]


def at_once(bench: Any, manager: Any, plan: Any) -> None:
    manager.load(plan)


def in_steps(bench: Any, manager: Any, plan: Any) -> None:
    """By an engine with a loader of its own."""
    ticket = manager.load_begin(plan)
    if missing := bench.read_in(manager, ticket, KV):
        ticket.done(False, missing={KV: missing})
        return
    ticket.land(KV)
    ticket.done()


def in_steps_without_reasons(bench: Any, manager: Any, plan: Any) -> None:
    manager.load_begin(plan).done(False)


def listed(bench: Any, open_store: Any) -> tuple[Any, Any, Any]:
    """A store that lists a prompt's eight blocks and has none of them; a manager over it, and the prompt's keys."""
    profile = bench.profile(16, bench.group("full", KV, 16, 16))
    store = open_store(profile)
    writer = bench.manager(profile, 8, store=store)
    keys = writer.keys(bench.tokens(129))
    bench.put(writer, keys, 0, 8, tag=1)
    names = writer.object_of(keys.digests, keys.salt, KV, writer.core.places(KV, 8))
    store.listed = frozenset(names)
    assert store.delete(names) == 8
    return profile, store, bench.manager(profile, 8, store=store)


def until_finished(bench: Any, open_store: Any, drive: Drive) -> None:
    _, store, manager = listed(bench, open_store)
    keys, loads = manager.keys(bench.tokens(129)), 0
    while (plan := manager.match(keys).plan) is not None:
        loads += 1
        # sign of the defect: the same load for ever
        assert loads <= 2
        drive(bench, manager, plan)
        bench.audited(manager)
    assert loads == 2 and manager.match(keys).length == 0
    bench.put(manager, keys, 0, 8, tag=3)  # the request computes
    assert manager.match(keys).now == 128
    store.listed = frozenset()
    manager.evict(KV, 8)
    again = manager.match(keys)  # and what it stored is worth a load again
    assert again.length == 128 and manager.load(again.plan).now == 128
    bench.audited(manager)


@pytest.mark.parametrize("drive", [at_once, in_steps, in_steps_without_reasons])
def test_H37_two_attempts_and_then_the_request_computes(bench: Any, open_store: Any, drive: Drive) -> None:
    until_finished(bench, open_store, drive)


@pytest.mark.parametrize("drive", [at_once, in_steps])
def test_H37_what_is_stored_again_is_found(bench: Any, open_store: Any, drive: Drive) -> None:
    profile, store, manager = listed(bench, open_store)
    keys = manager.keys(bench.tokens(129))
    drive(bench, manager, manager.match(keys).plan)
    assert manager.match(keys).now == 0
    other = bench.manager(profile, 8, store=store)
    bench.put(other, keys, 0, 8, tag=2)  # generation 2
    drive(bench, manager, manager.match(keys).plan)
    with manager.acquire(manager.match(keys)) as lease:
        assert lease.length == 128 and (lease.view(KV, "rows", 0) == 2).all()
    bench.audited(manager)


@pytest.mark.parametrize("drive", [at_once, in_steps, in_steps_without_reasons])
def test_H37_control_a_verdict_that_is_remembered_is_noticed(
    bench: Any, open_store: Any, drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Attempts, "usable", lambda self, name: True)
    with pytest.raises(AssertionError, match="3 <= 2"):
        until_finished(bench, open_store, drive)
