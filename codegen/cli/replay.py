"""Run a request trace through queues, admission and manager, without a model: who hits, who waits, what is evicted.

  kvfsm replay TRACE --model deepseek_v4_flash            pools so large that nothing is evicted
  kvfsm replay TRACE --model gpt_oss --memory 80e9        as many slots as fit in so many bytes
  kvfsm replay TRACE --model tiny_llama --slots 5000 --json
  kvfsm replay TRACE --model deepseek_v4_flash --memory 40e9 --compare -o queues.svg
                                                          five queues beside a single line, and a picture of it
  ... --json   {"ok", "complete", "requests", "hit_rate", "by_kind", "by_tier", "evictions", "rejected", "waits",
                "in_flight", "audits", ...}

A trace is JSON lines as Mooncake publishes them: {"timestamp": milliseconds, "input_length": tokens, "output_length":
tokens, "hash_ids": [an id for each block of --block tokens; it stands for all before it, too]}. Equal ids get equal
tokens; where the profile's granule is not the block, blocks are cut or joined. Each prompt goes through the real
scheduler: its queue, admission, loads, steps, publishing. Time is virtual, from the constants that --help names, and
so the same run gives the same numbers everywhere. Nothing is computed: a slot holds a few bytes that say whose it is,
and who reads it looks. Answers are nobody else's prefix: a trace doesn't say what they were.

Every --audit requests, and at the end, the manager's books are audited. Rejected requests are told by their lines and
are no fault. What lies in --store DIR from earlier runs is reused; `store_objects` says how much that was. Exit code: 0
well, 1 a violation or a wrong line, 2 used wrongly, 130 stopped (it says what it knows).
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .replay_options import Misused, add_arguments, setting_of

if TYPE_CHECKING:
    from ...runtime.profile import Profile
    from ...runtime.stores.local import LocalStore
    from ...runtime.trace import EventTrace
    from .replay_setting import Setting
    from .replay_tally import Tally
    from .replay_trace import RequestTrace

__all__ = ["HELP", "add_arguments", "run"]

HELP = "run a request trace through the manager"

EVENTS = 1 << 20
"""Events that ``--trace-out`` keeps: the newest."""

PROBLEMS_SHOWN = 10


def run(args: argparse.Namespace) -> int:
    """Replay, report, and say how it went: 0 well, 1 a violation or a wrong line, 2 used wrongly, 130 stopped."""
    try:
        if args.out is not None and not args.compare:
            raise Misused("-o draws what --compare found; give both")
        if args.compare and (args.store is not None or args.trace_out is not None):
            raise Misused("--compare has a store of its own and records nothing; leave out --store and --trace-out")
        if args.stall is not None and args.store is None and not args.compare:
            raise Misused("--stall is of the disk behind a store; give --store DIR or --compare")
        profile = _profile(args.model)
        trace = _read(args)
        if trace.problems:
            return _refuse(args, trace)
        setting = setting_of(args, trace, profile)
        return _compare(args, setting) if args.compare else _replay(args, setting)
    except Misused as error:
        print(f"kvfsm replay: {error}", file=sys.stderr)
        return 2
    except MemoryError:
        fix = "give fewer requests (--limit), less room (--slots, --memory) or fewer at once (--requests)"
        print(f"kvfsm replay: this machine has too little memory for the pools; {fix}", file=sys.stderr)
        return 2


def _replay(args: argparse.Namespace, setting: Setting) -> int:
    """Run a trace once and report."""
    from ...runtime.trace import EventTrace
    from .replay_report import as_json, text
    from .replay_setting import serve

    events = EventTrace(EVENTS) if args.trace_out is not None else None
    begun = time.perf_counter()
    with ExitStack() as open_:
        store = None if args.store is None else open_.enter_context(_store(args.store, setting.narrow, events))
        found = None if store is None else store.usage().objects
        stopped = open_.enter_context(_interrupts())
        tell = open_.enter_context(_progress(len(setting.trace.requests)))
        tally = serve(setting, store=store, events=events, stopped=stopped, tell=tell)
        if events is not None:
            try:
                events.write(args.trace_out)
            except OSError as error:
                what = f"cannot write '{args.trace_out}': {error.strerror or error}; give another --trace-out FILE"
                raise Misused(what) from None
    seconds = time.perf_counter() - begun
    if args.json:
        print(json.dumps(as_json(setting, tally, seconds, found)))
    else:
        print("\n".join(text(setting, tally, found)))
    if tally.violations:
        return 1
    return 0 if tally.complete else 130


def _compare(args: argparse.Namespace, setting: Setting) -> int:
    """Serve a trace by five queues and by a single line, and report."""
    from .. import write
    from .replay_compare import as_json, compare, page, text
    from .replay_plot import plot

    if args.out is not None:
        if args.out.suffix != ".svg":
            raise Misused(f"-o draws an SVG, and '{args.out}' says otherwise; give another -o FILE.svg")
        try:
            write.takes(args.out.parent)
        except write.WriteError as error:
            raise Misused(f"{error}; give another -o FILE.svg") from None
    with _interrupts() as stopped, _progress(len(setting.trace.requests)) as tell:
        found = compare(setting, stopped, tell)
    if args.json:
        print(json.dumps(as_json(found)))
    else:
        print("\n".join(text(found)))
    if not found.complete:
        return 1 if found.violations else 130
    if args.out is not None:
        try:
            write.put(args.out, plot(found))
            write.put(args.out.with_suffix(".md"), page(found, args.out.name, _command(args)))
        except write.WriteError as error:
            raise Misused(f"{error}; give another -o FILE.svg") from None
    return 1 if found.violations else 0


def _command(args: argparse.Namespace) -> str:
    """The command that makes the same picture again."""
    parser = argparse.ArgumentParser(add_help=False)
    add_arguments(parser)
    words = ["kvfsm replay", str(args.trace)]
    for action in parser._actions:
        value = getattr(args, action.dest, None)
        if action.option_strings and action.dest != "json" and value != action.default:
            words += [action.option_strings[0], *([] if value is True else [_word(value)])]
    return " ".join(words)


def _word(value: Any) -> str:
    """A value as its option takes it.

    >>> _word(40_000_000_000), _word((500.0, 900.0)), _word(8192)
    ('40e9', '500:900', '8192')
    """
    if isinstance(value, tuple):
        return ":".join(f"{part:g}" for part in value)
    if isinstance(value, int) and value and value % 10**9 == 0:
        return f"{value // 10**9}e9"
    return str(value)


# ---- what was given -----------------------------------------------------------------------------------------------


def _profile(name: str) -> Profile:
    from ...runtime.generated.models import PROFILES

    wanted = name.replace("-", "_")
    if wanted not in PROFILES:
        raise Misused(f"there is no profile '{name}'; --model takes {', '.join(PROFILES)}")
    return PROFILES[wanted]


def _read(args: argparse.Namespace) -> RequestTrace:
    from .replay_trace import read_trace

    try:
        with open(args.trace, encoding="utf-8", errors="replace") as lines:
            return read_trace(str(args.trace), lines, args.block, args.limit)
    except OSError as error:
        what = f"'{args.trace}' can't be read: {error.strerror or error}"
        raise Misused(f"{what}; give a file of requests, JSON lines (`kvfsm replay --help`)") from None


def _refuse(args: argparse.Namespace, trace: RequestTrace) -> int:
    """Say what is wrong with the lines of a trace; nothing is replayed."""
    for problem in trace.problems[:PROBLEMS_SHOWN]:
        print(problem, file=sys.stderr)
    if (more := len(trace.problems) - PROBLEMS_SHOWN) > 0:
        print(f"and {more:,} more", file=sys.stderr)
    if args.json:
        found: dict[str, Any] = {"ok": False, "complete": False, "requests": 0, "hit_rate": 0.0, "by_kind": {}}
        found |= {"by_tier": {}, "evictions": {}, "audits": 0, "violations": []}
        print(json.dumps(found | {"problems": [problem.as_json() for problem in trace.problems]}))
    return 1


# ---- around the run -----------------------------------------------------------------------------------------------


@contextmanager
def _store(directory: Path, profile: Profile, events: EventTrace | None) -> Iterator[LocalStore]:
    """The local store in a directory, of stand-in slots only."""
    from ...runtime.stores.local import LocalStore
    from ...runtime.stores.store import Namespace, StoreError

    try:
        store = LocalStore(directory, Namespace.of(profile), trace=events)
    except (StoreError, OSError) as error:
        raise Misused(f"no store in '{directory}': {error}; give another --store DIR") from None
    with store:
        yield store


@contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Says whether Ctrl-C was pressed, so that a run ends between two requests; a second one ends it at once."""
    pressed = threading.Event()

    def stop(*_: object) -> None:
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()

    if threading.current_thread() is not threading.main_thread():
        yield pressed.is_set
        return
    before = signal.signal(signal.SIGINT, stop)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _progress(requests: int) -> Iterator[Callable[[Tally], None]]:
    """Keeps a line on stderr up to date; silent where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield lambda tally: None
        return
    last = 0.0

    def show(tally: Tally) -> None:
        nonlocal last
        if time.monotonic() - last >= 0.2:
            last = time.monotonic()
            rate = 100 * tally.reused_tokens / tally.prompt_tokens if tally.prompt_tokens else 0.0
            counts = f"{tally.begun:,} of {requests:,} requests, {rate:.1f} % of tokens reused"
            print(f"\r{counts}, {len(tally.rejected):,} rejected", end="\x1b[K", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        print(end="\r\x1b[K", file=sys.stderr, flush=True)
