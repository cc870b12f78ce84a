"""Window policies: at which boundaries the window's rows are kept, and what a reader does where they are not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from .profile import Profile
from .trails import TrailSpec


@dataclass(frozen=True, slots=True)
class WindowPolicy:
    """What to keep of sliding windows.

    *full*: at every boundary that is published. *checkpoint(n)*: at multiples of n tokens. *none*: nowhere; a hit then
    says which tokens to replay before first use, and that the result is right to rounding only.
    """

    keep: Literal["full", "checkpoint", "none"]
    every: int = 0

    def __post_init__(self) -> None:
        if self.keep not in ("full", "checkpoint", "none"):
            raise ValueError(f"a window policy that keeps {self.keep!r}; give 'full', 'checkpoint' or 'none'")
        if self.keep == "checkpoint" and self.every < 1:
            raise ValueError(f"checkpoints every {self.every} tokens; give at least 1")

    @classmethod
    def full(cls) -> WindowPolicy:
        """Keep the window of every published boundary."""
        return cls("full")

    @classmethod
    def checkpoint(cls, every: int) -> WindowPolicy:
        """Keep the windows of boundaries that are multiples of ``every`` tokens."""
        return cls("checkpoint", every)

    @classmethod
    def none(cls) -> WindowPolicy:
        """Keep no window."""
        return cls("none")

    def places(self, spec: TrailSpec, granule: int, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Places to keep out of a fill of granules [start, stop): boundaries, or blocks, ascending.

        A slot that holds one boundary can be filled for the last one only.
        """
        if self.keep == "none":
            return np.empty(0, np.int64)
        if not spec.blocks:
            kept = self.keep == "full" or stop * granule % self.every == 0
            return np.array([stop] if kept else [], np.int64)
        blocks = np.arange(start * spec.per, stop * spec.per)
        if self.keep == "full":
            return blocks
        reach = stop + -(-spec.need // spec.per)  # a later boundary may need blocks of this fill
        boundaries = [b for b in range(start + 1, reach + 1) if b * granule % self.every == 0]
        first, end = start * spec.per, stop * spec.per
        needed = [np.arange(max(spec.first(b), first), min(b * spec.per, end)) for b in boundaries]
        return np.unique(np.concatenate(needed)) if needed else np.empty(0, np.int64)


def replay_range(profile: Profile, boundary: int) -> range:
    """Tokens to compute again so that the windows at ``boundary`` are complete in every layer, entries being frozen.

    A row of the top window layer rests on ``window - 1`` rows of the layer below, and so on down: ``layers * (window -
    1)`` tokens; whole granules, so that the chunk schedule stays that of a cold run.
    """
    if profile.window is None:
        return range(boundary, boundary)
    layers = len({layer for group in profile.groups_of("swa_window") for layer in group.layers})
    return range(profile.floor(max(0, boundary - layers * (profile.window - 1))), boundary)
