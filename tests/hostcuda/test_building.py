"""Modules are built once, and only of sources that a device's compiler would take too."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvfsm.kernels.launch import Argument, Kernel, LaunchPlan

from . import building
from .building import Build, DoesNotCompile, module
from .engine import NotTheKernel
from .host import HostLauncher, edited
from .planted import planted_source

TO = (Argument("to", "u32*"),)


def text_of(body: str, bound: str = "__launch_bounds__(32) ") -> str:
    base = planted_source(Kernel("copies", "memory.cu", ())).split('#line 1 "tests/', 1)[0]
    return f'{base}extern "C" __global__ void {bound}kv_written_here(kv_u32* to) {{ {body} }}\n'


def launch(text: str, kernel: Kernel | None = None) -> list[int]:
    launcher = HostLauncher(Build.FAST, sources=lambda _: text)
    to = launcher.upload(np.zeros(32, np.uint32))
    memory = replace(to.pointer, dtype=None)  # whatever the spec takes it for
    launcher.launch(LaunchPlan(kernel or Kernel("written_here", "none.cu", TO, threads=32), (1, 1, 1), (memory,)))
    return [int(number) for number in to.download()]


def test_a_text_is_compiled_and_run() -> None:
    assert launch(text_of("to[threadIdx.x] = threadIdx.x * 3;")) == list(range(0, 96, 3))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("to[0] = missing;", "'missing' was not declared"),
        ("kv_u32 unused; to[0] = 1;", "unused variable"),
        ("__threadfence(); to[0] = 1;", "'__threadfence' was not declared"),
        ("to[0] = __activemask();", "'__activemask' was not declared"),
        ("to[0] = (kv_u32)__shfl_sync(kWholeWarp, (kv_u8)to[0], 0);", "4 or 8 bytes"),
    ],
)
def test_what_is_not_in_the_dialect_does_not_compile(body: str, message: str) -> None:
    with pytest.raises(DoesNotCompile) as refused:
        launch(text_of(body))
    assert message in str(refused.value)


def test_a_kernel_without_a_launch_bound_is_refused() -> None:
    with pytest.raises(DoesNotCompile, match=r"__launch_bounds__\(n\)"):
        launch(text_of("to[0] = 1;", bound=""))
    with pytest.raises(DoesNotCompile, match="a kernel is written"):
        module("// nothing here\n", Build.FAST)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (
            Kernel("written_here", "none.cu", (Argument("to", "u64*"),), threads=32),
            r"takes \(u32\*\), .* says \(u64\*\)",
        ),
        (Kernel("written_here", "none.cu", (Argument("to", "const u32*"),), threads=32), r"says \(const u32\*\)"),
        (
            Kernel("written_here", "none.cu", TO, threads=64),
            r"has __launch_bounds__\(32\), and its spec has 64 threads",
        ),
        (Kernel("written_there", "none.cu", TO, threads=32), "is not there; fix: name one of kv_written_here"),
    ],
)
def test_a_spec_that_is_not_the_c_function_is_refused(kernel: Kernel, message: str) -> None:
    with pytest.raises(NotTheKernel, match=message):
        launch(text_of("to[threadIdx.x] = 1;"), kernel)


def test_an_edit_must_find_its_text_once() -> None:
    kernel = Kernel("copies", "memory.cu", ())
    assert "threadIdx.x <= count" in edited(
        ("threadIdx.x < count", "threadIdx.x <= count"), sources=lambda _: "threadIdx.x < count"
    )(kernel)
    with pytest.raises(ValueError, match="has 0 times 'not in there'"):
        edited(("not in there", "x"), sources=planted_source)(kernel)
    with pytest.raises(ValueError, match="fix: name a text that it has once"):
        edited(("threadIdx", "x"), sources=planted_source)(kernel)


def made_in(folder: str) -> str:
    building.FOLDER = Path(folder)
    building.runtime.cache_clear()
    return module(text_of("to[threadIdx.x] = 7;"), Build.FAST).path.name


def test_processes_that_build_the_same_at_once_share_it(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        names = pool.map(made_in, [str(tmp_path)] * 2)
    assert len(set(names)) == 1
    left = sorted(path.suffix for path in tmp_path.iterdir() if path.suffix != ".lock")
    assert left == [".o", ".so", ".so"], "the object, the module, the engine, and nothing half done"
