"""Operations and beginnings that the tests interleave."""

from __future__ import annotations

from collections.abc import Mapping

from .world import A, Op, World


def _fail_pack(world: World) -> None:
    world.backend.failing = True
    try:
        world.manager.pack(world.p, 1)
    except OSError:
        return
    finally:
        world.backend.failing = False


def _fail_load(world: World) -> None:
    if world.store is not None:
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


def take_aborted(world: World) -> None:
    """Wrong on purpose: slots of loads whose transfers have not stopped are freed and written anew."""
    for ticket in list(world.manager.tickets.values()):
        ticket.abort()
        ticket.quiesce()
        world.fill(world.q, 0, 3)


OPERATIONS: Mapping[str, Op] = {
    "read p": lambda world: world.read(world.p),
    "read q": lambda world: world.read(world.q),
    "fill p": lambda world: world.fill(world.p, 0, 3),
    "fill q": lambda world: world.fill(world.q, 0, 2),
    "fill q end": lambda world: world.fill(world.q, 1, 3),
    "abandon": lambda world: world.fill(world.q, 0, 2, abandon=True),
    "evict": _evict,
    "expire p": lambda world: void(world.manager.expire(world.p)),
    "expire p end": lambda world: void(world.manager.expire(world.p, 1)),
    "pack p": lambda world: void(world.manager.pack(world.p)),
    "pack p lossy": lambda world: void(world.manager.pack(world.p, lossy=True)),
    "pack p end": lambda world: void(world.manager.pack(world.p, 1)),
    "pack fails": _fail_pack,
    "expand p": lambda world: void(world.manager.expand(world.p)),
    "load p": lambda world: world.load(world.p),
    "load q": lambda world: world.load(world.q),
    "load fails": _fail_load,
    "load aborts": lambda world: world.load_abort(world.p),
    "reset": lambda world: void(world.manager.reset()),
    "decode p": lambda world: world.decode(world.p, A, 2 * A),
    "decode q reusing": lambda world: world.decode(world.q, A, 2 * A, reuse=True),
    "take q": _take,
    "pack p, take q": _pack_and_take,
    "window p": lambda world: void(world.manager.free_out_of_window(world.p, 3 * A)),
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
    "p decoded": lambda world: world.decode(world.p, A, 2 * A),
    "p stored": _stored,
    "p packed": _packed(False),
    "p packed lossy": _packed(True),
    "p and q": _forked,
}
