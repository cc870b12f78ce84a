"""Slots for rows of live requests: each is taken for the tenant of the row that it goes to.

One step may take slots for rows of several tenants. They come all or none; what another tenant left in them is cleared,
and what the row's own tenant left is not (``isolation.py``). While nobody tells tenants apart that is one take for all.
Callers hold the manager's lock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from .lease import Done
from .live_rows import GUARD, LiveRows, Rows
from .live_window import LiveWindow, Slide
from .pool import Slots


def take_for(state: LiveRows, wanted: Mapping[str, Rows]) -> dict[str, Slots]:
    """A slot of each kind for each row that is named there, in that order; all of them or none.

    Args:
        state: of the rows.
        wanted: by kind the row of each slot.

    Raises:
        Refused: as for ``Manager.take``; nothing was taken.
        Exception: what a backend raises that can't clear; nothing was taken.
    """
    manager, core = state.manager, state.manager.core
    every = np.concatenate([*wanted.values(), np.empty(0, np.intp)])
    groups = list(_by_salt(state, every))
    if len(groups) == 1:
        return manager.take({kind: len(rows) for kind, rows in wanted.items()}, "take", salt=groups[0][0])
    for kind, rows in wanted.items():
        core.check_room(kind, len(rows))
    slots = {kind: np.empty(len(rows), np.intp) for kind, rows in wanted.items()}
    ends = np.cumsum([len(rows) for rows in wanted.values()])[:-1]
    taken: list[dict[str, Slots]] = []
    try:
        for salt, mask in groups:
            theirs = dict(zip(wanted, np.split(mask, ends), strict=True))
            taken.append(manager.take({kind: int(one.sum()) for kind, one in theirs.items()}, "take", salt=salt))
            for kind, one in theirs.items():
                slots[kind][one] = taken[-1][kind]
    except BaseException:
        for some in taken:
            for kind, held in some.items():
                core.pools[kind].abandon(held)
        raise
    return slots


def take_with_slide(
    state: LiveRows, window: LiveWindow | None, wanted: Mapping[str, Rows], slide: Slide | None, done: Done | None
) -> dict[str, Slots]:
    """Slots of paged kinds and for the window's slide, all or nothing; those of the slide are put in the ring.

    What can fail, which is the pool and whoever clears its slots, comes before anything has left the ring. A block
    comes into the slot that has just left its place, where it may: a full window needs no slot more then.

    Args:
        state: of the rows.
        window: their windows; None where the model has none.
        wanted: by paged kind the row of each slot.
        slide: blocks that come into windows.
        done: whether the device has ended the steps begun before; slots that leave a window wait for it.

    Raises:
        Refused, Exception: as ``take_for``.
    """
    if window is None or slide is None or not len(slide):
        return take_for(state, wanted) if wanted else {}
    pool, held = state.pool("swa_window"), slide.leaving.copy()
    leaving = held[held != GUARD]
    stays = np.isin(held, pool.usable(leaving)) & (done is None)
    slots = take_for(state, {**wanted, "swa_window": slide.rows[~stays]})
    state.give_up("swa_window", held[~stays & (held != GUARD)], done)
    for salt, theirs in _by_salt(state, slide.rows):
        again = held[stays & theirs]
        state.give_up("swa_window", again, None)
        own = pool.take(len(again), pool.rules.take(), tenant=state.manager.core.tenant(salt), clear=False)
        assert np.array_equal(own, np.sort(again)), "what was given back last is taken first"
    held[~stays] = slots["swa_window"]
    window.put(slide, held)
    return slots


def _by_salt(state: LiveRows, rows: Rows) -> Iterator[tuple[bytes | None, npt.NDArray[np.bool_]]]:
    """Each salt of some rows, and which of them have it; all of them under None while tenants are not told apart."""
    if not state.manager.core.tells_tenants:
        yield None, np.ones(len(rows), np.bool_)
        return
    salts = [state.salts[row] for row in rows.tolist()]
    for salt in dict.fromkeys(salts) or (None,):
        yield salt, np.array([one == salt for one in salts], np.bool_)
