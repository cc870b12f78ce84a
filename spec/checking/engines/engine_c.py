"""Breadth-first search in generated C, compiled when it is needed and loaded with ctypes; see ``engine.c``.

All memory is NumPy's. Room for as many states as the limit allows is taken at once and fills page by page, so that
growing copies nothing; the index begins small, as a table, and becomes a bit a state when that is smaller.
"""

from __future__ import annotations

import ctypes
import math
import time
from pathlib import Path
from typing import Any

import numpy as np

from ..exploration import Found, Request, trimmed
from ..limits import Ending, Progress
from .c_text import header_text
from .compiling import load
from .dense import parts
from .derivation import Mismatch
from .visited import SMALL_BITS

GO_ON, DONE, AT_CAP, MISMATCH, DECIDED = range(5)
FIRST_PLACES = 1 << 21  # 8 MB: growing costs more than that, unless there is no room
WORTH = 1024  # bytes of a perfect index for each state found so far that are worth it
FILLED = 0.5  # of a table that can grow
FILLED_MOST = 0.875  # of one that can't
STEP_SECONDS = 0.1  # how long a call takes, so that Ctrl-C is heard and progress seen
INDEXED = 1 << 20  # states that one call takes into a larger index
FIRST_BUDGET, BUDGET_MAX = 1 << 14, 1 << 24
NONE = (1 << 64) - 1


class _Search(ctypes.Structure):
    _fields_ = [  # ctypes reads it
        ("rows", ctypes.c_void_p),
        ("parents", ctypes.c_void_p),
        ("index", ctypes.c_void_p),
        ("places", ctypes.c_uint64),
        ("cap", ctypes.c_uint64),
        ("head", ctypes.c_uint64),
        ("tail", ctypes.c_uint64),
        ("level_end", ctypes.c_uint64),
        ("depth", ctypes.c_uint64),
        ("taken", ctypes.c_void_p),
        ("met", ctypes.c_void_p),
        ("stops", ctypes.c_void_p),
        ("buffers", ctypes.c_void_p),
        ("threads", ctypes.c_uint64),
    ]


