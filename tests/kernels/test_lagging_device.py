"""A manager over a device that lags behind it: whoever reads has his own bytes, or is refused.

One thread, and one seed a run, as ``tests/runtime/test_nested.py`` has it: calls come on any of several streams, others
come in where threads might, and the device runs what it was told later, in any order that streams and events allow
(``lagging.py``). Part of the writing and reading is done by launches as an engine makes its own. At the end the words
of the device are those of the host.
"""

from __future__ import annotations

import contextlib
import gc
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kvfsm.kernels.backend import KernelBackend
from kvfsm.kernels.copies import gather_plan, scatter_plan
from kvfsm.kernels.entries import Entries
from kvfsm.kernels.held import Held
from kvfsm.kernels.launch import Pointer
from kvfsm.kernels.reading import MACHINES, only_for_holders
from kvfsm.kernels.stream_order import StreamOrder
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.fill import Fill
from kvfsm.runtime.generated import KINDS
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.lease import Done, Lease
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.stores.memory import MemoryStore
from kvfsm.runtime.stores.store import EpochEnded, Found, Verdict
from kvfsm.runtime.ticket import Ticket

from ..runtime.tagged import tags, write, wrong_bytes
from .lagging import FOREIGN, Busy, LaggingLauncher, LaggingMark

GRANULES, STREAMS, DEPTH, STEPS = 3, 3, 2, 60
MODELS = ("tiny_gpt_oss", "tiny_deepseek_v4")
SEEDS, SEEDS_LONG = range(6), range(6, 1006)


class Shelf(MemoryStore):
    """Calls ``during`` before objects are read or written, and loses some."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def get_many(self, ids: Sequence[Any], into: Sequence[Any]) -> list[Found]:
        self._world.during()
        found = super().get_many(ids, into)
        return [Found(Verdict.INTEGRITY) if self._world.chance.random() < 0.03 else one for one in found]

    def put_many(self, items: Sequence[Any], *, at_epoch: int | None = None) -> int:
        self._world.during()
        return super().put_many(items, at_epoch=at_epoch)


class Interrupted(Manager):
    """Others come in before parts of slots are read and written: no lock is held there."""

    world: World | None = None

    def read(self, *given: Any, **named: Any) -> npt.NDArray[np.uint8]:
        if self.world is not None:
            self.world.during()
        return super().read(*given, **named)

    def write(self, *given: Any, **named: Any) -> None:
        if self.world is not None:
            self.world.during()
        super().write(*given, **named)


@dataclass
class Writing:
    """A fill, and what an engine has launched for it on some stream."""

    keys: Keys
    fill: Fill
    stream: int
    launched: list[tuple[Held, list[Any]]]


@dataclass
class Reading:
    """What an engine's own launches copy from a lease, on some stream."""

    lease: Lease
    stream: int
    mark: LaggingMark
    parts: list[tuple[str, Held, Any, list[int]]]


