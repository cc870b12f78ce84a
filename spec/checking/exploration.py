"""What a search found: every state, how each was reached, and which claims hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .engines.visited import FACTOR
from .layout import Layout, Words
from .limits import Ending, Limits, Progress
from .system import State, System

Longs = npt.NDArray[np.int64]
VIOLATED, HOLDS, UNKNOWN = "violated", "holds", "unknown"
COPIED_BYTES = 1 << 22


class Canonicalizer(Protocol):
    """Which states are alike, an *orbit*: of each, one is stored, its *representative*."""

    def canonical(self, words: Any, xp: ModuleType) -> Any:
        """The representative of each row: uint64 [n, words] of the array module ``xp``."""

    def c_text(self) -> str:
        """The same as a C function ``static void canonical(uint64_t *s)``, which changes one row in place."""


@dataclass(frozen=True, slots=True)
class Request:
    """What an engine is asked for: all states of the system that a layout is of, and which claims they decide."""

    layout: Layout
    limits: Limits = field(default_factory=Limits)
    symmetry: Canonicalizer | None = None  # store representatives only
    stop_at_first: bool = False  # end, incomplete, soon after the first violation
    without_derived: bool = True  # leave derived cells out of a perfect index
    factor: int = FACTOR  # of the hash
    on_progress: Callable[[Progress], None] | None = None  # called now and then


@dataclass(frozen=True, slots=True)
class Found:
    """What an engine hands back; ``parents`` are unsigned or signed of any width, and the first state has none."""

    words: Words  # [n, words], breadth first
    parents: npt.NDArray[Any]  # [n]; that of the first is 0
    transitions: int
    depth: int
    ending: Ending | None  # None: it is complete
    met: Mapping[int, int]  # claim -> the first state that decides it: bad, or good for ``sometimes``
    taken: Longs  # [commands]


@dataclass(frozen=True)
class Exploration:
    """A search of one system; complete unless ``why_incomplete`` says why not.

    ``depth`` is how many steps away the farthest state is. With ``symmetry``, states and transitions are those of
    representatives.
    """

    request: Request
    engine: str
    found: Found
    seconds: float

    @property
    def system(self) -> System:
        """What was searched."""
        return self.request.layout.system

    @property
    def layout(self) -> Layout:
        """Where the cells lie in ``words``."""
        return self.request.layout

    @property
    def symmetry(self) -> Canonicalizer | None:
        """Which states are alike, where only representatives were stored."""
        return self.request.symmetry

    @property
    def states(self) -> int:
        """Distinct states found."""
        return len(self.found.words)

    @property
    def transitions(self) -> int:
        """Commands that can be taken, summed over the states that were expanded."""
        return self.found.transitions

    @property
    def depth(self) -> int:
        """Steps to the farthest state found."""
        return self.found.depth

    @property
    def complete(self) -> bool:
        """Whether every state that can be reached was found and expanded."""
        return self.found.ending is None

    @property
    def why_incomplete(self) -> str | None:
        """Why the search ended early."""
        ending = self.found.ending
        return None if ending is None else ending.told(self.request.limits, self.states)

    @property
    def words(self) -> Words:
        """Packed states in the order found, breadth first; uint64 [states, words]."""
        return self.found.words

    @property
    def taken(self) -> Longs:
        """How many transitions each command made; int64 [commands]."""
        return self.found.taken

    @cached_property
    def parents(self) -> Longs:
        """The state from which each was found, -1 for the first; int64 [states]."""
        parents = self.found.parents.astype(np.int64)
        parents[:1] = -1
        return parents

    @cached_property
    def commands(self) -> npt.NDArray[np.int32]:
        """The first command that leads from each state's parent to it, -1 for the first; int32 [states]."""
        from .engines.transitions import commands_of

        return commands_of(self)

    @property
    def violations(self) -> dict[str, int]:
        """For each ``always`` or ``deadlock`` claim that fails somewhere, the first state where it does."""
        return self._met("always", "deadlock")

    @property
    def reached(self) -> dict[str, int]:
        """For each ``sometimes`` claim that is met, the first state where it is."""
        return self._met("sometimes")

    def _met(self, *kinds: str) -> dict[str, int]:
        claims = enumerate(self.system.claims)
        return {
            claim.name: self.found.met[place]
            for place, claim in claims
            if claim.kind in kinds and place in self.found.met
        }

    def verdicts(self) -> dict[str, str]:
        """For each claim: ``holds``, ``violated``, or ``unknown`` where the search ended before it was decided."""
        open_ = HOLDS if self.complete else UNKNOWN
        verdicts = {}
        for place, claim in enumerate(self.system.claims):
            if claim.kind == "sometimes":
                end = VIOLATED if self.complete else UNKNOWN
                verdicts[claim.name] = HOLDS if place in self.found.met else end
            else:
                verdicts[claim.name] = VIOLATED if place in self.found.met else open_
        return verdicts

    def state(self, index: int) -> State:
        """A state found; with symmetry, a representative."""
        return self.layout.unpack(self.words[index])

    def steps_to(self, index: int) -> list[tuple[int | None, int]]:
        """A shortest way to a state by the states stored: each one's number, and the command before it.

        The first has no command.
        """
        steps = self._steps(index)
        return [(None, 0), *((int(self.commands[step]), step) for step in steps)]

    def _steps(self, index: int) -> list[int]:
        steps = []
        while index != 0:
            steps.append(index)
            index = int(self.found.parents[index])
        return steps[::-1]

    def path(self, index: int) -> list[tuple[int, State]]:
        """A shortest run to a state: the number of each command and the state after it.

        With symmetry this is a true run, to a state that is like the one stored.
        """
        run: list[tuple[int, State]] = []
        state = self.system.initial
        for step in self._steps(index):
            number, state = self._step(state, step)
            run.append((number, state))
        return run

    def _step(self, state: State, index: int) -> tuple[int, State]:
        after = list(self.system.successors(state))
        rows = self.layout.pack([successor for _, successor in after])
        if self.symmetry is not None and len(rows):
            rows = self.symmetry.canonical(rows, np)
        fits = np.flatnonzero((rows == self.words[index]).all(axis=1))
        assert fits.size, "a state was stored that its parent does not lead to"
        return after[int(fits[0])]


def trimmed(rows: Any, parents: Any) -> tuple[Any, Any]:
    """States and parents without the room that was taken for more, unless copying them takes long."""
    return (rows.copy(), parents.copy()) if rows.nbytes < COPIED_BYTES else (rows, parents)
