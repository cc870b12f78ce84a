"""Operations and beginnings that the tests interleave."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kvfsm.runtime.errors import Refused
from kvfsm.runtime.fill import Fill
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.stores.store import StoreError

from .doubles import SplitStore
from .world import Op, World

KEYS = "indexer_state"


def _fail_pack(world: World) -> None:
    world.backend.failing = True
    try:
        world.manager.pack(world.p, 1)
    except OSError:
        return
    finally:
        world.backend.failing = False


def _fail_load(world: World) -> None:
    assert isinstance(world.store, SplitStore)
    world.store.failing = True
    try:
        world.load(world.p)
    finally:
        world.store.failing = False


def _evict(world: World) -> None:
    for kind in world.manager.profile.kinds:
        world.manager.evict(kind, 2)


def _take(world: World) -> None:
    for kind in world.manager.profile.kinds:
        world.manager.evict(kind, 99)
    world.fill(world.q, 0, 3)


def _pack_and_take(world: World) -> None:
    world.manager.pack(world.p)
    world.fill(world.q, 0, 3)


def _load_in_steps(world: World) -> None:
    """Who moves the bytes says when they land, layer by layer, and then that all are there."""
    answer = world.manager.match(world.p)
    if answer.plan is None:
        return
    ticket = world.manager.load_begin(answer.plan)
    try:
        ok = world.manager.loader._transfer(ticket)
        for kind in world.manager.core.paged if ok else ():
            if len(ticket.all_slots(kind)):
                for layer in range(len(world.profile.layouts[kind].layers)):
                    ticket.land(kind)
                    refused = ticket.use_layer(layer) is not None and kind == world.manager.core.paged[-1]
                    if refused and ticket.state == "open":
                        world.wrong.append(f"layer {layer} has landed and can't be used")
    except Refused:
        ticket.done(False)
        raise
    ticket.done(ok)


def _pack_and_expand(world: World) -> None:
    world.manager.pack(world.p)
    world.manager.expand(world.p)


def _abort_all(world: World) -> None:
    """The owner of every open load goes; whoever moves the bytes says when they have stopped."""
    for ticket in list(world.manager.tickets.values()):
        ticket.abort()


def _abort_and_take(world: World) -> None:
    _abort_all(world)
    world.fill(world.q, 0, 3)


def _fail_reset(world: World) -> None:
    """The first attempt fails in the store; it is repeated."""
    assert isinstance(world.store, SplitStore)
    world.store.reset_fails = True
    try:
        world.manager.reset()
    except StoreError:
        world.tell("reset failed")
        world.manager.reset()


def _then_take(op: Op) -> Op:
    """What an operation frees is taken anew at once."""

    def act(world: World) -> None:
        op(world)
        _take(world)

    return act


def _evict_one(kind: str) -> Op:
    return lambda world: void(world.manager.evict(kind, 9) if kind in world.profile.kinds else 0)


def _check(world: World) -> None:
    """What is checked may be gone when it is acquired, and is told then."""
    answer = world.manager.match(world.p)
    world.tell(f"checked: {world.manager.check(answer).name}")
    if answer.now:
        world.use(world.p, world.manager.acquire(answer))


def _list_boundaries(world: World) -> None:
    now, later = world.manager.boundaries(world.p), world.manager.loadable(world.p)
    world.tell(f"boundaries {now.tolist()}, with a load {later.tolist()}")


def _look_on(world: World) -> None:
    """Whoever watches finds everything in order at any moment."""
    violations = world.manager.audit().violations
    assert not violations, violations
    world.tell(f"open: {sorted(leak.what for leak in world.manager.leaks())}")
    void(world.manager.metadata_bytes())
    void(world.serving.engine.report())


def _persist(world: World) -> None:
    """The store has lost everything."""
    if isinstance(world.store, SplitStore):
        world.scheduler.visit(("store",), True, "lost by the store")
        for one in world.store.objects:
            world.scheduler.touch(("object", one), True)
        world.store.objects.clear()
    void(world.manager.persist(world.p))


def _set_aside(world: World) -> None:
    world.tell(f"aside: {sorted(world.manager.set_aside())}")


def _join(world: World) -> None:
    """Wait for another's load, and no more; the last to leave frees what nobody moves."""
    manager, answer = world.manager, world.manager.match(world.p)
    if answer.plan is None:
        return
    with manager.lock:
        ticket = None if answer.plan.ticket is None else manager.tickets.get(answer.plan.ticket)
        if ticket is not None:
            ticket.join("who joins")
            ticket.then(lambda ended: world.tell(f"joined: {ended.state}"))
    if ticket is None:
        return
    with manager.lock:
        last = ticket.leave("who joins")
    world.tell(f"last {last}")
    world.serving.quiesce(ticket)


