"""The options of `kvfsm replay`, and the setting that they make."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from .numbers import SOME, Bound, above, count, number, reader, size, span

if TYPE_CHECKING:
    from ...runtime.profile import Profile
    from .replay_setting import Setting
    from .replay_trace import RequestTrace

READERS_MAX = 1000
"""Requests that have slots, at most: words count pins up to 1,023 and more."""


class Misused(Exception):
    """The command was used wrongly; the message says how to use it."""


_MOST: Bound = (lambda value: value <= READERS_MAX, f"at most {READERS_MAX}, the readers that a slot can count")
live = reader(int, "whole number", SOME, _MOST)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's options."""
    parser.add_argument("trace", type=Path, metavar="TRACE", help="the requests, JSON lines")
    parser.add_argument("--model", required=True, metavar="PROFILE", help="a model profile, such as deepseek_v4_flash")
    room = parser.add_mutually_exclusive_group()
    room.add_argument("--slots", type=count, metavar="N", help="slots of each kind, as far as the trace needs them")
    room.add_argument("--memory", type=size, metavar="BYTES", help="bytes of real slots, divided among the kinds")
    parser.add_argument("--cold", type=number, default=0, metavar="N",
                        help="slots for packed KV: what has ended is packed while there are some")  # fmt: skip
    parser.add_argument("--store", type=Path, metavar="DIR", help="a local store behind the manager; it is left there")
    parser.add_argument("--limit", type=count, metavar="N", help="only the first N requests")
    parser.add_argument("--block", type=count, default=512, metavar="N", help="tokens of a block of the trace (512)")
    parser.add_argument("--chunk", type=count, metavar="N",
                        help="tokens between boundaries where window and tail are kept (a block)")  # fmt: skip
    parser.add_argument("--audit", type=number, metavar="N",
                        help="requests between audits, 0: one at the end (a sixteenth, at most 256)")  # fmt: skip
    parser.add_argument("--trace-out", type=Path, metavar="FILE", help="write the newest events, for `kvfsm validate`")
    parser.add_argument("--compare", action="store_true",
                        help="serve the trace by the five queues and by one line for all, with a store in memory; and "
                        "again with a disk that stalls (--stall; else for ten seconds in the middle)")  # fmt: skip
    parser.add_argument("-o", "--out", type=Path, metavar="FILE.svg", help="draw what --compare found, and write "
                        "FILE.md with the numbers beside it")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    _add_limits(parser.add_argument_group("limits"))
    _add_costs(parser.add_argument_group("virtual time"))


def _add_limits(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--requests", type=live, default=32, metavar="N",
                       help="requests that have slots, whether they load, wait for a step or run (32)")  # fmt: skip
    group.add_argument("--in-flight-blocks", type=count, metavar="N",
                       help="slots that open loads fill, each tier (a quarter, or the longest prompt)")  # fmt: skip
    group.add_argument("--step-tokens", type=count, default=8192, metavar="N",
                       help="tokens of prompts that a step computes in each queue (8192)")  # fmt: skip
    group.add_argument("--give-up", type=above, metavar="MS",
                       help="who has not begun MS after he came goes away (never)")  # fmt: skip


def _add_costs(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--step-ms", type=above, default=20.0, metavar="MS", help="of a step, besides prompts (20)")
    group.add_argument("--prefill", type=above, default=60_000.0, metavar="TOKENS",
                       help="tokens of prompts that are computed in a second (60000)")  # fmt: skip
    group.add_argument("--disk", type=above, default=5.0, metavar="GB", help="GB a second that the store gives (5)")
    group.add_argument("--expand", type=above, default=50.0, metavar="GB", help="GB a second that are expanded (50)")
    group.add_argument("--stall", type=span, metavar="FROM:TO",
                       help="the disk gives nothing from FROM to TO ms after the first request came")  # fmt: skip


def setting_of(args: argparse.Namespace, trace: RequestTrace, profile: Profile) -> Setting:
    """What is asked for.

    Raises:
        Misused: what fits nothing.
    """
    from ...runtime.limits import TIERS, Limits
    from .replay_pools import ample, divided, largest, stand_in
    from .replay_run import Rules
    from .replay_service import Costs, Stall
    from .replay_setting import Setting

    chunk = _chunk(args, trace, profile)
    slots = ample(trace, profile, chunk, args.requests)  # more are of no use
    if args.slots is not None:
        slots = {kind: min(args.slots, most) for kind, most in slots.items()}
    elif args.memory is not None:
        try:
            given = divided(args.memory, profile, chunk, args.requests)
        except ValueError as error:
            raise Misused(f"--memory {error}") from None
        slots = {kind: min(given[kind], most) for kind, most in slots.items()}
    blocks = args.in_flight_blocks or max(sum(slots.values()) // 4, largest(trace, profile))
    first = trace.requests[0].at
    stalls = () if args.stall is None else (Stall(first + args.stall[0], first + args.stall[1]),)
    rules = Rules(
        limits=Limits(requests=args.requests, blocks=dict.fromkeys(TIERS, blocks)),
        slot_bytes={kind: layout.slot_bytes for kind, layout in profile.layouts.items()},
        chunk=chunk,
        step_tokens=-(-args.step_tokens // profile.granule) * profile.granule,
        audit_every=_audit_every(len(trace.requests)) if args.audit is None else args.audit,
        give_up_ms=args.give_up,
        costs=Costs(args.step_ms, args.prefill, args.disk, expand=args.expand, stalls=stalls),
    )
    return Setting(trace, profile, stand_in(profile), slots, args.cold, args.requests, rules)


def _audit_every(requests: int) -> int:
    """Requests between two audits, where nobody says: some 16 audits, more of a long trace.

    >>> _audit_every(30), _audit_every(250), _audit_every(4000), _audit_every(100_000)
    (1, 15, 250, 256)
    """
    return min(256, max(1, requests // 16))


def _chunk(args: argparse.Namespace, trace: RequestTrace, profile: Profile) -> int:
    """Tokens between two boundaries that are kept."""
    chunk = math.lcm(trace.block, profile.granule) if args.chunk is None else int(args.chunk)
    if chunk % profile.granule:
        fix = -(-chunk // profile.granule) * profile.granule
        raise Misused(f"--chunk {chunk} is not a multiple of the granule {profile.granule}; give {fix}")
    return chunk
