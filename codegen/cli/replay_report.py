"""What a replay found, as JSON and for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ...runtime.limits import TIERS as LOADED
from .replay_pools import real_bytes
from .replay_setting import Setting
from .replay_tally import STORE, TIERS, Tally, Waits
from .replay_trace import RequestTrace

SHOWN = 5
"""Rejections that people are shown one by one; JSON has all."""


def mapping(block: int, granule: int) -> str:
    """How blocks of a trace lie in granules.

    >>> mapping(512, 256)
    'each block of 512 tokens is cut into 2 granules of 256'
    >>> mapping(16, 64)
    '4 blocks of 16 tokens are joined to a granule of 64; what ends inside one is not shared'
    """
    if block == granule:
        return f"a block of {block} tokens is a granule"
    if block % granule == 0:
        return f"each block of {block} tokens is cut into {block // granule} granules of {granule}"
    if granule % block == 0:
        joined = f"{granule // block} blocks of {block} tokens are joined to a granule of {granule}"
        return f"{joined}; what ends inside one is not shared"
    return f"blocks of {block} tokens and granules of {granule} straddle each other; what ends inside one is not shared"


def as_json(setting: Setting, tally: Tally, seconds: float, store_objects: int | None = None) -> dict[str, Any]:
    """The result as ``--json`` prints it.

    Args:
        setting: what was run.
        tally: what was counted.
        seconds: how long it took by a real clock.
        store_objects: that the store held at the start; None without one.
    """
    trace, rules = setting.trace, setting.rules
    shared = sum(trace.shared())
    asked = sum(request.prompt for request in trace.requests)
    return {
        "ok": not tally.violations,
        "complete": tally.complete,
        "model": setting.profile.name,
        "requests": tally.ended,
        "in_trace": len(trace.requests),
        "hit_rate": _rate(tally.reused_tokens, tally.prompt_tokens),
        "prompt_tokens": tally.prompt_tokens,
        "reused_tokens": tally.reused_tokens,
        "decoded_tokens": tally.decoded_tokens,
        "unbounded_hit_rate": _rate(shared, asked),
        "store_objects": store_objects,
        "by_kind": _by_kind(setting, tally),
        "by_tier": {tier: tally.tiers[tier] for tier in TIERS},
        "hit_rate_by_tier": {tier: _rate(tally.tiers[tier], tally.prompt_tokens) for tier in TIERS},
        "evictions": {kind: tally.evictions[kind] for kind in setting.slots},
        "boundaries_lost": tally.boundaries_lost,
        "packed_granules": tally.packed_granules,
        "deferred": tally.deferred,
        "preempted": tally.preempted,
        "rejected": dict(Counter(one.refusal for one in tally.rejected)),
        "cancelled": tally.cancelled,
        "live": len(tally.courses) - tally.ended - len(tally.rejected) - tally.cancelled,
        "waits": {"all": asdict(tally.waits()), "resident_only": asdict(tally.waits(resident=True))}
        | {queue.value: asdict(waits) for queue, waits in tally.by_queue().items()},
        "in_queues_ms": {queue.value: wait for queue, wait in tally.in_queues().items()},
        "first_token": asdict(tally.first_tokens()),
        "virtual_seconds": round(tally.virtual_seconds, 3),
        "in_flight": _in_flight(setting, tally),
        "costs": asdict(rules.costs),
        "steps": tally.steps,
        "computed_tokens": tally.computed_tokens,
        "rebuilt_tokens": tally.rebuilt_tokens,
        "rejections": [asdict(one) for one in tally.rejected],
        "audits": tally.audits,
        "violations": [{"text": text, "times": times} for text, times in tally.violations.items()],
        "granule": setting.profile.granule,
        "block": trace.block,
        "chunk": rules.chunk,
        "step_tokens": rules.step_tokens,
        "mapping": mapping(trace.block, setting.profile.granule),
        "prefixes": trace.prefixes,
        "ids": trace.ids,
        "slots": dict(setting.slots),
        "slots_bytes": real_bytes(setting.slots, setting.profile),
        "stand_in_bytes": real_bytes(setting.slots, setting.narrow),
        "metadata_bytes": tally.metadata_bytes,
        "manager_seconds": round(tally.manager_seconds, 6),
        "seconds": round(seconds, 6),
        "requests_per_second": _per_second(tally),
        "problems": [],
    }


def text(setting: Setting, tally: Tally, store_objects: int | None = None) -> list[str]:
    """The result in lines for people; arguments as for ``as_json``."""
    trace, profile = setting.trace, setting.profile
    served = f"{tally.ended:,} of {len(trace.requests):,} requests served on {profile.name}"
    lines = [
        f"{'well' if not tally.violations else 'WRONG'}: {served}{'' if tally.complete else ', then stopped'}",
        f"  {mapping(trace.block, profile.granule)}{_strange(trace)}",
        f"  slots        {_counts(setting.slots)}: {_size(real_bytes(setting.slots, profile))} of real slots, "
        f"stand-ins of {_size(real_bytes(setting.slots, setting.narrow))}",
        f"  hit rate     {_percent(tally.reused_tokens, tally.prompt_tokens)} of {tally.prompt_tokens:,} tokens of "
        f"prompts; all prefixes of the trace share "
        f"{_percent(sum(trace.shared()), sum(one.prompt for one in trace.requests))}",
        "  each alone   " + ", ".join(
            f"{kind} {_percent(tally.alone[kind], tally.prompt_tokens)}" for kind in setting.slots
        ),
        "  from         " + ", ".join(
            f"{tier} {_percent(tally.tiers[tier], tally.prompt_tokens)} ({tally.tiers[tier]:,} tokens)"
            for tier in TIERS
        ),
        *_from(tally),
        *_held(store_objects),
        f"  evictions    {_counts({kind: tally.evictions[kind] for kind in setting.slots})}",
    ]  # fmt: skip
    if tally.boundaries_lost:
        lines.append(f"  not kept     window and tail at {tally.boundaries_lost:,} boundaries: no room")
    if tally.rebuilt_tokens:
        lines.append(f"  rebuilt      indexer keys of {tally.rebuilt_tokens:,} tokens, whose entries stayed")
    if tally.packed_granules:
        lines.append(f"  packed       {tally.packed_granules:,} granules")
    lines.append(
        f"  admission    {tally.deferred:,} deferred, {tally.preempted:,} preempted, {_rejected(tally)}"
        + (f", {tally.cancelled:,} given up" if tally.cancelled else "")
    )
    lines += [f"    line {one.line}: {one.why}" for one in tally.rejected[:SHOWN]]
    if (more := len(tally.rejected) - SHOWN) > 0:
        lines.append(f"    and {more:,} more; --json has all")
    lines += _loads(setting, tally)
    lines += [
        f"  waits        {_waits('all', tally.waits())}",
        *(f"               {_waits(queue.value, waits)}" for queue, waits in tally.by_queue().items() if waits.count),
        "  in queues    "
        + ", ".join(f"{queue.value} {wait / 1000:,.1f} s" for queue, wait in tally.in_queues().items() if wait),
        f"  virtual      {tally.virtual_seconds:,.1f} s, {tally.computed_tokens:,} tokens of prompts computed; first "
        f"token after {tally.first_tokens().mean:,.0f} ms on average",
        f"  manager      {tally.manager_seconds:.2f} s: {_per_second(tally):,.0f} requests a second, "
        f"{tally.decoded_tokens:,} tokens decoded in {tally.steps:,} steps; {_size(tally.metadata_bytes)} of metadata",
        f"  audits       {tally.audits}, {len(tally.violations)} violations",
    ]
    lines += [f"    {text}{f' ({times} times)' if times > 1 else ''}" for text, times in tally.violations.items()]
    return lines


def _by_kind(setting: Setting, tally: Tally) -> dict[str, Any]:
    """What each kind served, and where it lay; the store is one of them where there is one."""
    tokens = {kind: tally.alone[kind] for kind in setting.slots}
    lay = dict(tally.tiers_of)
    if STORE in tally.verdicts:
        tokens[STORE] = tally.tiers["store"]
        lay[STORE] = Counter(store=tokens[STORE])
    return {
        kind: {
            "tokens": count,
            "hit_rate": _rate(count, tally.prompt_tokens),
            "from": {tier: lay.get(kind, Counter())[tier] for tier in TIERS},
            "verdicts": dict(tally.verdicts.get(kind, {})),
        }
        for kind, count in tokens.items()
    }


def _from(tally: Tally) -> list[str]:
    """Where each kind's objects lay, in lines, unless it was memory alone; and what the store said."""
    slower = [kind for kind, tiers in tally.tiers_of.items() if tiers["packed"] or tiers["store"]]
    lines = [
        f"    {kind:18} "
        + ", ".join(f"{tier} {_percent(tally.tiers_of[kind][tier], tally.prompt_tokens)}" for tier in TIERS)
        for kind in (tally.tiers_of if slower else ())
    ]
    if STORE in tally.verdicts:
        lines.append(f"  store says   {_counts(tally.verdicts[STORE])}")
    return lines


