"""What tests of missing indexer keys share: chains whose keys are gone or stale, and looks at what is found."""

from __future__ import annotations

import numpy as np
import pytest

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.answers import Answer, Plan
from kvfsm.runtime.fill import Fill
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.profile import Profile
from kvfsm.runtime.rebuilding import Rebuild
from kvfsm.runtime.table import Fired

V4, V32 = PROFILES["tiny_deepseek_v4"], PROFILES["tiny_deepseek_v32"]
KV, KEYS = "compressed_kv", "indexer_state"
BOTH = pytest.mark.parametrize("profile", [V4, V32], ids=lambda profile: profile.name)


class Events:
    """Counts of applied events of one kind's slots."""

    def __init__(self, kind: str = KEYS) -> None:
        self.kind = kind
        self.seen: dict[str, int] = {}

    def __call__(self, fired: Fired) -> None:
        if fired.machine == self.kind and not fired.codes.any():
            self.seen[fired.event] = self.seen.get(fired.event, 0) + len(fired.codes)


def make(profile: Profile = V4, slots: int = 16, **options: object) -> Manager:
    return Manager(profile, dict.fromkeys(profile.kinds, slots), NumpyBackend(), **options)  # type: ignore[arg-type]


def prompt(manager: Manager, granules: int, seed: int = 1, shared: int = 0) -> Keys:
    a = manager.profile.granule
    tokens = np.random.default_rng(seed).integers(0, 256, granules * a + 1)
    tokens[: shared * a] = 7
    return manager.keys(tokens)


def put(manager: Manager, keys: Keys, start: int, stop: int) -> None:
    for granule in range(start, stop):
        fill = manager.reserve(keys, granule, granule + 1)
        for kind in fill.kinds:
            mark(manager, fill, kind)
        manager.publish(fill)


def mark(manager: Manager, fill: Fill, kind: str = KEYS, by: int = 0) -> None:
    """Every byte of a slot says which place it is of."""
    for part in manager.profile.layouts[kind].parts:
        fill.view(kind, part.name, part.layer)[:] = (fill.places[kind] + 1 + by).astype(np.uint8)[:, None, None]


def decoded(manager: Manager, keys: Keys, granules: int) -> None:
    """Publish a chain whose entries came in many batches, so that their version is another than a prefill's."""
    a = manager.profile.granule
    row = manager.requests.admit(a - 1)
    for granule in range(granules):
        manager.requests.extend(row, 1)
        manager.requests.publish(row, keys)
        if granule + 1 < granules:
            manager.requests.extend(row, 1)
            manager.requests.extend(row, a - 2)
    manager.requests.finish(row)


def behind(manager: Manager, keys: Keys, granules: int) -> None:
    """Make the keys of a chain stale: its entries go by themselves, and come back at another version."""
    decoded(manager, keys, granules)
    assert manager.evict(KV, granules) == granules
    fill = manager.reserve(keys, 0, granules, kinds=(KV,))
    mark(manager, fill, KV)
    manager.publish(fill)
    audited(manager)


def basis(fill: Fill) -> Rebuild:
    assert fill.rebuild is not None
    return fill.rebuild


def planned(answer: Answer) -> Plan:
    assert answer.plan is not None
    return answer.plan


def audited(manager: Manager) -> None:
    assert manager.audit().violations == ()


def states(manager: Manager, kind: str = KEYS) -> dict[str, int]:
    return {state: count for state, count in manager.audit().counts[kind].items() if count and state != "free"}


def keys_read(manager: Manager, answer: Answer) -> list[int]:
    part = manager.profile.layouts[KEYS].parts[0]
    with manager.acquire(answer) as lease:
        return lease.view(KEYS, part.name, part.layer)[:, 0, 0].tolist()
