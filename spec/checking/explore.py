"""Every interleaving of a system, breadth first: the entry to the engines.

``explore(system)`` finds each state that can be reached, counts transitions, and decides the claims. Engines count
alike and differ in speed: "numpy" needs nothing, "c" a C compiler. Memory is bounded; a search that does not end
within its limits says so, and then an undecided claim is ``unknown``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import numpy as np

from .engines import engine_c, engine_numpy
from .engines.compiling import CompileError, compiler
from .engines.derivation import Mismatch
from .exploration import Canonicalizer, Exploration, Found, Request
from .layout import Layout
from .limits import Ending, Limits, Progress
from .system import System

ENGINES = ("auto", "numpy", "c")
AUTO_STATES = 1 << 17  # "auto" goes on in C where there are more


def explore(
    system: System,
    *,
    engine: str = "auto",
    limits: Limits | None = None,
    symmetry: Canonicalizer | None = None,
    stop_at_first: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
    xp: ModuleType = np,
    threads: int = 1,
) -> Exploration:
    """Search a system.

    Args:
        system: what to search.
        engine: "numpy", "c", or "auto".
        limits: bounds of states and memory; by default half of the memory that is free.
        symmetry: store only one of all states that are alike, the representative of their orbit.
        stop_at_first: end, incomplete, soon after the first violation.
        on_progress: called now and then.
        xp: the array module of the engine "numpy", which is then called by its name.
        threads: of the engine "c". With more than one, states of one depth come in an order that may change.

    Returns:
        What was found, also after Ctrl-C.

    Raises:
        ValueError: there is no such engine, or a limit that leaves no room for the first state.
        CompileError: the engine "c" was asked for, and there is no compiler or it failed.

    """
    if engine not in ENGINES:
        raise ValueError(f"no engine {engine!r}; there are {', '.join(ENGINES)}")
    limits = Limits() if limits is None else limits
    if (limits.states is not None and limits.states < 1) or threads < 1:
        raise ValueError("a search needs room for one state and one thread at least")
    started = time.perf_counter()
    request = Request(Layout(system), limits, symmetry, stop_at_first, on_progress=on_progress)

    def by_numpy(request: Request) -> Found:
        return engine_numpy.search(request, xp)

    def by_c(request: Request) -> Found:
        return engine_c.search(request, threads)

    def done(engine: str, found: Found) -> Exploration:
        return Exploration(request, engine, found, time.perf_counter() - started)

    if engine == "c":
        return done("c", _searched(by_c, request))
    if engine == "numpy" or compiler() is None or xp is not np:
        return done(getattr(xp, "__name__", "numpy"), _searched(by_numpy, request))
    # Whether compiling pays is seen by beginning without.
    most = AUTO_STATES if limits.states is None else min(limits.states, AUTO_STATES)
    found = _searched(by_numpy, replace(request, limits=replace(limits, states=most)))
    if found.ending is not Ending.STATES or most == limits.states:
        return done("numpy", found)
    try:
        return done("c", _searched(by_c, request))
    except CompileError:
        return done("numpy", _searched(by_numpy, request))


def _searched(search: Callable[[Request], Found], request: Request) -> Found:
    try:
        return search(request)
    except Mismatch:
        # What was declared derived is not, and its claim will be found violated: leave nothing out of the index.
        return search(replace(request, without_derived=False))
