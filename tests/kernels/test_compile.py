"""Every kernel compiles for every architecture, without warnings, spills or a stack, and takes what is on record."""

from __future__ import annotations

import dataclasses
import difflib
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from kvfsm.kernels import source
from kvfsm.kernels.launch import Argument, Kernel
from kvfsm.kernels.nvrtc import ARCHITECTURES, CompileFailed, Nvrtc, Usage, installed
from kvfsm.kernels.source import source_of

from . import compiling
from .compiling import GOLDEN, LACKS, TABLE_MAJOR, compiled, golden, kernels_of, nvrtcs, table
from .signatures import declared, in_ptx

FILES = sorted(kernels_of())
PTX_TYPES = {"u8": "u8", "u16": "u16", "u32": "u32", "i32": "u32", "u64": "u64", "i64": "u64", "float": "f32"}
CONSTRAINTS = Path(__file__).parent.parent.parent / "constraints.txt"

pytestmark = [
    pytest.mark.skipif({12, 13} - {*nvrtcs()} != set(), reason=LACKS),
    pytest.mark.xdist_group("nvrtc"),  # what one test compiled the others have
]


@pytest.mark.parametrize("major", [12, 13])
@pytest.mark.parametrize("file", FILES)
def test_it_compiles_for_every_architecture_without_spills_or_a_stack(file: str, major: int) -> None:
    wrong = []
    for architecture in ARCHITECTURES:
        usage = compiled(file, architecture, major).usage
        assert sorted(usage) == sorted(kernel.symbol for kernel in kernels_of()[file])
        wrong += [(architecture, symbol, found) for symbol, found in usage.items() if lavish(found)]
    assert wrong == []


def lavish(usage: Usage) -> bool:
    return usage.stack_bytes > 0 or usage.spill_bytes > 0 or not 0 < usage.registers <= 128


@pytest.mark.parametrize("file", FILES)
def test_registers_and_shared_memory_are_those_on_record(file: str) -> None:
    expected, found = golden(file).read_text("utf-8") if golden(file).exists() else "", table(file)
    diff = "".join(difflib.unified_diff(expected.splitlines(True), found.splitlines(True), "on record", "compiled"))
    assert not diff, f"{diff}\nto accept: python tests/kernels/compiling.py {file}"


def test_no_record_is_left_of_a_file_that_is_gone() -> None:
    assert {path.name for path in GOLDEN.glob("*.txt")} <= {golden(file).name for file in FILES}


@pytest.mark.parametrize(
    ("asked", "code", "written"), [([], 2, []), (["copies.cu"], 0, ["copies.cu"]), (["--all"], 0, FILES)], ids=str
)
def test_records_are_written_of_what_is_named_only(
    asked: list[str], code: int, written: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "GOLDEN", tmp_path / "golden")
    monkeypatch.setattr(compiling, "table", lambda file: f"of {file}")
    assert compiling.main(asked) == code
    found = sorted(path.read_text("utf-8") for path in tmp_path.rglob("*.txt"))
    assert found == [f"of {file}" for file in written]


