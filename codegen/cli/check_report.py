"""What `kvfsm check` says of a protocol: a row of a table, the stories of what broke, and the same as data."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...spec.checking.check import Finding, Report
from ...spec.checking.exploration import HOLDS, UNKNOWN, VIOLATED
from ...spec.checking.stories.story import Story
from ...spec.checking.stories.story_json import as_data
from ...spec.checking.stories.story_text import text
from ...spec.language.model import Machine
from ...spec.language.problems import Problem, as_json, render
from ...spec.language.protocol import Protocol
from ..story_mermaid import story_diagram
from ..story_pytest import RUNTIME, model_only, replay_test
from ..story_svg import draw

_ENDINGS = ("txt", "json", "mmd", "svg")
_IDLE_MAX = 6  # steps that are named; ``--json`` has all


@dataclass(frozen=True, slots=True)
class Row:
    """One protocol's report, and the located problem of a search that was too large."""

    protocol: Protocol
    report: Report
    problem: Problem | None


class Table:
    """The table, a row at a time, as the protocols are checked."""

    def __init__(self, protocols: Sequence[Protocol]) -> None:
        self.name = max([8, *(len(protocol.name) for protocol in protocols)])
        self.bounds = max([6, *(len(_bounds(protocol)) for protocol in protocols)])

    def head(self) -> str:
        """The names of the columns."""
        return self._line("protocol", "bounds", "states", "transitions", "depth", "seconds", "claims")

    def row(self, row: Row) -> str:
        """What is known of one protocol, in a line."""
        report = row.report
        return self._line(
            report.protocol,
            _bounds(row.protocol),
            f"{report.states:,}",
            f"{report.transitions:,}",
            str(report.depth),
            f"{report.seconds:.2f}",
            summary(report),
        )

    def _line(self, name: str, bounds: str, states: str, transitions: str, depth: str, seconds: str, end: str) -> str:
        left = f"{name:{self.name}}  {bounds:{self.bounds}}"
        return f"{left}  {states:>12}  {transitions:>13}  {depth:>5}  {seconds:>8}  {end}"


def summary(report: Report) -> str:
    """Such as "18 hold, 2 of them proved for all sizes", with what is wrong in front."""
    by_verdict: dict[str, list[Finding]] = {VIOLATED: [], UNKNOWN: [], HOLDS: []}
    for finding in report.findings:
        by_verdict[finding.verdict].append(finding)
    parts = []
    if by_verdict[VIOLATED]:
        parts.append(f"VIOLATED: {', '.join(finding.name for finding in by_verdict[VIOLATED])}")
    if not report.complete:
        parts.append("INCOMPLETE")
    if by_verdict[UNKNOWN]:
        parts.append(f"{len(by_verdict[UNKNOWN])} unknown")
    count = len(by_verdict[HOLDS])
    parts.append(f"{'all ' if report.ok else ''}{count} hold{'s' if count == 1 else ''}")
    proved = sum(finding.how == "proved" for finding in by_verdict[HOLDS])
    if proved:
        parts.append(f"{proved} of them proved for all sizes")
    if report.renumbered:
        parts.append("counted up to symmetry")
    return ", ".join(parts)


def shortest(rows: Iterable[Row]) -> Finding | None:
    """The claim that breaks in the fewest steps; None where there is nothing to tell."""
    told = [finding for row in rows for finding in row.report.broken if finding.trace is not None]
    return min(told, key=_steps, default=None)


def verdict(rows: Sequence[Row]) -> str:
    """What came of all, in a line."""
    broken = [row.report.protocol for row in rows if row.report.broken]
    open_ = [row.report.protocol for row in rows if not row.report.broken and not row.report.ok]
    count = f"{len(rows)} protocol{'' if len(rows) == 1 else 's'}"
    parts = [f"{len(broken)} of {count} violated: {', '.join(broken)}"] if broken else []
    parts += [f"{len(open_)} of {count} undecided: {', '.join(open_)}"] if open_ else []
    best = shortest(rows)
    if best is not None:
        owner = next(row.report.protocol for row in rows if any(item is best for item in row.report.broken))
        parts.append(f"the shortest run is that of {owner}.{best.name}, {_counted(_steps(best))}")
    return "; ".join(parts) or f"{count} checked: all claims hold in every state within the bounds"


def _steps(finding: Finding) -> int:
    return len(finding.trace.turns) if finding.trace is not None else 0


def _counted(steps: int) -> str:
    return f"{steps} step{'' if steps == 1 else 's'}"


