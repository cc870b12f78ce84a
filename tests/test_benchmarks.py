"""The benchmarks run, report every kind of work, and their fit can tell constant from linear. No time is asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parent.parent
FOLDER = REPO / "tests" / "benchmarks"


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], cwd=REPO, capture_output=True, text=True, check=False)


def test_quick_run_reports_rows_fits_and_metadata() -> None:
    done = run("tests/benchmarks", "--quick", "--only", "manager", "--json")
    assert done.returncode in {0, 1}, done.stderr
    report = json.loads(done.stdout)
    works = {row["work"] for row in report["rows"]}
    assert works == set(report["fits"])
    assert {work.split(",")[0] for work in works} >= {"keys", "look-up", "allocate", "free", "decode step of 256"}
    assert all(row["ours"] > 0 for row in report["rows"])
    assert all(count > 0 for count in report["metadata_bytes_per_block"].values())
    assert {"acquire + release", "decode step of 256"} <= {work.split(", blocks")[0] for work in report["tracing"]}


CHECKERS = """
import json
from checkers import Run, Subject, measure, rows_of
subject = Subject("toctou", (("slots", 2), ("readers", 2)), 16, ((("numpy", "SPIN"), 0.0001), (("numpy", "TLC"), 1e9)))
runs = list(measure(subject))
print(json.dumps({"rows": rows_of(subject, runs), "states": {run.program: run.states for run in runs}}))
"""


def test_checkers_are_measured_beside_the_peers_that_are_installed() -> None:
    done = subprocess.run([sys.executable, "-c", CHECKERS], cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    states = report["states"]
    if missing := {"SPIN", "Rumur", "TLC", "c"} - set(states):
        pytest.skip(f"not installed: {', '.join(sorted(missing))}")
    assert {states[name] for name in ("numpy", "c", "SPIN", "Rumur", "TLC")} == {30_192}
    assert states["c + symmetry"] == states["numpy + symmetry"] == 8_254 <= states["Rumur + scalarsets"]
    rows = {row["work"].split(": ")[1]: row for row in report["rows"]}
    assert all(row["ratio"] > 0 and row["ours"] > 0 and row["peer"] > 0 for row in rows.values())
    met = {name.split(" / ")[1].split()[0]: row["met"] for name, row in rows.items() if row["aim"] is not None}
    assert met == {"SPIN": True, "TLC": False}


def test_rates_of_different_counts_are_not_compared() -> None:
    code = (
        "import checkers as c;"
        "c._peers = lambda subject, system: [('SPIN', lambda: c.Run('SPIN', '1', 5, 1.0))];"
        "list(c.measure(c.Subject('rollback', (('tails', 2),), 18)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "SPIN counts 5 states, others" in done.stderr


def test_the_fit_tells_constant_from_linear() -> None:
    code = "from measure import exponent as e; n = (1, 10, 100); print(e({x: 3 for x in n}), e({x: 3 * x for x in n}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=FOLDER, capture_output=True, text=True, check=True)
    constant, linear = (float(word) for word in done.stdout.split())
    assert abs(constant) < 1e-9
    assert abs(linear - 1) < 1e-9
