"""Two streams: one takes slots anew without end, the other pins, gathers and gives back, or gathers without a pin."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kvfsm.kernels.cupy_launcher import CupyLauncher

from .stress import Stress

SLOTS, SIZE, TURNS, ENTRIES, ROUNDS = 256, 1 << 16, 200, 512, 20_000


@contextmanager
def current(stream: Any) -> Iterator[None]:
    """Launches go to a stream of CuPy, also where torch says which one is current."""
    import sys

    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        with stream:
            yield
        return
    with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
        yield


@pytest.mark.parametrize("pinned", [True, False])
def test_what_is_read_without_a_refusal_is_right(launcher: CupyLauncher, pinned: bool) -> None:
    import cupy

    stress = Stress(launcher, SLOTS, SIZE, TURNS, ENTRIES)
    launcher.synchronise()
    writing, reading = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    with current(writing):
        launcher.launch(stress.rewriting(ROUNDS))
    with current(reading):
        for turn in range(TURNS):
            for plan in stress.reading(turn, pinned):
                launcher.launch(plan)
    launcher.synchronise()
    counts = stress.verify(pinned)
    print(counts)
    assert counts["read"] and counts["taken"] > SLOTS, f"the streams did not meet: {counts}"
    assert counts["refused"] or pinned, f"nothing moved under a reader: {counts}"
