"""Whether a kernel may touch a slot: its word, compared with what the caller expects.

A word is read once, before any byte of the slot. That is enough where the caller holds a pin (then the generation can't
move) or owns the slot; words change between launches of a stream, not under one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..runtime.generated.refusal import Refusal
from ..runtime.words import Layout

NO_SLOT = 255
BAD_ARGUMENT = 254
"""Codes of ``kv_call`` in cuda/kvfsm_base.cuh."""

Words = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.uint32]
Codes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class SlotRule:
    """Where state and generation lie in a word, and which states will do.

    state       first bit and number of bits; at most 32 states
    generation  first bit and number of bits
    states      a bit for each state that will do

    >>> from kvfsm.runtime.generated.compressed_kv import LAYOUT, CompressedKvState
    >>> SlotRule.of(LAYOUT, {CompressedKvState.RESIDENT, CompressedKvState.EXPIRED})
    SlotRule(state=(0, 4), generation=(20, 20), states=132)
    """

    state: tuple[int, int]
    generation: tuple[int, int]
    states: int

    @classmethod
    def of(cls, layout: Layout, states: Collection[int]) -> SlotRule:
        """The rule for words of one machine. A leased slot may be read while it is resident or expired.

        Raises:
            ValueError: a state that the field can't hold, or that has no bit of 32.
        """
        state, generation = layout.field("state"), layout.field("generation")
        if wrong := sorted(one for one in states if not 0 <= one <= min(state.high, 31)):
            most = min(state.high, 31)
            raise ValueError(f"states of '{layout.machine}' are 0 to {most}, not {wrong}; fix: use its generated enum")
        bits = sum(1 << int(one) for one in set(states))
        return cls((state.shift, state.bits), (generation.shift, generation.bits), bits)

    @property
    def packed(self) -> int:
        """As kernels take it: four bytes from the low end, then the states."""
        places = (*self.state, *self.generation)
        return sum(place << 8 * n for n, place in enumerate(places)) | self.states << 32


def slot_refusals(rule: SlotRule, words: Words, slots: Numbers, expected: Numbers) -> Codes:
    """Code of a refusal for each reference to a slot, 0 where it may be touched.

    words     uint64 [slots of the pool]
    slots     uint32 [n]
    expected  uint32 [n], generations
    returns   uint8 [n]: no such slot, stale, or illegal where the state won't do
    """
    known = slots < len(words)
    word = words[np.where(known, slots, 0)] if len(words) else np.zeros(len(slots), np.uint64)
    generation = word >> np.uint64(rule.generation[0]) & np.uint64((1 << rule.generation[1]) - 1)
    state = word >> np.uint64(rule.state[0]) & np.uint64((1 << rule.state[1]) - 1)
    will_do = np.uint64(rule.states) >> state & np.uint64(1) != 0
    code = np.where(will_do, 0, int(Refusal.ILLEGAL))
    code = np.where(generation == expected, code, int(Refusal.STALE))
    return np.where(known, code, NO_SLOT).astype(np.uint8)
