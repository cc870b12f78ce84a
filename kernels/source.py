"""The text that a compiler reads: base, device part, generated headers and a family's .cu, joined, without #include.

The same string goes to CuPy, to NVRTC and to g++. ``#line`` lets their messages name our files.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from .launch import Kernel, LaunchRefused

FOLDER = Path(__file__).parent
BASE = ("cuda/kvfsm_base.cuh", "cuda/device.cuh")

OPTIONS = ("-std=c++17", "--fmad=false")
"""For every compiler of CUDA C. A multiply and an add are rounded one by one, as NumPy does it."""


def source_of(kernel: Kernel) -> str:
    """The module that holds ``kernel``, as one string.

    Raises:
        LaunchRefused: it names a file or a header that isn't there.
    """
    return _joined(kernel.file, kernel.headers)


@cache
def _joined(file: str, headers: tuple[str, ...]) -> str:
    names = (*BASE, *map(_header, headers), f"cuda/{file}")
    return "".join(f'#line 1 "kernels/{name}"\n{_text(name)}' for name in names)


def _header(name: str) -> str:
    written = f"cuda/{name}.cuh"
    return written if (FOLDER / written).is_file() else f"generated/{name}.cuh"


def _text(name: str) -> str:
    path = FOLDER / name
    if not path.is_file():
        there = sorted(other.name for other in path.parent.glob(f"*{path.suffix}"))
        raise LaunchRefused(f"kernels/{name} is not there; fix: use one of {', '.join(there)}")
    return path.read_text("utf-8")