def test_a_file_that_there_is_not_is_told_with_those_that_there_are() -> None:
    done = subprocess.run(
        [sys.executable, "tests/kernels/compiling.py", "nofile.cu"],
        cwd=CONSTRAINTS.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.endswith(f"error: there is no file nofile.cu; fix: name one of {', '.join(kernels_of())}\n")


def test_the_compiler_of_the_records_is_pinned() -> None:
    for wheel in ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvdisasm"):
        version = importlib.metadata.version(wheel)
        assert f"\n{wheel}=={version}\n" in CONSTRAINTS.read_text("utf-8")


@pytest.mark.parametrize("file", FILES)
def test_each_spec_is_what_its_c_function_takes(file: str) -> None:
    text = source_of(kernels_of()[file][0])
    written = declared(text)
    assembled = in_ptx(nvrtcs()[TABLE_MAJOR].ptx(text))
    assert sorted(written) == sorted(assembled) == sorted(kernel.name for kernel in kernels_of()[file])
    for kernel in kernels_of()[file]:
        assert differs(kernel, text) == []
        assert assembled[kernel.name] == (kernel.threads, tuple(parameter(each) for each in kernel.arguments))


def differs(kernel: Kernel, text: str) -> list[tuple[tuple[str, str] | None, tuple[str, str] | None]]:
    """Arguments of the spec beside those of the C function, where they are not the same."""
    spec = [(each.name, each.type) for each in kernel.arguments]
    written = list(declared(text)[kernel.name].arguments)
    longest = max(len(spec), len(written))
    padded = zip(*([*each, *[None] * (longest - len(each))] for each in (spec, written)), strict=True)
    return [(ours, theirs) for ours, theirs in padded if ours != theirs]


def parameter(argument: Argument) -> str:
    return "u64" if argument.is_pointer else PTX_TYPES[argument.type]


# -- Each check, held against what it must find ---------------------------------------------------------------------

TOY = """
extern "C" __global__ void __launch_bounds__(64) kv_toy(
    const kv_u32* source, kv_u32* target, kv_u32 rows, float scale) {
  BODY
}
"""
LOOP = "\n#pragma unroll\nfor (int i = 0; i < 80; i++) "
STRAIGHT = "if (threadIdx.x < rows) target[threadIdx.x] = source[threadIdx.x] + (kv_u32)scale;"
SPEC = Kernel(
    "toy",
    "toy.cu",
    (Argument("source", "const u32*"), Argument("target", "u32*"), Argument("rows", "u32"), Argument("scale", "float")),
    threads=64,
)


@pytest.fixture(params=[12, 13])
def nvrtc(request: pytest.FixtureRequest) -> Nvrtc:
    return nvrtcs()[request.param]


def toy(body: str) -> str:
    return "".join((source.FOLDER / name).read_text("utf-8") for name in source.BASE) + TOY.replace("BODY", body)


def test_wheels_of_two_versions_lie_side_by_side() -> None:
    assert [Nvrtc(path).version[0] for path in installed()] == [13, 12]


def test_a_plain_kernel_takes_little(nvrtc: Nvrtc) -> None:
    usage = nvrtc.compile(toy(STRAIGHT), "sm_90").usage["kv_toy"]
    assert not lavish(usage) and usage.registers < 32 and usage.shared_bytes == 0


def test_shared_memory_is_counted(nvrtc: Nvrtc) -> None:
    body = "__shared__ kv_u32 kept[64]; kept[threadIdx.x] = rows; __syncthreads(); target[0] = kept[63 - threadIdx.x];"
    assert nvrtc.compile(toy(body), "sm_90").usage["kv_toy"].shared_bytes == 256


def test_an_error_is_told_with_its_place(nvrtc: Nvrtc) -> None:
    with pytest.raises(CompileFailed, match=r'kernels/cuda/toy.cu\(2\): error: identifier "missing" is undefined'):
        nvrtc.compile(f'{toy(STRAIGHT)}\n#line 1 "kernels/cuda/toy.cu"\n\nint x = missing;', "sm_90")


def test_a_warning_is_an_error(nvrtc: Nvrtc) -> None:
    with pytest.raises(CompileFailed, match="warning #177-D: variable"):
        nvrtc.compile(toy(f"kv_u32 unused; {STRAIGHT}"), "sm_90")


def test_a_stack_is_seen(nvrtc: Nvrtc) -> None:
    body = "kv_u32 kept[64]; for (kv_u32 i = 0; i < rows; i++) kept[source[i] & 63] = i; target[0] = kept[rows & 63];"
    usage = nvrtc.compile(toy(body), "sm_90").usage["kv_toy"]
    assert usage.stack_bytes == 256 and lavish(usage)


def test_spilling_is_seen(nvrtc: Nvrtc) -> None:
    lines = ["float kept[80];", LOOP + "kept[i] = __fmul_rn(scale, (float)source[i]);", "__syncthreads();"]
    crowded = toy("\n".join([*lines, LOOP + "target[i * rows] = (kv_u32)kept[79 - i];"]))
    usage = nvrtc.compile(crowded.replace("__launch_bounds__(64)", "__launch_bounds__(64, 32)"), "sm_90").usage[
        "kv_toy"
    ]
    assert usage.spill_bytes > 0 and lavish(usage)


def test_what_can_not_be_loaded_is_told(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"libnvrtc\.so\.13"):
        Nvrtc(tmp_path / "libnvrtc.so.13")


def test_a_spec_that_is_not_its_c_function_is_seen(nvrtc: Nvrtc) -> None:
    text = toy(STRAIGHT)
    assert differs(SPEC, text) == []
    assert in_ptx(nvrtc.ptx(text)) == {"toy": (64, ("u64", "u64", "u32", "f32"))}
    narrow = dataclasses.replace(SPEC, arguments=(*SPEC.arguments[:2], Argument("rows", "u64"), SPEC.arguments[3]))
    assert differs(narrow, text) == [(("rows", "u64"), ("rows", "u32"))]
    writes = dataclasses.replace(SPEC, arguments=(Argument("source", "u32*"), *SPEC.arguments[1:]))
    assert differs(writes, text) == [(("source", "u32*"), ("source", "const u32*"))]
    short = dataclasses.replace(SPEC, arguments=SPEC.arguments[:3])
    assert differs(short, text) == [(None, ("scale", "float"))]
    assert in_ptx(nvrtc.ptx(text.replace(" __launch_bounds__(64)", "")))["toy"][0] is None
