"""Compiled modules for the tests: a family's file, an architecture and an NVRTC, each compiled once.

Run as a program it writes the golden tables of registers and shared memory, of the files that are named or of all:

    python tests/kernels/compiling.py copies.cu
    python tests/kernels/compiling.py --all
"""

from __future__ import annotations

import argparse
import importlib.metadata
import subprocess
from functools import cache
from pathlib import Path

from kvfsm.kernels.catalogue import catalogue
from kvfsm.kernels.launch import Kernel
from kvfsm.kernels.nvrtc import ARCHITECTURES, Compiled, Nvrtc, Usage, installed
from kvfsm.kernels.source import source_of

GOLDEN = Path(__file__).parent / "golden"
TABLE_MAJOR = 13
"""The NVRTC that the tables are of; constraints.txt pins it exactly."""

LACKS = "the wheels nvidia-cuda-nvrtc (13) and nvidia-cuda-nvrtc-cu12 are not installed"


def kernels_of() -> dict[str, list[Kernel]]:
    """All kernels by their files."""
    found: dict[str, list[Kernel]] = {}
    for kernel in catalogue().values():
        found.setdefault(kernel.file, []).append(kernel)
    return found


@cache
def nvrtcs() -> dict[int, Nvrtc]:
    """Installed libraries by major version."""
    return {library.version[0]: library for library in map(Nvrtc, installed())}


def compiled(file: str, architecture: str, major: int = TABLE_MAJOR) -> Compiled:
    return _compiled(file, architecture, major)


@cache
def _compiled(file: str, architecture: str, major: int) -> Compiled:
    return nvrtcs()[major].compile(source_of(kernels_of()[file][0]), architecture)


def table(file: str) -> str:
    """What each kernel of a file takes on each architecture: registers a thread, and bytes of shared memory a block."""
    version = importlib.metadata.version("nvidia-cuda-nvrtc")
    lines = [f"{file} by nvidia-cuda-nvrtc {version}: registers of a thread / bytes of shared memory of a block", ""]
    usages = {architecture: compiled(file, architecture).usage for architecture in ARCHITECTURES}
    width = max(len(kernel.name) for kernel in kernels_of()[file])
    lines.append(" ".join([" " * width, *(f"{name:>9}" for name in ARCHITECTURES)]))
    for kernel in kernels_of()[file]:
        cells = (_cell(usages[architecture][kernel.symbol]) for architecture in ARCHITECTURES)
        lines.append(" ".join([f"{kernel.name:{width}}", *(f"{cell:>9}" for cell in cells)]))
    return "\n".join(lines) + "\n"


def golden(file: str) -> Path:
    return GOLDEN / f"{Path(file).stem}.txt"


def disassembler() -> Path | None:
    """``nvdisasm`` of its wheel."""
    try:
        files = importlib.metadata.files("nvidia-cuda-nvdisasm") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = [Path(str(each.locate())) for each in files if each.name == "nvdisasm"]
    return found[0] if found and found[0].is_file() else None


def _cell(usage: Usage) -> str:
    return f"{usage.registers}/{usage.shared_bytes}" if usage.shared_bytes else str(usage.registers)


def main(arguments: list[str] | None = None) -> int:
    """Write golden tables. Exit code: 0, or 2 where there is nothing to write or to compile with."""
    parser = argparse.ArgumentParser(
        prog="python tests/kernels/compiling.py", description="Write golden tables of registers and shared memory."
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help=f"whose table is written: {', '.join(kernels_of())}")
    parser.add_argument("--all", action="store_true", help="write those of all files")
    asked = parser.parse_args(arguments)
    if strange := [file for file in asked.files if file not in kernels_of()]:
        parser.error(f"there is no file {', '.join(strange)}; fix: name one of {', '.join(kernels_of())}")
    files = [*kernels_of()] if asked.all else asked.files
    if not files:
        parser.print_help()
        return 2
    if TABLE_MAJOR not in nvrtcs():
        parser.error(f"{LACKS}; fix: pip install -e '.[dev]' -c constraints.txt")
    GOLDEN.mkdir(exist_ok=True)
    for file in files:
        golden(file).write_text(table(file), "utf-8")
        subprocess.run(["git", "--no-pager", "diff", "--stat", "--", str(golden(file))], check=False)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
