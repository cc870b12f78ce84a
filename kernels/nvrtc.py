"""NVRTC by ctypes: CUDA C to a cubin on a machine without a GPU, a driver, nvcc or headers.

It shows that a kernel compiles for an architecture, and what it takes there. ``CupyLauncher`` compiles for itself.
The library comes with the wheels ``nvidia-cuda-nvrtc`` (13) and ``nvidia-cuda-nvrtc-cu12``; both may be installed.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .source import OPTIONS

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120")
"""Those that the kernels are compiled for: Turing to Blackwell."""

_LIBRARY = re.compile(r"libnvrtc\.so\.(\d+)|nvrtc64_(\d+)0_\d+\.dll")
_USAGE = re.compile(
    r"Compiling entry function '(?P<symbol>\w+)' for '\w+'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.S,
)
_SHARED = re.compile(r"(\d+) bytes smem")


class CompileFailed(ValueError):
    """A text that NVRTC refuses or warns of; the message is its log, which names file and line."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a kernel takes on an architecture.

    registers     of a thread
    shared_bytes  of a block, without what a launch adds
    stack_bytes   of a thread, in local memory
    spill_bytes   stored and loaded because registers ran out
    """

    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_bytes: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """A module for one architecture.

    cubin  an ELF file, as the driver loads it
    usage  by symbol
    log    of compiler and assembler
    """

    cubin: bytes
    usage: dict[str, Usage]
    log: str


class Nvrtc:
    """One NVRTC library.

    Args:
        path: of ``libnvrtc.so.<major>``; ``installed()`` finds those of the wheels.

    Raises:
        OSError: it can't be loaded.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # NVRTC opens its built-ins by name, and only some versions look beside themselves: what is loaded is found.
        self._builtins = [ctypes.CDLL(str(each)) for each in sorted(path.parent.glob("libnvrtc-builtins.so.*"))]
        self._library = ctypes.CDLL(str(path))
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        self.version = (major.value, minor.value)

    def compile(self, source: str, architecture: str, options: Sequence[str] = OPTIONS) -> Compiled:
        """Compile and assemble a module as CuPy does, with its ``-ftz=true``; a warning is an error.

        Args:
            source: of ``source_of``.
            architecture: such as ``sm_90``.
            options: of the compiler.

        Raises:
            CompileFailed: the text is refused or warned of.
        """
        wanted = [f"-arch={architecture}", "-ftz=true", "--device-as-default-execution-space", "--ptxas-options=-v"]
        log, cubin = self._compiled(source, [*wanted, *options], "CUBIN")
        usage = {}
        for found in _USAGE.finditer(log):
            shared = _SHARED.search(found["rest"])
            spilled = int(found["stores"]) + int(found["loads"])
            usage[found["symbol"]] = Usage(
                int(found["registers"]), int(shared[1]) if shared else 0, int(found["stack"]), spilled
            )
        return Compiled(cubin, usage, log)

    def ptx(self, source: str, architecture: str = "compute_75", options: Sequence[str] = OPTIONS) -> str:
        """The module as PTX, which declares what each kernel takes and its greatest block.

        Raises:
            CompileFailed: the text is refused or warned of.
        """
        wanted = [f"-arch={architecture}", "-ftz=true", "--device-as-default-execution-space", *options]
        return self._compiled(source, wanted, "PTX")[1].rstrip(b"\0").decode()

    def _compiled(self, source: str, options: Sequence[str], form: str) -> tuple[str, bytes]:
        program = ctypes.c_void_p()
        create = self._library.nvrtcCreateProgram
        self._check(create(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None))
        try:
            given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            status = self._library.nvrtcCompileProgram(program, len(options), given)
            log = self._bytes(program, "ProgramLog").rstrip(b"\0").decode()
            # -Werror is known to the newest versions only, so warnings are looked for in the log.
            if status or re.search(r"\bwarning\b", log):
                told = log or self._library.nvrtcGetErrorString(status).decode()
                raise CompileFailed(f"NVRTC {self.version[0]}.{self.version[1]} {' '.join(options)}\n{told}")
            return log, self._bytes(program, form)
        finally:
            self._check(self._library.nvrtcDestroyProgram(ctypes.byref(program)))

    def _bytes(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        text = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, f"nvrtcGet{what}")(program, text))
        return text.raw

    def _check(self, status: int) -> None:
        if status:
            raise OSError(f"{self.path}: {self._library.nvrtcGetErrorString(status).decode()}")


def installed() -> list[Path]:
    """NVRTC libraries of the wheels that are installed, the newest first."""
    spec = importlib.util.find_spec("nvidia")
    found: dict[Path, int] = {}
    for folder in (spec and spec.submodule_search_locations) or ():
        for path in Path(folder).glob("*/*/*nvrtc*"):
            if named := _LIBRARY.fullmatch(path.name):
                found[path] = int(named[1] or named[2])
    return sorted(found, key=lambda path: (-found[path], path))
