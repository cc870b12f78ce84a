"""What others do between two steps of a scheduler: wherever a lock is asked for, more of anything may happen, nested.

One thread, and one seed a run. The locks, the store, packing and ``Live.begun`` call ``during``, which takes further
steps before it goes on, and those may be interrupted in their turn: requests come and are given up, an executor's jobs
run in any order, others read, write, load, reserve, evict and reset, an engine sleeps, the device lags behind. What
must not meet does not (the engine's own calls, and whoever needs the lock of running rows while it is held). After each
step under the manager's lock ``faults`` of ``serving.py`` are looked for, and slots that the device uses are nobody
else's.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.admission import Admission, Limits, Reservation, Stage
from kvfsm.runtime.agreement import Agreement
from kvfsm.runtime.audit import audit
from kvfsm.runtime.errors import RankFailed, Refused
from kvfsm.runtime.fill import Fill
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.lease import Done, Lease
from kvfsm.runtime.load_workers import LoadWorkers
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.queues import Queue, Queues
from kvfsm.runtime.ranks import Group, LocalGroup
from kvfsm.runtime.requests import GUARD
from kvfsm.runtime.running_rows import RunningRows
from kvfsm.runtime.scheduler import Live, Scheduler, Stepped, Work
from kvfsm.runtime.stores.memory import MemoryStore
from kvfsm.runtime.stores.store import StoreError
from kvfsm.runtime.ticket import Ticket

from . import tagged
from .nesting import Interrupted, Lost, Shelf
from .serving import ByHand, Watched, faults, leaks

DEPTH, STEPS = 4, 70
MODELS = ("tiny_deepseek_v4", "tiny_deepseek_v32", "tiny_gpt_oss")
SEEDS, SEEDS_LONG = range(6), range(6, 2006)
GRANULES = 4
AT_NO_BOUNDARY = 0xEE
TOLD = ("finished", "cancelled", "preempted", "voided", "loads", "loads_again", "loads_failed", "rebuilds")  # of Report


class Workers(ByHand):
    """Jobs that run when told; others come in as one is handed over, and now and then the executor takes none."""

    def __init__(self, during: Callable[[], None], chance: random.Random) -> None:
        super().__init__()
        self._during, self._chance = during, chance
        self.sound = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if not self.sound and self._chance.random() < 0.05:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future = super().submit(fn, *args, **kwargs)
        self._during()
        return future


Act = Callable[["World"], None]


@dataclass
class Launch:
    """A step that the device has not ended: slots that it reads or writes by kind, and their generations."""

    slots: dict[str, tuple[np.ndarray, np.ndarray]]
    ended: bool = False


class World:
    """A scheduler, its engine, and others on the same manager; ``wrong`` says what nobody may ever see.

    Args:
        seed: of the run; it decides what the scheduler's options are.
        model: name of a profile.
        group: this rank of those that agree; None without ranks.
    """

    def __init__(self, seed: int, model: str, group: Group | None = None) -> None:
        self.chance = chance = random.Random(seed if group is None else f"{seed} on rank {group.rank}")
        options = random.Random(seed)
        self.depth, self.quiet, self.engine = DEPTH, False, [""]  # the engine's call that is under way, innermost last
        self.acts: Sequence[Act] = ACTS
        self.wrong: list[str] = []
        self.done: Counter[str] = Counter()
        profile = PROFILES[model]
        self.granule = profile.granule
        slots = {kind: chance.randint(5, 14) for kind in profile.kinds}
        self.store, self.workers = Shelf(self.during, chance, lost=0.1, fails=0.1), Workers(self.during, chance)
        self.lock, self.rows = Watched(), Watched()
        self.manager = Manager(
            profile, slots, Interrupted(self.during), store=self.store, lock=lambda: self.lock,
            rows=chance.randint(1, 6), cold=chance.choice([0, 4]), writes=chance.choice(["write_through", "none"]),
        )  # fmt: skip
        self.slots = slots
        self.scheduler = Scheduler(
            self.manager, self.workers, lock=lambda: self.rows,
            limits=Limits(
                requests=chance.choice([None, None, 2]), blocks={"store": 9} if chance.random() < 0.3 else {}
            ),
            chunk=options.choice([None, self.granule, 2 * self.granule]), attempts=options.randrange(3),
            boundaries=options.random() < 0.8, requests=8, queues=Queues(patience=options.randrange(4)),
            budgets={Queue.DISK: 1e5} if options.random() < 0.2 else {}, clock=lambda: float(self.lock.times),
            agreement=None if group is None else Agreement(group, self.manager),
        )  # fmt: skip
        self.lock.before = self.rows.before = self.during
        self.lock.after = self.look
        self.prompts = prompts(self.granule)
        self.tokens: dict[Live, list[int]] = {}
        self.launches: list[Launch] = []
        self.leases: list[tuple[Keys, Lease]] = []
        self.fills: list[tuple[Keys, Fill]] = []
        self.outside: list[int] = []  # rows of others, their loads, and what they have reserved
        self.loads: list[Ticket] = []
        self.others, self.reserved = Admission(self.manager), list[Reservation]()
        if chance.random() < 0.7:
            stock(self)
        self.depth = 0

    # ---- nesting ----------------------------------------------------------------------------------------------------

    def during(self) -> None:
        """Others come in, maybe several."""
        free = not self.quiet and not self.lock.held
        while free and not self.wrong and self.depth < DEPTH and self.chance.random() < 0.12:
            self.step()

    def step(self, acts: Sequence[Act] | None = None) -> None:
        """One thing that anybody may do now."""
        act = self.chance.choice(self.acts if acts is None else acts)
        if (
            (act in OF_ROWS and self.rows.held)
            or (act in OF_ENGINE and self.engine[-1])
            or (self.depth and act is void)
        ):
            return
        self.depth += 1
        self.engine.append(act.__name__ if act in OF_ENGINE else self.engine[-1])
        try:
            act(self)
            self.done[act.__name__] += 1
        except (Refused, Lost, StoreError, RankFailed) as error:
            said = error.refusal.name if isinstance(error, Refused) else type(error).__name__
            self.done[f"{act.__name__}: {said}"] += 1
        finally:
            self.engine.pop()
            self.depth -= 1
        if self.depth:
            self.done["nested"] += 1

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody comes in."""
        before, self.quiet = self.quiet, True
        try:
            yield
        finally:
            self.quiet = before

    def look(self) -> None:
        """Between two steps under the manager's lock."""
        self.wrong += faults(self.scheduler) + self.early()
        if self.lock.times % 5 == 0:
            self.wrong += audit(self.manager).violations

    def early(self) -> list[str]:
        """Slots of which the device has not ended, and that are another's, or free, by now (T7)."""
        found = []
        for launch in self.launches:
            for kind, (slots, generations) in launch.slots.items():
                pool = self.manager.core.pools[kind]
                moved = slots[pool.generations(slots) != generations]
                gone = np.union1d(moved, np.intersect1d(slots, pool.free_slots))
                if len(gone) and not launch.ended:
                    found.append(f"T7: {kind} {gone.tolist()} are free, or another's, and the device uses them")
        return found

    def any_of(self, held: list[Any]) -> Any:
        """One of what is open, taken out; None when nothing is."""
        return held.pop(self.chance.randrange(len(held))) if held else None

    # ---- the engine and its device ----------------------------------------------------------------------------------

    def running(self) -> list[Live]:
        """Those whose prompts are computed."""
        with self.alone():
            lives = [live for live in list(self.scheduler.live.values()) if live.row is not None]
            return [live for live in lives if self.has_row(live) and live.computed >= live.tokens and not live.owed]

    def drafting(self, live: Live) -> int:
        return int(self.manager.requests.drafts[live.row])

    def has_row(self, live: Live) -> bool:
        return live.row is not None and self.manager.requests.holds(live.row, live.incarnation)

    def begun(self) -> Done:
        """Whether all launches have ended that were begun when it was first asked; as ``Memory.begun``."""
        begun: list[Launch] | None = None

        def ended() -> bool:
            nonlocal begun
            begun = list(self.launches) if begun is None else begun
            return all(one.ended for one in begun)

        return ended

    def launch(self, lives: Sequence[Live]) -> None:
        """The device writes what these have; when it has ended is open."""
        with self.alone():
            for live in lives:
                if not self.has_row(live):
                    self.wrong.append(f"request {live.number} is to be computed, and has no row")
                    continue
                slots = self.compute(live)
                if self.chance.random() < 0.5:
                    pools = self.manager.core.pools
                    used = {kind: (held, pools[kind].generations(held)) for kind, held in slots.items()}
                    self.launches.append(Launch(used))

    def compute(self, live: Live) -> dict[str, np.ndarray]:
        """Whole granules of what a row owns get the bytes of their prefix; all slots that it uses, by kind."""
        manager, requests, row, core = self.manager, self.manager.requests, live.row, self.manager.core
        assert row is not None
        tokens, keys = int(requests.tokens[row]), live.keys
        whole = min(tokens // self.granule, len(keys))
        shared = int(requests.shared_tokens([row])[0]) // self.granule
        used: dict[str, np.ndarray] = {}
        for kind in core.paged:
            used[kind] = requests.table(kind, [row])[0].astype(np.intp)
            for place, tag in enumerate(tagged.tags(manager, keys, kind, np.arange(whole))):
                slot = used[kind][place]
                if place >= shared:
                    core.pools[kind].arena.bytes[slot] = tag
                elif not requests.is_lossy(row) and not (self.payload(kind, slot) == tag).all():
                    self.wrong.append(f"request {live.number} reads {kind} {place} with bytes of something else")
        at_boundary = tokens % self.granule == 0 and tokens // self.granule <= len(keys)
        for kind in core.trailing:
            table = requests.tail_table([row]) if kind == "uncompressed_tail" else requests.window_table([row])[0]
            used[kind] = table[table != GUARD].astype(np.intp)
            places = np.full(len(table), tokens // self.granule)
            if kind == "swa_window" and manager.profile.window_block is not None:
                places = requests.window_blocks([row])[0]
            for slot, place in zip(table.tolist(), places.tolist(), strict=True):
                if slot == GUARD:
                    continue
                tag = AT_NO_BOUNDARY
                granule = int(core.granules(kind, np.array([place]))[0])
                if granule < whole and (at_boundary or manager.profile.window_block is not None):
                    tag = tagged.tags(manager, keys, kind, np.array([place]))[0]
                core.pools[kind].arena.bytes[slot] = tag
        return used

    def payload(self, kind: str, slot: int) -> np.ndarray:
        """The bytes of a slot that say something."""
        parts = self.manager.profile.layouts[kind].parts
        arena = self.manager.core.pools[kind].arena
        return np.concatenate([arena.part(part)[slot].reshape(-1) for part in parts])

    def compute_all(self, works: Sequence[Work]) -> None:
        """What ``schedule`` has returned is launched."""
        for work in works:
            live = work.live
            if work.rebuild is not None:
                if live.rebuild is not work.rebuild:
                    self.wrong.append(f"request {live.number} is to compute keys that it was given up for")
                else:
                    tagged.write(live.keys, work.rebuild)
            elif live.row != work.row:
                self.wrong.append(f"request {live.number} is to be computed in row {work.row}, and has {live.row}")
        self.launch([work.live for work in works if work.rebuild is None])

    # ---- the end ----------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Everybody ends; nothing is left."""
        self.quiet = self.store.sound = self.workers.sound = True
        device_ends(self)
        while self.leases:
            release(self)
        while self.fills:
            self.manager.abandon(self.any_of(self.fills)[1])
        while self.reserved:
            cancel_reserved(self)
        while self.loads:
            end_load(self)
        while self.outside:
            self.manager.requests.finish(self.outside.pop())
        drafts = [live for live in self.running() if self.drafting(live)]
        self.scheduler.reject(drafts)
        self.serve_all()
        if self.scheduler.live:
            states = [self.scheduler.state(live) for live in self.scheduler.live.values()]
            self.wrong.append(f"T3: nothing is enabled, or nothing comes of it, and there are {states}")
            return
        while self.workers.jobs:
            self.workers.run()
        for kind in self.manager.profile.kinds:
            self.manager.evict(kind, 99)
        free = {kind: pool.free for kind, pool in self.manager.core.pools.items()}
        if free != {kind: pool.hot for kind, pool in self.manager.core.pools.items()}:
            self.wrong.append(f"at the end {free} are free")
        self.wrong += leaks(self.scheduler)
        self.wrong += [f"request {live.number} was never told" for live in self.tokens if not live.begun.done()]

    def serve_all(self) -> None:
        """All that is live is run to its end, if it can be."""
        idle = False
        for _ in range(400):
            if not self.scheduler.live:
                break
            ahead = not idle or self.scheduler.wait(0)
            if self.workers.jobs and (not ahead or self.chance.random() < 0.5):
                self.workers.run(self.chance.randrange(len(self.workers.jobs)))
            elif ahead:
                works = self.scheduler.schedule()
                self.compute_all(works)
                device_ends(self)
                keyed = [work.live for work in works if work.rebuild is not None]
                keyed += [live for live in self.scheduler.live.values() if live.rebuild is not None and not live.owed]
                for live in dict.fromkeys(keyed):
                    self.scheduler.publish(live)
                ended = self.running()
                for live in ended:
                    self.scheduler.finish(live)
                idle = not works and not ended
            else:
                break


def prompts(granule: int) -> list[list[int]]:
    """Prompts that share one, two or three granules, of any length; one of them comes more often."""
    chance = np.random.default_rng(5)
    trunk = chance.integers(0, 256, 3 * granule).tolist()
    made = []
    for shared, tokens in ((3, 3 * granule + 1), (3, 4 * granule + 1), (2, 3 * granule), (1, 2 * granule + 5), (0, 9)):
        head = trunk[: shared * granule]
        made.append([*head, *chance.integers(0, 256, tokens - len(head)).tolist()])
    return [made[0], *made, made[1]]


@functools.cache
def on_disk(model: str) -> dict[Any, Any]:
    """Objects of all whole granules of the prompts."""
    profile, store = PROFILES[model], MemoryStore()
    for tokens in prompts(profile.granule):
        manager = Manager(profile, dict.fromkeys(profile.kinds, 40), NumpyBackend(), store=store)
        keys = manager.keys(tokens)
        for granule in range(len(keys)):
            made = manager.reserve(keys, granule, granule + 1)
            tagged.write(keys, made)
            manager.publish(made)
    return store.objects


# ---- what anybody does ----------------------------------------------------------------------------------------------


def submit(world: World) -> None:
    tokens = list(world.chance.choice(world.prompts))
    salt = world.chance.choice([b"", b"", b"other"])
    live = world.scheduler.submit(world.manager.keys(tokens, salt=salt), owner=world.chance.choice("ab"))
    world.tokens[live] = tokens
    live.begun.add_done_callback(lambda _: world.during())


def cancel(world: World) -> None:
    """Who is live, or was."""
    if world.tokens and world.chance.random() < 0.7:
        live = world.chance.choice(list(world.scheduler.live.values()) or list(world.tokens))
        world.scheduler.cancel(live, done=world.begun())


def finish(world: World) -> None:
    if running := world.running():
        live = world.chance.choice(running)
        try:
            world.scheduler.finish(live, done=world.begun())
        except ValueError as error:
            assert f"request {live.number} doesn't run" in str(error)  # the engine has preempted it meanwhile


def job(world: World) -> None:
    if world.workers.jobs:
        world.workers.run(world.chance.randrange(len(world.workers.jobs)))


def drop_job(world: World) -> None:
    """The executor is shut down, and drops what it has not begun."""
    if world.workers.jobs and world.chance.random() < 0.1:
        future, _ = world.workers.jobs.pop(world.chance.randrange(len(world.workers.jobs)))
        future.cancel()


def device_ends(world: World) -> None:
    for launch in world.launches:
        launch.ended = True
    world.launches.clear()
    world.scheduler.wake()


def ask(world: World) -> None:
    world.scheduler.report()
    world.scheduler.wait(0)
    for live in list(world.tokens):
        world.scheduler.state(live)


# ---- what the engine does -------------------------------------------------------------------------------------------


def schedule(world: World) -> None:
    world.compute_all(world.scheduler.schedule(done=world.begun()))


def decode(world: World) -> None:
    lives = [live for live in world.running() if not world.drafting(live) and world.chance.random() < 0.8]
    grown(world, world.scheduler.decode(lives, tokens=[7] * len(lives), done=world.begun()), [[7]] * len(lives), lives)


def decode_granule(world: World) -> None:
    """Many steps at once: boundaries come."""
    for _ in range(world.granule):
        decode(world)


def grown(world: World, stepped: Stepped, tokens: list[list[int]], lives: list[Live]) -> None:
    given = dict(zip(lives, tokens, strict=True))
    for live in stepped.lives:
        world.tokens[live] += given[live]
    world.launch(stepped.lives)


def draft(world: World) -> None:
    lives = [live for live in world.running() if not world.drafting(live)]
    if lives:
        room = world.manager.requests.draft_room([live.row for live in lives if live.row is not None])
        most = int(room.min()) if len(room) == len(lives) else 0
        world.scheduler.propose(lives, world.chance.randint(0, min(4, most)))


def settle(world: World) -> None:
    """Some drafts are accepted, some not."""
    lives = [live for live in world.running() if world.drafting(live)]
    counts = [world.chance.randint(0, world.drafting(live)) for live in lives]
    tokens = [[7] * count for count in counts]
    grown(world, world.scheduler.accept(lives, counts, tokens=tokens, done=world.begun()), tokens, lives)


def rollback(world: World) -> None:
    lives = [live for live in world.running() if not world.drafting(live)]
    if lives:
        live = world.chance.choice(lives)
        to = max(1, live.computed - world.chance.randint(0, 5))
        tokens = world.tokens[live][:to]
        if world.scheduler.rollback(live, to, keys=world.manager.keys(tokens, salt=live.keys.salt), done=world.begun()):
            world.tokens[live] = tokens
            world.launch([live])


def publish(world: World) -> None:
    """What runs, or has computed keys."""
    lives = [live for live in world.scheduler.live.values() if live.row is not None or live.rebuild is not None]
    if lives:
        live = world.chance.choice(lives)
        world.scheduler.publish(live, done=None if live.rebuild is not None else world.begun())


def preempt(world: World) -> None:
    if lives := [live for live in world.scheduler.live.values() if live.row is not None or live.rebuild is not None]:
        world.scheduler.preempt(world.chance.choice(lives), done=world.begun())


def sleep(world: World) -> None:
    """All go back; then the memory goes, if the device and others let it."""
    if world.scheduler.preempt_all(done=world.begun()) and world.chance.random() < 0.5:
        device_ends(world)
        world.manager.reallocate(None if world.chance.random() < 0.5 else world.slots)


def void(world: World) -> None:
    """The memory goes away under everybody who is in no call."""
    if world.chance.random() < 0.3:
        device_ends(world)
        world.manager.reallocate(world.slots, void=True)
        world.leases.clear(), world.fills.clear(), world.outside.clear()


# ---- what others do on the manager ----------------------------------------------------------------------------------


def keys_of(world: World) -> Keys:
    lives = list(world.tokens)
    if lives and world.chance.random() < 0.5:
        return world.chance.choice(lives).keys
    return world.manager.keys(world.chance.choice(world.prompts))


def read(world: World) -> None:
    keys = keys_of(world)
    answer = world.manager.match(keys)
    if answer.now:
        lease = world.manager.acquire(answer)
        with world.alone():
            world.wrong += tagged.wrong_bytes(keys, lease)
        world.leases.append((keys, lease))


def release(world: World) -> None:
    if world.leases:
        keys, lease = world.any_of(world.leases)
        with world.alone():
            world.wrong += tagged.wrong_bytes(keys, lease)
        world.manager.release(lease)


def fill(world: World) -> None:
    keys = keys_of(world)
    start, stop = world.manager.match(keys).now // world.granule, min(len(keys), GRANULES)
    if start < stop:
        made = world.manager.reserve(keys, start, stop)
        with world.alone():
            tagged.write(keys, made)
        world.fills.append((keys, made))


def end_fill(world: World) -> None:
    if world.fills:
        _, made = world.any_of(world.fills)
        try:
            world.manager.publish(made)
        except Refused:
            world.manager.abandon(made)
            raise


def begin_row(world: World) -> None:
    world.outside.append(world.manager.requests.admit(world.chance.randint(1, 2 * world.granule)))


def end_row(world: World) -> None:
    if world.outside:
        world.manager.requests.finish(world.any_of(world.outside))


def rebuild(world: World) -> None:
    """Others compute indexer keys anew."""
    keys = keys_of(world)
    answer = world.manager.match(keys)
    if answer.rebuild is not None:
        made = world.manager.rebuild_begin(answer)
        with world.alone():
            tagged.write(keys, made)
        world.fills.append((keys, made))


def load(world: World) -> None:
    plan = world.manager.match(keys_of(world)).plan
    if plan is not None:
        world.loads.append(world.manager.load_begin(plan))


def end_load(world: World) -> None:
    """Well or badly, or given up; the scheduler's requests may wait for it."""
    ticket = world.any_of(world.loads)
    if ticket is not None and not ticket.ended:
        end = world.chance.choice([ticket.transfer, lambda: ticket.done(False), ticket.abort])
        try:
            end()
        finally:
            if ticket.state == "aborted":
                ticket.quiesce()


def reserve(world: World) -> None:
    """All that a request of others needs; the scheduler's requests may join its load."""
    keys, tokens = keys_of(world), (GRANULES + 1) * world.granule
    said = world.others.admit(world.manager.match(keys, tokens), tokens, step=world.granule, salt=keys.salt)
    world.done[type(said).__name__] += 1
    if isinstance(said, Reservation):
        world.reserved.append(said)


def enter(world: World) -> None:
    """The load of what others have reserved ends, and its row begins."""
    one = world.any_of(world.reserved)
    if one is not None:
        try:
            if one.ticket is not None:
                one.ticket.transfer()
            row = world.others.enter(one)
        except BaseException:
            if one.stage is not Stage.ENDED:
                world.reserved.append(one)
            raise
        world.others.leave(one)
        world.outside.append(row)


def cancel_reserved(world: World) -> None:
    one = world.any_of(world.reserved)
    if one is not None and one.stage is not Stage.ENDED:
        ticket = one.ticket
        world.others.cancel(one)
        if ticket is not None and ticket.state == "open":  # the scheduler's requests wait for it: it is to go on
            world.loads.append(ticket)
        elif ticket is not None and not ticket.ended and not ticket.moving:
            ticket.quiesce()


def evict(world: World) -> None:
    world.manager.evict(world.chance.choice(world.manager.profile.kinds), world.chance.randint(1, 4))


def expire(world: World) -> None:
    world.manager.expire(keys_of(world))


def leave_window(world: World) -> None:
    world.manager.free_out_of_window(keys_of(world), world.chance.randint(0, GRANULES * world.granule))


def persist(world: World) -> None:
    world.manager.persist(keys_of(world))


def pack(world: World) -> None:
    world.manager.pack(keys_of(world), lossy=world.chance.random() < 0.2)


def meddle(world: World) -> None:
    """Somebody watches over loads, and lets one fail that no worker moves, or moves it."""
    ticket = world.any_of(list(world.manager.tickets.values()))
    if ticket is not None and world.chance.random() < 0.3:
        ticket.transfer() if world.chance.random() < 0.5 else ticket.done(False, missing={})


def expand(world: World) -> None:
    world.manager.expand(keys_of(world))


def clear(world: World) -> None:
    """Memory forgets all that nobody holds."""
    for kind in world.manager.profile.kinds:
        world.manager.evict(kind, 99)


def lose_keys(world: World) -> None:
    """Indexer keys go, in memory and on the disk."""
    if "indexer_state" in world.manager.profile.kinds:
        world.manager.evict("indexer_state", 99)
        for name in [name for name in world.store.objects if name.kind == "indexer_state"]:
            world.store.objects.pop(name, None)


def stock(world: World) -> None:
    """Another process stores the prompts."""
    world.store.objects.update(on_disk(world.manager.profile.name))


def reset(world: World) -> None:
    if world.chance.random() < 0.2:
        world.manager.reset()


def lose(world: World) -> None:
    """The disk loses some objects."""
    objects = world.store.objects
    for name in world.chance.sample(sorted(objects, key=str), min(2, len(objects))):
        objects.pop(name, None)


OF_ENGINE = (
    schedule, decode, decode_granule, draft, settle, rollback, publish, preempt, sleep, void,
)  # fmt: skip
OF_ROWS = (*OF_ENGINE, cancel, finish)
ACTS = (
    submit, submit, cancel, finish, job, job, job, drop_job, device_ends, ask, schedule, schedule, schedule, schedule,
    schedule, schedule, decode, decode, decode_granule, draft, settle, settle, rollback, publish, publish, publish,
    preempt, sleep, void, read, read, release, release, fill, end_fill, rebuild, begin_row, end_row, load, end_load,
    reserve, enter, cancel_reserved, evict, evict, expire, leave_window, persist, pack, expand, meddle, reset, lose,
    lose_keys, clear, clear, stock,
)  # fmt: skip


def run(seed: int, model: str = MODELS[0], ranks: bool = False) -> World:
    """A run that ends with the first thing that is wrong."""
    world = World(seed, model, LocalGroup.make(1)[0] if ranks else None)
    for _ in range(STEPS):
        world.step()
        if world.wrong:
            return world
    world.end()
    return world


def runs(seeds: Sequence[int], model: str, ranks: bool = False) -> Counter[str]:
    """What was done in a run of each seed; fails with the first that goes wrong."""
    done: Counter[str] = Counter()
    for seed in seeds:
        try:
            world = run(seed, model, ranks)
        except Exception as error:
            error.add_note(f"seed {seed} of {model}")
            raise
        assert world.wrong == [], f"seed {seed} of {model}"
        done += world.done
        report = world.scheduler.report()
        done += Counter({name: getattr(report, name) for name in TOLD})
    print(done)
    return done


@pytest.mark.parametrize("model", MODELS)
def test_whatever_others_do_between_two_steps_is_right(model: str) -> None:
    done = runs(SEEDS, model)
    assert done["nested"] > 20 * len(SEEDS), "what nobody interrupts shows nothing"
    assert all(done[name] for name in ("finished", "cancelled", "preempted", "loads"))


def test_whatever_others_do_between_two_steps_of_a_rank_is_right() -> None:
    """One that agrees with itself, so that others may come in at any time and none parts."""
    done = runs(SEEDS, MODELS[0], ranks=True)
    assert all(done[name] for name in ("finished", "cancelled", "preempted", "loads"))


@pytest.mark.long
@pytest.mark.parametrize("part", range(8))
def test_whatever_others_do_between_two_steps_of_a_rank_is_right_for_long(part: int) -> None:
    for model in MODELS:
        runs(SEEDS_LONG[part::24], model, ranks=True)


@pytest.mark.long
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("part", range(8))
def test_whatever_others_do_between_two_steps_is_right_for_long(part: int, model: str) -> None:
    done = runs(SEEDS_LONG[part::8], model)
    assert {act.__name__ for act in ACTS} - set(done) == set(), "each came to something"
    never = {"rebuilds"} if "indexer_state" not in PROFILES[model].kinds else set()
    assert {name for name in TOLD if not done[name]} == never


# ---- negative controls: planted faults -------------------------------------------------------------------------------


def noticed(words: str, seeds: int = 120) -> None:
    with pytest.raises(AssertionError, match=words):
        for seed in range(seeds):
            assert run(seed).wrong == []


def test_work_of_who_was_given_up_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Work, "stands", True)
    noticed("is to be computed")


def test_slots_that_go_back_before_the_device_has_ended_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = RunningRows.preempt_now
    monkeypatch.setattr(RunningRows, "preempt_now", lambda self, live, done: real(self, live, None))
    noticed("T7")


def test_who_is_not_told_that_the_load_which_he_waits_for_has_ended_would_be_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LoadWorkers, "_joined", lambda *given: None)
    noticed("T3")
