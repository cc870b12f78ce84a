"""Small profiles, tagged bytes and a store on disk for the scenarios."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.fill import Fill
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.profile import Profile
from kvfsm.runtime.profile_plan import GroupPlan, PartPlan, ProfilePlan
from kvfsm.runtime.stores.local import LocalStore
from kvfsm.runtime.stores.store import Namespace


class Bench:
    """What every scenario needs; ``tag`` writes into every row of a fill whose bytes they are."""

    @staticmethod
    def part(granule: int, ratio: int = 1) -> tuple[PartPlan, ...]:
        """One-byte rows."""
        return (PartPlan("rows", granule // ratio, (1,), "uint8", "tag"),)

    @classmethod
    def group(
        cls, name: str, kind: str, granule: int, span: int, layers: tuple[int, ...] = (0,), ratio: int = 1
    ) -> GroupPlan:
        return GroupPlan(name, kind, layers, cls.part(granule, ratio), ratio, span)

    @staticmethod
    def window(span: int, rows: int, layers: tuple[int, ...] = (0,)) -> GroupPlan:
        parts = (PartPlan("rows", rows, (1,), "uint8", "tag", "window"),)
        return GroupPlan("window", "swa_window", layers, parts, 1, span)

    @staticmethod
    def tail(ratio: int, span: int, layers: tuple[int, ...] = (0,)) -> GroupPlan:
        parts = (PartPlan("pending", ratio - 1, (1,), "uint8", "tag", "pending"),)
        return GroupPlan("tail", "uncompressed_tail", layers, parts, ratio, span)

    @staticmethod
    def profile(granule: int, *groups: GroupPlan, **fields: Any) -> Profile:
        named = dict.fromkeys(("name", "title", "source", "identity"), "scenario")
        return ProfilePlan(**named, granule=granule, groups=groups, **fields).profile()

    @staticmethod
    def manager(profile: Profile, slots: int | Mapping[str, int], **options: Any) -> Manager:
        counts = dict.fromkeys(profile.kinds, slots) if isinstance(slots, int) else slots
        return Manager(profile, counts, NumpyBackend(), **options)

    @staticmethod
    def tokens(count: int, seed: int = 0) -> list[int]:
        found: list[int] = np.random.default_rng(seed).integers(0, 1000, count).tolist()
        return found

    @staticmethod
    def tag(fill: Fill, tag: int) -> None:
        for kind in fill.kinds:
            for part in fill.layouts[kind].parts:
                fill.view(kind, part.name, part.layer)[:] = tag

    @classmethod
    def put(cls, manager: Manager, keys: Keys, start: int, stop: int, tag: int = 1, **options: Any) -> Fill:
        fill = manager.reserve(keys, start, stop, **options)
        cls.tag(fill, tag)
        manager.publish(fill)
        return fill

    @staticmethod
    def slots(manager: Manager, kind: str, keys: Keys, low: int, high: int) -> list[int]:
        """Slots that the index holds of a paged kind."""
        core = manager.core
        spot = core.index.locate(keys.digests, high)
        found: list[int] = core.index.slots(core.paged.index(kind), spot, low, high).tolist()
        return found

    @staticmethod
    def audited(manager: Manager) -> None:
        assert manager.audit().violations == ()


@pytest.fixture(autouse=True)
def traces_are_paths_of_the_model(traced: object) -> None:
    """What every scenario's managers did is held against the model when it ends."""


@pytest.fixture
def bench() -> type[Bench]:
    return Bench


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Callable[[Profile], LocalStore]]:
    """Opens the store of a profile's objects; closed when the test ends."""
    with ExitStack() as stores:

        def opened(profile: Profile) -> LocalStore:
            layouts = {kind: layout.digest for kind, layout in profile.layouts.items()}
            return stores.enter_context(LocalStore(tmp_path, Namespace(profile.identity, layouts, "")))

        yield opened
