"""Models whose tails and windows have rows for drafts, and what a live request is, to compare two of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.profile import Profile
from kvfsm.runtime.profile_plan import GroupPlan, PartPlan, ProfilePlan
from kvfsm.runtime.requests import GUARD

PAGED = ("compressed_kv", "indexer_state")


def _part(rows: int, role: Any = "entries") -> tuple[PartPlan, ...]:
    return (PartPlan("rows", rows, (1,), "uint8", "tag", role),)


def _profile(name: str, granule: int, *groups: GroupPlan, **fields: Any) -> Profile:
    named: dict[str, Any] = dict.fromkeys(("name", "title", "source", "identity"), name)
    return ProfilePlan(**named, granule=granule, groups=groups, **fields).profile()


def compressing(pending: int = 40, retained: int = 12) -> Profile:
    """Ratios 4 and 16, an indexer, tails of ``pending`` rows, and a window of 16 in one slot of 15 + ``retained``."""
    return _profile(
        "compressing", 32,
        GroupPlan("csa", "compressed_kv", (0,), _part(8), 4, 32),
        GroupPlan("hca", "compressed_kv", (1,), _part(2), 16, 32),
        GroupPlan("csa_tail", "uncompressed_tail", (0,), _part(pending, "pending"), 4, 4),
        GroupPlan("hca_tail", "uncompressed_tail", (1,), _part(pending, "pending"), 16, 16),
        GroupPlan("window", "swa_window", (0,), _part(15 + retained, "window"), 1, 32),
        GroupPlan("indexer", "indexer_state", (0,), _part(8), 4, 32),
        window=16, window_policy="checkpoint", retained=retained, scores="raw",
    )  # fmt: skip


def in_blocks(retained: int = 16) -> Profile:
    """Plain KV and a window of 16 in blocks of 8."""
    return _profile(
        "in_blocks", 16,
        GroupPlan("full", "compressed_kv", (0,), _part(16), 1, 16),
        GroupPlan("window", "swa_window", (1,), _part(8, "window"), 1, 8),
        window=16, window_policy="blocks", window_block=8, retained=retained,
    )  # fmt: skip


def roomy() -> dict[str, Profile]:
    """Models of every sort, with room for drafts."""
    made = {"compressing": compressing(), "in_blocks": in_blocks()}
    return made | {name: PROFILES[name] for name in ("tiny_llama", "tiny_deepseek_v32", "tiny_deepseek_v4")}


def make(profile: Profile, slots: int = 64, rows: int = 16, **options: Any) -> Manager:
    return Manager(profile, dict.fromkeys(profile.kinds, slots), NumpyBackend(), rows=rows, **options)


def slots_of(manager: Manager, row: int) -> dict[str, list[int]]:
    """Slots that a row reads or writes, by kind, where they lie in its tables."""
    requests, held = manager.requests, {}
    for kind in manager.profile.kinds:
        if kind in PAGED:
            held[kind] = requests.table(kind, [row])[0].tolist()
        else:
            tail = kind == "uncompressed_tail"
            held[kind] = (requests.tail_table([row]) if tail else requests.window_table([row])[0]).tolist()
    return held


def words_of(manager: Manager, row: int) -> dict[str, list[dict[str, int] | None]]:
    """What the words of these slots say, but for their generation."""
    found: dict[str, list[dict[str, int] | None]] = {}
    for kind, slots in slots_of(manager, row).items():
        table = manager.core.pools[kind].table
        said = [None if slot == GUARD else table.LAYOUT.unpack(int(table.words[slot])) for slot in slots]
        found[kind] = [word and {name: value for name, value in word.items() if name != "generation"} for word in said]
    return found


def seen(manager: Manager, row: int) -> tuple[Any, ...]:
    """Everything that a row is but for which slots it has: coverage, words, blocks of its window."""
    blocks = manager.requests.window_blocks([row])[0].tolist()
    return manager.requests.coverage(row), words_of(manager, row), blocks


def exactly(manager: Manager, row: int) -> tuple[Any, ...]:
    """The same, with its slots and their generations."""
    slots = slots_of(manager, row)
    held = {kind: np.array([slot for slot in one if slot != GUARD], np.intp) for kind, one in slots.items()}
    generations = {kind: manager.core.pools[kind].generations(one).tolist() for kind, one in held.items()}
    return seen(manager, row), slots, generations, int(manager.requests.tokens[row])


def compute(manager: Manager, row: int, start: int) -> None:
    """What the device writes for tokens from ``start`` on: each slot says how far its rows go."""
    granule, tokens = manager.profile.granule, int(manager.requests.tokens[row])
    for kind, slots in slots_of(manager, row).items():
        arena = manager.core.pools[kind].arena.bytes
        if kind in PAGED:
            for block in range(start // granule, len(slots)):
                arena[slots[block]] = min((block + 1) * granule, tokens) % 251
        elif kind == "uncompressed_tail" or manager.profile.window_block is None:
            arena[slots[0]] = tokens % 251
        else:
            for block, slot in zip(manager.requests.window_blocks([row])[0].tolist(), slots, strict=True):
                if slot != GUARD:
                    arena[slot] = min((block + 1) * manager.profile.window_block, tokens) % 251


def contents(manager: Manager, row: int) -> dict[str, list[int | None]]:
    """First byte of each slot of a row, in the order of its tables; the device writes all bytes of one alike."""
    found: dict[str, list[int | None]] = {}
    for kind, slots in slots_of(manager, row).items():
        arena = manager.core.pools[kind].arena.bytes
        found[kind] = [None if slot == GUARD else int(arena[slot, 0]) for slot in slots]
        if kind == "swa_window" and manager.profile.window_block is not None:  # of blocks that no query reads any more
            low = max(0, int(manager.requests.tokens[row]) - (manager.profile.window or 1) + 1)
            blocks = manager.requests.window_blocks([row])[0]
            read = (blocks >= 0) & ((blocks + 1) * manager.profile.window_block > low)
            found[kind] = [one if needed else None for one, needed in zip(found[kind], read.tolist(), strict=True)]
    return found


def audited(manager: Manager) -> None:
    assert manager.audit().violations == ()


def all_free(manager: Manager) -> bool:
    return all(pool.free == pool.hot for pool in manager.core.pools.values())
