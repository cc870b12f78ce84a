"""Addresses of instructions become lines of the source."""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .building import REPO
from .engine import engine

_PLUMBING = ("shim.h", "kernel_record.h", "kvfsm_base.cuh", "device.cuh")


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """A line of a source file, as its ``#line`` names it."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def place_at(code: int) -> SourcePlace | None:
    """The line of a call that returns to an address; of helpers, the line that calls them. 0 is nowhere."""
    if not code:
        return None
    offset = ctypes.c_size_t()
    path = engine().locate(code - 1, offset)
    return _place_in(path.decode(), offset.value) if path is not None else None


@cache
def _place_in(path: str, offset: int) -> SourcePlace | None:
    command = ["addr2line", "-i", "-e", path, hex(offset)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    frames = []
    for line in printed.splitlines():
        file, _, number = line.split(" (discriminator")[0].rpartition(":")
        if number.isdigit() and not file.startswith("?"):
            frames.append(SourcePlace(file.removeprefix(f"{REPO}/"), int(number)))
    own = [frame for frame in frames if Path(frame.file).name not in _PLUMBING]
    return next(iter(own or frames), None)
