"""Slots for rows of live requests: each is taken for the tenant of the row that it goes to.

One step may take slots for rows of several tenants. They come all or none; what another tenant left in them is cleared,
and what the row's own tenant left is not (``isolation.py``). While nobody tells tenants apart that is one take for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from .live_rows import LiveRows, Rows


def take_for(state: LiveRows, wanted: Mapping[str, Rows]) -> dict[str, Rows]:
    """A slot of each kind for each row that is named there, in that order; all of them or none.

    Args:
        state: of the rows. The caller holds the manager's lock.
        wanted: by kind the row of each slot.

    Raises:
        Refused: as for ``Manager.take``; nothing was taken.
        Exception: what a backend raises that can't clear; nothing was taken.
    """
    manager, core = state.manager, state.manager.core
    every = np.concatenate([*wanted.values(), np.empty(0, np.intp)])
    groups = list(by_salt(state, every))
    if len(groups) == 1:
        return manager.take({kind: len(rows) for kind, rows in wanted.items()}, "take", salt=groups[0][0])
    for kind, rows in wanted.items():
        core.check_room(kind, len(rows))
    slots = {kind: np.empty(len(rows), np.intp) for kind, rows in wanted.items()}
    ends = np.cumsum([len(rows) for rows in wanted.values()])[:-1]
    taken: list[dict[str, Rows]] = []
    try:
        for salt, mask in groups:
            theirs = dict(zip(wanted, np.split(mask, ends), strict=True))
            taken.append(manager.take({kind: int(one.sum()) for kind, one in theirs.items()}, "take", salt=salt))
            for kind, one in theirs.items():
                slots[kind][one] = taken[-1][kind]
    except BaseException:
        for some in taken:
            for kind, held in some.items():
                core.pools[kind].release("abandon", held, expected=core.pools[kind].generations(held))
        raise
    return slots


def by_salt(state: LiveRows, rows: Rows) -> Iterator[tuple[bytes | None, npt.NDArray[np.bool_]]]:
    """Each salt of some rows, and which of them have it; all of them under None while tenants are not told apart."""
    if not state.manager.core.tells_tenants:
        yield None, np.ones(len(rows), np.bool_)
        return
    salts = [state.salts[row] for row in rows.tolist()]
    for salt in dict.fromkeys(salts) or (None,):
        yield salt, np.array([one == salt for one in salts], np.bool_)
