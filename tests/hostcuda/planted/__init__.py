"""Small kernels: one that is sound, and ones with a bug each, which a checker must find."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from kvfsm.kernels.launch import Kernel
from kvfsm.kernels.source import BASE, FOLDER

HERE = Path(__file__).parent


@cache
def planted_source(kernel: Kernel) -> str:
    """As ``kvfsm.kernels.source.source_of`` makes one, of a file in this folder."""
    texts = [(f"kernels/{name}", FOLDER / name) for name in BASE]
    texts.append((f"tests/hostcuda/planted/{kernel.file}", HERE / kernel.file))
    return "".join(f'#line 1 "{name}"\n{path.read_text("utf-8")}' for name, path in texts)


def line_of(kernel: Kernel) -> int:
    """The line that is marked as the fault of a planted kernel."""
    lines = (HERE / kernel.file).read_text("utf-8").splitlines()
    (line,) = (number for number, text in enumerate(lines, 1) if text.endswith(f"// fault: {kernel.name}"))
    return line
