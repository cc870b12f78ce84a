"""Bytes that name the prefix which they belong to, so that whoever reads another's is found out."""

from __future__ import annotations

from kvfsm.runtime.fill import Fill
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.lease import Lease


def tag(keys: Keys, place: int, paged: bool) -> int:
    """A byte that names the prefix which ends at a granule, or at a boundary."""
    return keys.digest(place if paged else place - 1)[0]


def write(keys: Keys, fill: Fill) -> None:
    """All bytes of a fill."""
    paged = fill.manager.core.paged
    for kind in fill.kinds:
        for part in fill.layouts[kind].parts:
            view = fill.view(kind, part.name, part.layer)
            for n, place in enumerate(fill.places[kind].tolist()):
                view[n] = tag(keys, place, kind in paged)


def wrong_bytes(keys: Keys, lease: Lease) -> list[str]:
    """Places whose bytes are not those of the prefix; of lossy entries, those of other kinds. Windows are whole."""
    wrong, boundary, paged = [], lease.length // lease.manager.profile.granule, lease.manager.core.paged
    for kind in lease.slots:
        for part in lease.layouts[kind].parts if lease.exact or kind != "compressed_kv" else ():
            view = lease.view(kind, part.name, part.layer)
            for n, place in enumerate(range(boundary) if kind in paged else [boundary]):
                if not (view[n] == tag(keys, place, kind in paged)).all():
                    wrong.append(f"{kind} {place} has bytes of something else")
    return wrong
