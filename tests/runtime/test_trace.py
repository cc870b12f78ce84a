"""The event trace: bounded, whole or not at all, and a record that can be replayed from its middle."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.generated import Refusal, SwaWindowTable
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.stores.local import LocalStore
from kvfsm.runtime.stores.store import Namespace, ObjectId
from kvfsm.runtime.table import Fired
from kvfsm.runtime.trace import EventTrace
from kvfsm.spec.checking.traces.validate import Validator

PROFILE = PROFILES["tiny_deepseek_v4"]
A = PROFILE.granule


def make(trace: EventTrace | None, **options: Any) -> Manager:
    return Manager(PROFILE, dict.fromkeys(PROFILE.kinds, 16), NumpyBackend(), trace=trace, **options)


def work(manager: Manager, rounds: int = 1) -> None:
    for seed in range(rounds):
        keys = manager.keys(list(range(seed, seed + 2 * A + 1)))
        manager.publish(manager.reserve(keys, 0, 2))
        with manager.acquire(manager.match(keys)):
            pass
        manager.expire(keys)


def calls(trace: EventTrace) -> list[dict[str, Any]]:
    return [json.loads(line) for line in trace.lines()][1:-1]


def test_what_these_folders_record_has_events(traced: list[EventTrace], validator: Validator) -> None:
    """The fixture that holds every test's managers against the model sees this one's."""
    manager = Manager(PROFILE, dict.fromkeys(PROFILE.kinds, 16), NumpyBackend())
    assert [trace.events for trace in traced] == [0]
    work(manager)
    verdict = validator.validate(traced[0].lines())
    assert verdict.ok and verdict.events == traced[0].events > 20


def test_a_call_is_recorded_with_its_arguments_and_words() -> None:
    trace = EventTrace()
    manager = make(trace)
    work(manager)
    table = manager.core.pools["swa_window"].table
    taken, sealed = [call for call in calls(trace) if call["pool"] == 3][:2]
    assert (taken["event"], taken["slots"], "given" in taken) == ("take", [0], False)
    assert (sealed["event"], sealed["given"]) == ("seal", {"expected": [1], "at": [2], "is_lossy": False})
    assert "codes" not in sealed and "was" not in sealed and "held" not in sealed
    assert sealed["words"] == [SwaWindowTable.LAYOUT.pack(state=2, generation=1, boundary=2)]
    header = json.loads(next(trace.lines()))
    assert header["pools"][3]["digest"] == table.DIGEST
    assert header["pools"][3]["refusals"][Refusal.STALE] == "stale"
    fields = {field.name: field.bits for field in SwaWindowTable.LAYOUT.fields}
    assert header["pools"][3]["fields"] == fields


def test_refused_and_held_back_calls_are_recorded_whole() -> None:
    trace = EventTrace()
    source = trace.source("test")
    table = SwaWindowTable(3, source)
    source.watch([table], threading.Lock())
    table.take([0, 1])
    table.seal([0, 2], expected=1, at=4, is_lossy=False)
    table.whole.seal([1, 2], expected=[1, 1], at=4, is_lossy=False)
    _, mixed, held = calls(trace)
    assert mixed["codes"] == held["codes"] == [0, int(Refusal.STALE)]
    assert len(mixed["words"]) == 2 and "held" not in mixed
    assert held["held"] is True and "words" not in held
    assert held["given"] == {"expected": [1, 1], "at": 4, "is_lossy": False}


def test_what_a_caller_does_with_its_arrays_later_does_not_matter(validator: Validator) -> None:
    trace = EventTrace()
    source = trace.source("test")
    table = SwaWindowTable(4, source)
    source.watch([table], threading.Lock())
    slots, at = np.array([0, 1]), np.array([5, 6])
    table.take(slots)
    codes = table.seal(slots, expected=1, at=at, is_lossy=False)
    slots += 2
    at += 1
    codes += 1
    assert validator.validate(trace.lines()).ok


@pytest.mark.parametrize("capacity", [1, 2, 7, 40, 100])
def test_the_ring_forgets_the_oldest_and_can_be_replayed_from_its_middle(validator: Validator, capacity: int) -> None:
    everything, trace = EventTrace(), EventTrace(capacity)
    for one in (everything, trace):
        work(make(one), 4)
    assert trace.events <= capacity and trace.events + trace.dropped == everything.events
    kept = calls(trace)
    told = [{**call, "crc": ""} for call in calls(everything)]
    assert [{**call, "crc": ""} for call in kept] == told[len(told) - len(kept) :]
    verdict = validator.validate(trace.lines())
    assert verdict.ok, verdict.first_illegal
    assert (verdict.events, verdict.dropped) == (trace.events, trace.dropped)


def test_a_trace_that_forgets_knows_words_that_changed_behind_its_back(validator: Validator) -> None:
    trace = EventTrace(5)
    manager = make(trace)
    work(manager)
    manager.core.pools["swa_window"].table.words[9] = 1
    work(manager)
    assert trace.dropped > 0
    illegal = validator.validate(trace.lines()).first_illegal
    assert illegal is not None and (illegal.kind, illegal.slot) == ("changed_without_event", 9)


def test_several_sources_share_a_trace(validator: Validator, tmp_path: Path) -> None:
    trace = EventTrace()
    with LocalStore(tmp_path, Namespace.of(PROFILE), trace=trace) as store:
        first, second = make(trace, store=store), make(trace)
        work(first)
        work(second)
        header = json.loads(next(trace.lines()))
        assert header["sources"] == dict.fromkeys(("store 1", "manager 1", "ticket 1", "manager 2", "ticket 2"), 0)
        verdict = validator.validate(trace.lines())
        assert verdict.ok and verdict.pools == 13
        assert {"put_begin", "put_done"} <= {event for machine, event, _ in verdict.taken if machine == "ondisk_prefix"}


@pytest.mark.parametrize("capacity", [1 << 16, 300])
def test_a_directory_that_makes_room_is_followed(validator: Validator, tmp_path: Path, capacity: int) -> None:
    trace = EventTrace(capacity)
    namespace = Namespace("m", {"swa_window": "d"}, "")
    with LocalStore(tmp_path, namespace, trace=trace) as store:
        for number in range(300):
            store.put(ObjectId("swa_window", number.to_bytes(32, "big"), b""), b"x", meta={})
    verdict = validator.validate(trace.lines())
    assert verdict.ok, verdict.first_illegal
    assert verdict.events == trace.events == min(600, capacity)
    again = EventTrace()
    with LocalStore(tmp_path, namespace, trace=again):
        verdict = validator.validate(again.lines())
    assert verdict.ok and verdict.taken == {("ondisk_prefix", "recover", 2): 300}


def test_a_file_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = EventTrace()
    work(make(trace))
    path = tmp_path / "events.jsonl"
    assert trace.write(path) == path.stat().st_size
    assert path.read_text("utf-8").splitlines() == list(trace.lines())
    before = path.read_bytes()

    def broken(_: EventTrace) -> Any:
        yield "half"
        raise OSError("the disk is full")

    monkeypatch.setattr(EventTrace, "lines", broken)
    with pytest.raises(OSError, match="the disk is full"):
        trace.write(path)
    assert path.read_bytes() == before and [one.name for one in tmp_path.iterdir()] == ["events.jsonl"]


def test_a_trace_can_be_written_while_threads_go_on(validator: Validator) -> None:
    """Ends are taken under each source's lock; what happens after them is left out."""
    trace = EventTrace(400)
    managers = [make(trace) for _ in range(2)]
    ended = threading.Event()

    def go_on(manager: Manager) -> None:
        while not ended.is_set():
            work(manager)

    threads = [threading.Thread(target=go_on, args=(manager,)) for manager in managers]
    for thread in threads:
        thread.start()
    try:
        verdicts = [validator.validate(list(trace.lines())) for _ in range(12)]
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert [verdict.first_illegal for verdict in verdicts] == [None] * 12
    assert trace.events <= 400
    assert max(verdict.dropped for verdict in verdicts) > 0


def test_a_listener_and_a_trace_hear_the_same() -> None:
    trace, heard = EventTrace(), list[Fired]()
    work(make(trace, on_event=heard.append))
    assert [fired.event for fired in heard if len(fired.slots)] == [call["event"] for call in calls(trace)]


def test_a_trace_keeps_one_event_at_least() -> None:
    with pytest.raises(ValueError, match="a trace keeps 1 event or more, not 0"):
        EventTrace(0)