def story_of(finding: Finding) -> str:
    """The whole story of a claim that breaks."""
    assert finding.trace is not None
    return f"{where(finding)} {text(finding.trace)}"


def details(row: Row, source_line: str | None, *, whole: bool) -> Iterable[str]:
    """Everything that needs more than a row, as paragraphs; without ``whole``, a story is a line that says how long."""
    report = row.report
    if row.problem is not None:
        yield render(row.problem, source_line)
    elif report.why_incomplete is not None:
        yield f"{report.protocol}: incomplete ({report.why_incomplete}): what is unknown was not decided"
    for finding in report.broken:
        if finding.trace is None:
            yield _unmet(finding)
        elif whole:
            yield story_of(finding)
        else:
            yield f"{where(finding)} {report.protocol}: breaks {finding.name} in {_counted(_steps(finding))}"
    for finding in report.findings:
        if finding.verdict != VIOLATED and finding.note:
            said = "" if finding.verdict == HOLDS else f" {finding.verdict}"
            yield f"{where(finding)} '{finding.name}'{said}: {finding.note}"
    if report.idle:
        more = f" and {len(report.idle) - _IDLE_MAX} more steps" if len(report.idle) > _IDLE_MAX else ""
        yield f"{report.protocol}: no run takes {', '.join(report.idle[:_IDLE_MAX])}{more}"
    yield from (f"{report.protocol}: {note}" for note in report.notes)


def where(finding: Finding) -> str:
    """Where the claim stands."""
    return f"{finding.at.file}:{finding.at.line}:{finding.at.column}:"


def _unmet(finding: Finding) -> str:
    return f"{where(finding)} '{finding.name}' is never met: {finding.that}\n  {finding.note}"


def data(row: Row, mutants: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """One protocol's entry of ``--json``."""
    report = row.report
    return {
        "protocol": report.protocol,
        "ok": report.ok,
        "bounds": dict(report.bounds),
        "engine": report.engine,
        "symmetry": report.renumbered,
        "states": report.states,
        "transitions": report.transitions,
        "depth": report.depth,
        "complete": report.complete,
        "why_incomplete": report.why_incomplete,
        "seconds": round(report.seconds, 3),
        "properties": [_finding(finding) for finding in report.findings],
        "never_taken": list(report.idle),
        "notes": list(report.notes),
        "problem": as_json(row.problem) if row.problem is not None else None,
        "mutants": list(mutants),
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "name": finding.name,
        "kind": finding.kind,
        "says": finding.says,
        "that": finding.that,
        "verdict": finding.verdict,
        "how": finding.how,
        "note": finding.note or None,
        "file": finding.at.file,
        "line": finding.at.line,
        "column": finding.at.column,
        "trace": as_data(finding.trace) if finding.trace is not None else None,
    }


def counterexamples(row: Row, machines: Sequence[Machine], runtime: str = RUNTIME) -> dict[str, str]:
    """Name -> text of every file that tells of what broke: text, data, pictures, and a test where there can be one.

    ``runtime`` is the module that the tests import.
    """
    files: dict[str, str] = {}
    for finding in row.report.broken:
        if finding.trace is not None:
            stem = f"{row.report.protocol}.{finding.name}"
            files |= story_files(stem, finding.trace, row.protocol, machines, runtime)
    return files


def stale(row: Row) -> list[str]:
    """Names of the files that an earlier check wrote of claims that hold now."""
    names = []
    for finding in row.report.findings:
        if finding.verdict == HOLDS:
            stem = f"{row.report.protocol}.{finding.name}"
            names += [f"{stem}.{ending}" for ending in _ENDINGS] + [_test_name(stem)]
    return names


def story_files(
    stem: str, story: Story, protocol: Protocol, machines: Sequence[Machine], runtime: str
) -> dict[str, str]:
    """One story in every form; without the test for a protocol that is model only."""
    files = {
        f"{stem}.{ending}": whole
        for ending, whole in zip(
            _ENDINGS,
            (text(story) + "\n", json.dumps(as_data(story), indent=1) + "\n", story_diagram(story), draw(story)),
            strict=True,
        )
    }
    if not model_only(protocol, machines):
        files[_test_name(stem)] = replay_test(story, protocol, machines, runtime)
    return files


def _test_name(stem: str) -> str:
    return f"test_{stem.replace('.', '_')}.py"


def _bounds(protocol: Protocol) -> str:
    return ", ".join(f"{bound.name} {bound.value}" for bound in protocol.bounds)
