"""What one tenant left in memory, no other finds: by whatever way slots come to it, and with nothing written yet.

Tenant a has a secret in every byte of every slot, and lets go of them. Tenant b looks at all that it can reach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.isolation import CLEAN, UNKNOWN, Isolation
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.stores.local import LocalStore
from kvfsm.runtime.stores.store import Namespace
from kvfsm.runtime.ticket import Ticket

SECRET, OURS = 0xA5, 7
A_SALT, B_SALT = b"tenant a", b"tenant b"
MODELS = ("tiny_deepseek_v4", "tiny_gpt_oss", "tiny_llama")
SLOTS = 24
Seen = list[np.ndarray[Any, Any]]


class Counting(NumpyBackend):
    """Counts the slots that were cleared."""

    def __init__(self) -> None:
        self.cleared = 0
        self.failing = False

    def scrub(self, arena: Any, slots: Any) -> None:
        if self.failing:
            raise OSError("the device does not clear")
        self.cleared += len(slots)
        super().scrub(arena, slots)


class World:
    """A manager with a store, prompts of two tenants, and what lies in slots."""

    def __init__(self, model: str, store: LocalStore | None = None, **options: Any) -> None:
        self.profile, self.backend = PROFILES[model], Counting()
        slots = dict.fromkeys(self.profile.kinds, SLOTS)
        self.manager = Manager(self.profile, slots, self.backend, store=store, cold=8, rows=4, **options)
        self.granule = self.profile.granule
        self.prompt = np.random.default_rng(2).integers(0, 256, 4 * self.granule + 1)

    def keys(self, salt: bytes) -> Keys:
        return self.manager.keys(self.prompt, salt=salt)

    def bytes_of(self, slots: Mapping[str, Any]) -> Seen:
        """Every byte of some slots, payload and padding."""
        pools = self.manager.core.pools
        return [pools[kind].arena.bytes[held[held < pools[kind].hot]] for kind, held in slots.items()]

    def spill(self, salt: bytes = A_SALT, byte: int = SECRET) -> None:
        """Take every slot that can be had, write to all of its bytes, and let go."""
        fills, keys = [], self.keys(salt)
        for kind in self.profile.kinds:
            self.manager.evict(kind, SLOTS)
            at = 0
            while True:
                try:
                    fills.append(self.manager.reserve(keys, at % 4, at % 4 + 1, kinds=[kind]))
                except Refused:
                    break
                at += 1
        for fill in fills:
            for mine in self.bytes_of(fill.slots):
                assert (mine != SECRET).all() or byte == SECRET
            for kind, held in fill.slots.items():
                self.manager.core.pools[kind].arena.bytes[held] = byte
            self.manager.abandon(fill)
        free = {kind: pool.free for kind, pool in self.manager.core.pools.items()}
        assert fills and sum(free.values()) >= len(free)

    def publish(self, salt: bytes, stop: int = 3) -> None:
        """A prefix of a tenant, its own byte in all of it."""
        keys = self.keys(salt)
        for granule in range(stop):
            fill = self.manager.reserve(keys, granule, granule + 1)
            for kind, held in fill.slots.items():
                self.manager.core.pools[kind].arena.bytes[held] = OURS
            self.manager.publish(fill)

    def parts(self, kind: str) -> list[tuple[str, int]]:
        return [(part.name, part.layer) for part in self.profile.layouts[kind].parts]


@pytest.fixture
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[str], LocalStore]]:
    made: list[LocalStore] = []

    def make(model: str) -> LocalStore:
        profile = PROFILES[model]
        made.append(LocalStore(tmp_path, Namespace.of(profile), budget_bytes=1 << 30))
        return made[-1]

    yield make
    for one in made:
        one.close()


# ---- ways by which slots come to tenant b; each gives all bytes that b can read and has not written ------------------


def fill_views(world: World) -> Seen:
    world.spill()
    seen: Seen = []
    fill = world.manager.reserve(world.keys(B_SALT), 0, 3)
    for kind in fill.kinds:
        seen += [fill.view(kind, name, layer).copy() for name, layer in world.parts(kind)]
    return seen + world.bytes_of(fill.slots)


def gathered_fill_views(world: World) -> Seen:
    """Slots at no equal distances: the view is a copy, and made when it is asked for."""
    world.spill()
    manager, keys = world.manager, world.keys(B_SALT)
    one = [manager.reserve(keys, 0, 1) for _ in range(4)]
    for at in (0, 1, 3):
        manager.abandon(one[at])
    fill = manager.reserve(keys, 0, 3)
    seen: Seen = []
    for kind in fill.kinds:
        seen += [fill.view(kind, name, layer).copy() for name, layer in world.parts(kind)]
    return seen


def partly_written_fill(world: World) -> Seen:
    """One row of each part is written, and the rest is published with it."""
    world.spill()
    keys = world.keys(B_SALT)
    fill = world.manager.reserve(keys, 0, 1)
    for kind in fill.kinds:
        for name, layer in world.parts(kind):
            fill.view(kind, name, layer)[:, 0] = OURS
    world.manager.publish(fill)
    with world.manager.acquire(world.manager.match(keys)) as lease:
        seen = [lease.view(kind, name, layer).copy() for kind in lease.slots for name, layer in world.parts(kind)]
        return seen + world.bytes_of(lease.slots)


def live_row(world: World) -> Seen:
    """A prompt that ends in the middle of a block, and what decoding and drafts take later."""
    world.spill()
    requests, seen = world.manager.requests, Seen()
    row = requests.admit(world.granule + 3, salt=B_SALT)

    def look() -> None:
        for kind in world.manager.core.pools:
            seen.extend(world.bytes_of({kind: requests.slots(kind)}))

    look()
    for _ in range(2 * world.granule):
        requests.step([row])
    look()
    return [one.copy() for one in seen]


def row_of_nobody(world: World) -> Seen:
    """Nobody says whose the request is."""
    world.spill()
    world.manager.requests.admit(3 * world.granule + 1)
    return [one for kind in world.manager.core.pools
            for one in world.bytes_of({kind: world.manager.requests.slots(kind)})]  # fmt: skip


def row_over_a_lease(world: World) -> Seen:
    """The lease's boundary is copied into the row's own slots, and what it publishes at the end is a copy again."""
    world.publish(B_SALT)
    manager, keys = world.manager, world.keys(B_SALT)
    lease = manager.acquire(manager.match(keys))
    world.spill()
    row = manager.requests.admit(4 * world.granule, lease=lease)
    seen = [one.copy() for kind in manager.core.pools for one in world.bytes_of({kind: manager.requests.slots(kind)})]
    manager.requests.publish(row, keys)
    manager.requests.finish(row)
    answer = manager.match(keys)
    with manager.acquire(answer) as lease:
        return seen + [one.copy() for one in world.bytes_of(lease.slots)]


def begun_load(world: World) -> tuple[Manager, Keys, Ticket]:
    """What another tenant has published comes back from the store, into slots that were ours."""
    world.publish(B_SALT)
    world.spill()
    manager, keys = world.manager, world.keys(B_SALT)
    plan = manager.match(keys).plan
    assert plan is not None
    return manager, keys, manager.load_begin(plan)


def load_that_fails(world: World) -> Seen:
    """Destinations before any byte, and the same slots in a fill after the load was given up half way."""
    manager, keys, ticket = begun_load(world)
    held = {kind: ticket.all_slots(kind) for kind in manager.core.pools}
    seen = [one.copy() for one in world.bytes_of(held)]
    for kind, slots in held.items():  # half of the bytes of half of the slots arrive
        half = manager.core.pools[kind].arena.bytes.shape[1] // 2
        manager.core.pools[kind].arena.bytes[slots[: len(slots) // 2], :half] = OURS
    ticket.done(False)
    fill = manager.reserve(keys, 0, 3)
    return seen + [one.copy() for one in world.bytes_of(fill.slots)]


def load_that_succeeds(world: World) -> Seen:
    manager, keys, ticket = begun_load(world)
    seen = [one.copy() for kind in manager.core.pools for one in world.bytes_of({kind: ticket.all_slots(kind)})]
    ticket.transfer()
    with manager.acquire(manager.match(keys)) as lease:
        return seen + [one.copy() for one in world.bytes_of(lease.slots)]


def scratch(world: World) -> Seen:
    """Padding of anybody's batch reads and writes it."""
    world.spill()
    aside = world.manager.set_aside()
    return [world.manager.core.pools[kind].arena.bytes[slot].copy() for kind, slot in aside.items()]