def _held(objects: int | None) -> list[str]:
    """What earlier runs left in the store; no line without one."""
    if objects is None:
        return []
    reused = ", of earlier runs: what they share with this trace is reused, too" if objects else ""
    return [f"  store        held {objects:,} objects at the start{reused}"]


def _in_flight(setting: Setting, tally: Tally) -> dict[str, Any]:
    """What was under way at most, beside the limits."""
    limits, flights = setting.rules.limits, tally.in_flight
    return {"requests": {"most": tally.requests_most, "limit": limits.requests}} | {
        tier: {
            "blocks_most": flights.blocks_most[tier],
            "blocks_limit": limits.blocks.get(tier),
            "bytes_most": flights.bytes_most[tier],
            "bytes_moved": flights.moved[tier],
        }
        for tier in LOADED
    }


def _loads(setting: Setting, tally: Tally) -> list[str]:
    """What was under way at most, in lines."""
    found, limits = tally.in_flight, setting.rules.limits
    parts = [f"{tally.requests_most} of {limits.requests} requests"]
    for tier in LOADED:
        if found.moved[tier]:
            blocks = f"{found.blocks_most[tier]:,} of {limits.blocks[tier]:,} slots from the {tier}"
            parts.append(f"{blocks} ({_size(found.bytes_most[tier])}; {_size(found.moved[tier])} all together)")
    return [f"  in flight    at most {', '.join(parts)}"]


