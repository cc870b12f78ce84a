"""Runs named operations on a new world, by one schedule or by all that have few preemptions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvfsm.runtime.manager import Manager

from .operations import BEGINNINGS, OPERATIONS
from .scheduler import Scheduler, Step, explore
from .world import Op, World, quiet

Pick = Callable[[tuple[int, ...], int | None], int]


def once(
    begin: str,
    names: Sequence[str | Op],
    choices: Sequence[int] = (),
    *,
    slots: int = 6,
    pick: Pick | None = None,
    make: type[Manager] = Manager,
) -> tuple[list[Step], list[str]]:
    """One schedule; returns its steps and what is wrong."""
    scheduler = Scheduler(choices, pick)
    world = World(scheduler, slots, make=make)
    quiet(BEGINNINGS[begin], world)()
    errors = scheduler.run([quiet(OPERATIONS[one] if isinstance(one, str) else one, world) for one in names])
    return scheduler.steps, world.check(errors)


def every(
    begin: str, names: Sequence[str | Op], bound: int, *, most: int = 10_000, make: type[Manager] = Manager
) -> tuple[list[int], list[str], int]:
    """Schedules with at most ``bound`` preemptions up to the first that goes wrong.

    Returns its choices, what is wrong, and the number of schedules; choices and wrong are empty when none goes wrong.
    """
    wrong: list[str] = []

    def run(choices: Sequence[int]) -> list[Step]:
        nonlocal wrong
        steps, wrong = once(begin, names, choices, make=make)
        return steps

    count = 0
    for choices in explore(bound, run):
        count += 1
        if wrong:
            return choices, wrong, count
        if count == most:
            break
    return [], [], count
