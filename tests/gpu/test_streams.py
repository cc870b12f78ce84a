"""Two streams: one takes slots anew until it is told to stop, the other gathers, between a pin and its end or without.

Neither finds the other by chance: the reader's stream waits for the evictor, and ends it.
"""

from __future__ import annotations

from collections import Counter

import pytest

from kvfsm.kernels.cupy_launcher import CupyLauncher

from .device import current
from .stress import Stress

SLOTS, SIZE, TURNS, ENTRIES = 128, 1 << 14, 32, 128
"""64 MiB of output, and as many warps of the evictor as any GPU has room for beside a reader."""

PAUSES = (64, 256, 1024, 4096)
"""Looks at the L2 cache, some half a microsecond each, for which a slot is left alone: as long as a turn of the reader
takes, or each finds nothing but slots that have moved. How long that is depends on the host."""

LOOKS = 1 << 20
"""In all rounds: half a second, after which the evictor ends by itself, should nobody tell it to."""


def one_run(launcher: CupyLauncher, pinned: bool, pause: int) -> Counter[str]:
    """All turns of a reader beside the evictor."""
    import cupy

    stress = Stress(launcher, SLOTS, SIZE, TURNS, ENTRIES)
    launcher.synchronise()
    writing, reading = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    with current(writing):
        launcher.launch(stress.churning(LOOKS // pause, pause))
    with current(reading):
        launcher.launch(stress.awaiting(LOOKS))
        for turn in range(TURNS):
            for plan in stress.reading(turn, pinned):
                launcher.launch(plan)
        launcher.launch(stress.stopping())
    launcher.synchronise()
    counts = stress.verify(pinned)
    assert stress.ran_beside(), f"the evictor did not run as long as the reader: {counts}"
    return Counter(counts)


@pytest.mark.parametrize("pinned", [True, False])
def test_what_is_read_without_a_refusal_is_right(launcher: CupyLauncher, pinned: bool) -> None:
    counts = Counter[str]()
    needed = ("read", "refused", "held") if pinned else ("read", "refused")
    for pause in PAUSES:
        counts += one_run(launcher, pinned, pause)
        print(f"\npause {pause}: {dict(counts)}")
        if counts["taken"] > SLOTS and all(counts[name] for name in needed):
            return
    pytest.fail(f"the reader came first and the evictor came first must both have happened: {dict(counts)}")
