"""All schedules of a few kernels side by side, or the one that shows what is wrong, as a list that replays it.

Plans are the actors: a test launches a reader, an evictor, a loader over the same buffers, and says what holds at the
end, or between any two steps. Each execution begins with the buffers as they are when the search begins.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from kvfsm.kernels.launch import LaunchPlan, Pointer

from . import engine as native
from .building import Build
from .engine import engine
from .faults import HostFault
from .host import HostBuffer, HostLauncher, PreparedLaunches, fault_of, one_run
from .places import place_at

PREEMPTIONS_TRIED = 4
EXECUTIONS_TRIED = 20_000
"""How far a failure is made simpler."""


class _Outcome(IntEnum):
    ALL_RIGHT = 0
    FAULT = 1
    CHECK_FAILED = 2
    LIMIT = 3


@dataclass(frozen=True, slots=True)
class Explored:
    """A search that went through everything.

    executions  different ones
    cut_short   that turned out to be others again, with independent steps in another order
    steps_max   of the longest
    """

    executions: int
    cut_short: int
    steps_max: int


class ScheduleFailure(AssertionError):
    """A schedule under which a check fails or a kernel is at fault. The buffers are as it left them.

    schedule  numbers of the threads that ran, for ``replay``
    fault     what a kernel did, or None if a check failed; that is the cause
    """

    def __init__(self, schedule: tuple[int, ...], story: str, what: str, fault: HostFault | None) -> None:
        super().__init__(f"{what}\n{story}\nto run it again: replay(launcher, plans, {schedule})")
        self.schedule = schedule
        self.fault = fault


class SearchEndsEarly(Exception):
    """More executions than the limit: nothing is known."""


Check = Callable[[], None]
"""Raises AssertionError. Depends on nothing but the buffers that the plans may write, and changes nothing."""


def explore(
    launcher: HostLauncher,
    plans: Sequence[LaunchPlan],
    at_end: Check | None = None,
    at_each_step: Check | None = None,
    preemptions: int | None = None,
    threads: int | None = None,
    limit: int = 200_000,
) -> Explored:
    """Go through every schedule of the plans side by side.

    at_each_step what holds between any two steps; without it far fewer schedules say all there is to say about the end
    preemptions  at most so many times a thread that could go on is interrupted; None: any number of times. Where that
                 is feasible it is the better answer: schedules that differ only in the order of independent steps are
                 then run once.
    threads      of each block that exist, if not all: a search is quicker without threads that have nothing to do
    limit        executions

    Raises:
        ScheduleFailure: at the first that is wrong; of what is wrong, shown with few preemptions.
        SearchEndsEarly: the limit is not enough.
    """
    search = _Search(launcher, plans, at_end, at_each_step, threads)
    found = search.run(preemptions, limit)
    if found is None:
        return search.explored()
    for fewer in range(PREEMPTIONS_TRIED if preemptions is None else preemptions):
        try:
            simpler = search.run(fewer, EXECUTIONS_TRIED)
        except SearchEndsEarly:
            break
        if simpler is not None:
            raise simpler from simpler.__cause__
    search.run_again(found.schedule)
    raise found from found.__cause__


def replay(
    launcher: HostLauncher, plans: Sequence[LaunchPlan], schedule: Sequence[int], threads: int | None = None
) -> None:
    """Run the plans side by side once more as a failure said; what its schedule leaves open, in order.

    Raises:
        HostFault: a kernel is at fault, or the schedule isn't one of these plans.
    """
    plans = [plan for plan in plans if not plan.is_empty]
    choices = (ctypes.c_uint32 * max(1, len(schedule)))(*schedule)
    with one_run, PreparedLaunches(launcher, plans, threads) as prepared:
        went_well = engine().replay(prepared.array, len(plans), launcher.options(), choices, len(schedule))
        if not went_well:
            raise fault_of(plans)


class _Search:
    def __init__(
        self,
        launcher: HostLauncher,
        plans: Sequence[LaunchPlan],
        at_end: Check | None,
        at_each_step: Check | None,
        threads: int | None,
    ) -> None:
        assert launcher.build is Build.CHECK, "only that build lets threads be interrupted before each access"
        self._launcher = launcher
        self._threads = threads
        self._plans = [plan for plan in plans if not plan.is_empty]
        self._error: BaseException | None = None
        self._checks = (self._guarded(at_end), self._guarded(at_each_step))
        self._result = native.SearchResult()
        self._before = [(buffer, buffer.download()) for buffer in self._buffers()]

    def run(self, preemptions: int | None, limit: int) -> ScheduleFailure | None:
        """Search from the buffers as they were at first."""
        self.rewind()
        plan = native.SearchPlan(
            reduces=preemptions is None,
            preemptions=-1 if preemptions is None else preemptions,
            limit=limit,
            at_end=self._checks[0],
            at_each_step=self._checks[1],
        )
        regions = [native.Region(buffer.pointer.address, buffer.pointer.bytes) for buffer, _ in self._before]
        array = (native.Region * max(1, len(regions)))(*regions)
        self._error = None
        with one_run, PreparedLaunches(self._launcher, self._plans, self._threads) as prepared:
            engine().explore(
                prepared.array, len(self._plans), array, len(regions), self._launcher.options(), plan, self._result
            )
            return self._failure()

    def explored(self) -> Explored:
        return Explored(self._result.executions, self._result.cut_short, self._result.steps_max)

    def rewind(self) -> None:
        """Buffers as they were at first."""
        for buffer, array in self._before:
            buffer.array[...] = array

    def run_again(self, schedule: tuple[int, ...]) -> None:
        """Leave the buffers as that schedule does."""
        self.rewind()
        try:
            replay(self._launcher, self._plans, schedule, self._threads)
        except HostFault:
            pass  # which is what it is known for

    def _failure(self) -> ScheduleFailure | None:
        outcome = _Outcome(self._result.outcome)
        if outcome is _Outcome.ALL_RIGHT:
            return None
        tried = self._result.executions + self._result.cut_short
        if outcome is _Outcome.LIMIT:
            raise SearchEndsEarly(
                f"{tried} executions are not all; fix: raise the limit, bound preemptions, or use fewer actors"
            )
        fault = fault_of(self._plans) if outcome is _Outcome.FAULT else None
        cause = fault or self._error
        steps = ctypes.POINTER(native.Step)()
        count = engine().steps(steps)
        ran = [(steps[i].thread, steps[i].code) for i in range(count)]
        what = f"after {tried} executions: {type(cause).__name__}: {cause}"
        failure = ScheduleFailure(tuple(thread for thread, _ in ran), self._story(ran), what, fault)
        failure.__cause__ = cause
        return failure

    def _story(self, steps: list[tuple[int, int]]) -> str:
        """A line a thread's turn: who it is, and the lines that it ran."""
        turns: list[str] = []
        previous, file = None, None
        for thread, code in steps:
            if thread != previous:
                turns.append(f"  {self._name(thread)}:")
                previous, file = thread, None
            place = place_at(code)
            shown = "?" if place is None else str(place.line) if place.file == file else str(place)
            turns[-1] += f" {shown}"
            file = place.file if place is not None else None
        return "\n".join(turns)

    def _name(self, thread: int) -> str:
        for position, plan in enumerate(self._plans):
            in_block = self._threads or plan.kernel.threads
            in_plan = plan.grid[0] * plan.grid[1] * plan.grid[2] * in_block
            if thread < in_plan:
                block, index = divmod(thread, in_block)
                return f"{plan.kernel.symbol} (plan {position}, block {block}, thread {index})"
            thread -= in_plan
        return "?"

    def _buffers(self) -> list[HostBuffer]:
        found: dict[int, HostBuffer] = {}
        for plan in self._plans:
            for argument, value in zip(plan.kernel.arguments, plan.values, strict=True):
                if isinstance(value, Pointer) and not argument.is_const:
                    buffer = self._launcher.buffer_at(value)
                    assert buffer is not None, "what is restored between executions is a buffer of the launcher"
                    found[id(buffer)] = buffer
        return list(found.values())

    def _guarded(self, check: Check | None) -> Any:
        if check is None:
            return native.CHECK_FUNCTION()

        def called() -> int:
            try:
                check()
            except BaseException as error:  # it can't go through the engine
                self._error = error
                return 1
            return 0

        return native.CHECK_FUNCTION(called)
