"""Calls that a manager can't carry out: each says what was wrong, and nothing has changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.answers import AnswerKind, Claim, Plan, Reason
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.policy import WindowPolicy
from kvfsm.runtime.stores.memory import MemoryStore

PROFILE = PROFILES["tiny_deepseek_v4"]
A = PROFILE.granule
PROMPT = range(5 * A + 3)


def make(**options: Any) -> Manager:
    return Manager(PROFILE, dict.fromkeys(PROFILE.kinds, 16), NumpyBackend(), **options)


def filled(granules: int = 3) -> tuple[Manager, Keys]:
    manager = make()
    keys = manager.keys(PROMPT)
    for granule in range(granules):
        manager.publish(manager.reserve(keys, granule, granule + 1))
    return manager, keys


def refused(reason: Reason, text: str, call: Callable[[], object]) -> None:
    with pytest.raises(Refused, match=text) as error:
        call()
    assert error.value.refusal is reason


@pytest.mark.parametrize("salt", ["tenant", 0, 7, True, None, [1, 2]])
def test_a_salt_that_is_not_bytes_is_refused(salt: Any) -> None:
    """``bytes(0)`` is the empty salt, so a tenant numbered 0 would share with everybody who gives none."""
    with pytest.raises(TypeError, match="give bytes"):
        make().keys(PROMPT, salt=salt)


def test_salts_of_any_bytes_are_the_same_salt() -> None:
    manager = make()
    digests = {manager.keys(PROMPT, salt=salt).digest(0) for salt in (b"a", bytearray(b"a"), memoryview(b"a"))}  # type: ignore[arg-type]
    assert len(digests) == 1


def test_an_adapter_that_is_not_text_is_refused() -> None:
    with pytest.raises(TypeError, match="name and version as text"):
        make().keys(PROMPT, adapter=b"lora")  # type: ignore[arg-type]


def test_a_release_whose_device_query_raises_gives_nothing_back() -> None:
    manager, keys = filled()
    lease = manager.acquire(manager.match(keys))

    def broken() -> bool:
        raise RuntimeError("the device is gone")

    with pytest.raises(RuntimeError, match="the device is gone"):
        manager.release(lease, done=broken)
    assert manager.audit().ok
    manager.release(lease)
    assert manager.audit().ok and not manager.receipts


def test_a_parked_release_whose_device_query_raises_stays_parked() -> None:
    manager, keys = filled()
    broken = False

    def done() -> bool:
        if broken:
            raise RuntimeError("the device is gone")
        return False

    ended: list[bool] = []
    manager.release(manager.acquire(manager.match(keys)), done=lambda: bool(ended))
    manager.release(manager.acquire(manager.match(keys)), done=done)
    broken = True
    ended.append(True)
    with pytest.raises(RuntimeError, match="the device is gone"):
        manager.evict("swa_window", 0)
    assert len(manager.parked) == 2 and manager.audit().ok
    broken = False
    manager.evict("swa_window", 0)
    assert len(manager.parked) == 1 and manager.audit().ok


def test_a_fill_does_not_rest_on_a_lease_of_another_manager_or_a_released_one() -> None:
    manager, keys = filled()
    other, same = filled()
    foreign = other.acquire(other.match(same))
    refused(Reason.LEASE, "another manager", lambda: manager.reserve(keys, 3, 4, lease=foreign))
    other.release(foreign)
    lease = manager.acquire(manager.match(keys))
    manager.release(lease)
    refused(Reason.LEASE, "released already", lambda: manager.reserve(keys, 3, 4, lease=lease))
    assert manager.audit().ok and not manager.fills


def test_a_row_does_not_take_over_a_lease_of_another_manager() -> None:
    """Both leases have the same number, so that number alone would name the manager's own."""
    manager, keys = filled()
    other, same = filled()
    mine, foreign = manager.acquire(manager.match(keys)), other.acquire(other.match(same))
    assert mine.lease_id == foreign.lease_id
    refused(Reason.LEASE, "another manager", lambda: manager.requests.admit(4 * A, lease=foreign))
    manager.release(mine)
    other.release(foreign)
    assert manager.audit().ok and other.audit().ok


