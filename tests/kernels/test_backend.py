"""A manager over slots that the host can't touch: every byte goes through kernels, which run on the host here."""

from __future__ import annotations

import ctypes
import gc
import itertools
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kvfsm.kernels.backend import AT_ITS_EVENT, BY_THE_ENGINE, WITH_A_READ, WITH_BYTES, KernelBackend
from kvfsm.kernels.call_refusal import CallRefusal
from kvfsm.kernels.catalogue import catalogue
from kvfsm.kernels.launch import LaunchPlan, LaunchRefused
from kvfsm.kernels.reading import MACHINES, Check, answers, only_for_holders
from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.answers import Reason
from kvfsm.runtime.arena import Arena, RemoteBytes, RemoteMemory
from kvfsm.runtime.backend import Backend, Device
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.generated import KINDS, Refusal
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.layout import Layout, Part
from kvfsm.runtime.lease import Lease
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.stores.local import LocalStore
from kvfsm.runtime.stores.store import Namespace

from ..hostcuda.building import Build
from ..hostcuda.host import HostLauncher
from ..scenarios.conftest import Bench

PROFILE = PROFILES["tiny_deepseek_v4"]
SLOTS = dict.fromkeys(PROFILE.kinds, 24)
PROMPT = list(range(100))


@dataclass
class Recording(HostLauncher):
    """A host launcher that remembers its launches, and its allocations."""

    def __init__(self, build: Build = Build.FAST) -> None:
        super().__init__(build)
        self.plans: list[LaunchPlan] = []
        self.made = 0
        self.has_ended = True
        self.waited = 0

    def launch(self, plan: LaunchPlan) -> None:
        if not plan.is_empty:
            self.plans.append(plan)
        super().launch(plan)

    def upload(self, array: npt.NDArray[Any]) -> Any:
        self.made += 1
        return super().upload(array)

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Any:
        self.made += 1
        return super().empty(shape, dtype)

    def mark(self) -> Any:
        return Mark(self)

    def wait(self, mark: Any) -> None:
        self.waited += 1

    @property
    def names(self) -> list[str]:
        return [plan.kernel.name for plan in self.plans]


@dataclass
class Mark:
    launcher: Recording

    def ended(self) -> bool:
        return self.launcher.has_ended


@dataclass
class World:
    launcher: Recording
    backend: KernelBackend
    manager: Manager


def world(build: Build = Build.FAST, slots: Mapping[str, int] = SLOTS, **given: Any) -> World:
    launcher = Recording(build)
    backend = KernelBackend(launcher, **{"staged_bytes": 1 << 16, "entries": 64, **given.pop("of", {})})
    manager = Manager(PROFILE, slots, backend, buffers=backend.arenas(PROFILE, slots), **given)
    launcher.plans.clear()
    return World(launcher, backend, manager)


def pattern(kind: str, part: Part, shape: tuple[int, ...], seed: int = 0) -> npt.NDArray[np.uint8]:
    rng = np.random.default_rng([seed, part.offset, part.layer, list(KINDS).index(kind)])
    return rng.integers(0, 256, shape, np.uint8)


