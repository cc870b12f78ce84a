"""C text to a loaded library: compiled once, kept by content in the user's cache directory.

Nothing is written beside the package. Builders at the same time don't disturb one another: each compiles in a
directory of its own and renames the result into place.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-std=gnu11", "-O3", "-shared", "-fPIC", "-pthread", "-w")


class CompileError(Exception):
    """There is no compiler, or it failed."""


def compiler() -> str | None:
    """The C compiler: what ``CC`` names, else the first of cc, gcc, clang that is installed; None: there is none."""
    named = os.environ.get("CC")
    return next((found for name in ([named] if named else COMPILERS) if (found := shutil.which(name))), None)


def cache_directory() -> Path:
    """Where compiled code is kept: ``XDG_CACHE_HOME``/kvfsm, by default ~/.cache/kvfsm."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kvfsm"


def load(files: Mapping[str, str]) -> ctypes.CDLL:
    """The library of C files, compiled if it is not in the cache.

    Args:
        files: name -> text; those that end in .c are compiled.

    Raises:
        CompileError: there is no compiler, it says that something is wrong, or there is no room for what it writes.

    """
    command = compiler()
    if command is None:
        raise CompileError("no C compiler found; fix: install gcc or clang, or name one in CC")
    name = f"{_digest(command, files)}.so"
    kept = cache_directory() / name
    if _is_ours(kept):
        return ctypes.CDLL(str(kept))
    try:
        with tempfile.TemporaryDirectory(prefix="kvfsm-") as directory:
            built = _built(command, files, Path(directory))
            _keep(built, kept)
            return ctypes.CDLL(str(built))  # stays loaded when its file is gone
    except OSError as error:
        text = f"{command} could not be run: {error}; fix: make room, or name another folder in TMPDIR"
        raise CompileError(text) from error


def _keep(built: Path, kept: Path) -> None:
    """Put a library into the cache, if there is room, with its digest at the end, which loaders ignore."""
    try:
        kept.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # The two may be on different file systems, across which a file can't be renamed.
        beside = kept.parent / f".{kept.name}.{os.getpid()}.{built.parent.name}"
        text = built.read_bytes()
        beside.write_bytes(text + hashlib.sha256(text).digest())
        os.replace(beside, kept)
    except OSError:
        return


def _is_ours(path: Path) -> bool:
    """Whether a library is there, whole, and nobody else could have put it there: a damaged one kills who loads it."""
    try:
        if path.stat().st_uid != os.getuid():
            return False
        kept = path.read_bytes()
    except OSError:
        return False
    size = hashlib.sha256().digest_size
    return len(kept) > size and hashlib.sha256(kept[:-size]).digest() == kept[-size:]


def _digest(command: str, files: Mapping[str, str]) -> str:
    """A name for the result: of the texts, the compiler, and the processor that it is tuned for."""
    parts = [command, *FLAGS, str(Path(command).stat().st_mtime_ns), platform.platform(), _processor()]
    for name in sorted(files):
        parts += [name, files[name]]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}))


def _built(command: str, files: Mapping[str, str], directory: Path) -> Path:
    for name, text in files.items():
        (directory / name).write_text(text)
    built = directory / "built.so"
    sources = [str(directory / name) for name in sorted(files) if name.endswith(".c")]
    errors = []
    for tuned in (["-march=native"], []):  # not every compiler can tune for the processor it runs on
        done = subprocess.run(
            [command, *FLAGS, *tuned, "-o", str(built), *sources], capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            return built
        errors.append(done.stderr.strip())
    raise CompileError(f"{command} failed:\n{errors[-1]}")
