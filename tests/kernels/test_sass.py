"""What rests on an instruction is held against the machine code; each check is held against code that it must refuse.

All kernels on all architectures: the modules are those that test_compile.py makes, and to disassemble one takes less
than its compilation.

The relaxed forms that kernels must not use look like the ordered ones but for a fence around them: ``MEMBAR`` before a
release, ``CCTL.IVALL``, which empties the first cache, after an acquire.
"""

from __future__ import annotations

from functools import cache

import pytest

from kvfsm.kernels.catalogue import catalogue
from kvfsm.kernels.launch import Kernel
from kvfsm.kernels.nvrtc import ARCHITECTURES
from kvfsm.kernels.source import source_of

from .compiling import LACKS, TABLE_MAJOR, compiled, disassembler, kernels_of, nvrtcs
from .sass import Code, Fault, Has, Lacks, Ordered, Surrounded, disassembled

KERNELS = list(catalogue().values())

pytestmark = [
    pytest.mark.skipif(
        TABLE_MAJOR not in nvrtcs() or disassembler() is None, reason=f"{LACKS}, or nvidia-cuda-nvdisasm"
    ),
    pytest.mark.xdist_group("nvrtc"),  # what one test compiled the others have
]

CAS = r"ATOMG?\.E\.CAS\.64\.STRONG\.GPU"
ADD = r"(ATOMG?|RED[G]?)\.E\.ADD\.64\.STRONG\.GPU"
FENCE = r"MEMBAR\.(ALL|SC)\.GPU"
EMPTIES_CACHE = r"CCTL\.IVALL"
ACQUIRING = r"LDG?\.E\.64\.STRONG\.GPU"
LOADS_16 = r"LDG?\.E\.128(\..*)?"
STORES_16 = r"STG?\.E\.128(\..*)?"
NON_COHERENT = r"LDG?\..*(CONSTANT|\bNC\b).*"
ON_THE_STACK = r"(LDL|STL)(\..*)?"
TO_E4M3 = r"F2FP\..*E4M3.*"

COPIES = ("gather", "scatter", "window_gather", "indexer_gather")
LOOKS_TWICE = ("gather", "window_gather", "indexer_gather")
CHANGES_WORDS = ("validate_pin", "unpin", "put_words", "apply_event")

PROMISES: dict[str, tuple[Fault, ...]] = {
    **{name: (Has((LOADS_16, STORES_16)),) for name in COPIES},
    "scrub": (Has((STORES_16,)),),
    "page_checksum": (Has((LOADS_16,)),),
    **{name: (Surrounded(CAS, before=FENCE, after=EMPTIES_CACHE),) for name in CHANGES_WORDS},
}
"""By kernel, besides what holds of all."""


@cache
def code_of(kernel: Kernel, architecture: str) -> Code:
    return _module(kernel.file, architecture)[kernel.name]


@cache
def _module(file: str, architecture: str) -> dict[str, Code]:
    return disassembled(compiled(file, architecture).cubin)


def looks_at_words(kernel: Kernel) -> bool:
    """Whether it reads state words, and so may read bytes after an acquire."""
    return any(argument.name == "words" for argument in kernel.arguments)


def promises(kernel: Kernel) -> tuple[Fault, ...]:
    """Of one kernel, with what holds of all and of all that look at words."""
    found: tuple[Fault, ...] = (Lacks(ON_THE_STACK), *PROMISES.get(kernel.name, ()))
    if looks_at_words(kernel):
        found += (Lacks(NON_COHERENT), Surrounded(ACQUIRING, after=EMPTIES_CACHE, every=False))
    if kernel.name in LOOKS_TWICE:
        found += (Ordered(LOADS_16, ADD), Surrounded(ADD, before=FENCE))
    return found


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_the_machine_code_keeps_what_the_kernel_promises(kernel: Kernel, architecture: str) -> None:
    code = code_of(kernel, architecture)
    assert len(code) > 10
    assert [told for fault in promises(kernel) if (told := fault(code)) is not None] == []


def test_each_promise_is_of_a_kernel_that_there_is() -> None:
    assert {*PROMISES, *LOOKS_TWICE} <= {kernel.name for kernel in KERNELS}


MAKES_FP8 = [kernel for kernel in KERNELS if kernel.name.startswith(("quantise", "compress_", "pack"))]


