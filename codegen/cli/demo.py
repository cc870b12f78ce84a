"""Run the whole chain on real models: publish, match, validate, acquire, restore, compute, and compare every bit.

  kvfsm demo                            four tiny random-weight models, about a minute on two cores
  kvfsm demo --model tiny-deepseek-v4   one of them
  kvfsm demo --json                     {"ok", "models": [{"model", "bit_identical", "requests": [...]}]}
  kvfsm demo --keep DIR                 leave the on-disk store in DIR, for `kvfsm store ls DIR`
  kvfsm demo --trace FILE               leave the events on all state words in FILE, for `kvfsm validate FILE`
  kvfsm demo --cuda                     over slots on a GPU, by kernels; needs kvfsm[cuda13] or kvfsm[cuda12]

Each model runs several prompts cold, which share prefixes as a system prompt, a second turn and a branch do, and
publishes its state at block boundaries. Then it runs them warm: from memory, from packed blocks, with windows kept only
at checkpoints, and in a new process from disk. Where exactness is claimed, logits and final cache equal those of a cold
run to the last bit; what is approximate (replayed windows, FP8) is shown with its error. Exit code 1 on any mismatch.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...runtime.backend import Backend
    from ...runtime.layers import LayerCounts
    from .demo_report import ModelReport, Round
    from .demo_rounds import Stage

MODELS = ("tiny-deepseek-v4", "tiny-deepseek-v32", "tiny-gpt-oss", "tiny-gemma3")

FRESH_SECONDS_MAX = 300

PAGE_WIDTH = 126
"""Columns that the tables need; narrower terminals wrap."""

Tell = Callable[[str], None]


class NewProcessFailed(Exception):
    """The process that should read from disk ended badly; the message holds what it said."""


class TraceNotWritten(Exception):
    """The event trace can't be put where it was asked for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's options."""
    parser.add_argument(
        "--model",
        action="append",
        choices=MODELS,
        metavar="NAME",
        help=f"run only this one; may be repeated: {', '.join(MODELS)}",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="put the on-disk store there and leave it")
    parser.add_argument(
        "--trace", type=Path, metavar="FILE",
        help="write the events there, and those of the new process beside it, as in FILE.new-process",
    )  # fmt: skip
    parser.add_argument(
        "--cuda", action="store_true", help="over slots on a GPU, by kernels; the new process stays on the host"
    )


def run(args: argparse.Namespace) -> int:
    """Run the demo: 0 bit-identical, 1 a mismatch or an unsound spec, 2 a package or a GPU is missing."""
    missing = _missing()
    if missing:
        print(f"kvfsm demo needs {' and '.join(missing)}: pip install 'kvfsm[transformers]'", file=sys.stderr)
        return 2
    from rich.console import Console

    from ...kernels.cupy_launcher import NoDevice
    from .demo_report import as_json, print_end, print_legend, print_model, print_spec
    from .demo_spec import spec_report

    begun = time.monotonic()
    try:
        backend = _on_cuda() if args.cuda else None
    except NoDevice as error:
        print(f"kvfsm demo --cuda: {error}", file=sys.stderr)
        return 2
    console = Console(highlight=False)
    console.width = max(console.width, PAGE_WIDTH)
    with _progress() as tell:
        tell("checking the spec and what was generated from it")
        spec = spec_report()
        if not args.json:
            print_spec(console, spec)
        try:
            with _directory(args.keep) as directory:
                reports = demonstrate(args.model or MODELS, directory, tell, backend, args.trace)
        except TraceNotWritten as error:
            print(f"kvfsm demo: {error}; give another --trace FILE", file=sys.stderr)
            return 2
        except OSError as error:
            where = args.keep if args.keep is not None else error.filename or "a temporary folder"
            print(
                f"kvfsm demo: cannot keep the store in '{where}': {error.strerror or error}; give another --keep DIR",
                file=sys.stderr,
            )
            return 2
        except NewProcessFailed as error:
            print(f"kvfsm demo: {error}", file=sys.stderr)
            return 1
    seconds = time.monotonic() - begun
    if args.json:
        print(json.dumps(as_json(spec, reports, seconds)))
    else:
        for report in reports:
            print_model(console, report)
        print_legend(console)
        print_end(console, spec["ok"], reports, seconds)
    return 0 if spec["ok"] and all(report.bit_identical for report in reports) else 1


def demonstrate(
    models: Sequence[str], directory: Path, tell: Tell, backend: Backend | None = None, trace: Path | None = None
) -> tuple[ModelReport, ...]:
    """All rounds of some models. Stores and exchanged files lie in ``directory``; ``backend`` moves the bytes.

    ``trace`` is where the events of this process go; those of the new process go beside it.

    The thread count of this process is fixed for the run, since bits depend on it, and put back.
    """
    import torch

    from ...runtime.integrations import tiny_models
    from ...runtime.trace import EventTrace
    from .demo_rounds import EVENTS, set_stage

    events = EventTrace(EVENTS) if trace is not None else None
    threads = torch.get_num_threads()
    tiny_models.fix_threads()
    try:
        played = []
        for name in models:
            stage = set_stage(name, tell, events)
            rounds, facts, faults = _rounds_here(stage, directory, tell, backend)
            played.append((stage, rounds, facts, faults))
        if events is not None and trace is not None:
            try:
                events.write(trace)
            except OSError as error:
                raise TraceNotWritten(f"cannot write the events to '{trace}': {error.strerror or error}") from error
        fresh = rounds_in_a_new_process([stage for stage, *_ in played], directory, tell, beside(trace))
    finally:
        torch.set_num_threads(threads)
    return tuple(
        _report(stage, [rounds[0], fresh[stage.name], *rounds[1:]], facts, faults)
        for stage, rounds, facts, faults in played
    )


def _on_cuda() -> Backend:
    """Kernels on the first GPU. Raises NoDevice where there is none."""
    from ...kernels.backend import KernelBackend
    from ...kernels.cupy_launcher import CupyLauncher

    return KernelBackend(CupyLauncher())


def beside(trace: Path | None) -> Path | None:
    """Where the events of the new process go."""
    return None if trace is None else trace.with_name(f"{trace.name}.new-process")


def _rounds_here(
    stage: Stage, directory: Path, tell: Tell, backend: Backend | None
) -> tuple[list[Round], list[tuple[str, str]], list[str]]:
    """Publish, which also writes through to disk, then every round that this process can show."""
    from .demo_rounds import make_manager, open_store, packed_round, publish_all, warm_round, window_round

    profile = stage.cast.profile
    rounds, facts, faults = [], [], []
    with open_store(profile, str(directory), stage.events) as store:
        manager = make_manager(profile, store=store, backend=backend, events=stage.events)
        published = publish_all(stage, manager, tell)
        usage = store.usage()
        kept = f"on disk {usage.objects} objects, {usage.bytes:,} bytes"
        facts.append(("published", f"{published} blocks of {profile.granule} tokens; {kept}"))
        before = dict(manager.layers.passed), dict(manager.layers.refused)
        rounds.append(warm_round(stage, manager, tell))
        facts.append(("validated", _layers_text(manager.layers, *before)))
        rounds.append(packed_round(stage, manager, tell, lossy=False))
        audit = manager.audit()
        faults += [f"audit: {violation}" for violation in audit.violations]
        if manager.store_failures:
            faults.append(f"the store did not take {manager.store_failures} blocks")
    del manager  # a backend serves one at a time
    if profile.window is not None:
        rounds.append(window_round(stage, "checkpoint", tell, backend))
        rounds.append(window_round(stage, "none", tell, backend))
    manager = make_manager(profile, backend=backend, events=stage.events)
    publish_all(stage, manager, tell)
    rounds.append(packed_round(stage, manager, tell, lossy=True))
    return rounds, facts, faults


def rounds_in_a_new_process(
    stages: Sequence[Stage], directory: Path, tell: Tell, events: Path | None = None
) -> dict[str, Round]:
    """One new process reads every prompt of every model from disk; this one compares. Its ``events`` go to a file."""
    from .demo_fresh import load_traces
    from .demo_report import Round
    from .demo_rounds import judge

    tell("a new process with empty memory reads from disk")
    with tempfile.TemporaryDirectory(prefix="kvfsm-demo-") as folder:
        prompts, traces = Path(folder, "prompts.json"), Path(folder, "traces.pt")
        asked = {stage.name: [list(request.tokens) for request in stage.requests] for stage in stages}
        prompts.write_text(json.dumps(asked), "utf-8")
        command = [sys.executable, "-m", f"{__package__}.demo_fresh", str(directory), str(prompts), str(traces)]
        command += [] if events is None else [str(events)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=FRESH_SECONDS_MAX)
        if done.returncode:
            raise NewProcessFailed(f"the new process ended with {done.returncode}:\n{done.stderr}")
        found = load_traces(str(traces))
    return {
        stage.name: Round("new process", "empty memory, from disk", judge(stage, found[stage.name]), stage.expected())
        for stage in stages
    }


def _layers_text(layers: LayerCounts, passed: dict[str, int], refused: dict[str, int]) -> str:
    """How many of the warm reads each layer passed on, since the counts given."""
    told = []
    for layer in layers.passed:
        good, bad = layers.passed[layer] - passed[layer], layers.refused[layer] - refused[layer]
        told.append(f"{layer} {good} of {good + bad}")
    return "warm reads passed by layer: " + ", ".join(told)


def _report(stage: Stage, rounds: list[Round], facts: list[tuple[str, str]], faults: list[str]) -> ModelReport:
    from .demo_report import ModelReport

    profile = stage.cast.profile
    shape = f"{profile.title}; blocks of {profile.granule} tokens"
    return ModelReport(stage.name, shape, tuple(rounds), tuple(facts), tuple(faults))


def _missing() -> list[str]:
    from importlib.util import find_spec

    return [name for name in ("torch", "transformers") if find_spec(name) is None]


@contextmanager
def _directory(keep: Path | None) -> Iterator[Path]:
    """The folder for the store: the one to keep, or one that vanishes."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="kvfsm-demo-") as folder:
        yield Path(folder)


@contextmanager
def _progress() -> Iterator[Tell]:
    """A line on stderr that says what is being done; plain silence where stderr is no terminal."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    with console.status("starting") as status:

        def tell(what: str) -> None:
            status.update(what)

        yield tell
