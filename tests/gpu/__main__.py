"""``python tests/gpu``: everything that needs a GPU, in one go; what came out, and the table of times, go to a file.

Needs a CUDA device, ``pip install -e '.[dev,cuda13]'`` (or ``cuda12``), for graphs and the comparison a CUDA build of
torch, and for the sanitizer the CUDA toolkit.
"""

from __future__ import annotations

import argparse
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
REPO = HERE.parents[1]


def main() -> int:
    """0 if all went well, 1 if a test failed, 2 without a device."""
    parser = argparse.ArgumentParser(prog="python tests/gpu", description=__doc__)
    parser.add_argument("--out", type=Path, help="file for the results; by default tests/gpu/results/<device>.md")
    parser.add_argument("--only-times", action="store_true", help="leave the tests out")
    asked = parser.parse_args()
    from kvfsm.kernels.catalogue import catalogue
    from kvfsm.kernels.cupy_launcher import CupyLauncher, NoDevice

    try:
        launcher = CupyLauncher(kernels=catalogue().values())
    except NoDevice as error:
        print(error)
        return 2
    from tests.gpu.times import measured, table

    about = described()
    parts = [f"# {about['device']}", "", *(f"- {name}: {value}" for name, value in about.items()), ""]
    code, told = (0, "left out") if asked.only_times else tested()
    parts += [f"Tests: {told}", "", table(measured(launcher))]
    name = re.sub(r"[^a-z0-9]+", "-", str(about["device"]).lower()).strip("-")
    out = asked.out or HERE / "results" / f"{name}.md"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join(parts), "utf-8")
    print("\n".join(parts))
    print(f"written to {out}")
    return 1 if code else 0


def tested() -> tuple[int, str]:
    """Exit code of the tests, and their last line."""
    command = [sys.executable, "-m", "pytest", "-q", "-ra", str(HERE)]
    done = subprocess.run(command, cwd=REPO, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout)
    return done.returncode, done.stdout.strip().rpartition("\n")[2]


def described() -> dict[str, Any]:
    """The device and what drives it."""
    import cupy

    runtime, number = cupy.cuda.runtime, cupy.cuda.Device().id
    properties = runtime.getDeviceProperties(number)
    revision = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(revision, cwd=REPO, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "device": properties["name"].decode(),
        "compute capability": f"{properties['major']}.{properties['minor']}",
        "driver": runtime.driverGetVersion(),
        "runtime": runtime.runtimeGetVersion(),
        "CuPy": cupy.__version__,
        "Python": platform.python_version(),
        "commit": commit,
    }


if __name__ == "__main__":
    sys.path.insert(0, str(REPO))  # for what the tests share
    sys.exit(main())
