"""Static topology: what captured launches have baked in, as a signature that is compared before each replay.

A graph is right only over the very memory that it was captured over: the tensors of all kinds in the same order, at the
same bases and strides, the tables of the batch at the same addresses and as wide, the same guard, and padding that goes
to the same scratch. ``Signature`` says all that in numbers; ``numbers_of`` gives those of the present in one pass
over the components, and comparing the two is what a replay costs. ``ondisk_prefix`` has no slots in memory: a graph
reads it where a load put it, in the slots of the other kinds.

Nothing here asks the device, so nothing waits for it. What the host can't see is whether a table still says on the
device what it said here; kernels that read the epoch and the slots' words beside the tables are to check that.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import astuple, dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from .kinds import Numbers
from .profile import Profile
from .requests import GUARD
from .static_tables import StaticTables

if TYPE_CHECKING:
    from .manager import Manager


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of one layer in ``slots`` slots of a kind: that of slot i is at ``base + i * stride``."""

    kind: str
    layer: int
    part: str
    base: int
    stride: int
    item_bytes: int
    slots: int

    def __str__(self) -> str:
        return f"{self.kind} layer {self.layer} part {self.part!r}"


@dataclass(frozen=True, slots=True)
class TableShape:
    """One table of the batch."""

    name: str
    address: int
    rows: int
    width: int
    item_bytes: int

    def __str__(self) -> str:
        return f"table {self.name}"


@dataclass(frozen=True, slots=True)
class Scratch:
    """The slot of a kind to which padding writes go."""

    kind: str
    slot: int

    def __str__(self) -> str:
        return f"scratch of {self.kind}"


Entry = Tensor | TableShape | Scratch


@dataclass(frozen=True)
class Signature:
    """What a graph for ``bucket`` rows has baked in.

    ``tensors`` are in the order of the profile's groups. ``window`` is how many tokens a block of the window's ring
    has; 0 where there is no ring of blocks. ``layouts`` are the digests of what the rows mean, by kind.
    """

    bucket: int
    guard: int
    window: int
    tensors: tuple[Tensor, ...]
    tables: tuple[TableShape, ...]
    scratch: tuple[Scratch, ...]
    layouts: tuple[tuple[str, str], ...]

    @cached_property
    def digest(self) -> str:
        """SHA-256 over all of it, as 64 hex digits."""
        return hashlib.sha256(json.dumps(astuple(self), separators=(",", ":")).encode()).hexdigest()

    @cached_property
    def numbers(self) -> Numbers:
        """All of it that can change while a process lives, int64, in the order of ``numbers_of``."""
        rows = [[one.base, one.stride, one.item_bytes, one.slots] for one in self.tensors]
        head = [self.bucket, self.guard, self.window]
        tables = [[one.address, one.rows, one.width, one.item_bytes] for one in self.tables]
        flat = [*zip(*rows, strict=True), *tables, [one.slot for one in self.scratch]]
        return np.array([*head, *(number for row in flat for number in row)], np.int64)

    def differences(self, other: Signature) -> tuple[str, ...]:
        """What ``other`` has otherwise, a line each, component by component; empty exactly when they are equal."""
        found = [
            f"{name}: {getattr(self, name)}, not {getattr(other, name)}"
            for name in ("bucket", "guard", "window")
            if getattr(self, name) != getattr(other, name)
        ]
        pairs: list[tuple[str, tuple[Entry, ...], tuple[Entry, ...]]] = [
            ("tensors", self.tensors, other.tensors),
            ("tables", self.tables, other.tables),
            ("scratch", self.scratch, other.scratch),
        ]
        for name, mine, theirs in pairs:
            if len(mine) != len(theirs):
                found.append(f"{len(mine)} {name}, not {len(theirs)}")
            for place, (one, another) in enumerate(zip(mine, theirs, strict=False)):
                found += _entry_differences(place, one, another)
        for (kind, digest), (kind_, digest_) in zip(self.layouts, other.layouts, strict=False):
            if (kind, digest) != (kind_, digest_):
                found.append(f"layout of {kind}: {digest[:12]}, not {digest_[:12]} of {kind_}")
        if len(self.layouts) != len(other.layouts):
            found.append(f"{len(self.layouts)} layouts, not {len(other.layouts)}")
        return tuple(found)


class Form:
    """The part of a profile's signatures that stays: order and offsets of the tensors."""

    def __init__(self, profile: Profile) -> None:
        self.kinds = profile.kinds
        parts = list(profile.tensors())
        self.kind = np.array([self.kinds.index(kind) for kind, _ in parts], np.intp)
        self.offset = np.array([part.offset for _, part in parts], np.int64)
        self.item_bytes = np.array([part.payload_bytes for _, part in parts], np.int64)


def numbers_of(manager: Manager, tables: StaticTables, bucket: int, form: Form) -> Numbers:
    """The numbers of the signature that a capture would have now: O(components), and no word from the device."""
    pools = [manager.core.pools[kind] for kind in form.kinds]
    bases, strides, slots = np.array([[pool.arena.base, pool.arena.stride, pool.hot] for pool in pools], np.int64).T
    tensors = (bases[form.kind] + form.offset, strides[form.kind], form.item_bytes, slots[form.kind])
    shapes = [
        number
        for table in tables.tables.values()
        for number in (table.address, *table.host.shape, table.host.itemsize)
    ]
    scratch = [int(held[0]) for held in manager.core.scratch.values()]
    head = [bucket, int(GUARD), manager.profile.window_block or 0]
    return np.concatenate((np.array(head, np.int64), *tensors, np.array([*shapes, *scratch], np.int64)))


def signature_of(manager: Manager, tables: StaticTables, bucket: int) -> Signature:
    """The signature of a capture for ``bucket`` rows. The caller holds the manager's lock."""
    core, profile = manager.core, manager.profile
    tensors = []
    for kind, part in profile.tensors():
        pool = core.pools[kind]
        base = pool.arena.base + part.offset
        tensors.append(Tensor(kind, part.layer, part.name, base, pool.arena.stride, part.payload_bytes, pool.hot))
    shapes = [
        TableShape(name, table.address, table.host.shape[0], table.host.shape[1], table.host.itemsize)
        for name, table in tables.tables.items()
    ]
    scratch = [Scratch(kind, int(held[0])) for kind, held in core.scratch.items()]
    layouts = tuple((kind, profile.layouts[kind].digest) for kind in profile.kinds)
    window = profile.window_block or 0
    return Signature(bucket, int(GUARD), window, tuple(tensors), tuple(shapes), tuple(scratch), layouts)


def _entry_differences(place: int, one: Entry, another: Entry) -> list[str]:
    if str(one) != str(another):
        return [f"{place} is {one}, not {another}"]
    return [
        f"{one} {field.name}: {_shown(field.name, getattr(one, field.name))}, "
        f"not {_shown(field.name, getattr(another, field.name))}"
        for field in fields(one)
        if getattr(one, field.name) != getattr(another, field.name)
    ]


def _shown(name: str, value: int) -> str:
    return f"{value:#x}" if name in ("base", "address") else str(value)
