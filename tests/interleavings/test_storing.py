"""Memory is stored on demand while others evict, reset, pack and publish: its own bytes, in every schedule."""

from __future__ import annotations

import pytest

from .doubles import SplitStore
from .operations import void
from .planted import StoresUnheld
from .runs import every
from .world import WITH_BLOCKS, Op, Setting, World


def lost_by_the_store(world: World) -> None:
    """Memory has a prompt that the store no longer has."""
    world.fill(world.p, 0, 3)
    assert isinstance(world.store, SplitStore)
    world.store.objects.clear()


def persist(world: World) -> None:
    void(world.manager.persist(world.p))


OTHERS = ("take q", "evict", "reset", "expire p end", "pack p", "fill p", "window p", "read p", persist)


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: getattr(other, "__name__", other))
def test_what_is_stored_on_demand_is_whole(other: str | Op) -> None:
    found = every(lost_by_the_store, (persist, other), Setting(WITH_BLOCKS))
    print(found.schedules, "schedules,", len(found.finals), "states")
    assert (found.wrong, found.complete) == ((), True)


def test_control_slots_that_nobody_holds_are_stored_with_strange_bytes() -> None:
    reason = "from the store: bytes of"
    setting = Setting(WITH_BLOCKS, make=StoresUnheld)
    found = every(
        lost_by_the_store, (persist, "take q"), setting, until=lambda wrong: any(reason in text for text in wrong)
    )
    assert any(reason in text for text in found.wrong)
