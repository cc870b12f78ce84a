"""Breadth-first search with generated code on arrays; needs no compiler, and runs on any module like NumPy (``xp``)."""

from __future__ import annotations

import time
from types import ModuleType
from typing import Any

import numpy as np

from ..exploration import Canonicalizer, Found, Request, trimmed
from ..layout import Layout
from ..limits import Ending, Progress
from .conditions import Conditions
from .derivation import Mismatch, unproven
from .numpy_text import module_text, spelling
from .visited import LOAD, SMALL_BITS, Bits, Table

CHUNK_BITS = 16  # states expanded at once, at most: what fits into a processor's cache
CHUNK_BITS_ELSEWHERE = 20  # of other array modules, which take long to start an operation
CHUNK_LEAST = 1 << 8
BUFFER_SHARE = 4  # buffers take no more than one of so many parts of the memory
FIRST_STATES = 1 << 12  # room in the queue at first
WORTH = 4096  # a bit a state is taken where all bits are no more than so many bytes a state found


class Code:
    """The generated functions of a system, for one array module."""

    def __init__(self, layout: Layout, xp: ModuleType) -> None:
        self.xp, self.layout = xp, layout
        names: dict[str, Any] = {}
        exec(compile(module_text(layout), f"<{layout.system.name}>", "exec"), names)
        self._names = names

    def expand(self, rows: Any) -> list[tuple[int, Any, Any]]:
        """For each command that can be taken somewhere: its number, the rows where, and the rows after it."""
        xp = self.xp
        found = []
        for number, where, words in self._names["expand"](rows, xp):
            where = xp.arange(rows.shape[0]) if where is None else where
            found.append((number, where, _rows(words, xp)))
        return found

    def claim(self, place: int, rows: Any) -> Any:
        """Which rows have what a claim asks of a state."""
        return self._names[f"claim_{place}"](rows, self.xp)

    def follows(self, rows: Any) -> Any:
        """In which rows every derived cell has its value."""
        return self._names["follows"](rows, self.xp)


def canonical(symmetry: Canonicalizer, rows: Any, xp: ModuleType) -> Any:
    """The representatives of rows int64."""
    return symmetry.canonical(rows.view(xp.uint64), xp).view(xp.int64)


def _rows(words: tuple[Any, ...], xp: ModuleType) -> Any:
    return words[0].reshape(-1, 1) if len(words) == 1 else xp.stack(words, axis=1)


class Queue:
    """All states in the order found, and the state that each was found from."""

    def __init__(self, words: int, xp: ModuleType, capacity: int) -> None:
        self.xp, self.size, self.capacity = xp, 0, capacity
        self.rows = xp.empty((capacity, words), dtype=xp.int64)
        self.parents = xp.empty(capacity, dtype=xp.int64 if capacity > 1 << 31 else xp.int32)

    @property
    def state_bytes(self) -> int:
        """Memory of one state."""
        return 8 * int(self.rows.shape[1]) + int(self.parents.dtype.itemsize)

    def grow(self, capacity: int) -> None:
        """Make room for so many."""
        xp = self.xp
        rows = xp.empty((capacity, self.rows.shape[1]), dtype=xp.int64)
        rows[: self.size] = self.rows[: self.size]
        self.rows = rows
        parents = xp.empty(capacity, dtype=xp.int64 if capacity > 1 << 31 else xp.int32)
        parents[: self.size] = self.parents[: self.size]
        self.parents, self.capacity = parents, capacity

    def append(self, rows: Any, parents: Any) -> None:
        """Put rows at the end; there is room."""
        end = self.size + int(rows.shape[0])
        self.rows[self.size : end] = rows
        self.parents[self.size : end] = parents
        self.size = end


