"""FP8 rows read without a pin, while their slot is evicted, taken anew, written and sealed: in every schedule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvfsm.kernels.entries import Entries
from kvfsm.kernels.fp8 import gather_dequantise_rows_plan
from kvfsm.kernels.launch import Kernel, LaunchPlan
from kvfsm.kernels.reading import Check
from kvfsm.runtime.generated import Refusal

from ..gpu.programs import program_source
from ..hostcuda.building import Build
from ..hostcuda.exploring import ScheduleFailure, explore
from ..hostcuda.host import HostLauncher, Sources, edited
from .test_moving_slots import Moving


class MovingRow(Moving):
    """A slot of one plain row: 8 codes, a scale, and padding."""

    @property
    def plans(self) -> list[LaunchPlan]:
        ids, expected, *_ = (one.pointer for one in self._kept)
        check = Check(self.kind, self.words.pointer, expected, self.refusals.pointer)
        rows = expected  # one row, as it happens
        entries = Entries(self.arena.pointer, 16, 1, ids, 1)
        out = replace(self.out.pointer, dtype=None)  # for copies it is words
        return [gather_dequantise_rows_plan(entries, 1, 8, rows, out, check), super().plans[1]]


def moving_row(sources: Sources = program_source) -> MovingRow:
    """A reader whose first thread reads the whole row."""
    made = MovingRow(HostLauncher(Build.CHECK, sources=sources, races=False), "compressed_kv", "gather")
    made.right = made.alone()
    return made


def test_no_schedule_gives_rows_of_another_owner() -> None:
    made = moving_row()
    assert len(set(made.right)) > 1
    explored = explore(made.launcher, made.plans, made.check, threads=1)
    print(explored, made.outcomes)
    assert {(0, "right"), (Refusal.STALE, "untouched"), (Refusal.STALE, "cleared")} <= set(made.outcomes)
    assert explored.executions >= 10


BUGS = {
    "no second look": (
        "reading->refusal = kv_look_again(check, blockIdx.x, reading->slot);",
        "reading->refusal = kv_refusal::kApplied; (void)check;",
    ),
    "a refused row is left as it was read": (
        "  const kv_u32 end = reading->rows * row_bytes / 16;\n", "  const kv_u32 end = 0 * row_bytes;\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_has_a_schedule_that_shows_it(name: str) -> None:
    changed = edited(BUGS[name])

    def sources(kernel: Kernel) -> str:
        return changed(kernel) if kernel.file == "fp8.cu" else program_source(kernel)

    made = moving_row(sources)
    with pytest.raises(ScheduleFailure, match="foreign"):
        explore(made.launcher, made.plans, made.check, threads=1)


def test_other_bytes_are_another_row() -> None:
    made = moving_row()
    made.arena.write(np.zeros_like(made.arena.array))
    assert made.alone() != made.right
