"""Source texts become loadable modules, by g++; each once, whoever asks.

Results lie in ``build/hostcuda`` under a digest of all that went into them, so nothing there is ever stale, and workers
of parallel tests share it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
RUNTIME = Path(__file__).parent / "runtime"
FOLDER = REPO / "build" / "hostcuda"

COMMON = (
    *("-std=c++17", "-fPIC", "-g1", "-gdwarf-4", "-Wall", "-Wextra", "-Wno-unknown-pragmas"),
    # No fused multiply-add, and bytes may be read as any type, as nvcc has it. Checked libc functions dislike fibers,
    # and fibers' stacks are small.
    *("-ffp-contract=off", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE", "-fstack-clash-protection"),
)


class Build(Enum):
    """How a module is compiled."""

    FAST = "fast"
    """Without checks; the only switch points are atomics."""
    CHECK = "check"
    """Every access goes through the checks of the engine."""
    UNDEFINED = "undefined"
    """What C++ leaves undefined stops the run: shifts, array bounds, division by zero, alignment."""
    THREADS = "threads"
    """For ThreadSanitizer proper: a program with real threads."""


FLAGS = {
    # More optimisation takes three times as long to compile, and the engine's own work is what takes time.
    Build.FAST: ("-O1", "-Werror"),
    # Accesses stay as wide as they are written, and stay accesses: no splitting of structs, no calls of memset.
    Build.CHECK: ("-O1", "-Werror", "-fno-tree-sra", "-fno-tree-loop-distribute-patterns", "-fsanitize=thread"),
    Build.UNDEFINED: (
        *("-O1", "-fsanitize=alignment,shift,bounds,integer-divide-by-zero"),
        "-fsanitize-undefined-trap-on-error",
    ),
    Build.THREADS: ("-O1", "-fsanitize=thread", "-DKV_HOST_THREADS"),
}

_KERNEL = re.compile(
    r'extern\s+"C"\s+__global__\s+void\s+(?:__launch_bounds__\((?P<bound>[^(),]+)[^()]*\)\s*)?(?P<symbol>\w+)\s*\('
)


class DoesNotCompile(Exception):
    """g++ refuses a source, or it has no kernel. The message is the compiler's."""


@dataclass(frozen=True, slots=True)
class Module:
    """A compiled source.

    path     of the shared object
    symbols  of the kernels in it
    """

    path: Path
    symbols: tuple[str, ...]


@cache
def compiler() -> str:
    """Path of g++; without it the test is skipped."""
    found = shutil.which("g++")
    if found is None:
        pytest.skip("needs g++ (Debian package g++)")
    return found


@cache
def runtime() -> Path:
    """The engine as a shared object."""

    def make(out: Path) -> None:
        flags = ("-O2", "-shared", f"-Wl,-soname,{out.name}")
        _run(compiler(), *COMMON, *flags, "-o", str(_partial(out)), str(RUNTIME / "runtime.cpp"))

    return _made(f"engine-{_digest(_identity(), *_texts(RUNTIME))}.so", make)


@cache
def module(text: str, build: Build) -> Module:
    """The kernels of a source text.

    Raises:
        DoesNotCompile: it doesn't, or a kernel has no launch bound.
    """
    source, symbols = translation_unit(text)
    engine = runtime()

    def make(out: Path) -> None:
        unit = compiled_object(source, build)
        _run(compiler(), "-shared", "-o", str(_partial(out)), str(unit), str(engine), "-Wl,-rpath,$ORIGIN")

    return Module(_made(f"{build.value}-{_digest(source, engine.name)}.so", make), symbols)


def translation_unit(text: str) -> tuple[str, tuple[str, ...]]:
    """The source between what it needs and what it exports; symbols of its kernels.

    Raises:
        DoesNotCompile: no kernel, or one without launch bound.
    """
    kernels = [(found["symbol"], found["bound"]) for found in _KERNEL.finditer(text)]
    unbound = [symbol for symbol, bound in kernels if bound is None]
    if unbound or not kernels:
        raise DoesNotCompile(
            f'a kernel is written extern "C" __global__ void __launch_bounds__(n) name(...); {unbound}'
        )
    exports = "\n".join(f"KV_HOST_EXPORT({symbol}, ({bound}))" for symbol, bound in kernels)
    source = f'#include "shim.h"\n{text}\n#line 1 "exports"\n#include "kernel_record.h"\n{exports}\n'
    return source, tuple(symbol for symbol, _ in kernels)


def compiled_object(source: str, build: Build) -> Path:
    """An object file of a translation unit."""
    flags = (*COMMON, *FLAGS[build], f"-I{RUNTIME}")
    headers = [(RUNTIME / name).read_text("utf-8") for name in ("shim.h", "kernel_record.h")]

    def make(out: Path) -> None:
        unit = out.with_suffix(f".{os.getpid()}.cpp")
        unit.write_text(source, "utf-8")
        try:
            _run(compiler(), *flags, "-c", "-o", str(_partial(out)), str(unit))
        finally:
            unit.unlink()

    return _made(f"{build.value}-{_digest(_identity(), source, *headers, *flags)}.o", make)


def program(sources: Sequence[str]) -> Path:
    """An executable that runs translation units in threads, for ThreadSanitizer."""
    driver = (RUNTIME / "threads.cpp").read_text("utf-8")

    def make(out: Path) -> None:
        units = [str(compiled_object(source, Build.THREADS)) for source in (driver, *sources)]
        flags = ("-fsanitize=thread", "-pthread", "-rdynamic")
        _run(compiler(), *flags, "-o", str(_partial(out)), *units, "-ldl")

    shim = (RUNTIME / "shim.h").read_text("utf-8"), (RUNTIME / "kernel_record.h").read_text("utf-8")
    return _made(f"program-{_digest(_identity(), driver, *shim, *sources, *FLAGS[Build.THREADS])}", make)


def _identity() -> str:
    return _compiler_version() + repr(COMMON)


@cache
def _compiler_version() -> str:
    return subprocess.run([compiler(), "--version"], capture_output=True, text=True, check=True).stdout


def _texts(folder: Path) -> list[str]:
    return [path.read_text("utf-8") for path in sorted(folder.iterdir()) if path.is_file()]


def _digest(*texts: str) -> str:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(hashlib.sha256(text.encode()).digest())
    return digest.hexdigest()[:20]


def _partial(out: Path) -> Path:
    return out.with_name(f"{out.name}.{os.getpid()}.partial")


def _made(name: str, make: Callable[[Path], None]) -> Path:
    """The file of that name, made if it isn't there; of several processes one makes it, and the others wait."""
    out = FOLDER / name
    if out.exists():
        return out
    FOLDER.mkdir(parents=True, exist_ok=True)
    with open(FOLDER / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not out.exists():
            make(out)
            _partial(out).replace(out)
    return out


def _run(*command: str) -> None:
    plain = os.environ | {"LC_ALL": "C"}
    done = subprocess.run(command, cwd=REPO, env=plain, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise DoesNotCompile(f"{' '.join(command)}\n{done.stderr}")
