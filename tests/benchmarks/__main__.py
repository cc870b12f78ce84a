"""Measure manager and checker: `python tests/benchmarks [--quick] [--only PART] [--json]`; README.md says what."""

from __future__ import annotations

import argparse
import json
import sys

import checkers
from measure import exponent
from models import full_and_window, hybrid
from workloads import BOUNDS, TRACED, WORK, Bench, metadata_bytes_per_block

LENGTHS = (1 << 10, 1 << 12, 1 << 14, 1 << 17, 1 << 20)
QUICK = (1 << 10, 1 << 12, 1 << 14)

Row = dict[str, object]


def main() -> int:
    """Print seconds and fitted growth, then states a second and ratios; 1 when a bound or an aim is missed."""
    parser = argparse.ArgumentParser(prog="python tests/benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="up to 16k tokens, fewer repeats, protocols of seconds")
    parser.add_argument("--only", choices=("manager", "checker"), help="measure one of the two")
    parser.add_argument("--json", action="store_true", help='{"rows": [...], "fits": {...}}')
    arguments = parser.parse_args()

    rows: list[Row] = []
    fits: dict[str, Row] = {}
    metadata: dict[str, float] = {}
    tracing: dict[str, float] = {}
    if arguments.only != "checker":
        lengths, repeats = (QUICK, 5) if arguments.quick else (LENGTHS, 9)
        measure_manager(lengths, repeats, rows, fits, metadata, tracing)
        if not arguments.json:
            print_table(rows, fits, metadata, tracing, lengths)
    if arguments.only != "manager":
        for subject in checkers.QUICK if arguments.quick else checkers.FULL:
            runs = list(checkers.measure(subject))
            print("\r".ljust(79), end="\r", file=sys.stderr)
            beside = checkers.rows_of(subject, runs)
            rows += beside
            if not arguments.json:
                checkers.print_runs(subject, runs, beside)
    if arguments.json:
        print(json.dumps({"rows": rows, "fits": fits, "metadata_bytes_per_block": metadata, "tracing": tracing}))
    return 0 if all(fit["met"] for fit in fits.values()) and all(row["met"] is not False for row in rows) else 1


def measure_manager(
    lengths: tuple[int, ...],
    repeats: int,
    rows: list[Row],
    fits: dict[str, Row],
    metadata: dict[str, float],
    tracing: dict[str, float],
) -> None:
    """Measure each kind of work at each length, and add what comes out."""
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


def print_table(
    rows: list[Row],
    fits: dict[str, Row],
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
