"""What others do while bytes move: at every place where the lock is let go, more of anything may happen, nested.

One thread, and one seed a run: packing, expanding, reading and writing the store call ``during``, which takes further
steps before it goes on, and those may be interrupted in their turn. So a seed that fails fails again, and thousands of
steps that many threads would hardly ever take in this order cost seconds.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from kvfsm.runtime import publication
from kvfsm.runtime.admission import Admission, Limits, Reservation
from kvfsm.runtime.answers import Answer
from kvfsm.runtime.core import Core
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.fill import Fill
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.index import Spot
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.lease import Lease
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.stores.store import EpochEnded
from kvfsm.runtime.ticket import Ticket

from ..interleavings.planted import FitsAlways
from .nesting import Interrupted, Shelf
from .tagged import write, wrong_bytes
from .test_threads import GRANULES, prompts

DEPTH, STEPS = 4, 200
MODELS = ("tiny_deepseek_v4", "tiny_deepseek_v32", "tiny_gpt_oss")
SEEDS, SEEDS_LONG = range(12), range(12, 2012)


class World:
    """A manager, and what is open on it; ``wrong`` says what nobody may ever see."""

    def __init__(self, seed: int, model: str, make: type[Manager] = Manager) -> None:
        self.chance = random.Random(seed)
        profile = PROFILES[model]
        self.granule = profile.granule
        slots = {kind: self.chance.randint(7, 16) for kind in profile.kinds}
        store = Shelf(self.during, self.chance, lost=0.03)
        self.manager = make(profile, slots, Interrupted(self.during), store=store, cold=6, rows=3)
        self.keys = [self.manager.keys(prompt) for prompt in prompts(self.granule)]
        self.answers: list[tuple[Keys, Answer]] = []
        self.leases: list[tuple[Keys, Lease]] = []
        self.fills: list[tuple[Keys, Fill]] = []
        self.tickets: list[Ticket] = []
        self.rows: list[int] = []
        self.admission = Admission(self.manager, Limits(requests=2))
        self.reservations: list[Reservation] = []
        self.launches: list[bool] = []  # which of the device's launches have ended
        self.depth = 0
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []

    def during(self) -> None:
        """Others come in, maybe several."""
        while self.depth < DEPTH and self.chance.random() < 0.6:
            self.step()

    def step(self) -> None:
        """One thing that anybody may do now."""
        act = self.chance.choice(ACTS)
        self.depth += 1
        try:
            act(self)
            self.done[act.__name__] += 1
        except Refused as refused:
            self.done[f"{act.__name__}: {refused.refusal.name}"] += 1
        finally:
            self.depth -= 1
        if self.depth:
            self.done["nested"] += 1
        else:
            self.wrong += waiting(self.manager)
        self.wrong += self.manager.audit().violations

    def any_of(self, held: list[Any]) -> Any:
        """One of what is open, taken out; None when nothing is."""
        return held.pop(self.chance.randrange(len(held))) if held else None

    def launched(self) -> Callable[[], bool] | None:
        """Whether what is given back just now is used no more: at once, or when the device says so."""
        if self.chance.random() < 0.7:
            return None
        number = len(self.launches)
        self.launches.append(False)
        return lambda: self.launches[number]

    def prompt(self) -> Keys:
        return self.chance.choice(self.keys)

    def end(self) -> None:
        """Everybody gives back what he holds."""
        self.depth = DEPTH
        while self.leases:
            release(self)
        while self.reservations:
            cancel(self)
        while self.fills:
            self.manager.abandon(self.any_of(self.fills)[1])
        while self.tickets:
            give_up_load(self)
        while self.rows:
            self.manager.requests.finish(self.rows.pop())
        device_ends(self)
        for kind in self.manager.profile.kinds:
            self.manager.evict(kind, 99)
        free = {kind: pool.free for kind, pool in self.manager.core.pools.items()}
        if free != {kind: pool.hot for kind, pool in self.manager.core.pools.items()}:
            self.wrong.append(f"at the end {free} are free")
        self.wrong += self.manager.audit().violations


def waiting(manager: Manager) -> list[str]:
    """What nobody will ever read, or evict, though he could: not what is wrong, but what is left out."""
    core, wrong = manager.core, []
    for n, kind in enumerate(core.paged):
        pool, leaves = core.pools[kind], core.leaf_first[kind]
        for segment in core.index.below(core.index.root):
            above, ready, live = segment.parent, segment.ready[n], segment.live[n]
            if above is None or not live:
                continue
            held = segment.slots[n][:live].astype(np.intp)
            if (above.parent is None or above.ready[n] == above.end - above.base) and ready < live:
                if pool.in_state(held[ready : ready + 1], "resident")[0]:
                    wrong.append(f"granule {segment.base + ready} of {kind} could be read, and waits")
            if not segment.live_kids[n] and len(pool.eligible(held[-1:])) and segment not in leaves._queued:
                wrong.append(f"granule {segment.base + live - 1} of {kind} could be evicted, and waits")
    return wrong


def match(world: World) -> None:
    keys = world.prompt()
    world.answers.append((keys, world.manager.match(keys)))


def acquire(world: World) -> None:
    keys, answer = world.any_of(world.answers) or (None, None)
    if answer is not None and answer.now:
        lease = world.manager.acquire(answer)
        world.wrong += wrong_bytes(keys, lease)
        world.leases.append((keys, lease))


def release(world: World) -> None:
    if world.leases:
        keys, lease = world.any_of(world.leases)
        world.wrong += wrong_bytes(keys, lease)
        world.manager.release(lease, done=world.launched())


def device_ends(world: World) -> None:
    world.launches[:] = [True] * len(world.launches)


def load(world: World) -> None:
    keys = world.prompt()
    answer = world.manager.match(keys)
    if answer.plan is not None:
        world.answers.append((keys, world.manager.load(answer.plan)))


def begin_load(world: World) -> None:
    _, answer = world.any_of(world.answers) or (None, None)
    if answer is not None and answer.plan is not None:
        world.tickets.append(world.manager.load_begin(answer.plan))


def transfer(world: World) -> None:
    if world.tickets:
        world.any_of(world.tickets).transfer()


def give_up_load(world: World) -> None:
    if world.tickets:
        ticket = world.any_of(world.tickets)
        ticket.abort()
        ticket.quiesce()


def begin_fill(world: World, keys: Keys, start: int) -> None:
    """Reserve some granules, and write them."""
    fill = world.manager.reserve(keys, start, min(GRANULES, start + world.chance.randint(1, 3)))
    write(keys, fill)
    world.fills.append((keys, fill))


def reserve(world: World) -> None:
    """Anywhere."""
    begin_fill(world, world.prompt(), world.chance.randrange(GRANULES))


def go_on(world: World) -> None:
    """Behind what is there."""
    keys = world.prompt()
    start = world.manager.match(keys).now // world.granule
    if start < GRANULES:
        begin_fill(world, keys, start)


def fill(world: World) -> None:
    """All of it in one step: what lacks at the end, or one granule anew."""
    keys = world.prompt()
    live = world.manager.match(keys).now // world.granule
    start, stop = (live, GRANULES) if world.chance.random() < 0.5 else (at := world.chance.randrange(GRANULES), at + 1)
    if start < stop:
        with_all = world.manager.reserve(keys, start, stop)
        write(keys, with_all)
        try:
            world.manager.publish(with_all)
        except Refused:
            world.manager.abandon(with_all)
            raise


def publish(world: World) -> None:
    if world.fills:
        keys, fill = world.any_of(world.fills)
        try:
            world.manager.publish(fill)
        except Refused:
            world.fills.append((keys, fill))
            raise


def abandon(world: World) -> None:
    if world.fills:
        world.manager.abandon(world.any_of(world.fills)[1], done=world.launched())


def rebuild(world: World) -> None:
    keys = world.prompt()
    answer = world.manager.match(keys)
    if answer.rebuild is not None:
        fill = world.manager.rebuild_begin(answer)
        write(keys, fill)
        world.fills.append((keys, fill))


def evict(world: World) -> None:
    world.manager.evict(world.chance.choice(world.manager.profile.kinds), world.chance.randint(1, 4))


def expire(world: World) -> None:
    world.manager.expire(world.prompt(), world.chance.randint(0, GRANULES))


def leave_window(world: World) -> None:
    world.manager.free_out_of_window(world.prompt(), world.chance.randint(0, GRANULES * world.granule))


def pack(world: World) -> None:
    world.manager.pack(world.prompt(), world.chance.randrange(GRANULES), lossy=world.chance.random() < 0.2)


def expand(world: World) -> None:
    world.manager.expand(world.prompt())


def persist(world: World) -> None:
    with contextlib.suppress(EpochEnded):
        world.manager.persist(world.prompt(), world.chance.randrange(GRANULES))


def reset(world: World) -> None:
    if world.chance.random() < 0.05:
        world.manager.reset()


def lose(world: World) -> None:
    """The disk loses some objects."""
    store: Any = world.manager.store
    for name in world.chance.sample(sorted(store.objects, key=str), min(2, len(store.objects))):
        store.objects.pop(name, None)


def begin_row(world: World) -> None:
    world.rows.append(world.manager.requests.admit(world.chance.randint(1, 2 * world.granule)))


def ask(world: World) -> None:
    """Reserve all that a request needs up to its first step."""
    keys = world.prompt()
    said = world.admission.admit(world.manager.match(keys), GRANULES * world.granule + 1, step=world.granule)
    world.done[type(said).__name__] += 1
    if isinstance(said, Reservation):
        world.reservations.append(said)


def enter(world: World) -> None:
    """The load of a reservation ends, maybe badly, and its row begins."""
    if not world.reservations:
        return
    one = world.any_of(world.reservations)
    try:
        if one.ticket is not None and not one.ticket.ended:
            one.ticket.transfer()
        row = world.admission.enter(one)
    except Refused:
        world.admission.cancel(one)
        raise
    world.admission.leave(one)
    world.rows.append(row)


def cancel(world: World) -> None:
    """Before its load, or with the load under way, which ends later."""
    if world.reservations:
        one = world.any_of(world.reservations)
        ticket = one.ticket
        world.admission.cancel(one)
        if ticket is not None and not ticket.ended:
            ticket.quiesce()


def move(world: World) -> None:
    """The memory moves, with what is cached, where nobody holds anything."""
    world.manager.reallocate()


def step_row(world: World) -> None:
    if world.rows:
        world.manager.requests.step([world.chance.choice(world.rows)])


def end_row(world: World) -> None:
    if world.rows:
        world.manager.requests.finish(world.any_of(world.rows), done=world.launched())


ACTS = (
    match, match, acquire, acquire, release, release, load, begin_load, transfer, give_up_load, reserve, go_on, publish,
    publish, abandon, fill, fill, fill, fill, rebuild, evict, expire, leave_window, pack, pack, pack, expand, expand,
    persist, reset, lose, begin_row, step_row, end_row, ask, enter, enter, cancel, device_ends, device_ends, move,
)  # fmt: skip


def run(seed: int, model: str = MODELS[0], make: type[Manager] = Manager) -> World:
    """A run that ends with the first thing that is wrong."""
    world = World(seed, model, make)
    for _ in range(STEPS):
        world.step()
        if world.wrong:
            return world
    world.end()
    return world


def runs(seeds: Sequence[int], model: str) -> Counter[str]:
    """What was done in a run of each seed; fails with the first that goes wrong."""
    done: Counter[str] = Counter()
    for seed in seeds:
        try:
            world = run(seed, model)
        except Exception as error:
            error.add_note(f"seed {seed} of {model}")
            raise
        assert world.wrong == [], f"seed {seed} of {model}"
        done += world.done
    print(done)
    return done


@pytest.mark.parametrize("model", MODELS)
def test_whatever_others_do_while_bytes_move_is_right(model: str) -> None:
    done = runs(SEEDS, model)
    assert done["nested"] > 20 * len(SEEDS), "what nobody interrupts shows nothing"
    if model == MODELS[0]:
        assert {act.__name__ for act in ACTS} - set(done) == set(), "each came to something"


@pytest.mark.long
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("part", range(8))
def test_whatever_others_do_while_bytes_move_is_right_for_long(part: int, model: str) -> None:
    runs(SEEDS_LONG[part::8], model)


def test_a_load_that_looks_at_nothing_when_it_ends_is_noticed() -> None:
    """Negative control."""
    with pytest.raises(AssertionError, match="would stand behind a gap"):
        for seed in range(200):
            run(seed, make=FitsAlways)


def test_branches_that_are_read_no_more_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: what becomes readable on one chain does not on the others that go on behind it."""

    def one_chain(core: Core, kind: str, spot: Spot, at: int) -> None:
        n, live = core.paged.index(kind), core.index.live(core.paged.index(kind), spot)
        held = core.index.slots(n, spot, at, max(at, live))
        good = [*core.pools[kind].in_state(held, "resident").tolist(), False].index(False)
        core.index.put(n, spot, at, held[:good], at + good)

    monkeypatch.setattr(publication, "revive", one_chain)
    assert any("could be read, and waits" in wrong for seed in range(35, 100) for wrong in run(seed).wrong)
