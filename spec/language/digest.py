"""What a machine does, as one digest: generated code carries it, and a recorded trace names the machine it followed."""

from __future__ import annotations

import hashlib
import json

from ..targets.text import render
from .model import Case, Event, Machine


def machine_digest(machine: Machine) -> str:
    """Sha256, in hex, over fields, states and events; titles, places, eviction and properties leave it as it is."""
    said = {
        "machine": machine.name,
        "fields": [[field.name, field.bits, field.names, field.is_bool] for field in machine.fields],
        "states": [state.name for state in machine.states],
        "events": [_event(event) for event in machine.events],
    }
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


def _event(event: Event) -> list[object]:
    given = [[argument.name, argument.bits, argument.like, argument.is_bool] for argument in event.given]
    return [event.name, given, [_case(case) for case in event.cases]]


def _case(case: Case) -> list[object]:
    when = None if case.when is None else render(case.when)
    do = [[assignment.field, render(assignment.value)] for assignment in case.do]
    return [case.sources, case.any_state, when, case.to, do, case.refuse]
