"""The device: whether there is one, which stream launches go to, where its memory comes from, and who looks at that."""

from __future__ import annotations

import importlib.metadata
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from kvfsm.kernels.cupy_launcher import CupyLauncher, NoDevice


@cache
def missing() -> str | None:
    """What a launcher lacks here, or None."""
    try:
        CupyLauncher(kernels=())
    except NoDevice as error:
        return str(error)
    return None


@contextmanager
def current(stream: Any) -> Iterator[None]:
    """Launches go to a stream of CuPy, also where torch says which one is current."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        with stream:
            yield
        return
    with stream, torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
        yield


def sanitizer() -> str | None:
    """The program compute-sanitizer: on the path, or of its wheel."""
    for wheel in ("nvidia-cuda-sanitizer-api", "nvidia-cuda-sanitizer-api-cu12"):
        try:
            files = importlib.metadata.files(wheel) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for each in files:
            if each.name == "compute-sanitizer" and each.parent.name == "bin":
                return str(each.locate())
    return shutil.which("compute-sanitizer")


def without_pool() -> None:
    """Give each of CuPy's arrays an allocation of its own, in which compute-sanitizer sees where it ends.

    The pool hands out parts of large blocks, where an overrun goes into the next array unseen. Source: CuPy,
    ``cupy.cuda.set_allocator``. Tables of captured graphs are torch's, and stay in its pool: a capture needs that.
    """
    import cupy

    cupy.cuda.set_allocator(None)