def _load_and_leave(world: World) -> None:
    """Who has begun a load goes before its bytes come; who has joined goes on, or gets it aborted."""
    manager, answer = world.manager, world.manager.match(world.p)
    if answer.plan is None:
        return
    ticket = manager.load_begin(answer.plan, owner="who begins")
    with manager.lock:
        world.tell(f"last {ticket.leave('who begins')}")
    if ticket.state == "open":
        ticket.transfer()
    else:
        world.serving.quiesce(ticket)


def _load_misses(world: World) -> None:
    """Who moves the bytes says that the last granule's don't come."""
    manager, answer = world.manager, world.manager.match(world.p)
    if answer.plan is None or "compressed_kv" not in answer.plan.wanted:
        return
    ticket = manager.load_begin(answer.plan)
    try:
        void(manager.loader._transfer(ticket))
        ticket.miss("compressed_kv", answer.plan.wanted["compressed_kv"][-1:])
        for kind in answer.plan.wanted:
            for layer in range(len(world.profile.layouts[kind].layers) if kind in manager.core.paged else 1):
                ticket.land(kind, layer)
        ticket.done(False)
    except Refused:
        world.serving.quiesce(ticket)
        raise
    world.tell(f"kept {ticket.kept}")


def _prefill_in_chunks(world: World) -> None:
    manager, keys = world.manager, world.p
    row = manager.requests.admit(world.granule)
    try:
        world.write_row(keys, row, 0)
        manager.requests.extend(row, world.granule)
        world.write_row(keys, row, 1)
        world.published |= {(0, keys.digest(place)) for place in range(2)}
        void(manager.requests.publish(row, keys))
    finally:
        manager.requests.finish(row)


def _speculate(world: World) -> None:
    """Drafts over the end of a granule: one is taken, the others are as if they had never been."""
    manager, keys, end = world.manager, world.p, 2 * world.granule
    requests, row = manager.requests, manager.requests.admit(end - 1)
    try:
        requests.propose([row], min(2, int(requests.draft_room([row])[0])))
        requests.reject([row])
        requests.propose([row], 1)
        requests.accept([row], 1)
        world.write_row(keys, row, 0)
        world.published |= {(0, keys.digest(place)) for place in range(2)}
        void(requests.publish(row, keys))
    finally:
        requests.finish(row)


def _ask_row(world: World) -> None:
    """What kernels and schedulers ask of a row and of a lease."""
    manager, keys = world.manager, world.p
    row = manager.requests.admit(2 * world.granule)
    requests = manager.requests
    try:
        world.tell(f"lossy {requests.is_lossy(row)}, holds {requests.holds(row, requests.incarnation(row))}")
        void(requests.coverage(row))
        if manager.profile.window is not None:
            void((requests.window_blocks([row]), requests.resolve(row, 2 * world.granule - 1)))
            void(requests.resolve_entry(row, 0))
        answer = manager.match(keys)
        if answer.now:
            with manager.acquire(answer) as lease:
                part = world.profile.layouts["compressed_kv"].parts[0]
                void((lease.view("compressed_kv", part.name, part.layer), lease.state_data_ptrs))
    finally:
        requests.finish(row)