def memory_that_moved(world: World) -> Seen:
    """What is cached goes along when the memory moves, and so does what was left."""
    world.spill()
    world.manager.reallocate()
    return world.bytes_of(world.manager.reserve(world.keys(B_SALT), 0, 3).slots)


WAYS: Mapping[str, Callable[[World], Seen]] = {
    way.__name__: way
    for way in (
        fill_views, gathered_fill_views, partly_written_fill, live_row, row_of_nobody, row_over_a_lease,
        load_that_fails, load_that_succeeds, scratch, memory_that_moved,
    )
}  # fmt: skip


def secrets(seen: Seen) -> int:
    return sum(int((one == SECRET).sum()) for one in seen)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_another_tenant_finds_nothing(
    way: Callable[[World], Seen], model: str, store: Callable[[str], LocalStore]
) -> None:
    world = World(model, store(model))
    seen = way(world)
    assert sum(one.size for one in seen) > 0 and secrets(seen) == 0
    assert world.manager.audit().ok


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_control_without_clearing_the_secret_is_found(
    way: Callable[[World], Seen], model: str, store: Callable[[str], LocalStore]
) -> None:
    world = World(model, store(model), scrub="none")
    assert secrets(way(world)) > 0 and world.backend.cleared == 0


# ---- what it costs, and what it rests on -----------------------------------------------------------------------------