class World:
    """A manager over a lagging device, and what is open on it; ``wrong`` says what nobody may ever see."""

    def __init__(self, seed: int, model: str, *, failing: bool = False) -> None:
        self.chance = random.Random(seed)
        self.launcher = LaggingLauncher(self.chance, pace=self.chance.choice((0.0, 0.02, 0.1, 0.4)))
        self.profile = PROFILES[model]
        self.backend = KernelBackend(self.launcher, staged_bytes=self.chance.choice((1 << 11, 1 << 16)), entries=8)
        self.slots = {kind: self.chance.randint(3, 6) for kind in self.profile.kinds}
        buffers = self.backend.arenas(self.profile, self.slots)
        store = Shelf(self)
        self.manager = Interrupted(
            self.profile, self.slots, self.backend, buffers=buffers, store=store, cold=3, rows=2,
            writes=self.chance.choice(("write_through", "none")),
        )  # fmt: skip
        self.manager.world = self
        granule = self.profile.granule
        prompts = [list(range(n, n + GRANULES * granule + 1)) for n in range(2)]
        salts = (b"a", b"b")
        self.keys = [self.manager.keys(prompt, salt=salt) for prompt in prompts for salt in salts]
        self.leases: list[tuple[Keys, Lease]] = []
        self.fills: list[Writing] = []
        self.readings: list[Reading] = []
        self.tickets: list[tuple[Keys, Ticket]] = []
        self.rows: list[int] = []
        self.refusals: list[tuple[Held, list[Any]]] = []  # of published fills' launches
        self.depth = 0
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.ended: Callable[[LaggingMark], Done | None] = lambda mark: mark.ended
        self.launcher.failing, self.launcher.unmarked = (0.01, 0.01) if failing else (0.0, 0.0)

    def during(self) -> None:
        """Others come in, on streams of theirs."""
        while self.depth < DEPTH and self.chance.random() < 0.2:
            self.step()

    def step(self) -> None:
        """One thing that anybody may do now."""
        act = self.chance.choice(ACTS)
        self.depth += 1
        try:
            with self.launcher.on(self.chance.randrange(STREAMS)):
                act(self)
            self.done[act.__name__] += 1
        except Refused as refused:
            self.done[f"{act.__name__}: {refused.refusal.name}"] += 1
        except Busy:
            self.done[f"{act.__name__}: busy"] += 1
        finally:
            self.depth -= 1
        self.wrong += self.manager.audit().violations

    def any_of(self, held: list[Any]) -> Any:
        """One of what is open, taken out; None when nothing is."""
        return held.pop(self.chance.randrange(len(held))) if held else None

    def prompt(self) -> Keys:
        return self.chance.choice(self.keys)

    def end(self) -> None:
        """Everybody gives back what he holds, and the device comes to its end."""
        self.launcher.failing = self.launcher.unmarked = 0.0
        self.depth = DEPTH
        for held, give_back in (
            (self.readings, look), (self.leases, release), (self.fills, abandon), (self.tickets, give_up_load),
            (self.rows, end_row),
        ):  # fmt: skip
            while held:
                try:
                    give_back(self)
                except Refused as refused:  # the memory has gone meanwhile
                    assert refused.refusal.name == "STALE"
        self.backend.send_words()
        self.launcher.synchronise()
        for held, _ in self.refusals:
            if held.refusals.download().any():
                self.wrong.append(f"{held.check.kind}: a writer was refused what he held")
        for kind in self.profile.kinds:
            self.manager.evict(kind, 99)
        self.backend.send_words()
        self.wrong += self.manager.audit().violations
        self.check_words()

    def check_words(self) -> None:
        """The device has the host's words, without pins."""
        words, memory = self.backend.words, self.backend.words._words.download()
        for kind, pool in self.manager.core.pools.items():
            number = MACHINES.index(kind)
            found = memory[words.first[number] : words.first[number + 1]]
            pins = KINDS[kind].LAYOUT.field("pins")
            told = ~only_for_holders(kind, pool.table.words)
            if (found != pool.table.words & ~np.uint64(pins.mask << pins.shift))[told].any():
                self.wrong.append(f"{kind}: the device has other words than the host")


def acquire(world: World) -> None:
    keys = world.prompt()
    answer = world.manager.match(keys)
    if answer.now:
        world.leases.append((keys, world.manager.acquire(answer)))


def read(world: World) -> None:
    """By views, with the lease held afterwards or given back."""
    if world.leases:
        keys, lease = world.any_of(world.leases)
        world.leases.append((keys, lease))
        try:
            world.wrong += wrong_bytes(keys, lease)
        except Refused as refused:
            if lease.lease_id in world.manager.receipts:
                world.wrong.append(f"a reader was refused what he holds: {refused}")
            raise


def release(world: World) -> None:
    if world.leases:
        _, lease = world.any_of(world.leases)
        world.manager.release(lease)