def _rebuild(world: World) -> None:
    """Indexer keys that are missing are computed again."""
    answer = world.manager.match(world.p)
    if answer.rebuild is None:
        return
    _compute_keys(world, world.manager.rebuild_begin(answer))
    world.read(world.p)


def _rebuild_admitted(world: World) -> None:
    """The same of one who counts among those under way."""
    manager, keys, admission = world.manager, world.p, world.serving.admission
    answer = manager.match(keys)
    if answer.rebuild is None:
        return
    fill = admission.rebuild(answer, keys.tokens, owner=f"task {world.scheduler.number}")
    world.tell(type(fill).__name__)
    if not isinstance(fill, Fill):
        return
    try:
        _compute_keys(world, fill)
    finally:
        with manager.lock:
            admission.leave_rebuild()


def _compute_keys(world: World, fill: Fill) -> None:
    """Write the keys of a rebuild in halves, and publish them."""
    try:
        for part in range(2):
            world.scheduler.switch("keys are computed")
            world.write(world.p, KEYS, fill.places[KEYS].tolist(), fill.slots[KEYS], part)
        world.manager.publish(fill)
    except Refused:
        world.manager.abandon(fill)
        raise


def _preempt_row(world: World) -> None:
    """What a row that is put back has shared is found again, or computed."""
    manager, keys = world.manager, world.p
    row = manager.requests.admit(2 * world.granule)
    world.write_row(keys, row, 0)
    world.published |= {(0, keys.digest(place)) for place in range(2)}
    left = manager.requests.preempt(row, keys)
    world.tell(f"left {left.tokens}, {left.published}, {left.unpublished}")
    world.read(keys)


def _other_tenant(world: World) -> None:
    """Another tenant's row finds nothing that anybody left in its slots, and is found by its own keys."""
    keys = world.salted()
    requests = world.manager.requests
    row = requests.admit(2 * world.granule, salt=keys.salt)
    try:
        world.scheduler.switch("reads what is left")
        for kind, _, slots in world.row_slots(keys, row, 0):
            arena = np.asarray(world.manager.core.pools[kind].arena.bytes)
            world.touch(arena, slots, False)
            if arena[slots].any():
                world.wrong.append(f"{kind}: another tenant's bytes are left in slots of a row")
        world.write_row(keys, row, 0)
        void(requests.publish(row, keys))
    finally:
        requests.finish(row)
    world.read(keys)


def _decode(world: World, keys: Keys, *, reuse: bool = False, back: int = 0) -> None:
    end = 2 * world.granule
    world.decode(keys, end - 1, end, reuse=reuse, back=back)