@pytest.mark.parametrize("kernel", MAKES_FP8, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_fp8_comes_from_the_instruction_where_there_is_one(kernel: Kernel, architecture: str) -> None:
    has_one = int(architecture.removeprefix("sm_")) >= 89
    assert (Has((TO_E4M3,))(code_of(kernel, architecture)) is None) == has_one


# -- Each check, held against code that it must refuse -----------------------------------------------------------------


def planted(name: str, find: str, replace: str) -> Code:
    """Code of a kernel whose source is changed in one place."""
    kernel = catalogue()[name]
    return _changed(kernel.file, source_of(kernel), find, replace)[name]


@cache
def _changed(file: str, text: str, find: str, replace: str) -> dict[str, Code]:
    assert text.count(find) == 1, f"{find!r} is {text.count(find)} times in what is compiled for {file}"
    return disassembled(nvrtcs()[TABLE_MAJOR].compile(text.replace(find, replace), "sm_90").cubin)


@pytest.mark.parametrize("name", CHANGES_WORDS)
@pytest.mark.parametrize(
    ("find", "replace"),
    [
        ("atom.acq_rel.gpu.global.cas.b64", "atom.relaxed.gpu.global.cas.b64"),
        ("atom.acq_rel.gpu.global.cas.b64", "atom.acq_rel.cta.global.cas.b64"),
        ("atom.acq_rel.gpu.global.cas.b64", "atom.acquire.gpu.global.cas.b64"),
        ("atom.acq_rel.gpu.global.cas.b64", "atom.release.gpu.global.cas.b64"),
    ],
)
def test_a_weaker_compare_and_swap_is_seen(name: str, find: str, replace: str) -> None:
    fault = Surrounded(CAS, before=FENCE, after=EMPTIES_CACHE)
    assert fault(code_of(catalogue()[name], "sm_90")) is None
    assert fault(planted(name, find, replace)) is not None


def test_a_relaxed_look_at_a_word_is_seen() -> None:
    code = planted("revalidate", "ld.acquire.gpu.global.b64", "ld.relaxed.gpu.global.b64")
    assert Surrounded(ACQUIRING, after=EMPTIES_CACHE, every=False)(code) is not None


def test_a_relaxed_second_look_is_seen() -> None:
    code = planted("gather", "atom.release.gpu.global.add.u64", "atom.relaxed.gpu.global.add.u64")
    assert Surrounded(ADD, before=FENCE)(code) is not None


@pytest.mark.parametrize("name", LOOKS_TWICE)
def test_a_missing_second_look_is_seen(name: str) -> None:
    code = [one for one in code_of(catalogue()[name], "sm_90") if not one.startswith(("ATOM", "RED"))]
    assert Ordered(LOADS_16, ADD)(code) is not None
    moved = ["ATOMG.E.ADD.64.STRONG.GPU", *code]
    assert Ordered(LOADS_16, ADD)(moved) is not None


TOY = """
extern "C" __global__ void __launch_bounds__(64) kv_toy(const kv_u32* source, kv_u32* target, kv_u32 rows) {
  BODY
}
"""


def toy(body: str, *edits: tuple[str, str]) -> Code:
    kernel = next(iter(catalogue().values()))
    text = source_of(kernel).split('#line 1 "kernels/generated/')[0] + TOY.replace("BODY", body)
    for find, replace in edits:
        assert find in text
        text = text.replace(find, replace)
    return disassembled(nvrtcs()[TABLE_MAJOR].compile(text, "sm_90").cubin)["toy"]


def test_narrow_accesses_are_seen() -> None:
    wide = "kv_store16(target + 4 * threadIdx.x, kv_load16(source + 4 * threadIdx.x)); (void)rows;"
    narrow = "for (kv_u32 i = threadIdx.x; i < rows; i += 64) target[i] = source[i];"
    assert Has((LOADS_16, STORES_16))(toy(wide)) is None
    assert Has((LOADS_16, STORES_16))(toy(narrow)) is not None
    assert Has((STORES_16,))(toy(narrow)) is not None


def test_a_non_coherent_load_is_seen() -> None:
    body = "target[threadIdx.x] = source[rows + threadIdx.x];"
    assert Lacks(NON_COHERENT)(toy(body)) is None
    aliased = ("const kv_u32* source, kv_u32* target", "const kv_u32* __restrict__ source, kv_u32* __restrict__ target")
    assert Lacks(NON_COHERENT)(toy(body, aliased)) == "has LDG.E.CONSTANT"


def test_a_stack_is_seen() -> None:
    body = "kv_u32 kept[64]; for (kv_u32 i = 0; i < rows; i++) kept[source[i] & 63] = i; target[0] = kept[rows & 63];"
    told = Lacks(ON_THE_STACK)(toy(body))
    assert told is not None and "LDL" in told and "STL" in told


def test_every_kernel_that_makes_fp8_is_looked_at() -> None:
    assert [kernel.name for kernel in MAKES_FP8] == [
        "compress_v4", "compress_index_key", "quantise_insert_v4", "quantise_insert_v32", "quantise_insert_rows",
        "pack",
    ]  # fmt: skip


def test_every_kernel_is_disassembled() -> None:
    for file, kernels in kernels_of().items():
        assert sorted(_module(file, "sm_90")) == sorted(kernel.name for kernel in kernels)
