"""What captured launches read of the batch: tables at addresses that stay, filled in place for each step.

They are as large as the extremes: as many rows as the largest batch, and as wide as the longest sequence that the pools
can hold, or as the window's ring. What is in them after ``fill`` depends on the batch and on nothing before it:

    compressed_kv, indexer_state   int32 [rows, width]  slots by granule, then the guard
    swa_window                     int32 [rows, ring]   slots of the ring; the guard where there is no block
    uncompressed_tail              int32 [rows, 1]      slot of the tail
    positions                      int64 [rows, 1]      of each row's last token, which the step computes
    live                           int64 [1, 1]         rows of the batch; those after it are padding

A padding row is a row of one token whose slots are all *scratch*: kernels that do not look at ``live`` write there, and
harm nobody. The guard is no slot, and resolves to none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from .requests import GUARD

if TYPE_CHECKING:
    from .manager import Manager

Host = npt.NDArray[Any]


class Placer(Protocol):
    """Where launches find the tables."""

    def place(self, name: str, host: Host) -> Any:
        """What launches read for a table: as large, and at an address that stays."""
        ...

    def address(self, placed: Any) -> int:
        """Its address."""
        ...

    def upload(self, changed: Mapping[str, tuple[Host, Any]]) -> None:
        """Bring what changed, each [rows, columns] on the host and as placed, before what is launched afterwards."""
        ...


@dataclass(frozen=True, slots=True)
class StaticTable:
    """One table: as it is filled, and as launches see it."""

    host: Host
    placed: Any
    address: int


class StaticTables:
    """Tables of one runner.

    Args:
        manager: with slots set aside; the caller holds its lock.
        rows: of the largest batch.
        placer: where launches find them.
    """

    def __init__(self, manager: Manager, rows: int, placer: Placer) -> None:
        self._placer = placer
        self.rows = rows
        self.scratch = _scratch(manager)
        self.widths = widths(manager)
        self.paged = tuple(kind for kind in manager.core.paged if kind in self.widths)
        hosts: dict[str, Host] = {kind: np.full((rows, width), GUARD, np.int32) for kind, width in self.widths.items()}
        hosts["positions"], hosts["live"] = np.zeros((rows, 1), np.int64), np.zeros((1, 1), np.int64)
        self.tables: dict[str, StaticTable] = {}
        for name, host in hosts.items():
            placed = placer.place(name, host)
            self.tables[name] = StaticTable(host, placed, placer.address(placed))
        self._filled = dict.fromkeys(self.paged, 0)  # leading columns that may hold slots
        self._changed = {name: table.host.shape[1] for name, table in self.tables.items()}
        self.point_at_scratch()

    def fits(self, manager: Manager) -> bool:
        """Whether they still have the extremes of the manager's pools, and its scratch."""
        return self.widths == widths(manager) and self.scratch == _scratch(manager)

    def placed(self, bucket: int) -> Mapping[str, Any]:
        """What launches of a batch of ``bucket`` rows read, by name."""
        return {name: table.placed[:bucket] for name, table in self.tables.items()}

    def point_at_scratch(self) -> None:
        """Let every entry of every row name scratch: a capture really writes, whatever its positions are."""
        for kind in self.widths:
            self.tables[kind].host[:] = self.scratch[kind]
        for kind in self.paged:
            self._filled[kind] = self.widths[kind]
        self.tables["positions"].host[:] = 0
        self.tables["live"].host[:] = 0
        self._changed = {name: table.host.shape[1] for name, table in self.tables.items()}

    def fill(self, manager: Manager, rows: npt.NDArray[np.intp]) -> None:
        """Let the first rows be live requests, and those after them padding. The caller holds the manager's lock."""
        requests, count = manager.requests, len(rows)
        for kind in self.paged:
            host = self.tables[kind].host
            held = requests.table(kind, rows)
            longest, before = max(1, held.shape[1]), self._filled[kind]
            host[:count, : held.shape[1]] = held
            host[count:, :longest] = self.scratch[kind]
            host[:, longest:before] = GUARD
            self._filled[kind], self._changed[kind] = longest, max(longest, before)
        if "swa_window" in self.widths:
            ring = self.tables["swa_window"].host
            ring[:count], ring[count:] = requests.window_table(rows), self.scratch["swa_window"]
        if "uncompressed_tail" in self.widths:
            tail = self.tables["uncompressed_tail"].host
            tail[:count, 0], tail[count:] = requests.tail_table(rows), self.scratch["uncompressed_tail"]
        positions = self.tables["positions"].host
        positions[:count, 0], positions[count:] = requests.tokens[rows] - 1, 0
        self.tables["live"].host[0, 0] = count

    def upload(self) -> None:
        """Bring what the last call changed to where launches find it."""
        self._placer.upload({
            name: (table.host[:, : self._changed[name]], table.placed[:, : self._changed[name]])
            for name, table in self.tables.items()
        })  # fmt: skip


def widths(manager: Manager) -> dict[str, int]:
    """Entries that a row has of each kind at the extreme, by kind."""
    core = manager.core
    found: dict[str, int] = {}
    if core.paged:  # a row has as many blocks of one paged kind as of another
        found = dict.fromkeys(core.paged, max(1, min(core.capacity(kind) for kind in core.paged)))
    if "swa_window" in core.pools and manager.requests.window_width:
        found["swa_window"] = manager.requests.window_width
    if "uncompressed_tail" in core.pools:
        found["uncompressed_tail"] = 1
    return found


def _scratch(manager: Manager) -> dict[str, int]:
    return {kind: int(held[0]) for kind, held in manager.core.scratch.items()}