OPERATIONS: Mapping[str, Op] = {
    "read p": lambda world: world.read(world.p),
    "read q": lambda world: world.read(world.q),
    "read both": lambda world: world.read_both(),
    "read p, park": lambda world: world.read(world.p, park=True),
    "device ends": lambda world: world.device_ends(),
    "fill p": lambda world: world.fill(world.p, 0, 3),
    "fill q": lambda world: world.fill(world.q, 0, 2),
    "fill q end": lambda world: world.fill(world.q, 1, 3),
    "abandon": lambda world: world.fill(world.q, 0, 2, abandon=True),
    "evict": _evict,
    "evict kv": _evict_one("compressed_kv"),
    "evict window": _evict_one("swa_window"),
    "expire p": lambda world: void(world.manager.expire(world.p)),
    "expire p end": lambda world: void(world.manager.expire(world.p, 1)),
    "pack p": lambda world: void(world.manager.pack(world.p)),
    "pack p lossy": lambda world: void(world.manager.pack(world.p, lossy=True)),
    "pack p end": lambda world: void(world.manager.pack(world.p, 1)),
    "pack fails": _fail_pack,
    "pack, expand p": _pack_and_expand,
    "expand p": lambda world: void(world.manager.expand(world.p)),
    "load p": lambda world: world.load(world.p),
    "load q": lambda world: world.load(world.q),
    "load in steps": _load_in_steps,
    "load fails": _fail_load,
    "load aborts": lambda world: world.load_abort(world.p),
    "abort all": _abort_all,
    "abort, take q": _abort_and_take,
    "reset": lambda world: void(world.manager.reset()),
    "reset fails": _fail_reset,
    "decode p": lambda world: _decode(world, world.p),
    "decode q reusing": lambda world: _decode(world, world.q, reuse=True),
    "roll back": lambda world: _decode(world, world.p, back=1),
    "take q": _take,
    "pack p, take q": _pack_and_take,
    "check p": _check,
    "list boundaries": _list_boundaries,
    "look on": _look_on,
    "lend p": lambda world: world.lend(world.p),
    "lend p, renew": lambda world: world.lend(world.p, renew=True),
    "revoke": lambda world: world.revoke(),
    "persist p": _persist,
    "fill p for a while": lambda world: world.fill(world.p, 0, 3, ttl=4),
    "set aside": _set_aside,
    "move memory": lambda world: world.reallocate(),
    "grow memory": lambda world: world.reallocate(world.setting.slots + 1),
    "join": _join,
    "load, leave": _load_and_leave,
    "load misses": _load_misses,
    "transfer": lambda world: world.transfer(),
    "prefill in chunks": _prefill_in_chunks,
    "speculate": _speculate,
    "preempt row": _preempt_row,
    "ask row": _ask_row,
    "other tenant": _other_tenant,
    "rebuild": _rebuild,
    "rebuild admitted": _rebuild_admitted,
    "rebuild in turn": lambda world: world.serving.schedule(),
    "evict keys": _evict_one(KEYS),
    "admit p": lambda world: world.serving.admit(world.p),
    "admit p, cancel": lambda world: world.serving.admit(world.p, cancel=True),
    "admit p, reload": lambda world: world.serving.admit(world.p, fail=True),
    "cancel all": lambda world: world.serving.cancel_all(),
    "cancel all, take q": _then_take(lambda world: world.serving.cancel_all()),
    "revoke, take q": _then_take(lambda world: world.revoke()),
    "give up, take q": _then_take(lambda world: world.serving.give_up()),
    "submit p": lambda world: world.serving.submit(world.p),
    "submit q": lambda world: world.serving.submit(world.q),
    "schedule": lambda world: world.serving.schedule(),
    "work": lambda world: void(world.serving.jobs.run()),
    "decode": lambda world: world.serving.decode(),
    "draft": lambda world: world.serving.speculate(),
    "preempt": lambda world: world.serving.preempt(),
    "publish": lambda world: world.serving.publish(),
    "finish": lambda world: world.serving.finish(),
    "sleep": lambda world: world.serving.sleep(),
    "give up": lambda world: world.serving.give_up(),
    "window p": lambda world: void(world.manager.free_out_of_window(world.p, 3 * world.granule)),
}


def void(_: object) -> None:
    """Drop an operation's answer."""


def _stored(world: World) -> None:
    world.fill(world.p, 0, 3)
    for kind in world.manager.profile.kinds:
        world.manager.evict(kind, 99)


def _packed(lossy: bool) -> Op:
    def begin(world: World) -> None:
        world.fill(world.p, 0, 3)
        world.manager.pack(world.p, lossy=lossy)

    return begin


def _packed_around(world: World) -> None:
    """A granule in the middle was published anew since."""
    world.fill(world.p, 0, 3)
    world.manager.pack(world.p)
    world.fill(world.p, 1, 2)


def _forked(world: World) -> None:
    world.fill(world.p, 0, 3)
    world.fill(world.q, 1, 2)


def _submitted(world: World) -> None:
    world.serving.submit(world.p)