def publish(manager: Manager, prompt: list[int] = PROMPT, seed: int = 0, salt: bytes = b"") -> None:
    """Three granules, every part of every layer with bytes of its own."""
    keys = manager.keys(prompt, salt=salt)
    fill = manager.reserve(keys, 0, len(prompt) // PROFILE.granule)
    for kind, layout in PROFILE.layouts.items():
        for part in layout.parts if kind in fill.slots else ():
            view = fill.view(kind, part.name, part.layer)
            view[:] = pattern(kind, part, view.shape, seed)
    manager.publish(fill)


def read(manager: Manager, prompt: list[int] = PROMPT, salt: bytes = b"") -> dict[tuple[str, str, int], bytes]:
    """All that a lease holds."""
    answer = manager.match(manager.keys(prompt, salt=salt), len(prompt))
    assert answer.kind == "HIT"
    with manager.acquire(answer) as lease:
        return read_by(lease)


def held(manager: Manager) -> Lease:
    """A lease on all that ``publish`` published."""
    return manager.acquire(manager.match(manager.keys(PROMPT), len(PROMPT)))


def read_by(lease: Lease) -> dict[tuple[str, str, int], bytes]:
    """All that a lease holds."""
    return {
        (kind, part.name, part.layer): lease.view(kind, part.name, part.layer).tobytes()
        for kind in lease.slots
        for part in PROFILE.layouts[kind].parts
    }


def numpy_manager(**given: Any) -> Manager:
    return Manager(PROFILE, SLOTS, NumpyBackend(), **given)


def test_it_is_a_backend_and_a_device() -> None:
    made: Backend = KernelBackend(HostLauncher())
    assert isinstance(made, Device)
    assert not isinstance(NumpyBackend(), Device)


@pytest.mark.parametrize("build", [Build.FAST, Build.CHECK])
def test_what_is_published_is_read_byte_for_byte(build: Build) -> None:
    here, there = world(build), numpy_manager()
    for manager in (here.manager, there):
        publish(manager)
    assert read(here.manager) == read(there)
    assert {"scatter", "put_words", "validate_pin", "gather", "unpin"} <= set(here.launcher.names)
    assert here.manager.audit().ok


@pytest.mark.parametrize(("staged_bytes", "entries"), [(16, 1), (1000, 2), (1 << 12, 3), (1 << 20, 64)])
def test_small_buffers_only_mean_more_turns(staged_bytes: int, entries: int) -> None:
    here, there = world(of={"staged_bytes": staged_bytes, "entries": entries}), numpy_manager()
    for manager in (here.manager, there):
        publish(manager)
    assert read(here.manager) == read(there)


def test_a_read_is_pinned_copied_and_given_back_in_that_order() -> None:
    here = world()
    publish(here.manager)
    answer = here.manager.match(here.manager.keys(PROMPT), len(PROMPT))
    with here.manager.acquire(answer) as lease:
        here.launcher.plans.clear()
        lease.view("compressed_kv", "entries", 2)
        sent = [name for name in here.launcher.names if name == "put_words"]
        assert here.launcher.names == [*sent, "validate_pin", "gather", "unpin"]
        assert sent  # the lease's own pin, and those of its other kinds
        here.launcher.plans.clear()
        lease.view("compressed_kv", "entries", 4)
        assert here.launcher.names == ["validate_pin", "gather", "unpin"]  # no word has changed
        (gather,) = (plan for plan in here.launcher.plans if plan.kernel.name == "gather")
        pinned = here.launcher.plans[0]
        assert gather.value("refusals") == pinned.value("leases")
        assert gather.value("words") == here.backend.words.of("compressed_kv")


def words_on_the_device(here: World) -> dict[str, npt.NDArray[np.uint64]]:
    here.backend.send_words()
    buffer = here.launcher.buffer_at(here.backend.words.pointer)
    assert buffer is not None
    every, first = buffer.download(), here.backend.words.first
    return {
        kind: every[first[number] : first[number + 1]]
        for number, kind in enumerate(MACHINES)
        if kind in here.manager.core.pools
    }


def without_pins(kind: str, words: npt.NDArray[np.uint64]) -> list[int]:
    pins = KINDS[kind].LAYOUT.field("pins")
    return (words & ~np.uint64(pins.mask << pins.shift)).tolist()


def check_words(here: World) -> None:
    """The device's words are the host's, but for pins; of those it has none.

    Where nobody but those who hold a slot may read it, the device has the word of before, by which they do.
    """
    for kind, words in words_on_the_device(here).items():
        table = here.manager.core.pools[kind].table
        held = only_for_holders(kind, table.words)
        assert words.tolist() == without_pins(kind, words)
        assert words[~held].tolist() == without_pins(kind, table.words[~held])
        check = Check(kind, words, table.fields("generation")[held], np.zeros(held.sum(), np.uint8))
        assert not answers(check, np.flatnonzero(held)).any()


def test_words_follow_those_of_the_host() -> None:
    here = world(cold=4)
    check_words(here)
    publish(here.manager)
    check_words(here)
    keys = here.manager.keys(PROMPT)
    with here.manager.acquire(here.manager.match(keys)):
        check_words(here)
    here.manager.pack(keys)
    check_words(here)
    here.manager.expand(keys)
    here.manager.evict("swa_window", 2)
    check_words(here)
    here.manager.reset(scrub=True)
    publish(here.manager, seed=1)
    check_words(here)
    fewer = dict.fromkeys(PROFILE.kinds, 12)
    here.manager.reallocate(fewer, buffers=here.backend.arenas(PROFILE, fewer), void=True)
    check_words(here)
    publish(here.manager, seed=2)
    check_words(here)


def test_words_that_nobody_sent_are_seen() -> None:
    here = world()
    publish(here.manager)
    buffer = here.launcher.buffer_at(here.backend.words.pointer)
    assert buffer is not None
    here.backend.send_words()
    changed = buffer.download()
    changed[0] ^= np.uint64(1 << 20)
    buffer.write(changed)
    with pytest.raises(AssertionError):
        check_words(here)


def test_a_slot_whose_generation_moved_is_refused_by_the_launch_that_copies_it() -> None:
    here = world()
    publish(here.manager)
    pool, part = here.manager.core.pools["compressed_kv"], PROFILE.layouts["compressed_kv"].parts[0]
    with here.manager.acquire(here.manager.match(here.manager.keys(PROMPT))) as lease:
        slots = lease.slots["compressed_kv"]
        leased = pool.generations(slots)
        here.manager.read("compressed_kv", part.name, part.layer, slots, leased)
        with pytest.raises(Refused) as refused:
            here.manager.read("compressed_kv", part.name, part.layer, slots, leased - [0, 1, 0])
        assert (refused.value.refusal, refused.value.layer) == (Reason.STALE, "device")
        codes = here.launcher.buffer_at(here.backend.words._leases.pointer)
        assert codes is not None
        assert codes.download(3).tolist() == [CallRefusal.RELEASED, Refusal.STALE, CallRefusal.RELEASED]
        assert lease.view("compressed_kv", part.name, part.layer).any()  # and nothing of it is left
    check_words(here)


@pytest.mark.parametrize("never", [-1, -(2**40), 1 << 20, 2**32, 2**32 + 1, 2**63 - 1])
def test_a_generation_that_there_never_is_is_stale(never: int) -> None:
    here = world()
    publish(here.manager)
    pool, part = here.manager.core.pools["compressed_kv"], PROFILE.layouts["compressed_kv"].parts[0]
    with held(here.manager) as lease:
        slots = lease.slots["compressed_kv"]
        leased = [*pool.generations(slots)[:2].tolist(), never]
        assert leased[:2] == [1, 1]  # with 2**32, what 32 bits take for it
        with pytest.raises(Refused) as refused:
            here.manager.read("compressed_kv", part.name, part.layer, slots, np.array(leased))
        assert (refused.value.refusal, refused.value.layer) == (Reason.STALE, "device")
        check = Check("compressed_kv", pool.table.words, np.array(leased), np.zeros(3, np.uint8))
        assert answers(check, slots).tolist() == [0, 0, Refusal.STALE]  # as over words of the host
    check_words(here)


def test_what_is_no_slot_or_no_generation_is_not_read() -> None:
    here = world()
    publish(here.manager)
    region = here.manager.core.pools["compressed_kv"].arena.region
    one = np.ones(1, np.int64)
    for slot in (-1, 24, 2**32):
        with pytest.raises(IndexError, match=r"there is no slot -?\d+ in an arena of 24; fix: pass slots of \[0, 24\)"):
            here.backend.read("compressed_kv", region, np.array([slot]), one)
    with pytest.raises(TypeError, match="generations are given as float64; fix: pass whole numbers"):
        here.backend.read("compressed_kv", region, np.array([0]), 1.5 * one)
    with pytest.raises(ValueError, match=r"2 slots are given generations \[1\]; fix: pass one each"):
        here.backend.read("compressed_kv", region, np.array([0, 1]), one)
    found, code = here.backend.read("compressed_kv", region, np.empty(0, np.intp), np.empty(0, np.int64))
    assert found.shape == (0, region.shape[1]) and code == 0
    check_words(here)


def test_a_slot_that_nobody_may_read_is_refused_by_the_launch() -> None:
    here = world()
    fill = here.manager.reserve(here.manager.keys(PROMPT), 0, 3)
    slots, generations = fill.slots["compressed_kv"], fill.generations["compressed_kv"]
    pool = here.manager.core.pools["compressed_kv"]
    found, code = here.backend.read("compressed_kv", pool.arena.region, slots, generations)
    assert Refusal(code) is Refusal.BUSY and found.shape == (3, pool.arena.stride)


def endings(kind: str) -> list[str]:
    """Events after which a sealed slot that is held is read by those who hold it, and by nobody new."""
    table, found = KINDS[kind], []
    for name, event in table.EVENTS.items():
        slot = table.SLOT(table.LAYOUT.pack(state=table.STATES["RESIDENT"], pins=1, generation=1))
        given = {argument.name: int(argument.name == "expected") for argument in event.given}
        if slot.fire(name, **given) is None and only_for_holders(kind, np.array([slot.word], np.uint64)).any():
            found.append(name)
    return found


ENDINGS = [(kind, event) for kind in PROFILE.kinds for event in endings(kind)]


def test_slots_end_under_their_leases_in_these_ways() -> None:
    assert set(PROFILE.kinds) == {kind for kind, _ in ENDINGS}
    assert ("indexer_state", "fall_behind") in ENDINGS and ("swa_window", "expire") in ENDINGS


@pytest.mark.parametrize(("kind", "event"), ENDINGS)
@pytest.mark.parametrize("sent", [False, True])
def test_a_lease_reads_on_whatever_becomes_of_its_slots(kind: str, event: str, sent: bool) -> None:
    here, there = world(), numpy_manager()
    found = []
    for manager in (here.manager, there):
        publish(manager)
        lease, pool = held(manager), manager.core.pools[kind]
        if sent and manager is here.manager:
            here.backend.send_words()
        slots, generations = lease.slots[kind], pool.generations(lease.slots[kind])
        pool.must(event, slots, "test", expected=generations)
        found.append(read_by(lease))
        if manager is here.manager:
            check_words(here)
        manager.release(lease)
    assert found[0] == found[1]
    pool = here.manager.core.pools[kind]
    assert not only_for_holders(kind, pool.table.words).any()
    check_words(here)
    _, code = here.backend.read(kind, pool.arena.region, slots, generations)
    pin = dict.fromkeys((given.name for given in KINDS[kind].EVENTS["pin"].given), 0)
    codes = pool.table.pin(slots, **pin | {"expected": generations})
    assert code and codes.tolist() == [code] * len(slots)  # as the host refuses it


def test_a_lease_reads_on_after_a_reset() -> None:
    here, there = world(), numpy_manager()
    found = []
    for manager in (here.manager, there):
        publish(manager)
        lease = held(manager)
        manager.reset()
        found.append(read_by(lease))
        if manager is here.manager:
            assert all(only_for_holders(kind, manager.core.pools[kind].table.words).any() for kind in lease.slots)
            check_words(here)
        manager.release(lease)
    assert found[0] == found[1]
    check_words(here)
    for kind, slots in lease.slots.items():
        pool = here.manager.core.pools[kind]
        _, code = here.backend.read(kind, pool.arena.region, slots, pool.generations(slots))
        assert Refusal(code) is Refusal.ILLEGAL  # they are free
    publish(here.manager, seed=1)
    check_words(here)
    assert here.manager.audit().ok


def test_slots_of_two_leases_are_read_until_the_last_has_gone() -> None:
    here = world()
    publish(here.manager)
    expected = read(here.manager)
    first, last = held(here.manager), held(here.manager)
    here.manager.reset()
    here.manager.release(first)
    check_words(here)
    assert read_by(last) == expected
    here.manager.release(last)
    check_words(here)
    assert not any(only_for_holders(kind, pool.table.words).any() for kind, pool in here.manager.core.pools.items())


def failing(launcher: Recording, kernel: str, *, launched: bool) -> Callable[[LaunchPlan], None]:
    """``launch`` of a device that loses launches of a kernel, or carries them out and says that it did not."""
    launch = launcher.launch

    def fail(plan: LaunchPlan) -> None:
        lost = plan.kernel.name == kernel
        if not lost or launched:
            launch(plan)
        if lost:
            raise OSError("the device is busy")

    return fail


@pytest.mark.parametrize("launched", [False, True])
@pytest.mark.parametrize("kernel", ["validate_pin", "gather", "unpin"])
def test_no_pin_stays_on_the_device_whatever_launch_fails(
    kernel: str, launched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = world(slots=dict.fromkeys(PROFILE.kinds, 3))
    publish(here.manager)
    lease = held(here.manager)
    with monkeypatch.context() as patch:
        patch.setattr(here.launcher, "launch", failing(here.launcher, kernel, launched=launched))
        with pytest.raises(OSError, match="busy"):
            lease.view("compressed_kv", "entries", 2)
    here.manager.release(lease)
    here.manager.reset()
    publish(here.manager, seed=1)  # into the same slots
    check_words(here)
    there = numpy_manager()
    publish(there, seed=1)
    assert read(here.manager) == read(there)
    check_words(here)


def test_pins_that_were_not_given_back_go_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    here = world()
    publish(here.manager)
    with held(here.manager) as lease:
        slots = lease.slots["compressed_kv"]
        generations = here.manager.core.pools["compressed_kv"].generations(slots)
        here.backend.send_words()
        with monkeypatch.context() as patch:
            patch.setattr(here.launcher, "launch", failing(here.launcher, "unpin", launched=False))
            with pytest.raises(OSError, match="busy"), here.backend.words.pinned("compressed_kv", slots, generations):
                pass
        with here.backend.words.pinned("compressed_kv", slots[:1], generations[:1]) as pins:
            assert here.backend.words.refusal(pins) == 0
        check_words(here)


def test_words_whose_launch_failed_are_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    here = world()
    publish(here.manager)
    launch = here.launcher.launch

    def fail(plan: LaunchPlan) -> None:
        if plan.kernel.name == "put_words":
            raise OSError("the device is busy")
        launch(plan)

    with monkeypatch.context() as patch:
        patch.setattr(here.launcher, "launch", fail)
        with pytest.raises(OSError, match="busy"):
            here.backend.send_words()
    here.backend.send_words()
    check_words(here)


def test_a_word_that_the_device_kept_is_sent_again() -> None:
    """As after ``put_words`` found a pin there of somebody's launch."""
    here, table = world(), KINDS["compressed_kv"]
    publish(here.manager)
    expected = read(here.manager)
    with here.manager.acquire(here.manager.match(here.manager.keys(PROMPT))) as lease:
        here.backend.send_words()
        buffer = here.launcher.buffer_at(here.backend.words.pointer)
        assert buffer is not None
        words = buffer.download()
        first = int(here.backend.words.first[MACHINES.index("compressed_kv")])
        place = first + int(lease.slots["compressed_kv"][1])
        kept = {**table.LAYOUT.unpack(int(words[place])), "generation": 0}
        words[place] = table.LAYOUT.pack(**kept)
        buffer.write(words)
        here.launcher.plans.clear()
        lease.view("compressed_kv", "entries", 2)
        assert here.launcher.names == [
            "validate_pin",
            "gather",
            "unpin",
            "put_words",
            "validate_pin",
            "gather",
            "unpin",
        ]
    assert read(here.manager) == expected
    check_words(here)


def test_boundaries_are_copied_on_the_device() -> None:
    here, there = world(), numpy_manager()
    tails = []
    for manager in (here.manager, there):
        publish(manager)
        lease = manager.acquire(manager.match(manager.keys(PROMPT), len(PROMPT)))
        before = len(here.launcher.plans)
        row = manager.requests.admit(len(PROMPT), lease=lease)
        if manager is here.manager:
            copied = here.launcher.names[before:]
            assert copied.count("gather") == copied.count("scatter") >= 2
        arena = manager.core.pools["uncompressed_tail"].arena
        tails.append(manager.backend.gather(arena.region, manager.requests.tail_table(np.array([row]))))
    assert tails[0].tolist() == tails[1].tolist() and tails[0].any()
    assert here.manager.audit().ok


def test_every_kernel_that_the_spec_names_is_there_and_has_its_moment() -> None:
    named = {kernel for table in KINDS.values() for kernel in table.KERNELS.values()}
    moments = [*AT_ITS_EVENT, *WITH_A_READ, *WITH_BYTES, *BY_THE_ENGINE]
    assert sorted(moments) == sorted(named) and len(moments) == len(set(moments))
    assert named <= set(catalogue())
    assert set(AT_ITS_EVENT) | {"validate_pin"} == set(KernelBackend._acts)
    for name in WITH_BYTES:
        assert callable(getattr(KernelBackend, f"{name}_slots"))


def test_a_load_clears_its_target_and_looks_at_each_layer_as_it_lands(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, Namespace.of(PROFILE))
    first = numpy_manager(store=store)
    publish(first)
    expected = read(first)
    here = world(store=store)
    keys = here.manager.keys(PROMPT)
    answer = here.manager.match(keys)
    assert answer.plan is not None
    here.launcher.plans.clear()
    ticket = here.manager.load_begin(answer.plan)
    assert here.launcher.names.count("scrub") >= len(PROFILE.kinds)
    here.launcher.plans.clear()
    refusal = ticket.use_layer(2)
    assert refusal is Refusal.PENDING
    assert "revalidate" not in here.launcher.names  # the host refuses, and nothing is launched
    ticket.transfer()
    assert read(here.manager) == expected
    check_words(here)


def test_a_layer_that_has_landed_is_looked_at_on_the_device_too(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, Namespace.of(PROFILE))
    publish(numpy_manager(store=store))
    here = world(store=store)
    answer = here.manager.match(here.manager.keys(PROMPT))
    assert answer.plan is not None
    ticket = here.manager.load_begin(answer.plan)
    layers = sorted({part.layer for kind in here.manager.core.paged for part in PROFILE.layouts[kind].parts})
    for kind in here.manager.core.paged:
        ticket.land(kind, 0)
    here.launcher.plans.clear()
    assert ticket.use_layer(0) is None
    assert here.launcher.names.count("revalidate") == len(here.manager.core.paged)
    assert layers
    words = here.backend.words
    found = words.layer_refusals.download()
    for kind in here.manager.core.paged:
        first, count = int(words.first[list(KINDS).index(kind)]), len(ticket.slots(kind))
        assert count and not found[first : first + count].any()


def test_a_word_that_moved_on_the_device_is_told_of_its_kind_and_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever other kinds answer after it, and in however many launches."""
    store = LocalStore(tmp_path, Namespace.of(PROFILE))
    publish(numpy_manager(store=store))
    here = world(store=store, of={"entries": 2})
    answer = here.manager.match(here.manager.keys(PROMPT))
    assert answer.plan is not None
    ticket = here.manager.load_begin(answer.plan)
    for kind in here.manager.core.paged:
        ticket.land(kind, 0)
    here.backend.send_words()
    words, wrong = here.backend.words, {}
    for entry, kind in enumerate(here.manager.core.paged):
        slot = int(ticket.slots(kind)[entry + 1])
        first = int(words.first[list(KINDS).index(kind)])
        on_device = words.pointer.skip(8 * (first + slot))
        (ctypes.c_uint64 * 1).from_address(on_device.address)[0] = 0
        wrong[first + entry + 1] = int(Refusal.STALE)
    monkeypatch.setattr(words, "send", lambda: None)  # else the host's words would come again
    ticket.use_layer(0)
    found = words.layer_refusals.download()
    used = np.concatenate([
        np.arange(len(ticket.slots(kind))) + int(words.first[list(KINDS).index(kind)])
        for kind in here.manager.core.paged
    ])  # fmt: skip
    assert {int(at): int(found[at]) for at in used if found[at]} == wrong


@pytest.mark.parametrize("launched", [False, True])
def test_a_target_whose_clearing_failed_is_cleared_before_its_bytes_come(tmp_path: Path, launched: bool) -> None:
    store = LocalStore(tmp_path, Namespace.of(PROFILE))
    here = world(store=store)
    publish(here.manager)
    expected = read(here.manager)
    for kind in PROFILE.kinds:
        here.manager.evict(kind, 99)
    answer = here.manager.match(here.manager.keys(PROMPT))
    assert answer.plan is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(here.launcher, "launch", failing(here.launcher, "scrub", launched=launched))
        ticket = here.manager.load_begin(answer.plan)
        assert here.manager.audit().ok
        with pytest.raises(OSError, match="busy"):  # nothing else goes before it
            here.backend.send_words()
    here.launcher.plans.clear()
    ticket.transfer()
    names = here.launcher.names
    assert set(names[: names.count("scrub")]) == {"scrub"} and names.count("scrub") >= len(PROFILE.kinds)
    assert read(here.manager) == expected
    check_words(here)


def test_packed_bytes_are_those_of_the_host_and_expand_to_the_same() -> None:
    here, there = world(Build.CHECK, cold=4), numpy_manager(cold=4)
    for manager in (here.manager, there):
        publish(manager)
        assert manager.pack(manager.keys(PROMPT)) == 3
    assert sorted(here.manager.core.cold_bytes.values()) == sorted(there.core.cold_bytes.values())
    for manager in (here.manager, there):
        manager.expand(manager.keys(PROMPT))
    assert read(here.manager) == read(there)
    assert {"pack", "expand"} <= set(here.launcher.names)


def test_bodies_that_the_buffer_can_not_hold_are_packed_on_the_host() -> None:
    here, there = world(of={"staged_bytes": 512, "entries": 8}, cold=4), numpy_manager(cold=4)
    for manager in (here.manager, there):
        publish(manager)
        manager.pack(manager.keys(PROMPT), lossy=True)
        manager.expand(manager.keys(PROMPT))
    assert read(here.manager) == read(there)
    assert not {"pack", "expand"} & set(here.launcher.names)


def test_what_is_stored_from_the_device_is_what_is_stored_from_the_host(tmp_path: Path) -> None:
    stores = [LocalStore(tmp_path / name, Namespace.of(PROFILE)) for name in ("device", "host")]
    here, there = world(store=stores[0]), numpy_manager(store=stores[1])
    for manager in (here.manager, there):
        publish(manager)
    fresh = [numpy_manager(store=store) for store in stores]
    for manager in fresh:
        plan = manager.match(manager.keys(PROMPT)).plan
        assert plan is not None
        manager.load(plan)
    assert read(fresh[0]) == read(fresh[1])


def test_memory_that_moves_takes_its_bytes_along() -> None:
    here = world()
    publish(here.manager)
    expected = read(here.manager)
    here.manager.reallocate(buffers=here.backend.arenas(PROFILE, SLOTS))
    assert read(here.manager) == expected
    here.manager.reallocate(buffers=on_the_host())
    assert read(here.manager) == expected
    here.manager.reallocate(buffers=here.backend.arenas(PROFILE, SLOTS))  # and back
    assert read(here.manager) == expected
    check_words(here)


class Scarce(Recording):
    """A launcher that has memory for so many buffers more; one that knows which of its arenas are still there."""

    left: int | None = None
    arenas: weakref.WeakSet[Owned]

    def __init__(self) -> None:
        super().__init__()
        self.arenas = weakref.WeakSet()

    def _take(self) -> None:
        if self.left == 0:
            raise MemoryError("the device is full")
        self.left = None if self.left is None else self.left - 1

    def upload(self, array: npt.NDArray[Any]) -> Any:
        self._take()
        return super().upload(array)

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Any:
        self._take()
        made = Owned(super().empty(shape, dtype))
        self.arenas.add(made)
        return made


class Owned:
    """A buffer that goes with whoever has it; the launcher's own list is of what lies beneath."""

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.buffer, name)


def scarce() -> World:
    launcher = Scarce()
    backend = KernelBackend(launcher, staged_bytes=1 << 16, entries=64)
    return World(launcher, backend, Manager(PROFILE, SLOTS, backend, buffers=backend.arenas(PROFILE, SLOTS), cold=4))


FEWER = dict.fromkeys(PROFILE.kinds, 12)


@pytest.mark.parametrize("slots", [None, FEWER])
def test_a_reallocation_without_memory_for_words_changes_nothing(slots: Mapping[str, int] | None) -> None:
    here = scarce()
    assert isinstance(here.launcher, Scarce)
    publish(here.manager)
    aside, expected = here.manager.set_aside(), read(here.manager)
    for left in itertools.count():
        buffers = here.backend.arenas(PROFILE, SLOTS)
        here.launcher.left = left
        try:
            here.manager.reallocate(slots, buffers=buffers)
        except MemoryError:
            here.launcher.left = None
            assert here.manager.memory.epoch == 1 and here.manager.set_aside() == aside
            assert read(here.manager) == expected
            check_words(here)
        else:
            here.launcher.left = None
            break
    assert left >= 3 and here.manager.memory.epoch == 2  # the words, where each kind's begin, and what launches answer
    assert slots is not None or read(here.manager) == expected
    publish(here.manager, seed=1)
    check_words(here)
    assert here.manager.audit().ok


@pytest.mark.parametrize("slots", [None, FEWER])
def test_memory_that_nobody_has_any_more_is_given_back(slots: Mapping[str, int] | None) -> None:
    here = scarce()
    assert isinstance(here.launcher, Scarce)
    publish(here.manager)
    gc.collect()
    before = {id(one) for one in here.launcher.arenas}
    for _ in range(2):
        here.manager.reallocate(slots, buffers=here.backend.arenas(PROFILE, SLOTS))
        gc.collect()
        assert len(here.launcher.arenas) == len(before)
    here.manager.reallocate(buffers=on_the_host())
    gc.collect()
    assert len(here.launcher.arenas) == len(before) - len(SLOTS)
    buffers = here.backend.arenas(PROFILE, SLOTS)
    here.manager.reallocate(buffers=buffers)
    publish(here.manager)
    del here.manager, buffers
    gc.collect()
    assert len(here.launcher.arenas) == len(before) - len(SLOTS)


def test_memory_is_kept_while_an_arena_has_it() -> None:
    backend = KernelBackend(launcher := Scarce())
    made = len(launcher.arenas)
    kind = "compressed_kv"
    arena = Arena(PROFILE.layouts[kind], 4, buffer=backend.arenas(PROFILE, {kind: 4})[kind])
    gc.collect()
    assert len(launcher.arenas) == made + 1
    del arena
    gc.collect()
    assert len(launcher.arenas) == made


def test_a_backend_serves_one_manager_at_a_time() -> None:
    here = world()
    publish(here.manager)
    expected = read(here.manager)
    with pytest.raises(ValueError, match="serves another manager; fix: make one for each, or let go of the other"):
        Manager(PROFILE, SLOTS, here.backend, buffers=here.backend.arenas(PROFILE, SLOTS))
    assert read(here.manager) == expected
    check_words(here)
    here.manager.reallocate(FEWER, buffers=here.backend.arenas(PROFILE, FEWER))
    here.manager.reallocate(buffers=here.backend.arenas(PROFILE, FEWER))
    del here.manager  # and nobody collects it
    here.manager = Manager(PROFILE, SLOTS, here.backend, buffers=here.backend.arenas(PROFILE, SLOTS))
    publish(here.manager)
    assert read(here.manager) == expected
    check_words(here)


@pytest.mark.parametrize("count", [-1, 0, 1.5, "4", True, None])
def test_arenas_of_what_is_no_number_of_slots_are_refused(count: Any) -> None:
    backend = KernelBackend(HostLauncher())
    kind = ValueError if type(count) is int else TypeError
    with pytest.raises(kind, match=r"swa_window slots is .*; give a whole number of at least 1") as refused:
        backend.arenas(PROFILE, {"swa_window": count})
    assert repr(count) in str(refused.value)
    with pytest.raises(ValueError, match=r"'swa'; fix: use kinds of compressed_kv, "):
        backend.arenas(PROFILE, {"swa": 4})


def test_memory_that_launches_can_not_use_is_refused_before_anything_is_launched() -> None:
    here = world()
    publish(here.manager)
    expected = read(here.manager)
    memory = here.backend.arenas(PROFILE, SLOTS)
    off = {**memory, "swa_window": RemoteMemory(memory["swa_window"].address + 8, memory["swa_window"].size)}
    for call in (
        lambda: Manager(PROFILE, SLOTS, KernelBackend(HostLauncher()), buffers=off),
        lambda: here.manager.reallocate(buffers=off),
        lambda: here.manager.reallocate(SLOTS, buffers=off),
    ):
        here.launcher.plans.clear()
        with pytest.raises(ValueError, match=r"swa_window: the memory begins at 0x\w+8; give memory whose address is"):
            call()
        assert here.launcher.plans == []
    assert read(here.manager) == expected and here.manager.memory.epoch == 1


def test_another_tenant_finds_nothing_of_the_last_one() -> None:
    here = world(slots=dict.fromkeys(PROFILE.kinds, 4))
    publish(here.manager, salt=b"a")
    here.manager.reset()
    keys = here.manager.keys(PROMPT, salt=b"b")
    fill = here.manager.reserve(keys, 0, 3)
    for kind in fill.slots:
        for part in PROFILE.layouts[kind].parts:
            assert not fill.view(kind, part.name, part.layer).any()


def test_no_launch_makes_memory() -> None:
    here = world(cold=4)
    made = here.launcher.made
    for seed in range(3):
        publish(here.manager, seed=seed, salt=bytes([seed]))
        read(here.manager, salt=bytes([seed]))
    keys = here.manager.keys(PROMPT, salt=bytes([2]))
    here.manager.pack(keys)
    here.manager.expand(keys)
    assert here.launcher.made == made


def test_what_a_launch_may_still_read_is_given_to_nobody() -> None:
    here = world(slots=dict.fromkeys(PROFILE.kinds, 3))
    publish(here.manager)
    lease = here.manager.acquire(here.manager.match(here.manager.keys(PROMPT)))
    lease.view("compressed_kv", "entries", 2)
    here.launcher.has_ended = False
    here.manager.release(lease)
    assert len(here.manager.parked) == 1
    other = here.manager.keys(list(range(200, 300)))
    with pytest.raises(Refused) as refused:
        here.manager.reserve(other, 0, 3)
    assert refused.value.refusal.name == "POOL_FULL"
    here.launcher.has_ended = True
    here.manager.abandon(here.manager.reserve(other, 0, 3))
    assert not here.manager.parked


def test_calls_are_ordered_after_one_another_on_whatever_stream() -> None:
    here = world()
    publish(here.manager)
    before, waited = len(here.launcher.plans), here.launcher.waited
    read(here.manager)
    assert 0 < here.launcher.waited - waited <= len(here.launcher.plans) - before


def test_threads_read_what_they_lease() -> None:
    here = world()
    publish(here.manager, salt=b"a", seed=1)
    publish(here.manager, salt=b"b", seed=2)
    expected = {salt: read(here.manager, salt=salt) for salt in (b"a", b"b")}
    wrong: list[bytes] = []

    def reader(salt: bytes) -> None:
        for _ in range(5):
            if read(here.manager, salt=salt) != expected[salt]:
                wrong.append(salt)

    threads = [threading.Thread(target=reader, args=(salt,)) for salt in (b"a", b"b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    check_words(here)


def on_the_host() -> dict[str, npt.NDArray[np.uint8]]:
    """Memory for all slots."""
    return {kind: np.zeros(count * PROFILE.layouts[kind].slot_bytes, np.uint8) for kind, count in SLOTS.items()}


def test_slots_in_host_memory_are_copied_by_the_references() -> None:
    launcher = Recording()
    here = Manager(PROFILE, SLOTS, KernelBackend(launcher), cold=4, buffers=on_the_host())
    there = numpy_manager(cold=4)
    for manager in (here, there):
        publish(manager)
        keys = manager.keys(PROMPT)
        manager.pack(keys)
        manager.expand(keys)
    assert read(here) == read(there)
    assert launcher.plans == []


def test_a_layout_that_kernels_can_not_copy_is_refused() -> None:
    part = Part("rows", 0, 0, 3, 4, (1,), "float32", "raw")
    layout = Layout("swa_window", 1, (part,), 64, 64)

    class Odd:
        layouts: Mapping[str, Layout] = {"swa_window": layout}

    with pytest.raises(LaunchRefused) as refused:
        KernelBackend(HostLauncher()).arenas(Odd(), {"swa_window": 4})  # type: ignore[arg-type]
    assert str(refused.value) == (
        "swa_window: part 'rows' of layer 0 has 12 bytes from byte 0 on, in slots of 64; fix: use multiples of 16"
    )


def test_a_manager_whose_slots_kernels_can_not_copy_is_refused() -> None:
    profile = Bench.profile(4, Bench.group("kv", "compressed_kv", 4, 4))  # rows of a byte
    buffer = HostLauncher().empty((4096,), np.uint8)
    memory = {"compressed_kv": RemoteMemory(buffer.pointer.address, 4096)}
    with pytest.raises(LaunchRefused, match=r"compressed_kv: part 'rows' of layer 0 has 4 bytes .*fix: use multiples"):
        Manager(profile, {"compressed_kv": 4}, KernelBackend(HostLauncher()), buffers=memory)
    here = {"compressed_kv": np.zeros(4096, np.uint8)}
    Manager(profile, {"compressed_kv": 4}, KernelBackend(HostLauncher()), buffers=here)


def test_a_device_gets_no_memory_of_the_host_unasked() -> None:
    fix = r"fix: buffers=backend.arenas\(profile, slots\)"
    backend = KernelBackend(HostLauncher())
    for given in (None, {}, {kind: buffer for kind, buffer in on_the_host().items() if kind != "swa_window"}):
        with pytest.raises(ValueError, match=rf"no memory is given for the slots of \w+, and KernelB.*; {fix}"):
            Manager(PROFILE, SLOTS, backend, buffers=given)
    manager = Manager(PROFILE, SLOTS, backend, buffers=backend.arenas(PROFILE, SLOTS))
    publish(manager)
    expected = read(manager)
    for slots in (None, SLOTS):
        with pytest.raises(ValueError, match=fix):
            manager.reallocate(slots)
    assert read(manager) == expected and manager.memory.epoch == 1 and manager.audit().ok


def test_memory_that_the_backend_can_not_reach_is_refused_at_once() -> None:
    here, there = world(), world()
    own, others = here.backend.arenas(PROFILE, SLOTS), there.backend.arenas(PROFILE, SLOTS)
    with pytest.raises(ValueError, match=r"the host can't touch the memory for compressed_kv, and NumpyBackend copies"):
        numpy_manager(buffers=own)
    plain = numpy_manager()
    publish(here.manager)
    expected = read(here.manager)
    for call, why in (
        (lambda: plain.reallocate(buffers=own), "the host can't touch the memory for compressed_kv"),
        (lambda: plain.reallocate(SLOTS, buffers=own), "the host can't touch the memory for compressed_kv"),
        (lambda: here.manager.reallocate(buffers=others), "another launcher's; fix: buffers="),
        (lambda: here.manager.reallocate(SLOTS, buffers=others), "another launcher's; fix: buffers="),
        (lambda: Manager(PROFILE, SLOTS, KernelBackend(HostLauncher()), buffers=own), "another launcher's; fix: "),
    ):
        with pytest.raises(ValueError, match=why):
            call()
    assert read(here.manager) == expected and here.manager.memory.epoch == plain.memory.epoch == 1
    second = KernelBackend(here.launcher)
    publish(Manager(PROFILE, SLOTS, second, buffers=own))  # another backend of the same launcher


@pytest.mark.parametrize("given", [{"staged_bytes": 15}, {"entries": 0}])
def test_buffers_too_small_for_anything_are_refused(given: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="give at least 16 bytes and one entry"):
        KernelBackend(HostLauncher(), **given)


def test_words_that_there_are_not_yet_are_refused() -> None:
    with pytest.raises(ValueError, match="there are no words yet; make a manager with the backend"):
        _ = KernelBackend(HostLauncher()).words.pointer


def test_the_host_does_not_touch_what_it_can_not() -> None:
    layout = PROFILE.layouts["compressed_kv"]
    arena = Arena(layout, 4, buffer=RemoteMemory(4096, 4 * layout.slot_bytes))
    assert isinstance(arena.region, RemoteBytes) and arena.is_remote and arena.base == 4096 and len(arena) == 4
    for touch in (lambda: arena.bytes, lambda: arena.part(layout.parts[0])):
        with pytest.raises(TypeError, match="the host can't touch the slots of compressed_kv; copy them by"):
            touch()
    with pytest.raises(ValueError, match=r"give \d+ writable bytes"):
        Arena(layout, 5, buffer=RemoteMemory(4096, 4 * layout.slot_bytes))
    assert arena.overlaps(Arena(layout, 1, buffer=RemoteMemory(4096 + 3 * layout.slot_bytes, layout.slot_bytes)))
    assert not arena.overlaps(Arena(layout, 1, buffer=RemoteMemory(4096 + 4 * layout.slot_bytes, layout.slot_bytes)))


def test_every_lease_is_pinned_by_its_generation_first() -> None:
    """What the device's pins are made of: each pin's first argument is the generation that is leased."""
    for table in (table for table in KINDS.values() if "validate_pin" in table.KERNELS.values()):
        (event,) = (event for event, kernel in table.KERNELS.items() if kernel == "validate_pin")
        assert table.EVENTS[event].given[0].name == "expected"
