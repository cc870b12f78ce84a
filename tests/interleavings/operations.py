"""Operations and beginnings that the tests interleave."""

from __future__ import annotations

from collections.abc import Mapping

from kvfsm.runtime.errors import Refused
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.stores.store import StoreError

from .doubles import SplitStore
from .world import Op, World


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


def _evict_one(kind: str) -> Op:
    return lambda world: void(world.manager.evict(kind, 9))


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


def _forked(world: World) -> None:
    world.fill(world.p, 0, 3)
    world.fill(world.q, 1, 2)


BEGINNINGS: Mapping[str, Op] = {
    "empty": lambda world: None,
    "p": lambda world: world.fill(world.p, 0, 3),
    "p decoded": lambda world: _decode(world, world.p),
    "p stored": _stored,
    "p packed": _packed(False),
    "p packed lossy": _packed(True),
    "p and q": _forked,
}
