"""Run a request trace through the manager, without a model: who hits, what is evicted, and whether the books agree.

  kvfsm replay TRACE --model deepseek_v4_flash            pools so large that nothing is evicted
  kvfsm replay TRACE --model gpt_oss --memory 80e9        as many slots as fit in so many bytes
  kvfsm replay TRACE --model tiny_llama --slots 5000 --json
  ... --json   {"ok", "complete", "requests", "hit_rate", "by_kind", "by_tier", "evictions", "rejected", "audits", ...}

A trace is JSON lines as Mooncake publishes them: {"timestamp": milliseconds, "input_length": tokens, "output_length":
tokens, "hash_ids": [an id for each block of --block tokens; it stands for all before it, too]}. Equal ids get equal
tokens; where the profile's granule is not the block, blocks are cut or joined. Each prompt is matched, acquired,
admitted and published by the real manager, and decoded beside up to --concurrency others. Nothing is computed: a slot
holds a few bytes that say whose it is, and who reads it looks. Answers are nobody else's prefix: a trace doesn't say
what they were. First come, first served, so far; no limits of admission but the pools themselves.

Every --audit requests, and at the end, the manager's books are audited. Rejected requests are told by name and are no
fault. Exit code: 0 well, 1 a violation or a wrong line, 2 used wrongly, 130 stopped (it says what it knows).
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...runtime.profile import Profile
    from ...runtime.stores.local import LocalStore
    from ...runtime.trace import EventTrace
    from .replay_run import Tally
    from .replay_trace import RequestTrace

HELP = "run a request trace through the manager"

EVENTS = 1 << 20
"""Events that ``--trace-out`` keeps: the newest."""

PROBLEMS_SHOWN = 10

READERS_MAX = 1000
"""Live requests, at most: words count pins up to 1,023 and more."""


class Misused(Exception):
    """The command was used wrongly; the message says how to use it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's options."""
    parser.add_argument("trace", type=Path, metavar="TRACE", help="the requests, JSON lines")
    parser.add_argument("--model", required=True, metavar="PROFILE", help="a model profile, such as deepseek_v4_flash")
    room = parser.add_mutually_exclusive_group()
    room.add_argument("--slots", type=_count, metavar="N", help="slots of each kind, as far as the trace needs them")
    room.add_argument("--memory", type=_bytes, metavar="BYTES", help="bytes of real slots, divided among the kinds")
    parser.add_argument("--cold", type=_number, default=0, metavar="N",
                        help="slots for packed KV: what has ended is packed while there are some")  # fmt: skip
    parser.add_argument("--store", type=Path, metavar="DIR", help="a local store behind the manager; it is left there")
    parser.add_argument("--limit", type=_count, metavar="N", help="only the first N requests")
    parser.add_argument("--concurrency", type=_live, default=32, metavar="N", help="most live requests (32)")
    parser.add_argument("--block", type=_count, default=512, metavar="N", help="tokens of a block of the trace (512)")
    parser.add_argument("--chunk", type=_count, metavar="N",
                        help="tokens between boundaries where window and tail are kept (a block)")  # fmt: skip
    parser.add_argument("--audit", type=_number, default=256, metavar="N", help="requests between two audits (256)")
    parser.add_argument("--trace-out", type=Path, metavar="FILE", help="write the newest events, for `kvfsm validate`")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Replay, report, and say how it went: 0 well, 1 a violation or a wrong line, 2 used wrongly, 130 stopped."""
    from .replay_report import Setting, as_json, text

    try:
        profile = _profile(args.model)
        trace = _read(args)
        if trace.problems:
            return _refuse(args, trace)
        chunk = _chunk(args, trace, profile)
        begun = time.perf_counter()
        narrow, slots, tally = _replay(args, trace, profile, chunk)
    except Misused as error:
        print(f"kvfsm replay: {error}", file=sys.stderr)
        return 2
    except MemoryError:
        fix = "give fewer requests (--limit), less room (--slots, --memory) or a smaller --concurrency"
        print(f"kvfsm replay: this machine has too little memory for the pools; {fix}", file=sys.stderr)
        return 2
    setting = Setting(profile, narrow, slots, chunk, time.perf_counter() - begun)
    if args.json:
        print(json.dumps(as_json(trace, setting, tally)))
    else:
        print("\n".join(text(trace, setting, tally)))
    if tally.violations:
        return 1
    return 0 if tally.complete else 130


def _replay(
    args: argparse.Namespace, trace: RequestTrace, profile: Profile, chunk: int
) -> tuple[Profile, Mapping[str, int], Tally]:
    """Run it; returns the narrow profile, the slots, and what was counted."""
    from ...kernels.reference import NumpyBackend
    from ...runtime.manager import Manager
    from ...runtime.trace import EventTrace
    from .replay_order import FirstCome
    from .replay_pools import ample, divided, stand_in
    from .replay_run import Replay, Tally

    slots = ample(trace, profile, chunk, args.concurrency)  # more are of no use
    if args.slots is not None:
        slots = {kind: min(args.slots, most) for kind, most in slots.items()}
    elif args.memory is not None:
        try:
            given = divided(args.memory, profile, chunk, args.concurrency)
        except ValueError as error:
            raise Misused(f"--memory {error}") from None
        slots = {kind: min(given[kind], most) for kind, most in slots.items()}
    tally, narrow = Tally(), stand_in(profile)
    events = EventTrace(EVENTS) if args.trace_out is not None else None
    with ExitStack() as open_:
        store = None if args.store is None else open_.enter_context(_store(args.store, narrow, events))
        manager = Manager(
            narrow, slots, NumpyBackend(), store=store, cold=args.cold, rows=args.concurrency, on_event=tally.told,
            trace=events,
        )  # fmt: skip
        stopped = open_.enter_context(_interrupts())
        replay = Replay(trace, manager, tally, FirstCome(), chunk=chunk, audit_every=args.audit)
        replay.run(stopped, open_.enter_context(_progress(len(trace.requests))))
        if events is not None:
            try:
                events.write(args.trace_out)
            except OSError as error:
                what = f"cannot write '{args.trace_out}': {error.strerror or error}; give another --trace-out FILE"
                raise Misused(what) from None
    return narrow, slots, tally


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


def _chunk(args: argparse.Namespace, trace: RequestTrace, profile: Profile) -> int:
    """Tokens between two boundaries that are kept."""
    chunk = math.lcm(trace.block, profile.granule) if args.chunk is None else int(args.chunk)
    if chunk % profile.granule:
        fix = -(-chunk // profile.granule) * profile.granule
        raise Misused(f"--chunk {chunk} is not a multiple of the granule {profile.granule}; give {fix}")
    return chunk


def _count(text: str) -> int:
    """A whole number of at least 1."""
    if (value := _number(text)) < 1:
        raise argparse.ArgumentTypeError(f"{value}; give at least 1")
    return value


def _live(text: str) -> int:
    """A number of live requests: as many as may read one slot."""
    if (value := _count(text)) > READERS_MAX:
        raise argparse.ArgumentTypeError(f"{value}; give at most {READERS_MAX}, the readers that a slot can count")
    return value


def _number(text: str) -> int:
    """A whole number of at least 0."""
    try:
        value = int(text.replace("_", ""))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number") from None
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value}; give at least 0")
    return value


def _bytes(text: str) -> int:
    """A number of bytes, such as 80e9."""
    try:
        value = int(float(text.replace("_", "")))
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"'{text}' is no number of bytes, such as 80e9") from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}; give at least 1")
    return value


# ---- around the run -----------------------------------------------------------------------------------------------


@contextmanager
def _store(directory: Path, profile: Profile, events: EventTrace | None) -> Iterator[LocalStore]:
    """The local store in a directory, of stand-in slots only."""
    from ...runtime.stores.local import LocalStore
    from ...runtime.stores.store import Namespace, StoreError

    layouts = {kind: layout.digest for kind, layout in profile.layouts.items()}
    try:
        store = LocalStore(directory, Namespace(profile.identity, layouts, f"scores={profile.scores}"), trace=events)
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
