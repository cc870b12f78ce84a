"""Bytes that name the prefix which they belong to, so that whoever reads another's is found out."""

from __future__ import annotations

import numpy as np

from kvfsm.runtime.fill import Fill
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.lease import Lease
from kvfsm.runtime.manager import Manager


def tags(manager: Manager, keys: Keys, kind: str, places: np.ndarray) -> list[int]:
    """For each place of a kind, a byte that names the prefix which ends with the place's granule."""
    return [keys.digest(granule)[0] for granule in manager.core.granules(kind, places).tolist()]


def write(keys: Keys, fill: Fill) -> None:
    """All bytes of a fill."""
    for kind in fill.kinds:
        named = tags(fill.manager, keys, kind, fill.places[kind])
        for part in fill.layouts[kind].parts:
            view = fill.view(kind, part.name, part.layer)
            for n, tag in enumerate(named):
                view[n] = tag


def wrong_bytes(keys: Keys, lease: Lease) -> list[str]:
    """Places whose bytes are not those of the prefix; of lossy entries, those of other kinds."""
    wrong, core = [], lease.manager.core
    for kind in lease.slots:
        places = core.places(kind, lease.length // lease.manager.profile.granule)
        named = tags(lease.manager, keys, kind, places)
        for part in lease.layouts[kind].parts if lease.exact or kind != "compressed_kv" else ():
            view = lease.view(kind, part.name, part.layer)
            for n, (place, tag) in enumerate(zip(places.tolist(), named, strict=True)):
                if not (view[n] == tag).all():
                    wrong.append(f"{kind} {place} has bytes of something else")
    return wrong
