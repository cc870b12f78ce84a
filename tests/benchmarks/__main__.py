"""Measure the manager: `python tests/benchmarks [--quick] [--json]`. See README.md beside this file."""

from __future__ import annotations

import argparse
import json
import sys

from measure import exponent
from models import full_and_window, hybrid
from workloads import BOUNDS, TRACED, WORK, Bench, metadata_bytes_per_block

LENGTHS = (1 << 10, 1 << 12, 1 << 14, 1 << 17, 1 << 20)
QUICK = (1 << 10, 1 << 12, 1 << 14)


def main() -> int:
    """Print a table of seconds and fitted growth; 1 when a growth is past its bound."""
    parser = argparse.ArgumentParser(prog="python tests/benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="up to 16k tokens, fewer repeats")
    parser.add_argument("--json", action="store_true", help='{"rows": [...], "fits": {...}}')
    arguments = parser.parse_args()
    lengths, repeats = (QUICK, 5) if arguments.quick else (LENGTHS, 9)

    rows: list[dict[str, object]] = []
    fits: dict[str, dict[str, object]] = {}
    metadata: dict[str, float] = {}
    tracing: dict[str, float] = {}
    for profile in (hybrid(), full_and_window()):
        for work, measure in WORK.items():
            label = f"{work}, blocks of {profile.granule}"
            series: dict[int, float] = {}
            for tokens in lengths:
                print(f"\r{label}, {tokens} tokens".ljust(78), end="", file=sys.stderr, flush=True)
                series[tokens] = measure(Bench(profile, tokens, repeats))
                row = {"work": label, "tokens": tokens, "ours": series[tokens]}
                rows.append({**row, "peer": None, "ratio": None, "aim": None, "met": None})
            if work in TRACED:
                traced = measure(Bench(profile, QUICK[-1], repeats, traced=True))
                tracing[label] = round(traced / series[QUICK[-1]], 2)
            grows, bound = exponent(series), BOUNDS[work]
            fits[label] = {"exponent": round(grows, 3), "bound": bound, "met": bound is None or grows <= bound}
        metadata[f"blocks of {profile.granule}"] = round(
            metadata_bytes_per_block(Bench(profile, lengths[-1], repeats)), 1
        )
    print("\r".ljust(79), end="\r", file=sys.stderr)

    if arguments.json:
        print(json.dumps({"rows": rows, "fits": fits, "metadata_bytes_per_block": metadata, "tracing": tracing}))
    else:
        print_table(rows, fits, metadata, tracing, lengths)
    return 0 if all(fit["met"] for fit in fits.values()) else 1


def print_table(
    rows: list[dict[str, object]],
    fits: dict[str, dict[str, object]],
    metadata: dict[str, float],
    tracing: dict[str, float],
    lengths: tuple[int, ...],
) -> None:
    """Microseconds of CPU time a row, then the exponent of growth in prompt length."""
    print(f"{'microseconds of CPU time':42}" + "".join(f"{tokens:>11,}" for tokens in lengths) + "    growth")
    for label, fit in fits.items():
        cells = (f"{float(str(row['ours'])) * 1e6:11,.1f}" for row in rows if row["work"] == label)
        verdict = "" if fit["bound"] is None else f" (<= {fit['bound']}{'' if fit['met'] else ': MISSED'})"
        print(f"{label:42}" + "".join(cells) + f"    n^{fit['exponent']:.2f}{verdict}")
    for label, count in metadata.items():
        print(f"metadata a cached block, {label}: {count} bytes at {lengths[-1]:,} tokens")
    for label, ratio in tracing.items():
        print(f"with an event trace, {label}: {ratio} times as long at {QUICK[-1]:,} tokens")


if __name__ == "__main__":
    sys.exit(main())