def test_one_tenant_costs_nothing() -> None:
    for salt in (b"", B_SALT):
        world = World(MODELS[0])
        world.keys(salt)
        for _ in range(3):
            world.spill(salt)
        world.manager.abandon(world.manager.reserve(world.keys(salt), 0, 3))
        row = world.manager.requests.admit(3 * world.granule, salt=salt)
        world.manager.requests.finish(row)
        assert world.backend.cleared == 0


def test_without_salts_nothing_is_cleared_whoever_takes() -> None:
    world = World(MODELS[0])
    world.spill(b"")
    world.manager.set_aside()
    row = world.manager.requests.admit(world.granule)
    for _ in range(world.granule):
        world.manager.requests.step([row])
    assert world.backend.cleared == 0


@pytest.mark.parametrize("salt", [A_SALT, b""])
def test_what_was_left_before_the_first_salt_is_nobodys(salt: bytes) -> None:
    """Until then anybody's slots may be of the tenant who comes now, or of one that never says its salt."""
    world = World(MODELS[0])
    world.spill(b"")
    world.keys(A_SALT)
    assert secrets(world.bytes_of(world.manager.reserve(world.keys(salt), 0, 3).slots)) == 0


def test_only_slots_that_change_hands_are_cleared() -> None:
    world = World(MODELS[0])
    world.spill()
    world.backend.cleared = 0
    fill = world.manager.reserve(world.keys(B_SALT), 0, 3)
    count = sum(len(held) for held in fill.slots.values())
    assert world.backend.cleared == count
    world.manager.abandon(fill)
    world.manager.abandon(world.manager.reserve(world.keys(B_SALT), 0, 3))
    assert world.backend.cleared == count


def test_memory_that_was_handed_in_is_cleared_at_its_first_use() -> None:
    profile = PROFILES[MODELS[0]]
    layout = profile.layouts["compressed_kv"]
    memory = np.full(SLOTS * layout.slot_bytes, SECRET, np.uint8)
    world = World(MODELS[0], buffers={"compressed_kv": memory})
    fill = world.manager.reserve(world.keys(b""), 0, 3)
    assert secrets(world.bytes_of(fill.slots)) == 0
    assert secrets([memory]) == (SLOTS - 3) * layout.slot_bytes


def test_a_backend_that_can_not_clear_gives_nothing_away() -> None:
    world = World(MODELS[0])
    world.spill()
    free = {kind: pool.free for kind, pool in world.manager.core.pools.items()}
    world.backend.failing = True
    for take in (lambda: world.manager.reserve(world.keys(B_SALT), 0, 3), lambda: world.manager.requests.admit(9)):
        with pytest.raises(OSError, match="does not clear"):
            take()
        assert {kind: pool.free for kind, pool in world.manager.core.pools.items()} == free
    world.backend.failing = False
    assert world.manager.lock.reason is None and world.manager.audit().ok
    assert secrets(world.bytes_of(world.manager.reserve(world.keys(B_SALT), 0, 3).slots)) == 0


def test_what_a_reset_cleared_is_not_cleared_again() -> None:
    world = World(MODELS[0])
    world.spill()
    world.manager.reset(scrub=True)
    world.backend.cleared = 0
    fill = world.manager.reserve(world.keys(B_SALT), 0, 3)
    assert secrets(world.bytes_of(fill.slots)) == 0 and world.backend.cleared == 0


def test_two_salts_never_have_one_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where more salts came by than are remembered: a number is never given twice."""
    monkeypatch.setattr("kvfsm.runtime.isolation._REMEMBERED", 4)
    isolation, given = Isolation(NumpyBackend()), dict[int, bytes]()
    assert isolation.whose(None) == isolation.whose(b"") not in (CLEAN, UNKNOWN)
    first = isolation.whose(b"")
    for n in [*range(9), *range(9)]:
        salt = str(n).encode()
        number = isolation.whose(salt)
        assert given.setdefault(number, salt) == salt and number not in (CLEAN, UNKNOWN, first)
        assert isolation.whose(salt) == number
    assert isolation.whose(None) == UNKNOWN and isolation.whose(b"") not in {first, *given}


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="give 'tenant' or 'none'"):
        World(MODELS[0], scrub="never")