def test_keys_of_another_model_take_no_slots() -> None:
    manager, _ = filled()
    profile = PROFILES["tiny_gpt_oss"]
    keys = Keys(profile.granule, profile.identity, range(8 * A))
    assert manager.match(keys).reason is Reason.IDENTITY
    refused(Reason.IDENTITY, "of .weights=", lambda: manager.reserve(keys, 0, 1))
    row = manager.requests.admit(2 * A)
    refused(Reason.IDENTITY, "of .weights=", lambda: manager.requests.publish(row, keys))
    manager.requests.finish(row)
    assert manager.audit().ok


def test_unknown_kinds_are_named_with_those_that_there_are() -> None:
    manager, keys = filled()
    with pytest.raises(ValueError, match="no slots of window; tiny_deepseek_v4 has compressed_kv, "):
        manager.reserve(keys, 3, 4, kinds=["compressed_kv", "window"])
    with pytest.raises(ValueError, match="no slots of window; "):
        manager.evict("window", 1)
    with manager.acquire(manager.match(keys)) as lease, pytest.raises(KeyError, match="the lease has no slots of 'w'"):
        lease.view("w", "keys", 0)
    fill = manager.reserve(keys, 3, 4, kinds=["compressed_kv"])
    with pytest.raises(KeyError, match="the fill has no slots of 'swa_window', but of compressed_kv"):
        fill.view("swa_window", "keys", 0)
    manager.abandon(fill)
    assert manager.audit().ok


def test_a_plan_of_another_model_loads_nothing() -> None:
    profile = PROFILES["tiny_gpt_oss"]
    other = Manager(profile, dict.fromkeys(profile.kinds, 8), NumpyBackend())
    plan = Plan(Claim([bytes(32)], b"", ()), 1, {"indexer_state": np.arange(1)}, range(0), A, 1)
    refused(Reason.LEASE, "made by another manager; match again", lambda: other.load(plan))
    assert other.audit().ok


@pytest.mark.parametrize("option", [{"draft": -1}, {"draft": -A}, {"at_most": -1}])
def test_negative_numbers_of_tokens_are_refused(option: dict[str, int]) -> None:
    """A negative draft would lengthen the answer past the last token, which is always computed."""
    manager, keys = filled()
    with pytest.raises(ValueError, match="0 or more"):
        manager.match(keys, 3 * A, **option)  # type: ignore[arg-type]
    assert manager.match(keys, 3 * A).length == 2 * A


