"""All boundaries at once, against a match asked with every cap."""

from __future__ import annotations

import random
import tempfile
from typing import Any

import numpy as np
import pytest

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.policy import WindowPolicy
from kvfsm.runtime.profile import Profile
from kvfsm.runtime.profile_plan import GroupPlan, PartPlan, ProfilePlan
from kvfsm.runtime.stores.local import LocalStore
from kvfsm.runtime.stores.store import Namespace

A = 4


def profile(*, blocks: bool, tail: bool = True, paged: bool = True) -> Profile:
    """One-byte rows at a granule of 4 tokens; a window of 6, so that in blocks of 2 a boundary needs three of them."""

    def group(name: str, kind: str, rows: int, ratio: int, role: str) -> GroupPlan:
        return GroupPlan(name, kind, (0,), (PartPlan("rows", rows, (1,), "uint8", "tag", role),), ratio, A)

    groups = [group("window", "swa_window", 2 if blocks else 5, 1, "window")]
    if paged:
        groups += [group("full", "compressed_kv", 2, 2, "entries"), group("keys", "indexer_state", 2, 2, "entries")]
    if tail:
        groups.append(group("tail", "uncompressed_tail", 1, 2, "pending"))
    window: dict[str, Any] = {"window_policy": "checkpoint"}
    if blocks:
        window = {"window_policy": "blocks", "window_block": 2}
    named = dict.fromkeys(("name", "title", "source", "identity"), "boundaries")
    return ProfilePlan(**named, granule=A, groups=tuple(groups), window=6, **window).profile()


def cut_up(manager: Manager, draw: random.Random) -> list[list[int]]:
    """Publishes a few branches and evicts here and there; returns the prompts."""
    prompts: list[list[int]] = []
    for _ in range(60):
        match draw.randrange(4):
            case 0:
                base = draw.choice(prompts) if prompts and draw.random() < 0.8 else []
                base = base[: draw.randrange(len(base) + 1)]
                prompt = base + [draw.randrange(3) for _ in range(draw.randrange(1, 50))]
                keys = manager.keys(prompt)
                start = manager.match(keys, len(prompt)).now // A
                while start < len(keys):
                    stop = min(len(keys), start + draw.randrange(1, 4))
                    manager.publish(manager.reserve(keys, start, stop))
                    start = stop
                prompts += [prompt] * (len(keys) > 0)
            case 1 | 2:
                manager.evict(draw.choice(manager.core.kinds), draw.randrange(1, 3))
            case 3 if prompts:
                manager.free_out_of_window(manager.keys(draw.choice(prompts)), draw.randrange(40))
    return prompts


def by_match(manager: Manager, keys: Any, tokens: int) -> list[int]:
    return [b for b in range(1, len(keys) + 1) if manager.match(keys, tokens, at_most=b * A).now == b * A]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shape", ["marks", "blocks", "blocks alone", "window only", "no windows kept"])
def test_boundaries_are_those_that_a_match_capped_there_answers(shape: str, seed: int) -> None:
    draw = random.Random(seed)
    window = WindowPolicy.none() if shape == "no windows kept" else WindowPolicy.full()
    made = profile(blocks="blocks" in shape, tail="alone" not in shape, paged=shape != "window only")
    manager = Manager(made, dict.fromkeys(made.kinds, 300), NumpyBackend(), window=window)
    prompts = cut_up(manager, draw)
    sparse = 0
    for prompt in prompts:
        keys, tokens = manager.keys(prompt), draw.randrange(1, len(prompt) + 2)
        found = manager.boundaries(keys, tokens).tolist()
        assert found == by_match(manager, keys, tokens)
        for draft in (0, 3, 4, 9):
            some = manager.boundaries(keys, tokens, draft=draft, at_most=30).tolist()
            assert max(some, default=0) * A == manager.match(keys, tokens, draft=draft, at_most=30).now
            assert set(some) <= set(found)
        sparse += bool(found) and found != list(range(1, found[-1] + 1))
    assert len(prompts) > 3
    assert sparse > 0 or shape == "no windows kept"
    assert manager.audit().ok


def test_a_boundary_set_may_lack_the_lesser_ones() -> None:
    """The sign of a set that is taken for all numbers up to its greatest."""
    made = profile(blocks=False)
    manager = Manager(made, dict.fromkeys(made.kinds, 32), NumpyBackend())
    keys = manager.keys(list(range(21)))
    manager.publish(manager.reserve(keys, 0, 2))
    manager.publish(manager.reserve(keys, 2, 5))
    assert manager.boundaries(keys).tolist() == [2, 5]


def test_what_match_rejects_has_no_boundaries() -> None:
    made = profile(blocks=False)
    manager = Manager(made, dict.fromkeys(made.kinds, 32), NumpyBackend(), copy_bytes=1 << 20)
    keys = manager.keys(list(range(21)))
    manager.publish(manager.reserve(keys, 0, 5))
    assert manager.match(keys).kind == "REJECT"
    assert manager.boundaries(keys).tolist() == manager.loadable(keys).tolist() == []
    other = Manager(profile(blocks=True), dict.fromkeys(made.kinds, 8), NumpyBackend())
    foreign = other.keys([1, 2, 3, 4, 5])
    foreign.identity = "another"
    for ask in (manager.boundaries, manager.loadable):
        with pytest.raises(Refused, match="IDENTITY"):
            ask(foreign)
        with pytest.raises(ValueError, match="draft=-1"):
            ask(keys, draft=-1)


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_loadable_are_those_that_a_match_capped_there_plans_for(seed: int, blocks: bool) -> None:
    draw = random.Random(seed)
    made = profile(blocks=blocks)
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalStore(folder, Namespace.of(made), budget_bytes=1 << 24) as store,
    ):
        slots = dict.fromkeys(made.kinds, 60)
        writer, manager = (Manager(made, slots, NumpyBackend(), store=store) for _ in range(2))
        for count in (22, 34):
            prompt = [draw.randrange(9) for _ in range(count)]
            keys = writer.keys(prompt)
            for start, stop in ((0, 2), (2, 3), (3, len(keys))):
                writer.publish(writer.reserve(keys, start, stop))
            part = draw.randrange(1, 4)
            manager.publish(manager.reserve(keys, 0, part))
            manager.evict(draw.choice(manager.core.kinds), 1)
            planned = [
                b for b in range(1, len(keys) + 1) if manager.match(keys, count, at_most=b * A).length == b * A
            ]
            assert manager.loadable(keys, count).tolist() == planned
            assert set(manager.boundaries(keys, count).tolist()) <= set(planned)
            assert len(planned) > len(manager.boundaries(keys, count))
    assert np.all(np.diff(planned) > 0)
