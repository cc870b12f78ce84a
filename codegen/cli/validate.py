"""Hold a recorded event trace against the model: every event a step of its machine, every word accounted for.

  kvfsm validate events.jsonl                  against the shipped spec
  kvfsm validate events.jsonl --spec my_spec   against one's own, from which the runtime that recorded was generated
  kvfsm validate events.jsonl --spec my_spec --edited   against guards that were edited since it was recorded
  kvfsm validate events.jsonl --json           {"ok", "events", "first_illegal": {"kind", "line", "text", ...} or null}

A trace is what `EventTrace.write` leaves: Manager(..., trace=EventTrace()), or `kvfsm demo --trace FILE`. The first
event that is no step of the model is told with the state that its slot was in, the guards that were tried with the
values in them, and the events that the state takes. Exit code: 0 a path of the model, 1 not, 2 no such file.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...spec.checking.traces.validate import Validator, Verdict
from ...spec.language.load import Spec
from ...spec.language.problems import render_all
from .lint import add_spec, loaded_spec, print_notes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's options."""
    parser.add_argument("events", type=Path, metavar="EVENTS", help="the trace, as EventTrace.write left it")
    add_spec(parser)
    parser.add_argument(
        "--edited", action="store_true", help="take a trace of machines with other guards and effects, and equal fields"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Validate, report, and say how it went: 0 a path of the model, 1 not, or a wrong spec, 2 nothing to read."""
    loaded = loaded_spec(args.spec, for_checking=args.edited)
    if loaded is None:
        return 2
    if loaded.spec is None:
        print(render_all(loaded.problems, loaded.sources), file=sys.stderr)
        if args.json:
            print(json.dumps({"ok": False, "events": 0, "first_illegal": None}))
        return 1
    print_notes(loaded.notes)
    try:
        with open(args.events, encoding="utf-8", errors="replace") as lines:
            verdict = Validator(loaded.spec.generated, args.edited).validate(lines, _progress())
    except OSError as problem:
        print(f"kvfsm validate: '{args.events}' can't be read: {problem.strerror or problem}; give the file that "
              "EventTrace.write or `kvfsm demo --trace FILE` wrote", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(as_json(verdict)))
    else:
        _print(args.events, verdict, loaded.spec)
    return 0 if verdict.ok else 1


def as_json(verdict: Verdict) -> dict[str, Any]:
    """The verdict as ``--json`` prints it."""
    events: dict[str, int] = {}
    for (machine, event, _), count in verdict.taken.items():
        events[f"{machine}.{event}"] = events.get(f"{machine}.{event}", 0) + count
    return {
        "ok": verdict.ok,
        "events": verdict.events,
        "first_illegal": None if verdict.first_illegal is None else asdict(verdict.first_illegal),
        "calls": verdict.calls,
        "pools": verdict.pools,
        "dropped": verdict.dropped,
        "by_event": events,
    }


def _print(path: Path, verdict: Verdict, spec: Spec) -> None:
    illegal = verdict.first_illegal
    if illegal is not None:
        where = "" if illegal.source is None else f" ({illegal.source}, {illegal.machine}"
        call = "" if illegal.call is None else f", call {illegal.call}"
        print(f"{path}:{illegal.line}: {illegal.text}{where and f'{where}{call})'}")
        for line in illegal.why:
            print(f"  {line}")
        if verdict.pools:  # else it is no trace
            print(f"\n{verdict.events:,} events before it are steps of the model", file=sys.stderr)
        return
    begin = f"from where {verdict.dropped:,} older ones had left off" if verdict.dropped else "from the start"
    print(f"well: {verdict.events:,} events on {verdict.pools} pools are steps of the model, {begin}")
    cases = {(machine.name, event.name, case.number) for machine in spec.generated for event in machine.events
             for case in event.cases}  # fmt: skip
    refused = sum(
        count for (machine, event, case), count in verdict.taken.items()
        if not case or spec.machine(machine).event(event).cases[case - 1].refuse is not None
    )  # fmt: skip
    print(f"      {refused:,} of them refusals; they took {len(cases & set(verdict.taken))} of the "
          f"{len(cases)} cases of the spec's events")  # fmt: skip


def _progress() -> Callable[[int], None]:
    """Keeps a line on stderr up to date; silent where stderr is no terminal."""
    if not sys.stderr.isatty():
        return lambda events: None
    return lambda events: print(f"\r{events:,} events", end="\r", file=sys.stderr, flush=True)