def test_granules_that_are_no_whole_numbers_are_refused() -> None:
    manager, keys = filled()
    with pytest.raises(TypeError, match=r"stop is 4\.5; give granules, not tokens"):
        manager.reserve(keys, 3, 4.5)  # type: ignore[arg-type]
    assert manager.match(keys, 3 * A + 1).kind is AnswerKind.HIT
    assert not manager.fills and manager.audit().ok


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"copy_bytes": 0}, "copy_bytes is 0; give a whole number of at least 1"),
        ({"io_bytes": -1}, "io_bytes is -1; give a whole number of at least 1"),
        ({"cold": -1}, "cold is -1; give a whole number of at least 0"),
        ({"rows": -1}, "rows is -1; give a whole number of at least 0"),
        ({"writes": "back"}, "writes='back'; give 'write_through' or 'none'"),
    ],
)
def test_options_out_of_range_are_refused(option: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make(**option)


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"rows": 1.5}, "rows is 1.5; give a whole number of at least 0"),
        ({"cold": "4"}, "cold is '4'; give a whole number of at least 0"),
        ({"copy_bytes": True}, "copy_bytes is True; give a whole number of at least 1"),
    ],
)
def test_options_that_are_no_whole_numbers_are_refused(option: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        make(**option)


@pytest.mark.parametrize("count", [-1, 0, 2.5, "8", None])
def test_a_pool_has_a_slot_at_least(count: Any) -> None:
    kind = ValueError if isinstance(count, int) else TypeError
    with pytest.raises(kind, match=f"compressed_kv slots is {count!r}; give a whole number of at least 1"):
        Manager(PROFILE, dict.fromkeys(PROFILE.kinds, count), NumpyBackend())


@pytest.mark.parametrize("keep", [("checkpoint", 0), ("checkpoint", -5), ("half", 1)])
def test_a_window_policy_that_means_nothing_is_refused(keep: tuple[Any, int]) -> None:
    with pytest.raises(ValueError, match="give "):
        WindowPolicy(*keep)


def test_the_answer_of_several_requests_is_not_acquired_as_that_of_one() -> None:
    manager, keys = filled()
    shared = manager.match_shared([(keys, None), (keys, None)])
    assert shared.now
    with pytest.raises(ValueError, match="the answer is of 2 requests; give it to acquire_all"):
        manager.acquire(shared)
    assert not manager.receipts
    for lease in manager.acquire_all(shared):
        manager.release(lease)
    assert manager.audit().ok


def test_a_lease_is_not_renewed_to_a_deadline_that_has_passed() -> None:
    """It keeps the one that it had, and can be renewed again."""
    manager, keys = filled()
    manager.now = lambda: 5.0
    lease = manager.acquire(manager.match(keys), deadline=9.0)
    refused(Reason.LEASE, "the deadline 0.0 has passed already, it is 5.0", lambda: manager.renew(lease, 0.0))
    manager.renew(lease, 5.0)  # not passed yet
    manager.renew(lease, None)
    manager.release(lease)
    assert manager.audit().ok


def test_buffers_of_two_kinds_do_not_share_memory() -> None:
    memory = np.zeros(1 << 22, np.uint8)
    size = 16 * PROFILE.layouts["compressed_kv"].slot_bytes
    with pytest.raises(ValueError, match="buffers of compressed_kv and swa_window share memory"):
        make(buffers={"compressed_kv": memory, "swa_window": memory[size - 1 :]})
    assert make(buffers={"compressed_kv": memory, "swa_window": memory[size:]}).audit().ok


def test_a_buffer_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r"buffers are given for \['window'\]; tiny_deepseek_v4 has "):
        make(buffers={"window": np.zeros(1 << 20, np.uint8)})


def test_a_fill_that_was_published_or_abandoned_is_not_written_any_more() -> None:
    """Its slots are read by others then."""
    manager, keys = filled()
    published, abandoned = manager.reserve(keys, 3, 4), manager.reserve(keys, 4, 5)
    manager.publish(published)
    manager.abandon(abandoned)
    for fill in (published, abandoned):
        refused(Reason.LEASE, "published or abandoned already", lambda fill=fill: fill.view("swa_window", "keys", 0))  # type: ignore[misc]


@pytest.mark.parametrize("policies", [("none", "full"), ("full", "none"), ("full", "full")])
def test_what_another_manager_answered_is_refused(policies: tuple[str, str]) -> None:
    """Whatever windows the two keep, and although both hold the same."""
    profile, store = PROFILES["tiny_gpt_oss"], MemoryStore()
    windows = {"none": WindowPolicy.none(), "full": WindowPolicy.full()}
    other, manager = (
        Manager(profile, dict.fromkeys(profile.kinds, 16), NumpyBackend(), store=store, window=windows[name])
        for name in policies
    )
    keys = manager.keys(np.arange(40))
    for one in (other, manager):
        one.publish(one.reserve(keys, 0, 2))
    hit = other.match(keys)
    assert hit.now
    for kind in profile.kinds:
        other.evict(kind, 16)
    pending = other.match(keys)
    assert pending.plan is not None
    free = {kind: pool.free for kind, pool in manager.core.pools.items()}
    calls: list[Callable[[], object]] = [
        lambda: manager.acquire(hit),
        lambda: manager.check(hit),
        lambda: manager.load(pending.plan),
        lambda: manager.load_begin(pending.plan),
    ]
    for call in calls:
        refused(Reason.LEASE, "made by another manager; match again", call)
    assert {kind: pool.free for kind, pool in manager.core.pools.items()} == free and not manager.tickets
    assert manager.audit().ok and other.load(pending.plan).now == hit.now
    manager.release(manager.acquire(manager.match(keys)))