def read_by_launches(world: World) -> None:
    """As an engine copies what it leases: its launches come later, and it says when they have ended."""
    if not world.leases:
        return
    keys, lease = world.any_of(world.leases)
    if not lease.exact:
        world.leases.append((keys, lease))
        return
    parts = []
    try:
        for kind in lease.slots:
            held = world.backend.held(lease, kind)
            places = world.manager.core.places(kind, lease.length // world.profile.granule)
            for part in world.profile.layouts[kind].parts[:2]:
                pages, size = world.backend.pages(kind, part.layer, part.name), part.payload_bytes
                out = world.launcher.empty((held.most, size), np.uint8)
                world.launcher.launch(gather_plan(held.entries(pages), size, out.pointer, held.check))
                parts.append((kind, held, out, tags(world.manager, keys, kind, places)))
        mark = world.launcher.mark()
    except BaseException:
        world.leases.append((keys, lease))
        world.launcher.synchronise()  # what failed is known to have ended, whatever was launched of it
        raise
    world.readings.append(Reading(lease, world.launcher.stream, mark, parts))
    world.manager.release(lease, done=world.ended(mark))


def look(world: World) -> None:
    """What such launches have copied."""
    if not world.readings:
        return
    reading = world.any_of(world.readings)
    with world.launcher.on(reading.stream):
        for kind, held, out, expected in reading.parts:
            if held.refusals.download().any():
                world.wrong.append(f"{kind}: a reader was refused what he held")
            elif out.download().tolist() != [[tag] * out.download().shape[1] for tag in expected]:
                world.wrong.append(f"{kind}: a launch has read bytes of something else")


def reserve(world: World) -> None:
    """Behind what is there, or anywhere."""
    keys = world.prompt()
    start = world.manager.match(keys).now // world.profile.granule
    if start == GRANULES or world.chance.random() < 0.2:
        start = world.chance.randrange(GRANULES)
    fill = world.manager.reserve(keys, start, world.chance.randint(start + 1, GRANULES))
    made = Writing(keys, fill, world.launcher.stream, [])
    try:
        if world.chance.random() < 0.5:
            write(keys, fill)
        else:
            write_by_launches(world, made)
    except BaseException:
        world.launcher.synchronise()  # whatever was launched of it
        with contextlib.suppress(Refused):  # the memory has gone meanwhile
            world.manager.abandon(fill)
        raise
    world.fills.append(made)


def write_by_launches(world: World, made: Writing) -> None:
    """As an engine computes into what it fills."""
    keys, fill = made.keys, made.fill
    every = {kind: world.backend.held(fill, kind) for kind in fill.kinds}
    for kind, held in every.items():
        buffers: list[Any] = []
        named = tags(world.manager, keys, kind, fill.places[kind])
        for part in world.profile.layouts[kind].parts:
            pages, size = world.backend.pages(kind, part.layer, part.name), part.payload_bytes
            data = world.launcher.upload(np.repeat(np.array(named, np.uint8), size).reshape(-1, size))
            world.launcher.launch(scatter_plan(held.entries(pages), size, data.pointer, held.check))
            buffers.append(data)
        made.launched.append((held, buffers))


def publish(world: World) -> None:
    """On the stream on which it was written."""
    if not world.fills:
        return
    made = world.any_of(world.fills)
    with world.launcher.on(made.stream):
        try:
            world.manager.publish(made.fill)
        except BaseException:
            if world.manager.fills.get(made.fill.fill_id) is made.fill:
                world.fills.append(made)
            raise
    world.refusals += made.launched


def abandon(world: World) -> None:
    if world.fills:
        made = world.any_of(world.fills)
        with world.launcher.on(made.stream):
            mark = world.launcher.mark() if made.launched else None
            try:
                world.manager.abandon(made.fill, done=None if mark is None else mark.ended)
            except Refused:
                if world.manager.fills.get(made.fill.fill_id) is made.fill:
                    world.fills.append(made)
                raise
            world.refusals += made.launched if mark is None else []


def load(world: World) -> None:
    keys = world.prompt()
    answer = world.manager.match(keys)
    if answer.plan is not None:
        world.tickets.append((keys, world.manager.load_begin(answer.plan)))


def transfer(world: World) -> None:
    if world.tickets:
        world.any_of(world.tickets)[1].transfer()


def bring(world: World) -> None:
    """A mover of one's own brings what a load waits for, behind the clearing of its targets."""
    if not world.tickets:
        return
    keys, ticket = world.any_of(world.tickets)
    if any(batch.begin != "load_begin" for batch in ticket.batches):
        world.tickets.append((keys, ticket))
        return
    try:
        world.backend.send_words()
    except BaseException:
        world.tickets.append((keys, ticket))
        raise
    for batch in ticket.batches:
        write_by_address(world.manager, batch.kind, batch.slots, tags(world.manager, keys, batch.kind, batch.places))
        for _ in range(batch.layers):
            ticket.land(batch.kind)
    ticket.done()


def give_up_load(world: World) -> None:
    if world.tickets:
        _, ticket = world.any_of(world.tickets)
        ticket.abort()
        ticket.quiesce()


def pack(world: World) -> None:
    world.manager.pack(world.prompt(), world.chance.randrange(GRANULES))


def expand(world: World) -> None:
    world.manager.expand(world.prompt())


def persist(world: World) -> None:
    with contextlib.suppress(EpochEnded):
        world.manager.persist(world.prompt(), world.chance.randrange(GRANULES))


def evict(world: World) -> None:
    world.manager.evict(world.chance.choice(world.profile.kinds), world.chance.randint(1, 4))


def expire(world: World) -> None:
    world.manager.expire(world.prompt(), world.chance.randint(0, GRANULES))


def reset(world: World) -> None:
    if world.chance.random() < 0.2:
        world.manager.reset(scrub=world.chance.random() < 0.5)


def move(world: World) -> None:
    """The memory moves with what is cached; or all goes that anybody holds."""
    void = world.chance.random() < 0.3
    with world.launcher.on(world.chance.randrange(STREAMS)):
        buffers = world.backend.arenas(world.profile, world.slots)
    if void:
        if world.readings:
            return
        world.manager.reallocate(world.slots, buffers=buffers, void=True)
        for held in (world.leases, world.fills, world.rows):
            held.clear()  # type: ignore[attr-defined]
    else:
        world.manager.reallocate(buffers=buffers)


def begin_row(world: World) -> None:
    """From a lease, whose boundary is copied, or from the first token."""
    tokens = world.chance.randint(1, GRANULES * world.profile.granule)
    if world.leases and world.chance.random() < 0.5:
        keys, lease = world.any_of(world.leases)
        try:
            row = world.manager.requests.admit(lease.length + 1, lease=lease)
        except BaseException:
            world.leases.append((keys, lease))
            raise
        world.rows.append(row)
    else:
        world.rows.append(world.manager.requests.admit(tokens))


def write_by_address(manager: Manager, kind: str, slots: npt.NDArray[Any], named: Sequence[int]) -> None:
    """As kernels write that know addresses only: whole slots, a byte each. Nothing of the backend is asked."""
    backend, arena, chosen = manager.backend, manager.core.pools[kind].arena, slots.tolist()
    assert isinstance(backend, KernelBackend) and isinstance(backend.launcher, LaggingLauncher)
    memory = backend.launcher.host.buffer_at(Pointer(arena.base, 16))
    assert memory is not None
    whole = memory.array

    def write_there() -> None:
        for slot, tag in zip(chosen, named, strict=True):
            whole[slot * arena.stride : (slot + 1) * arena.stride] = tag

    backend.launcher.put(write_there)


def publish_row(world: World) -> None:
    """A request whose prompt is computed in one step, which is published before the device has ended it."""
    keys, stop, requests = world.prompt(), world.chance.randint(1, GRANULES), world.manager.requests
    row = requests.admit(stop * world.profile.granule, salt=keys.salt)
    try:
        world.backend.send_words()
        for kind in world.profile.kinds:
            if kind in world.manager.core.paged:
                places, slots = np.arange(stop), requests.table(kind, [row])[0]
            else:
                places, slots = requests._publisher._boundary_slots(row, kind, stop)
            write_by_address(world.manager, kind, slots, tags(world.manager, keys, kind, places))
        mark = world.launcher.mark()
        requests.publish(row, keys, done=mark.ended)
    finally:
        world.launcher.unmarked, before = 0.0, world.launcher.unmarked
        requests.finish(row, done=world.launcher.mark().ended)
        world.launcher.unmarked = before


def end_row(world: World) -> None:
    if world.rows:
        row = world.any_of(world.rows)
        if world.manager.requests.active[row]:
            world.manager.requests.finish(row)


ACTS: tuple[Callable[[World], None], ...] = (
    acquire, acquire, acquire, read, read, read_by_launches, read_by_launches, look, look, release, release,
    reserve, reserve, reserve, reserve, publish, publish, publish, abandon, load, load, transfer, bring, give_up_load,
    pack, expand, publish_row, persist, evict, expire, reset, move, begin_row, end_row,
)  # fmt: skip


def run(seed: int, model: str, *, failing: bool = False, plant: Callable[[World], None] | None = None) -> World:
    """A run that ends with the first thing that is wrong."""
    world = World(seed, model, failing=failing)
    if plant is not None:
        plant(world)
    for _ in range(STEPS):
        world.step()
        if world.wrong:
            return world
    world.end()
    return world


def runs(seeds: Sequence[int], model: str, **given: Any) -> Counter[str]:
    """What was done in a run of each seed; fails with the first that goes wrong."""
    done: Counter[str] = Counter()
    for seed in seeds:
        try:
            world = run(seed, model, **given)
        except Exception as error:
            error.add_note(f"seed {seed} of {model}, {given}")
            raise
        assert world.wrong == [], f"seed {seed} of {model}, {given}"
        done += world.done
    print(done)
    return done


@pytest.mark.parametrize("failing", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_whoever_reads_has_his_own_bytes_however_late_the_device_is(model: str, failing: bool) -> None:
    runs(SEEDS, model, failing=failing)


@pytest.mark.long
@pytest.mark.parametrize("failing", [False, True])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("part", range(4))
def test_it_is_so_in_many_runs(part: int, model: str, failing: bool) -> None:
    runs(SEEDS_LONG[part::4], model, failing=failing)


def test_every_step_comes_to_something() -> None:
    done = runs(range(1000, 1020), MODELS[0])
    assert {act.__name__ for act in ACTS} - set(done) == set()


class Unordered(StreamOrder):
    """Planted: launches of others come before or after, as it happens."""

    def behind_current(self) -> None: ...


def deaf(world: World) -> None:
    """Streams don't wait for marks."""
    world.launcher.deaf = True


def unordered(world: World) -> None:
    world.backend._order = Unordered(world.launcher)


def always_ended(world: World) -> None:
    """The engine says at once that its launches have ended."""
    world.ended = lambda mark: None


def unsent(world: World) -> None:
    """The words go to the device when memory is made for them, and never again."""
    world.backend.words.note = lambda *_: None  # type: ignore[method-assign]


@pytest.mark.parametrize("plant", [deaf, unordered, always_ended, unsent])
def test_what_is_planted_is_noticed(plant: Callable[[World], None]) -> None:
    assert any(run(seed, MODELS[0], plant=plant).wrong for seed in range(120))


# ---- one by one ------------------------------------------------------------------------------------------------------


def still(model: str = MODELS[0], slots: int = 4, **given: Any) -> tuple[LaggingLauncher, KernelBackend, Manager]:
    """A manager over a device that goes on only when it is waited for."""
    launcher = LaggingLauncher(random.Random(0), pace=0.0)
    backend = KernelBackend(launcher, staged_bytes=1 << 16, entries=64)
    counts = dict.fromkeys(PROFILES[model].kinds, slots)
    buffers = backend.arenas(PROFILES[model], counts)
    return launcher, backend, Manager(PROFILES[model], counts, backend, buffers=buffers, **given)


def prompt_of(manager: Manager, salt: bytes = b"", granules: int = 2) -> Keys:
    return manager.keys(list(range(granules * manager.profile.granule + 1)), salt=salt)


def launch_writes(backend: KernelBackend, keys: Keys, fill: Fill) -> list[Any]:
    """As an engine writes its fill, with nothing of the backend after it. What is to be kept until it has ended."""
    launcher, kept = backend.launcher, list[Any]()
    every = {kind: backend.held(fill, kind) for kind in fill.kinds}
    for kind, held in every.items():
        named = np.array(tags(fill.manager, keys, kind, fill.places[kind]), np.uint8)
        for part in fill.layouts[kind].parts:
            pages, size = backend.pages(kind, part.layer, part.name), part.payload_bytes
            data = launcher.upload(np.repeat(named, size).reshape(-1, size))
            launcher.launch(scatter_plan(held.entries(pages), size, data.pointer, held.check))
            kept += [held, data]
    return kept


def lease_of(manager: Manager, keys: Keys) -> Lease:
    return manager.acquire(manager.match(keys))


def test_a_reader_on_another_stream_comes_after_what_a_writer_launched_before_he_published() -> None:
    launcher, backend, manager = still()
    keys = prompt_of(manager)
    fill = manager.reserve(keys, 0, 2)
    kept = launch_writes(backend, keys, fill)
    manager.publish(fill)
    with launcher.on(1), lease_of(manager, keys) as lease:
        assert wrong_bytes(keys, lease) == []
    assert not any(one.refusals.download().any() for one in kept if isinstance(one, Held))


def test_a_word_that_was_sealed_comes_after_what_was_launched_while_it_was_not() -> None:
    """Else the launches find a sealed slot, and leave it alone."""
    launcher, backend, manager = still()
    keys = prompt_of(manager)
    fill = manager.reserve(keys, 0, 2)
    kept = launch_writes(backend, keys, fill)
    manager.publish(fill)
    with launcher.on(1):
        backend.send_words()
        launcher.finish()
    assert not any(one.refusals.download().any() for one in kept if isinstance(one, Held))


def test_a_word_that_is_sealed_while_words_are_sent_comes_after_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread publishes when this one has begun to send, and has waited for whom there was to wait for."""
    launcher, backend, manager = still()
    keys = prompt_of(manager)
    fill = manager.reserve(keys, 0, 2)
    kept = launch_writes(backend, keys, fill)
    give_back = backend.words._give_back

    def publish() -> None:
        monkeypatch.undo()
        with launcher.on(0):
            manager.publish(fill)
        give_back()

    monkeypatch.setattr(backend.words, "_give_back", publish)
    with launcher.on(1):
        backend.send_words()
        launcher.finish()
    assert not any(one.refusals.download().any() for one in kept if isinstance(one, Held))


def test_who_gets_a_slot_that_a_publication_did_not_need_writes_after_what_was_launched_for_it() -> None:
    """Others had published the same meanwhile. The device has the words of before still, by which it lets that in."""
    launcher, backend, manager = still(scrub="none")
    keys, others = prompt_of(manager), prompt_of(manager, b"b")
    first, second = manager.reserve(keys, 0, 2), manager.reserve(keys, 0, 2)
    write(keys, first)
    manager.publish(first)
    launcher.synchronise()
    kept = launch_writes(backend, keys, second)
    manager.publish(second)
    with launcher.on(1):
        third = manager.reserve(others, 0, 2)
        assert set(third.slots["compressed_kv"].tolist()) == set(second.slots["compressed_kv"].tolist())
        write(others, third)
        manager.publish(third)
        launcher.finish()
    launcher.synchronise()
    with launcher.on(1), lease_of(manager, others) as lease:
        assert wrong_bytes(others, lease) == []
    del kept


def test_memory_that_somebody_used_on_another_stream_is_copied_to_after_that() -> None:
    launcher, backend, manager = still()
    keys = prompt_of(manager)
    fill = manager.reserve(keys, 0, 2)
    write(keys, fill)
    manager.publish(fill)
    with launcher.on(1):
        buffers = backend.arenas(manager.profile, dict.fromkeys(manager.profile.kinds, 4))
    with launcher.on(2):
        manager.reallocate(buffers=buffers)
    with lease_of(manager, keys) as lease:
        assert wrong_bytes(keys, lease) == []


def test_a_target_that_was_cleared_without_a_mark_gets_its_bytes_after_that() -> None:
    launcher, _, manager = still(store=MemoryStore())
    keys = prompt_of(manager)
    answer = stored(manager, keys)
    launcher.unmarked = 1.0
    ticket = manager.load_begin(answer.plan)
    launcher.unmarked = 0.0
    with launcher.on(1):
        ticket.transfer()
        launcher.finish()
    launcher.synchronise()
    with lease_of(manager, keys) as lease:
        assert wrong_bytes(keys, lease) == []


def test_slots_are_protected_from_launches_without_a_mark() -> None:
    """What was launched is known to have ended, or the slots wait for it."""
    launcher, backend, manager = still()
    keys = prompt_of(manager)
    fill = manager.reserve(keys, 0, 2)
    write(keys, fill)
    manager.publish(fill)
    lease = lease_of(manager, keys)
    launcher.synchronise()
    launcher.unmarked = 1.0
    with contextlib.suppress(Busy):
        backend.send_words()
    assert launcher.queues[0]
    manager.release(lease)
    assert manager.parked or not launcher.queues[0]


def stored(manager: Manager, keys: Keys) -> Any:
    """What a match answers of a prompt that only the store has."""
    fill = manager.reserve(keys, 0, 2)
    write(keys, fill)
    manager.publish(fill)
    for kind in manager.profile.kinds:
        manager.evict(kind, 99)
    return manager.match(keys)


def test_a_layer_that_landed_is_used_after_what_brought_it_on_another_stream() -> None:
    launcher, backend, manager = still(store=MemoryStore())
    keys, kind = prompt_of(manager), "compressed_kv"
    ticket = manager.load_begin(stored(manager, keys).plan)
    slots, part = ticket.slots(kind), manager.profile.layouts[kind].parts[0]
    write_by_address(manager, kind, slots, [1] * len(slots))
    ticket.land(kind)
    out, ids = launcher.empty((len(slots), part.payload_bytes), np.uint8), launcher.upload(slots.astype(np.int32))
    write_by_address(manager, kind, slots, [7] * len(slots))  # the last of it
    ticket.land(kind)
    with launcher.on(1):
        assert ticket.use_layer(1) is None
        entries = Entries(*backend.pages(kind, part.layer, part.name), ids.pointer, len(slots))
        launcher.launch(gather_plan(entries, part.payload_bytes, out.pointer))
        assert (out.download() == 7).all()


def target_not_cleared() -> tuple[LaggingLauncher, KernelBackend, Manager, Keys, Ticket]:
    """A load whose launch that clears its target has failed."""
    launcher, backend, manager = still(store=MemoryStore())
    keys = prompt_of(manager)
    answer = stored(manager, keys)
    launcher.failing = 1.0
    ticket = manager.load_begin(answer.plan)
    launcher.failing = 0.0
    return launcher, backend, manager, keys, ticket


def test_a_target_that_was_not_cleared_is_left_alone_once_it_is_somebody_elses() -> None:
    _, _, manager, keys, ticket = target_not_cleared()
    ticket.abort()
    ticket.quiesce()
    fill = manager.reserve(keys, 0, 2)
    for kind in fill.kinds:
        write_by_address(manager, kind, fill.slots[kind], [7] * len(fill.slots[kind]))
    manager.publish(fill)
    with lease_of(manager, keys) as lease:
        for kind, part in manager.profile.tensors():
            assert (lease.view(kind, part.name, part.layer) == 7).all()


def test_a_target_that_was_not_cleared_is_left_alone_once_its_bytes_have_come() -> None:
    """By a mover of one's own."""
    _, _, manager, keys, ticket = target_not_cleared()
    for kind in manager.profile.kinds:
        write_by_address(manager, kind, ticket.slots(kind), [7] * len(ticket.slots(kind)))
        for _ in range(max(batch.layers for batch in ticket.batches if batch.kind == kind)):
            ticket.land(kind)
    ticket.done()
    with lease_of(manager, keys) as lease:
        for kind, part in manager.profile.tensors():
            assert (lease.view(kind, part.name, part.layer) == 7).all()


@pytest.mark.parametrize("what", ["fill", "lease"])
def test_entries_of_memory_that_goes_meanwhile_are_refused(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new slots are another tenant's, in generations of the same numbers: no launch would be kept from them."""
    _, backend, manager = still()
    keys, others = prompt_of(manager, b"a"), prompt_of(manager, b"b")
    holder: Fill | Lease = manager.reserve(keys, 0, 2)
    if what == "lease":
        assert isinstance(holder, Fill)
        manager.publish(holder)
        holder = lease_of(manager, keys)

    def move() -> None:
        monkeypatch.undo()
        counts = dict.fromkeys(manager.profile.kinds, 4)
        manager.reallocate(counts, buffers=backend.arenas(manager.profile, counts), void=True)
        manager.reserve(others, 0, 2)
        backend.words.send()

    monkeypatch.setattr(backend.words, "send", move)
    with pytest.raises(Refused, match="STALE"):
        backend.held(holder, "compressed_kv")


def test_a_target_that_was_not_cleared_is_kept_until_it_is() -> None:
    """Whoever gets its memory next has nothing cleared there, though the manager has gone."""
    launcher, backend, manager, _, ticket = target_not_cleared()
    arena = manager.core.pools["swa_window"].arena
    memory = launcher.host.buffer_at(Pointer(arena.base, 16))
    assert memory is not None
    del manager, arena, ticket
    gc.collect()
    launcher.synchronise()
    counts = dict.fromkeys(PROFILES[MODELS[0]].kinds, 4)
    other = Manager(PROFILES[MODELS[0]], counts, backend, buffers=backend.arenas(PROFILES[MODELS[0]], counts))
    launcher.synchronise()
    assert (memory.array == FOREIGN).all()
    assert other.audit().ok


def test_a_view_of_a_fill_whose_memory_goes_meanwhile_shows_nobody_elses_bytes() -> None:
    _, backend, manager = still()
    keys, others = prompt_of(manager, b"a"), prompt_of(manager, b"b")
    fill, real = manager.reserve(keys, 0, 2), manager.read

    def read_later(*given: Any) -> npt.NDArray[np.uint8]:
        manager.read = real  # type: ignore[method-assign]
        counts = dict.fromkeys(manager.profile.kinds, 4)
        manager.reallocate(counts, buffers=backend.arenas(manager.profile, counts), void=True)
        other = manager.reserve(others, 0, 2)
        write(others, other)
        manager.publish(other)
        return real(*given)

    manager.read = read_later  # type: ignore[method-assign]
    part = fill.layouts["compressed_kv"].parts[0]
    with pytest.raises(Refused, match="STALE"):
        fill.view("compressed_kv", part.name, part.layer)


@pytest.mark.parametrize("how", ["void", "abandoned"])
def test_what_a_fill_stages_goes_to_nobody_elses_slots(how: str) -> None:
    """It ends, and its slots are taken by another tenant, between two writes of its parts."""
    _, backend, manager = still(slots=2)
    keys, others = prompt_of(manager, b"a"), prompt_of(manager, b"b")
    fill = manager.reserve(keys, 0, 2)
    write(keys, fill)
    written, published = manager.write, []

    def then(*given: Any) -> None:
        written(*given)
        manager.write = written  # type: ignore[method-assign]
        with contextlib.suppress(Refused):
            if how == "void":
                counts = dict.fromkeys(manager.profile.kinds, 2)
                manager.reallocate(counts, buffers=backend.arenas(manager.profile, counts), void=True)
            else:
                manager.abandon(fill)
            other = manager.reserve(others, 0, 2)
            write(others, other)
            manager.publish(other)
            published.append(other)

    manager.write = then  # type: ignore[method-assign]
    with contextlib.suppress(Refused):
        manager.publish(fill)
    for _ in published:
        with lease_of(manager, others) as lease:
            assert wrong_bytes(others, lease) == []
    assert manager.audit().ok
    if how == "abandoned":
        manager.abandon(manager.reserve(others, 0, 2))  # its slots are free once all is written
