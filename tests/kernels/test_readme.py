"""The kernels' README: its blocks run, and it names every file and every kernel."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from kvfsm.kernels.catalogue import catalogue
from kvfsm.kernels.nvrtc import ARCHITECTURES

from ..hostcuda.host import HostLauncher

README = Path(__file__).parents[2] / "kernels" / "README.md"
TEXT = README.read_text("utf-8")


BLOCKS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.S | re.M)


@pytest.mark.parametrize("code", BLOCKS, ids=["an engine's launches", "a kernel by itself"])
def test_its_blocks_run(code: str) -> None:
    given = {"launcher": HostLauncher()} if "KernelBackend(launcher)" in code else {}
    exec(compile(code, str(README), "exec"), given)


def test_what_needs_a_device_is_python_all_the_same() -> None:
    blocks = re.findall(r"^```py\n(.*?)^```$", TEXT, re.S | re.M)
    assert len(blocks) == 3
    for code in blocks:
        compile(code, str(README), "exec")
        for module, names in re.findall(r"^from (\S+) import (.+)$", code, re.M):
            found = __import__(module, fromlist=["*"])
            assert all(hasattr(found, name.strip()) for name in names.split(","))


def test_every_module_is_in_the_table() -> None:
    named = set(re.findall(r"`(\w+\.py)`", TEXT.split("## The files")[1]))
    assert named == {path.name for path in README.parent.glob("*.py")} - {"__init__.py"}


def test_every_kernel_is_named() -> None:
    families = TEXT.split("| family | kernels |")[1].split("\n\n")[0]
    named = re.findall(r"`(\w+)(\*?)`", families)
    missing = [
        kernel
        for kernel in catalogue()
        if not any(kernel == name or (star and kernel.startswith(name)) for name, star in named)
    ]
    assert missing == []


def test_every_architecture_is_named() -> None:
    assert [name for name in ARCHITECTURES if name.removeprefix("sm_") not in TEXT] == []


def test_its_extras_are_installed_from_a_clone() -> None:
    """As the README of the project does it: no registry has the package."""
    commands = re.findall(r"pip install ([^#`\n]*?)\s*[#`\n]", TEXT)
    assert commands == ["-e '.[cuda13]'"]
    project = tomllib.loads((README.parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
    assert {"cuda13", "cuda12"} <= project["optional-dependencies"].keys() and "'.[cuda12]'" in TEXT