class _Full(Exception):
    """A limit is reached."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.name)
        self.ending = ending


class Search:
    """One search; ``run`` does it all."""

    def __init__(self, request: Request, xp: ModuleType) -> None:
        self.request, self.xp, layout = request, xp, request.layout
        self.layout, self.system, self.limits, self.symmetry = layout, layout.system, request.limits, request.symmetry
        self.derived_bits = layout.derived_bits if request.without_derived else 0  # left out of a perfect index
        self.index_bits = layout.bits - self.derived_bits if layout.word_count == 1 else None
        self.chunk_bits = CHUNK_BITS if xp is np else CHUNK_BITS_ELSEWHERE
        self.code = Code(layout, xp)
        self.queue = self._first_queue()
        self.visited: Bits | Table
        self.head = self.depth = self.transitions = 0
        self.taken = np.zeros(len(self.system.commands), dtype=np.int64)
        self.met: dict[int, int] = {}
        self.started = time.perf_counter()
        conditions = Conditions(layout, spelling())
        self.unproven = frozenset(unproven(self.system) if self.derived_bits else ())
        self.always_moves = [conditions.moves(command) for command in self.system.commands]
        self.judged = [place for place, claim in enumerate(self.system.claims) if claim.kind != "deadlock"]
        self.quiet = [place for place, claim in enumerate(self.system.claims) if claim.kind == "deadlock"]

    def run(self) -> Found:
        """Search to the end or to a limit."""
        ending = None
        try:
            self._begin()
            ending = self._levels()
        except _Full as full:
            ending = full.ending
        except MemoryError:
            ending = Ending.BYTES
        except KeyboardInterrupt:
            ending = Ending.INTERRUPTION
        size = self.queue.size
        rows, parents = trimmed(self.queue.rows[:size], self.queue.parents[:size])
        return Found(
            words=_host(rows).view(np.uint64),
            parents=_host(parents),
            transitions=self.transitions,
            depth=self.depth,
            ending=ending,
            met=self.met,
            taken=self.taken,
        )

    def _first_queue(self) -> Queue:
        """Room for some states; on NumPy, whose memory fills page by page, for all that fit."""
        words = self.layout.word_count
        if self.xp is np:
            room = min(self.limits.bytes // (8 * words + 4), 1 << min(self.layout.bits, 31)) - 2
            try:
                return Queue(words, self.xp, max(room, FIRST_STATES))
            except MemoryError:
                pass  # a machine that promises no more memory than it has: grow as needed
        return Queue(words, self.xp, FIRST_STATES)

    def _begin(self) -> None:
        xp = self.xp
        rows = xp.zeros((1, self.layout.word_count), dtype=xp.int64)
        if self.symmetry is not None:
            rows = canonical(self.symmetry, rows, xp)
        bits = self.index_bits
        small = bits is not None and bits <= SMALL_BITS and (1 << bits >> 3) <= self.limits.bytes // 4
        if small:
            self._check_derived(rows)
            assert bits is not None
            self.visited = Bits(bits, self.derived_bits, xp)
        else:
            self.visited = Table(self.queue, (FIRST_STATES * LOAD).bit_length(), xp, self.request.factor)
        self.queue.append(rows, xp.zeros(1, dtype=xp.int32))
        self.visited.add(rows, 0)
        self._judge(0)

    def _levels(self) -> Ending | None:
        while self.head < self.queue.size:
            end = self.queue.size
            while self.head < end:
                if self.request.stop_at_first and self._violated():
                    return Ending.VIOLATION
                chunk = min(self._chunk(), end - self.head)
                self._expand(self.head, self.head + chunk)
                self.head += chunk
                if self.request.on_progress is not None:
                    self.request.on_progress(self.progress())
            if self.queue.size > end:
                self.depth += 1
        return None

    def progress(self) -> Progress:
        """Where the search stands."""
        seconds = time.perf_counter() - self.started
        return Progress(self.queue.size, self.queue.size - self.head, self.depth, seconds)

    def _violated(self) -> bool:
        return any(self.system.claims[place].kind != "sometimes" for place in self.met)

    def _expand(self, first: int, last: int) -> None:
        xp = self.xp
        rows = self.queue.rows[first:last]
        moves = self.code.expand(rows)
        self._note_quiet(rows, moves, first)
        taken = np.zeros_like(self.taken)
        for number, where, _ in moves:
            taken[number] += int(where.shape[0])
        if isinstance(self.visited, Bits) and self.symmetry is None:
            for number, _, words in moves:
                if number in self.unproven:
                    self._check_derived(words)
        if moves:
            after = xp.concatenate([words for _, _, words in moves])
            origin = xp.concatenate([where for _, where, _ in moves])
            if self.symmetry is not None:
                after = canonical(self.symmetry, after, xp)
            self._take_in(after, origin, first)
        self.taken += taken
        self.transitions = int(self.taken.sum())

    def _take_in(self, after: Any, origin: Any, first: int) -> None:
        """Append the states among ``after`` that are new."""
        if isinstance(self.visited, Bits) and self.symmetry is not None:
            self._check_derived(after)
        fresh = self.xp.flatnonzero(self.visited.fresh(after))
        rows, origin = self._once(after[fresh], origin[fresh])
        count = int(rows.shape[0])
        if not count:
            return
        room = None if self.limits.states is None else self.limits.states - self.queue.size
        cut = room is not None and count > room
        if cut:
            assert room is not None
            rows, origin = rows[:room], origin[:room]
        self._make_room(int(rows.shape[0]))
        start = self.queue.size
        self.queue.append(rows, origin + first)
        self.visited.add(rows, start)
        self._judge(start)
        if cut:
            raise _Full(Ending.STATES)

    def _once(self, rows: Any, origin: Any) -> tuple[Any, Any]:
        """Each row once, sorted, with the first row that it comes from."""
        xp = self.xp
        if rows.shape[0] < 2:
            return rows, origin
        if self.layout.word_count == 1 and self.layout.bits + self.chunk_bits < 64:
            both = xp.sort(rows[:, 0] << self.chunk_bits | origin)
            word = both >> self.chunk_bits
            kept = xp.concatenate((xp.ones(1, dtype=bool), word[1:] != word[:-1]))
            return word[kept].reshape(-1, 1), both[kept] & ((1 << self.chunk_bits) - 1)
        columns = [origin, *(rows[:, word] for word in range(self.layout.word_count))]
        order = xp.lexsort(xp.stack(columns))
        rows, origin = rows[order], origin[order]
        kept = xp.concatenate((xp.ones(1, dtype=bool), (rows[1:] != rows[:-1]).any(axis=1)))
        return rows[kept], origin[kept]

    # Memory.

    def _make_room(self, count: int) -> None:
        queue, limit = self.queue, self.limits.bytes
        needed = queue.size + count
        if needed * queue.state_bytes + self.visited.bytes + self._buffers() > limit:
            raise _Full(Ending.BYTES)
        bits = self.index_bits
        if isinstance(self.visited, Table) and bits is not None:
            bytes_ = 1 << bits >> 3
            if bytes_ <= needed * WORTH and bytes_ <= limit // 4:
                self._to_bits(bits)
        if needed > queue.capacity:
            spare = limit - self._held() - self.visited.bytes  # while copying, the old one is there too
            most = spare // queue.state_bytes
            capacity = min(max(queue.capacity * 2, needed), most)
            if capacity < needed:
                raise _Full(Ending.BYTES)
            queue.grow(capacity)
        if isinstance(self.visited, Table) and needed * LOAD > 1 << self.visited.places_bits:
            places_bits = (needed * LOAD).bit_length()
            number = self.visited.table.dtype.itemsize
            if self._held() + self.visited.bytes + (number << places_bits) > limit:
                raise _Full(Ending.BYTES)
            self.visited = Table(queue, places_bits, self.xp, self.request.factor)
            self._add_all(self.visited)

    def _held(self) -> int:
        """Bytes of the states and of the buffers."""
        return self.queue.size * self.queue.state_bytes + self._buffers()

    def _buffers(self) -> int:
        """About the bytes that expanding a chunk takes."""
        return min(self.queue.size, self._chunk()) * self._expanded_bytes()

    def _chunk(self) -> int:
        """States to expand at once: fewer where memory is short."""
        fits = self.limits.bytes // BUFFER_SHARE // self._expanded_bytes()
        return min(max(fits, CHUNK_LEAST), 1 << self.chunk_bits)

    def _expanded_bytes(self) -> int:
        """About the bytes that the successors of a state take on the way, each in a few arrays."""
        branching = self.transitions // max(self.head, 1) + 2
        return branching * 8 * (3 * self.layout.word_count + 5)

    def _to_bits(self, bits: int) -> None:
        """Leave the table for a bit a state."""
        size = self.queue.size if self.unproven or self.symmetry is not None else 1
        for start in range(0, size, 1 << self.chunk_bits):
            self._check_derived(self.queue.rows[start : min(start + (1 << self.chunk_bits), size)])
        self.visited = Bits(bits, self.derived_bits, self.xp)
        self._add_all(self.visited)

    def _check_derived(self, rows: Any) -> None:
        if self.derived_bits and not bool(self.code.follows(rows).all()):
            raise Mismatch

    def _add_all(self, visited: Bits | Table) -> None:
        for start in range(0, self.queue.size, 1 << self.chunk_bits):
            rows = self.queue.rows[start : min(start + (1 << self.chunk_bits), self.queue.size)]
            if isinstance(visited, Bits):
                rows = self.xp.sort(rows, axis=0)
            visited.add(rows, start)

    # Claims.

    def _judge(self, start: int) -> None:
        """Decide the open claims by the states from ``start`` on."""
        for place in self.judged:
            if place in self.met:
                continue
            has = self.code.claim(place, self.queue.rows[start : self.queue.size])
            decided = self.xp.flatnonzero(has if self.system.claims[place].kind == "sometimes" else ~has)
            if decided.size:
                self.met[place] = start + int(decided[0])

    def _note_quiet(self, rows: Any, moves: list[tuple[int, Any, Any]], first: int) -> None:
        """Judge the states that no command leads away from."""
        xp = self.xp
        quiet = xp.ones(rows.shape[0], dtype=bool)
        for number, where, after in moves:
            if self.always_moves[number]:
                quiet[where] = False
            else:
                quiet[where[(after != rows[where]).any(axis=1)]] = False
        still = xp.flatnonzero(quiet)
        if not still.size:
            return
        for place in self.quiet:
            if place not in self.met:
                bad = still[~self.code.claim(place, rows[still])]
                if bad.size:
                    self.met[place] = first + int(bad[0])


def _host(array: Any) -> Any:
    """An array as one of NumPy's."""
    return array.get() if hasattr(array, "get") else array


def search(request: Request, xp: ModuleType) -> Found:
    """All states of a system, on arrays of the module ``xp``.

    Raises:
        Mismatch: a derived cell was left out of the index and does not follow from the others.

    """
    return Search(request, xp).run()