def _waits(name: str, waits: Waits) -> str:
    ms = f"mean {waits.mean:,.0f} ms, p50 {waits.p50:,.0f}, p99 {waits.p99:,.0f}, max {waits.max:,.0f}"
    return f"{name} {waits.count:,} requests: {ms}"


def _strange(trace: RequestTrace) -> str:
    if trace.prefixes == trace.ids:
        return ""
    return f"; ids occur behind different ones: {trace.ids:,} ids are {trace.prefixes:,} prefixes"


def _rejected(tally: Tally) -> str:
    if not tally.rejected:
        return "0 rejected"
    reasons = Counter(one.refusal for one in tally.rejected)
    return f"{len(tally.rejected):,} rejected ({_counts(reasons)})"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _rate(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0


def _percent(part: int, whole: int) -> str:
    return f"{100 * _rate(part, whole):.2f} %"


def _per_second(tally: Tally) -> float:
    return round(tally.ended / tally.manager_seconds, 1) if tally.manager_seconds else 0.0


def _size(count: int) -> str:
    """Bytes for people.

    >>> _size(2_500_000)
    '2.5 MB'
    """
    value, unit = float(count), "bytes"
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            break
        value /= 1000
    return f"{value:.0f} bytes" if unit == "bytes" else f"{value:.1f} {unit}"
