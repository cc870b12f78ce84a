"""Small profiles, tagged bytes and a store on disk for the scenarios."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.fill import Fill
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.profile import Profile
from kvfsm.runtime.profile_plan import GroupPlan, PartPlan, ProfilePlan
from kvfsm.runtime.stores.local import LocalStore
from kvfsm.runtime.stores.store import Item, Namespace, ObjectId
from kvfsm.runtime.ticket import Ticket

Bools = np.ndarray[Any, np.dtype[np.bool_]]


class Disturbed(LocalStore):
    """A local store of which a test decides what happens at the wrong moment.

    ``meanwhile`` runs once, inside the next put and before anything is written; ``listed`` are objects that the store
    says it has whether or not it can give them.
    """

    meanwhile: Callable[[], None] | None = None
    listed: frozenset[ObjectId] = frozenset()

    def put_many(self, items: Sequence[Item], *, at_epoch: int | None = None) -> int:
        call, self.meanwhile = self.meanwhile, None
        if call is not None:
            call()
        return super().put_many(items, at_epoch=at_epoch)

    def contains(self, ids: Sequence[ObjectId]) -> Bools:
        return super().contains(ids) | np.array([one in self.listed for one in ids], np.bool_)


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
    def refusal(call: Callable[..., object], *arguments: Any, **named: Any) -> str | None:
        """The word with which a call is refused; None when it is not."""
        try:
            call(*arguments, **named)
        except Refused as refused:
            return refused.refusal.name
        return None

    @staticmethod
    def read_in(manager: Manager, ticket: Ticket, kind: str) -> list[int]:
        """Move a ticket's objects of one kind by hand, as a loader would; places that the store could not give."""
        assert manager.store is not None
        claim, places = ticket.plan.claim, ticket.plan.wanted[kind]
        arena, failed = manager.core.pools[kind].arena.bytes, []
        names = manager.object_of(claim.digests, claim.salt, kind, places)
        for place, slot, name in zip(places.tolist(), ticket.slots(kind).tolist(), names, strict=True):
            if manager.store.get(name, arena[slot]).verdict != 0:
                failed.append(place)
        return failed

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
def open_store(tmp_path: Path) -> Iterator[Callable[[Profile], Disturbed]]:
    """Opens the store of a profile's objects; closed when the test ends."""
    with ExitStack() as stores:

        def opened(profile: Profile) -> Disturbed:
            store = Disturbed(tmp_path, Namespace.of(profile))
            stores.callback(store.close)
            return store

        yield opened
