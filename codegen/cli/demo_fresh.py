"""The demo's other process: its memory is empty, and all that it knows of the prompts' state is what lies on disk.

    python -m kvfsm.codegen.cli.demo_fresh STORE PROMPTS TRACES [EVENTS]

PROMPTS is a JSON file, {model: [tokens of a prompt, ...]}; TRACES is written with ``torch.save``: what each warm run
answered and computed, for the first process to compare. EVENTS is where an event trace goes, if one is wanted.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from ...runtime.integrations import tiny_models
from ...runtime.trace import EventTrace
from .demo_rounds import EVENTS, Warm, make_cast, make_manager, open_store, read
from .demo_runs import Trace


def main(argv: Sequence[str]) -> int:
    """Read every prompt of every model warm from the store."""
    store_directory, prompts_path, traces_path, *events_path = argv
    events = EventTrace(EVENTS) if events_path else None
    tiny_models.fix_threads()
    with open(prompts_path, encoding="utf-8") as file:
        prompts: dict[str, list[list[int]]] = json.load(file)
    found: dict[str, list[dict[str, Any]]] = {}
    for name, asked in prompts.items():
        cast = make_cast(name)
        with open_store(cast.profile, store_directory, events) as store:
            manager = make_manager(cast.profile, store=store, events=events)
            found[name] = [asdict(read(cast, manager, tokens)) for tokens in asked]
    torch.save(found, traces_path)
    if events is not None:
        events.write(events_path[0])
    return 0


def load_traces(path: str) -> dict[str, list[Warm]]:
    """What the other process wrote."""
    found = torch.load(path, weights_only=True)
    return {
        name: [Warm(**{**fields, "trace": Trace(**fields["trace"])}) for fields in runs] for name, runs in found.items()
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