def _loading(world: World) -> None:
    _stored(world)
    _submitted(world)
    world.serving.schedule()


def _joined(world: World) -> None:
    """A second request waits for the load of the first."""
    _loading(world)
    _submitted(world)
    world.serving.schedule()


def _running(world: World) -> None:
    _submitted(world)
    (live,) = world.serving.lives
    while live.computed < live.tokens:
        world.serving.schedule()


def _begun(world: World) -> None:
    """A step of its prompt is computed; more of them follow where steps are bounded."""
    _submitted(world)
    world.serving.schedule()


def _waiting(world: World) -> None:
    _stored(world)
    _submitted(world)


def _lent(world: World) -> None:
    """Somebody reads under a deadline, and does not come back."""
    world.fill(world.p, 0, 3)
    world.held.append(world.manager.acquire(world.manager.match(world.p), deadline=world.time + 1))


def _opened(world: World) -> None:
    """A load is open that nobody moves yet."""
    _stored(world)
    plan = world.manager.match(world.p).plan
    assert plan is not None
    world.opened.append(world.manager.load_begin(plan))


def _without_keys(world: World) -> None:
    """Indexer keys are nowhere any more."""
    world.fill(world.p, 0, 3)
    if isinstance(world.store, SplitStore):
        world.store.objects.clear()
    if KEYS in world.manager.profile.kinds:
        world.manager.evict(KEYS, 2)


def _waiting_for_keys(world: World) -> None:
    _without_keys(world)
    _submitted(world)


def _rebuilding(world: World) -> None:
    """Keys are computed, and not published yet."""
    _waiting_for_keys(world)
    world.serving.schedule(publish=False)


BEGINNINGS: Mapping[str, Op] = {
    "empty": lambda world: None,
    "p": lambda world: world.fill(world.p, 0, 3),
    "p decoded": lambda world: _decode(world, world.p),
    "p stored": _stored,
    "p packed": _packed(False),
    "p packed lossy": _packed(True),
    "p packed around": _packed_around,
    "p and q": _forked,
    "p lent": _lent,
    "p without keys": _without_keys,
    "p without keys, submitted": _waiting_for_keys,
    "p rebuilding": _rebuilding,
    "p opened": _opened,
    "p submitted": _submitted,
    "p stored and submitted": _waiting,
    "p loading": _loading,
    "p joined": _joined,
    "p begun": _begun,
    "p running": _running,
}

HOMES: Mapping[str, tuple[str, ...]] = {
    "empty": (),
    "p decoded": (),
    "p and q": (),
    "p packed": ("pack, expand p", "expand p"),
    "p packed lossy": (),
    "p packed around": (),
    "p lent": ("revoke", "revoke, take q"),
    "p without keys": ("rebuild", "rebuild admitted", "evict keys"),
    "p without keys, submitted": ("rebuild in turn",),
    "p opened": ("join", "transfer"),
    "p stored": (
        "load p", "load q", "load in steps", "load fails", "load aborts", "load misses", "load, leave",
        "abort all", "abort, take q", "admit p", "admit p, cancel", "admit p, reload", "cancel all",
        "cancel all, take q", "list boundaries",
    ),
    "p submitted": (),
    "p stored and submitted": ("submit p", "submit q", "schedule"),
    "p loading": ("work", "give up", "give up, take q", "sleep"),
    "p running": ("decode", "draft", "preempt", "publish", "finish"),
}  # fmt: skip
"""Operations that have most to do after a beginning other than "p"."""


def home(name: str) -> str:
    """The beginning after which an operation has most to do."""
    return next((begin for begin, names in HOMES.items() if name in names), "p")


TIMED = frozenset({"fill p for a while"})
"""Operations that need specs which keep when something ends."""

KEYED = frozenset((*HOMES["p without keys"], *HOMES["p without keys, submitted"], "p rebuilding"))
"""Operations, and a beginning, that need a model with indexer keys."""
