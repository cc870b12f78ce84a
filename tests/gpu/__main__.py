"""``python tests/gpu``: everything that needs a GPU, part by part; what came out goes to a file as it comes.

  python tests/gpu                       all parts: tests, stress and FP8, then times, the demo, and the sanitizer
  python tests/gpu --only times          one part; may be repeated
  python tests/gpu --out FILE            by default tests/gpu/results/<device>.md, or <device>-<parts>.md with --only

Needs a CUDA device with 4 GiB free, ``pip install -e '.[dev,cuda13]'`` (for drivers of CUDA 12 see README.md), a CUDA
build of torch for graphs and the comparison, and for the sanitizer the CUDA toolkit, or
``pip install 'nvidia-cuda-sanitizer-api<14'``. All that lacks is said at the start. No network is needed.
A part that takes longer than its limit is ended, and the next one runs; all limits together come to 29 minutes.
Exit code: 0 if all went well, 1 if something failed, 2 without a device.
"""

from __future__ import annotations

import argparse
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
REPO = HERE.parents[1]

PYTEST = ("-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider", "--timeout", "180", "--timeout-method", "thread")
"""A test that hangs in the driver hears no signal: its process is ended."""

PARTS: dict[str, tuple[int, tuple[str, ...]]] = {
    "parity": (300, (*PYTEST, "-m", "needs_gpu", "tests/gpu/test_parity.py", "tests/integrations/test_cuda_graphs.py")),
    "streams": (60, (*PYTEST, "-s", "tests/gpu/test_streams.py")),
    "fp8": (60, (*PYTEST, "tests/gpu/test_e4m3.py")),
    "times": (240, ("-m", "tests.gpu.times")),
    "demo": (240, ("-m", "kvfsm.codegen", "demo", "--cuda")),
    "sanitizer": (840, ("-m", "pytest", "-v", "-ra", "-p", "no:cacheprovider", "tests/gpu/test_sanitizer.py")),
}
"""Seconds at most, and what Python is given. What finds faults soonest comes first, what takes longest last."""

GIB = 1 << 30
FREE_LEAST = 4 * GIB


def main(arguments: list[str] | None = None) -> int:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(
        prog="python tests/gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=tuple(PARTS), help="this part; may be repeated")
    parser.add_argument("--out", type=Path, metavar="FILE", help="for the results")
    asked = parser.parse_args(arguments)
    from tests.gpu.device import missing

    lacks = lacking()
    for line in lacks:
        print(f"lacks: {line}")
    if missing() is not None:
        return 2
    about = described()
    parts = list(dict.fromkeys(asked.only or PARTS))
    named = [about["device"], *(parts if asked.only else ())]
    name = re.sub(r"[^a-z0-9]+", "-", "-".join(named).lower()).strip("-")
    out = asked.out or HERE / "results" / f"{name}.md"
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", encoding="utf-8") as file:
        head = [f"# {about['device']}", "", *(f"- {key}: {value}" for key, value in about.items())]
        codes = []
        for line in [*head, *(f"- lacks: {line}" for line in lacks)]:
            print(line, file=file, flush=True)
        for part in parts:
            for code, line in ran(part):
                print(line, file=file, flush=True)
                codes.append(code)
    print(f"written to {out}")
    return 1 if any(codes) else 0


def ran(part: str) -> Iterator[tuple[int, str]]:
    """Run a part; what of it belongs into the results, line by line, with 1 where it failed."""
    from tests.gpu.running import run

    seconds, arguments = PARTS[part]
    print(f"== {part}: at most {seconds} s", flush=True)
    yield 0, f"\n## {part}\n"
    begun = time.monotonic()
    rows = list[str]()

    def told(line: str) -> None:
        print(line, end="", flush=True)
        if line.startswith(KEPT):
            rows.append(line.rstrip())

    code, all_told = run([sys.executable, *arguments], seconds, told)
    if (last := all_told.strip().rpartition("\n")[2]) not in rows:
        rows.append(last)
    ended = f"took longer than {seconds} s, and was ended" if code is None else f"exit code {code}"
    for row in rows:
        yield 0, row
    yield int(code != 0), f"\n{part}: {ended}, after {time.monotonic() - begun:.0f} s"


KEPT = ("|", "FAILED", "ERROR", "SKIPPED", "pause ")
"""How lines begin that are kept, beside the last: rows of the table, pytest's list at its end, counts of the stress."""


def lacking() -> list[str]:
    """What is not there, which part leaves something out for that, and a fix."""
    from tests.gpu.device import missing, sanitizer
    from tests.gpu.times import torch_or_why

    found = []
    if (why := missing()) is not None:
        found.append(why)
    torch, told = torch_or_why()
    if torch is None:
        fix = "install a build of torch for CUDA that this driver runs"
        found.append(f"{told}: no graphs of decode steps, no comparison; fix: {fix}")
    if sanitizer() is None:
        fix = "put the bin folder of the CUDA toolkit on the path, or pip install 'nvidia-cuda-sanitizer-api<14'"
        found.append(f"compute-sanitizer is not there: no sanitizer; fix: {fix}")
    if why is None:
        found += _lacking_memory()
    return found


def _lacking_memory() -> list[str]:
    import cupy

    free, total = cupy.cuda.runtime.memGetInfo()
    if free >= FREE_LEAST:
        return []
    what = f"{free / GIB:.1f} of {total / GIB:.1f} GiB are free"
    return [f"{what}: times take {FREE_LEAST // GIB}; fix: end what else uses the device (nvidia-smi)"]


def described() -> dict[str, Any]:
    """The device and what drives it."""
    import cupy

    runtime, number = cupy.cuda.runtime, cupy.cuda.Device().id
    properties = runtime.getDeviceProperties(number)
    revision = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(revision, cwd=REPO, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "device": properties["name"].decode(),
        "compute capability": f"{properties['major']}.{properties['minor']}",
        "memory": f"{runtime.memGetInfo()[1] / GIB:.1f} GiB",
        "driver": runtime.driverGetVersion(),
        "runtime": runtime.runtimeGetVersion(),
        "CuPy": cupy.__version__,
        "Python": platform.python_version(),
        "commit": commit,
    }


if __name__ == "__main__":
    sys.path.insert(0, str(REPO))  # for what the tests share
    sys.exit(main())
