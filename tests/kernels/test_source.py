"""What compilers are given: one text in a fixed order, with the places of our files in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvfsm.kernels import source
from kvfsm.kernels.catalogue import catalogue
from kvfsm.kernels.launch import Kernel, LaunchRefused
from kvfsm.kernels.source import source_of


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    base = ("cuda/kvfsm_base.cuh", "cuda/device.cuh")
    for name in (*base, "cuda/toy.cu", "generated/refusal.cuh", "generated/block.cuh"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"// {name}\n", "utf-8")
    monkeypatch.setattr(source, "FOLDER", tmp_path)
    source._joined.cache_clear()
    yield tmp_path
    source._joined.cache_clear()


def test_base_comes_first_then_headers_as_named_then_the_family(folder: Path) -> None:
    text = source_of(Kernel("toy", "toy.cu", (), headers=("refusal", "block")))
    assert text == (
        '#line 1 "kernels/cuda/kvfsm_base.cuh"\n// cuda/kvfsm_base.cuh\n'
        '#line 1 "kernels/cuda/device.cuh"\n// cuda/device.cuh\n'
        '#line 1 "kernels/generated/refusal.cuh"\n// generated/refusal.cuh\n'
        '#line 1 "kernels/generated/block.cuh"\n// generated/block.cuh\n'
        '#line 1 "kernels/cuda/toy.cu"\n// cuda/toy.cu\n'
    )


def test_files_that_are_not_there_are_named_beside_those_that_are(folder: Path) -> None:
    with pytest.raises(LaunchRefused, match=r"kernels/cuda/toys.cu is not there; fix: use one of toy.cu"):
        source_of(Kernel("toy", "toys.cu", ()))
    with pytest.raises(LaunchRefused, match=r"generated/blok.cuh is not there; fix: use one of block.cuh, refusal.cuh"):
        source_of(Kernel("toy", "toy.cu", (), headers=("blok",)))


def test_kernels_of_one_file_are_one_module() -> None:
    headers: dict[str, set[tuple[str, ...]]] = {}
    for kernel in catalogue().values():
        headers.setdefault(kernel.file, set()).add(kernel.headers)
    assert {file: len(found) for file, found in headers.items() if len(found) > 1} == {}


def test_no_file_includes_another() -> None:
    files = sorted(source.FOLDER.glob("cuda/*")) + sorted(source.FOLDER.glob("generated/*.cuh"))
    assert len(files) >= 7
    assert [path.name for path in files if re.search(r"^\s*#\s*include", path.read_text("utf-8"), re.M)] == []
