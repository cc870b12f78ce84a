"""The easiest schedule to understand of those that go wrong, and a test that replays it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields

from .exploring import Exploration, Outcome, explore, wrong
from .runs import Scenario
from .scheduler import Step, preemptions
from .world import Setting

Until = Callable[[tuple[str, ...]], bool]


def shortest(scenario: Scenario, found: Exploration, most: int = 2_000, until: Until = wrong) -> Outcome:
    """A run that goes wrong with the fewest preemptions, and of the choices those alone that are needed.

    Args:
        scenario: what was explored.
        found: an exploration that went wrong.
        most: runs to try for each number of preemptions.
        until: what counts as going wrong.
    """
    outcome = scenario.run(found.choices)
    for bound in range(preemptions(outcome.steps)):
        fewer = explore(scenario.run, bound=bound, most=most, until=until)
        if until(fewer.wrong):
            outcome = scenario.run(fewer.choices)
            break
    return scenario.run(needed(outcome.steps))


def check(
    begin: str, names: Sequence[str], setting: Setting | None = None, *, bound: int | None = None
) -> Exploration:
    """Every schedule, or every one within a bound, goes well.

    Raises:
        AssertionError: one does not; the message has the shortest schedule's story and a test that replays it. Or the
            exploration is not complete.
    """
    scenario = Scenario(begin, names, setting)
    explored = explore(scenario.run, bound=bound)
    if explored.wrong:
        least = shortest(scenario, explored)
        text = as_test("replayed", begin, names, setting or Setting(), least)
        raise AssertionError(f"{begin}: {', '.join(names)}: {explored}\n{story(least)}\n\n{text}")
    assert explored.complete, explored
    assert explored.bound == bound
    return explored


def needed(steps: Sequence[Step]) -> list[int]:
    """The choices without those at the end that a run makes by itself."""
    choices = [step.chosen for step in steps]
    while choices and choices[-1] == _unasked(steps[len(choices) - 1]):
        choices.pop()
    return choices


def story(outcome: Outcome) -> str:
    """Who did what, a line for each turn."""
    lines: list[str] = []
    last: int | None = None
    for step in outcome.steps:
        if step.chosen != last:
            lines.append(f"task {step.chosen}: {step.name}")
        else:
            lines[-1] += f", {step.name}"
        last = step.chosen
    return "\n".join([*lines, *outcome.wrong])


def as_test(name: str, begin: str, names: Sequence[str], setting: Setting, outcome: Outcome) -> str:
    """Text of a test beside this file that replays a schedule and fails while the race is there.

    Args:
        name: of the test function.
        begin: what prepares the world, by name.
        names: of the operations.
        setting: of the world.
        outcome: what a schedule came to.
    """
    changed: list[str] = []
    imports: list[str] = []
    for one in fields(setting):
        value = getattr(setting, one.name)
        if value != getattr(Setting(), one.name):
            changed.append(f"{one.name}={value.__name__ if one.name in ('make', 'plant') else repr(value)}")
            if one.name in ("make", "plant"):
                imports.append(f"from .{value.__module__.rpartition('.')[2]} import {value.__name__}")
    told = "\n".join(f"    # {line}" for line in story(outcome).splitlines())
    return "\n".join(
        [
            *imports,
            "from .runs import once",
            "from .world import Setting",
            "",
            "",
            f"def test_{name}() -> None:",
            told,
            f"    setting = Setting({', '.join(changed)})",
            f"    _, wrong = once({begin!r}, {tuple(names)!r}, {needed(outcome.steps)!r}, setting)",
            "    assert wrong == [], wrong",
            "",
        ]
    )


def _unasked(step: Step) -> int:
    return step.before if step.before in step.runnable else step.runnable[0]
