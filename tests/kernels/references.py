"""References to slots of several machines, for the tests of kernels over words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvfsm.kernels import words as family
from kvfsm.kernels.reading import MACHINES
from kvfsm.runtime.generated import KINDS

from .pools import PINNED

LIKE = {
    "expected": "generation",
    "wanted": "layout",
    "kv_version": "version",
    "with_rows": "rows",
    "wanted_semantics": "semantics",
    "layer": "landed",
}
"""The field that an argument asks about."""


@dataclass(frozen=True, slots=True)
class References:
    """References by requests; request r has [starts[r], starts[r + 1])."""

    words: npt.NDArray[np.uint64]
    first: npt.NDArray[np.uint32]
    starts: npt.NDArray[np.uint32]
    machines: npt.NDArray[np.uint8]
    slots: npt.NDArray[np.uint32]
    arguments: npt.NDArray[np.int64]

    def only(self, requests: int) -> References:
        """The first so many requests."""
        n = int(self.starts[requests])
        starts = self.starts[: requests + 1]
        return References(
            self.words, self.first, starts, self.machines[:n], self.slots[:n], self.arguments[:, :n].copy()
        )


def fitting(kind: str, event: str, word: int) -> list[int]:
    """Arguments of an event that ask for what the word is."""
    values = KINDS[kind].LAYOUT.unpack(word)
    like = LIKE | {"at": "boundary" if "boundary" in values else "position"}
    return [values[like[given.name]] for given in KINDS[kind].EVENTS[event].given]


def drawn(
    rng: np.random.Generator,
    kernel: str,
    lengths: Sequence[int],
    fit: float,
    pins: Sequence[int] = (0, 1, 5),
    usual: float = 0.95,
) -> References:
    """References to 40 slots and more of each machine, by requests of these lengths.

    fit    share of references that ask for what is there; the others have a wrong argument, a wrong machine, or no slot
    usual  share of slots that are resident
    """
    counts = {kind: 40 + place for place, kind in enumerate(MACHINES)}
    words = np.array([_word(rng, kind, pins, usual) for kind in MACHINES for _ in range(counts[kind])], np.uint64)
    first, starts = family.first_places(counts), np.cumsum([0, *lengths]).astype(np.uint32)
    n = int(starts[-1])
    machines, slots = np.zeros(n, np.uint8), np.zeros(n, np.uint32)
    arguments = np.zeros((family.width_of(kernel), n), np.int64)
    for i in range(n):
        kind = str(rng.choice(PINNED if rng.random() < fit else MACHINES))
        machines[i], slots[i] = MACHINES.index(kind), rng.integers(counts[kind])
        if (event := family.event_of(kind, kernel)) is not None:
            row = fitting(kind, event, int(words[first[machines[i]] + slots[i]]))
            arguments[: len(row), i] = row
        if rng.random() > fit:
            arguments[rng.integers(len(arguments)), i] += rng.choice([-(1 << 40), -1, 1, 1 << 40])
        if rng.random() > fit and rng.random() < 0.5:
            machines[i], slots[i] = [(machines[i], 1 << 31), (machines[i], counts[kind]), (5, 0), (255, 3)][
                rng.integers(4)
            ]
    return References(words, first, starts, machines, slots, arguments)


def resident(kind: str, slots: int, references: int, lengths: Sequence[int], pins: int = 0) -> References:
    """References to resident slots of one machine, by turns; all ask for what is there."""
    layout, states = KINDS[kind].LAYOUT, KINDS[kind].STATES
    word = layout.pack(state=states["RESIDENT"], generation=3, pins=pins)
    row = fitting(kind, "pin", word)
    arguments = np.zeros((family.width_of("validate_pin"), references), np.int64)
    arguments[: len(row)] = np.array(row)[:, None]
    return References(
        words=np.full(slots, word, np.uint64),
        first=family.first_places({kind: slots}),
        starts=np.cumsum([0, *lengths]).astype(np.uint32),
        machines=np.full(references, MACHINES.index(kind), np.uint8),
        slots=(np.arange(references) % slots).astype(np.uint32),
        arguments=arguments,
    )


def any_words(rng: np.random.Generator, kind: str, count: int) -> npt.NDArray[np.uint64]:
    """Words of a machine in any state, with few pins and of few generations."""
    return np.array([_word(rng, kind, (0, 0, 1, 2), usual=0.0) for _ in range(count)], np.uint64)


def _word(rng: np.random.Generator, kind: str, pins: Sequence[int], usual: float) -> int:
    layout, states = KINDS[kind].LAYOUT, KINDS[kind].STATES
    values = {field.name: int(rng.integers(0, min(field.high, 2) + 1)) for field in layout.fields}
    settled = states["DURABLE" if kind == "ondisk_prefix" else "RESIDENT"]
    values["state"] = int(settled if rng.random() < usual else rng.integers(len(states)))
    values["pins"] = int(rng.choice(pins))
    values["generation"] = int(rng.integers(1, 4))
    return layout.pack(**values)