class _Run:
    def __init__(self, request: Request, threads: int) -> None:
        self.request, self.layout, self.limits = request, request.layout, request.limits
        layout = self.layout
        derived_bits = layout.derived_bits if request.without_derived else 0
        index = parts(layout, derived_bits, request.symmetry is None) if layout.word_count == 1 else ()
        self.bits = math.prod(part.count for part in index) if index else None  # of a perfect index
        room = self._room(self.limits.bytes)
        self.wide = room >= (1 << 32) - 1
        self.compiled = load(
            {
                "engine.c": Path(__file__).with_name("engine.c").read_text(),
                "system.h": header_text(request, derived_bits, index, self.wide),
            }
        )
        self._declare()
        self.slack = int(self.compiled.slack(threads))
        claims = layout.system.claims
        self.taken = np.zeros(max(len(layout.system.commands), 1), dtype=np.uint64)
        self.met = np.full(max(len(claims), 1), NONE, dtype=np.uint64)
        self.stops = np.array(
            [request.stop_at_first and claim.kind != "sometimes" for claim in claims] or [False], dtype=np.uint8
        )
        self.buffers = np.zeros(threads * int(self.compiled.buffer_bytes()), dtype=np.uint8)
        self.rows, self.parents = self._queue(room + self.slack + 1)
        self.index: Any = np.zeros(0, dtype=np.uint64)
        self.state = _Search(
            rows=self.rows.ctypes.data,
            parents=self.parents.ctypes.data,
            taken=self.taken.ctypes.data,
            met=self.met.ctypes.data,
            stops=self.stops.ctypes.data,
            buffers=self.buffers.ctypes.data,
            threads=threads,
        )

    def _declare(self) -> None:
        search = ctypes.POINTER(_Search)
        compiled = self.compiled
        compiled.advance.argtypes, compiled.advance.restype = [search, ctypes.c_uint64], ctypes.c_int
        compiled.index_some.argtypes = [search, ctypes.c_uint64, ctypes.c_uint64]
        compiled.index_some.restype = ctypes.c_int
        compiled.begin.argtypes, compiled.begin.restype = [search], None
        compiled.slack.argtypes, compiled.slack.restype = [ctypes.c_uint64], ctypes.c_uint64
        compiled.buffer_bytes.argtypes, compiled.buffer_bytes.restype = [], ctypes.c_uint64
        compiled.advise.argtypes, compiled.advise.restype = [ctypes.c_void_p, ctypes.c_uint64], None

    def _room(self, bytes_: int) -> int:
        """The most states that fit, or that there can be."""
        fits = bytes_ // (8 * self.layout.word_count + 4)
        kept = fits if self.limits.states is None else min(fits, self.limits.states)
        return min(kept, 1 << min(self.layout.bits, 62)) + 1

    def _queue(self, room: int) -> tuple[Any, Any]:
        while True:
            try:
                rows = np.empty((room, self.layout.word_count), dtype=np.uint64)
                parents = np.empty(room, dtype=np.uint64 if self.wide else np.uint32)
            except MemoryError:  # a machine that promises no more memory than it has
                if room <= self.slack + 2:
                    raise
                room = max(room // 2, self.slack + 2)
                continue
            self.compiled.advise(rows.ctypes.data, rows.nbytes)
            self.compiled.advise(parents.ctypes.data, parents.nbytes)
            return rows, parents

    # Memory.

    @property
    def state_bytes(self) -> int:
        """Memory of one state in the queue."""
        return 8 * self.layout.word_count + int(self.parents.itemsize)

    def _spare(self) -> int:
        """Bytes left for the index."""
        return self.limits.bytes - int(self.state.tail + self.slack) * self.state_bytes - int(self.buffers.nbytes)

    def _take_index(self, index: Any, places: int) -> None:
        self.index = index
        self.compiled.advise(index.ctypes.data, index.nbytes)
        self.state.index, self.state.places = index.ctypes.data, places
        tail = int(self.state.tail)
        for start in range(0, tail, INDEXED):  # piece by piece, so that Ctrl-C is heard
            if self.compiled.index_some(ctypes.byref(self.state), start, min(start + INDEXED, tail)) == MISMATCH:
                raise Mismatch
        self.filled = FILLED
        self._set_cap()

    def _set_cap(self) -> None:
        """No state is expanded when more states than these are there."""
        caps = [len(self.rows) - self.slack - 1]
        caps.append((self.limits.bytes - int(self.index.nbytes + self.buffers.nbytes)) // self.state_bytes - self.slack)
        if self.state.places:
            caps.append(int(self.state.places * self.filled) - self.slack)
        if self.limits.states is not None:
            caps.append(self.limits.states)
        self.state.cap = max(min(caps), 0)

    def choose_index(self) -> bool:
        """Take a larger index, or one that is smaller for so many states; False: there is no room for one."""
        try:
            return self._bits_taken() or self._table_taken()
        except MemoryError:
            return False

    def _bits_taken(self) -> bool:
        if self.bits is None:
            return False
        words = (self.bits >> 6) + 1
        pays = self.bits <= 1 << SMALL_BITS or words * 8 <= int(self.state.tail) * WORTH
        if not pays or words * 8 > (self._spare() - int(self.index.nbytes)) // 2:
            return False
        self._take_index(np.zeros(words, dtype=np.uint64), 0)
        return True

    def _table_taken(self) -> bool:
        needed = 1 << (int((self.state.tail + self.slack) / FILLED) + 1).bit_length()
        number = np.dtype(np.uint64 if self.wide else np.uint32)
        for places in (max(needed, FIRST_PLACES), needed):
            if places * number.itemsize <= self._spare():
                self.index = None  # before the next is there
                self._take_index(np.zeros(places, dtype=number), places)
                return True
        if self.state.places and self.filled < FILLED_MOST:
            self.filled = FILLED_MOST
            self._set_cap()
            return True
        return False

    # The search.

    def run(self) -> Ending | None:
        """Search to the end or to a limit; says why it ended early."""
        state, started, budget = self.state, time.perf_counter(), FIRST_BUDGET
        self.compiled.begin(ctypes.byref(state))
        if not self.choose_index():
            return Ending.BYTES
        while True:
            before = time.perf_counter()
            why = self.compiled.advance(ctypes.byref(state), budget)
            now = time.perf_counter()
            if self.request.on_progress is not None:
                self.request.on_progress(Progress(state.tail, state.tail - state.head, state.depth, now - started))
            if why == DONE:
                return None
            if why == MISMATCH:
                raise Mismatch
            if why == DECIDED:
                return Ending.VIOLATION
            if why == AT_CAP and (ending := self._at_cap()) is not None:
                return ending
            if why == GO_ON:
                factor = STEP_SECONDS / max(now - before, 1e-6)
                budget = int(min(max(budget * min(factor, 4.0), FIRST_BUDGET), BUDGET_MAX))

    def _at_cap(self) -> Ending | None:
        tail = int(self.state.tail)
        if self.limits.states is not None and tail > self.limits.states:
            return Ending.STATES
        if self.state.places and tail > int(self.state.places * self.filled) - self.slack and self.choose_index():
            return None
        return Ending.BYTES

    def found(self, ending: Ending | None) -> Found:
        """What there is now."""
        count = int(self.state.tail)
        if self.limits.states is not None:
            count = min(count, self.limits.states)
        rows, parents = trimmed(self.rows[:count], self.parents[:count])
        commands = len(self.layout.system.commands)
        return Found(
            words=rows,
            parents=parents,
            transitions=int(self.taken.sum()),
            depth=int(self.state.depth),
            ending=ending,
            met={place: int(first) for place, first in enumerate(self.met) if int(first) < count},
            taken=self.taken[:commands].astype(np.int64),
        )


def search(request: Request, threads: int = 1) -> Found:
    """All states of a system.

    Raises:
        CompileError: there is no C compiler, or it failed.
        Mismatch: a derived cell was left out of the index and does not follow from the others.

    """
    run = None
    try:
        run = _Run(request, threads)
        ending = run.run()
    except KeyboardInterrupt:
        ending = Ending.INTERRUPTION
    return run.found(ending) if run is not None else _only_the_first(request)


def _only_the_first(request: Request) -> Found:
    """What is known before the search has begun."""
    system = request.layout.system
    first = request.layout.pack([system.initial])
    words = first if request.symmetry is None else request.symmetry.canonical(first, np)
    taken = np.zeros(len(system.commands), dtype=np.int64)
    return Found(words, np.zeros(1, dtype=np.uint32), 0, 0, Ending.INTERRUPTION, {}, taken)
