"""Rows take slots for their own tenant: what another left in them is cleared, and what he left himself is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.isolation import UNKNOWN
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.requests import GUARD
from kvfsm.runtime.scheduler import Scheduler

from .rows import slots_of
from .serving import ByHand

A_SALT, B_SALT = b"tenant a", b"tenant b"
MODELS = ("tiny_deepseek_v4", "tiny_gpt_oss", "tiny_llama", "tiny_deepseek_v32")
MARKS = {A_SALT: 0xA5, B_SALT: 0xB6, None: 0xC7}
BOTH = pytest.mark.parametrize("salt", [A_SALT, B_SALT], ids=["own", "another's"])


class Counting(NumpyBackend):
    """Counts slots that were cleared, and fails to clear when told."""

    def __init__(self) -> None:
        self.cleared, self.failing = 0, False

    def scrub(self, arena: Any, slots: Any) -> None:
        if self.failing:
            raise OSError("the device does not clear")
        self.cleared += len(slots)
        super().scrub(arena, slots)


def make(model: str, slots: int = 12, **options: Any) -> Manager:
    """Pools in which tenant a has left his mark in every slot."""
    profile = PROFILES[model]
    manager = Manager(profile, dict.fromkeys(profile.kinds, slots), Counting(), rows=6, **options)
    keys = manager.keys(range(slots * profile.granule), salt=A_SALT)
    for kind in profile.kinds:
        fills = []
        while manager.core.pools[kind].free:
            fills.append(manager.reserve(keys, 0, 1, kinds=[kind]))
            manager.core.pools[kind].arena.bytes[fills[-1].slots[kind]] = MARKS[A_SALT]
        for fill in fills:
            manager.abandon(fill)
    backend(manager).cleared = 0
    return manager


def backend(manager: Manager) -> Counting:
    assert isinstance(manager.backend, Counting)
    return manager.backend


def bytes_of(manager: Manager, row: int) -> dict[str, list[set[int]]]:
    """Different bytes in each slot of a row, by kind."""
    arenas = {kind: manager.core.pools[kind].arena.bytes for kind in manager.profile.kinds}
    return {
        kind: [set(arenas[kind][slot].tolist()) for slot in slots if slot != GUARD]
        for kind, slots in slots_of(manager, row).items()
    }


def mark(manager: Manager, row: int, salt: bytes | None) -> None:
    """The device writes every byte of all that a row has."""
    for kind, slots in slots_of(manager, row).items():
        held = np.array([slot for slot in slots if slot != GUARD], np.intp)
        manager.core.pools[kind].arena.bytes[held] = MARKS[salt]


def grown(manager: Manager, row: int, how: str) -> None:
    """A row gets more slots."""
    granule, requests = manager.profile.granule, manager.requests
    if how == "extended":
        requests.extend(row, 2 * granule)
    elif how == "stepped":
        for _ in range(granule + 1):
            requests.step([row])
    elif how == "drafted":
        requests.propose([row], min(3, int(requests.draft_room([row])[0])))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("how", ["admitted", "extended", "stepped", "drafted"])
@BOTH
def test_own_slots_keep_their_bytes_and_those_of_others_are_cleared(model: str, how: str, salt: bytes) -> None:
    manager = make(model)
    row = manager.requests.admit(manager.profile.granule, salt=salt)
    grown(manager, row, how)
    found = {one for slots in bytes_of(manager, row).values() for held in slots for one in held}
    assert found == ({MARKS[A_SALT]} if salt == A_SALT else {0})
    assert (backend(manager).cleared == 0) is (salt == A_SALT)
    assert manager.audit().ok


@pytest.mark.parametrize("model", MODELS)
def test_of_a_row_of_which_nobody_says_the_tenant_all_is_cleared(model: str) -> None:
    manager = make(model)
    row = manager.requests.admit(manager.profile.granule)
    grown(manager, row, "extended")
    assert {one for slots in bytes_of(manager, row).values() for held in slots for one in held} == {0}
    assert (
        manager.core.pools["compressed_kv"].left[manager.requests.table("compressed_kv", [row])[0]] == UNKNOWN
    ).all()


@pytest.mark.parametrize("salts", [(A_SALT, B_SALT, A_SALT), (B_SALT, None, None), (None, None, A_SALT)])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("how", ["stepped", "drafted"])
def test_in_one_step_of_several_tenants_each_has_its_own(model: str, salts: tuple[bytes | None, ...], how: str) -> None:
    """Blocks of a full window come into slots that have just left: of the same row, and of no other."""
    manager = make(model, slots=24)
    requests, granule = manager.requests, manager.profile.granule
    rows = [requests.admit(granule, salt=salt) for salt in salts]
    foreign = {salt: {value for other, value in MARKS.items() if other != salt} for salt in salts}
    for _ in range(4 * granule):
        for row, salt in zip(rows, salts, strict=True):
            mark(manager, row, salt)
        if how == "stepped":
            requests.step(rows)
        else:
            requests.propose(rows, min(1, int(requests.draft_room(rows).min())))
        for row, salt in zip(rows, salts, strict=True):
            found = {one for slots in bytes_of(manager, row).values() for held in slots for one in held}
            assert not found & foreign[salt], (salt, found)
        if how == "drafted":
            requests.reject(rows)
            requests.step(rows)
    assert manager.audit().ok


def test_control_blocks_that_change_rows_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look above tells a slot of another row from one's own."""
    manager = make("tiny_gpt_oss", slots=24)
    requests = manager.requests
    rows = [requests.admit(4 * manager.profile.granule, salt=salt) for salt in (A_SALT, B_SALT)]
    for row, salt in zip(rows, (A_SALT, B_SALT), strict=True):
        mark(manager, row, salt)
    window = requests._window
    assert window is not None
    window.slots[rows] = window.slots[rows[::-1]]
    found = {one for held in bytes_of(manager, rows[1])["swa_window"] for one in held}
    assert MARKS[A_SALT] in found


