"""The benchmarks run, report every kind of work, and their fit can tell constant from linear. No time is asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).parent.parent
FOLDER = REPO / "tests" / "benchmarks"


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], cwd=REPO, capture_output=True, text=True, check=False)


def test_quick_run_reports_rows_fits_and_metadata() -> None:
    done = run("tests/benchmarks", "--quick", "--json")
    assert done.returncode in {0, 1}, done.stderr
    report = json.loads(done.stdout)
    works = {row["work"] for row in report["rows"]}
    assert works == set(report["fits"])
    assert {work.split(",")[0] for work in works} >= {"keys", "look-up", "allocate", "free", "decode step of 256"}
    assert all(row["ours"] > 0 for row in report["rows"])
    assert all(count > 0 for count in report["metadata_bytes_per_block"].values())
    assert {"acquire + release", "decode step of 256"} <= {work.split(", blocks")[0] for work in report["tracing"]}


def test_the_fit_tells_constant_from_linear() -> None:
    code = "from measure import exponent as e; n = (1, 10, 100); print(e({x: 3 for x in n}), e({x: 3 * x for x in n}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=FOLDER, capture_output=True, text=True, check=True)
    constant, linear = (float(word) for word in done.stdout.split())
    assert abs(constant) < 1e-9
    assert abs(linear - 1) < 1e-9