@pytest.mark.parametrize("failing", [False, True])
def test_a_step_of_several_tenants_takes_all_or_nothing(failing: bool) -> None:
    manager = make("tiny_llama", slots=12)
    requests, granule = manager.requests, manager.profile.granule
    rows = [requests.admit(4 * granule, salt=salt) for salt in (A_SALT, B_SALT)]
    if not failing:
        hog = requests.admit(3 * granule, salt=A_SALT)  # one slot is left, and two are needed
    pool = manager.core.pools["compressed_kv"]
    before = pool.free, requests.tokens[rows].tolist(), [slots_of(manager, row) for row in rows]
    backend(manager).failing = failing
    with pytest.raises(OSError if failing else Refused):
        requests.step(rows)
    assert (pool.free, requests.tokens[rows].tolist(), [slots_of(manager, row) for row in rows]) == before
    assert manager.audit().ok
    backend(manager).failing = False
    if not failing:
        requests.finish(hog)
    requests.step(rows)
    assert manager.audit().ok


@BOTH
def test_requests_of_a_scheduler_take_slots_for_their_tenant(salt: bytes) -> None:
    manager = make("tiny_deepseek_v4")
    scheduler = Scheduler(manager, ByHand(), chunk=manager.profile.granule)
    for tokens in (10, 3 * manager.profile.granule):  # the first has no granule to look for
        live = scheduler.submit(manager.keys(range(tokens), salt=salt))
        while live.row is None or live.computed < live.tokens:
            assert scheduler.schedule()
        scheduler.decode([live], tokens=[1])
        scheduler.finish(live)
    assert (backend(manager).cleared == 0) is (salt == A_SALT)


def test_a_row_that_goes_on_from_a_lease_is_of_its_tenant() -> None:
    manager = make("tiny_deepseek_v4")
    keys = manager.keys(range(2 * manager.profile.granule + 1), salt=A_SALT)
    manager.publish(manager.reserve(keys, 0, 2))
    row = manager.requests.admit(keys.tokens, lease=manager.acquire(manager.match(keys)))
    manager.requests.extend(row, 2 * manager.profile.granule)
    assert backend(manager).cleared == 0


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("lease", [False, True])
@pytest.mark.parametrize("call", ["publish", "preempt"])
def test_what_one_tenant_has_written_is_published_under_no_other(model: str, lease: bool, call: str) -> None:
    manager = make(model)
    requests, tokens = manager.requests, range(3 * manager.profile.granule)
    keys = {salt: manager.keys(tokens, salt=salt) for salt in (A_SALT, B_SALT)}
    if lease:
        manager.publish(manager.reserve(keys[A_SALT], 0, 2))
        row = requests.admit(len(tokens), lease=manager.acquire(manager.match(keys[A_SALT], len(tokens) - 1)))
    else:
        row = requests.admit(len(tokens), salt=A_SALT)
    before = requests.coverage(row)
    with pytest.raises(Refused, match=r"is of salt b'tenant a', and these keys of b'tenant b'; give the row's own"):
        getattr(requests, call)(row, keys[B_SALT])
    assert requests.coverage(row) == before and manager.match(keys[B_SALT]).now == 0
    getattr(requests, call)(row, keys[A_SALT])
    assert manager.match(keys[A_SALT], len(tokens) + 1).now == len(tokens) and manager.audit().ok


def test_nobody_goes_on_from_the_lease_of_another_tenant() -> None:
    manager = make("tiny_deepseek_v4")
    granule = manager.profile.granule
    keys = {salt: manager.keys(range(3 * granule), salt=salt) for salt in (A_SALT, B_SALT)}
    for own in keys.values():
        manager.publish(manager.reserve(own, 0, 2))
    with manager.acquire(manager.match(keys[A_SALT])) as lease:
        with pytest.raises(Refused, match=r"LEASE.*a lease of salt b'tenant a' for a request of b'tenant b'"):
            manager.requests.admit(3 * granule, lease=lease, salt=B_SALT)
        with pytest.raises(Refused, match=r"LEASE.*a lease of salt b'tenant a', and keys of b'tenant b'"):
            manager.reserve(keys[B_SALT], 2, 3, lease=lease)
    assert not manager.requests.active.any() and manager.audit().ok


def test_a_request_rolls_back_to_keys_of_its_own_tenant_only() -> None:
    manager = make("tiny_llama")
    scheduler, prompt = Scheduler(manager, ByHand()), [1, 2, 3]
    live = scheduler.submit(manager.keys(prompt, salt=A_SALT))
    scheduler.schedule()
    scheduler.decode([live], tokens=[4])
    with pytest.raises(Refused, match=r"IDENTITY.*is of salt b'tenant a'"):
        scheduler.rollback(live, 3, keys=manager.keys(prompt, salt=B_SALT))
    assert live.keys.tokens == 4
    assert scheduler.rollback(live, 3, keys=manager.keys(prompt, salt=A_SALT))


@pytest.mark.parametrize("salt", ["tenant a", 7, True, bytearray(b"tenant a")])
def test_a_salt_that_is_not_bytes_is_told(salt: Any) -> None:
    manager = make("tiny_llama")
    with pytest.raises(TypeError, match=r"the salt is .*; give bytes"):
        manager.requests.admit(3, salt=salt)
    assert not manager.requests.active.any() and manager.audit().ok
