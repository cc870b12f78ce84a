"""Kernels that only these tests have: they run long on a device, beside or instead of the project's own."""

from __future__ import annotations

from pathlib import Path

from kvfsm.kernels.launch import Argument, Kernel
from kvfsm.kernels.source import BASE, FOLDER, source_of
from kvfsm.kernels.words import HEADERS

HERE = Path(__file__).parent

E4M3_DIFFERENCES = Kernel(
    "e4m3_differences",
    "words.cu",
    (
        Argument("first", "u32", "bits of the first float"),
        Argument("per_thread", "u32", "floats that a thread converts"),
        Argument("differing", "u64*", "uint64 [1], counted up: floats that become different codes"),
        Argument("example", "u32*", "uint32 [1]: the least of them"),
    ),
    headers=HEADERS,
)
"""Compares the conversion by arithmetic with that by the instruction, where the architecture has it."""

_REWRITING = (
    Argument("machine", "u32", "kv_events::Machine"),
    Argument("events", "const u32*", "uint32 [3]: evict, take, seal, or others around a change"),
    Argument("arguments", "const i64*", "int64 [8], of the first two"),
    Argument("seal_arguments", "const i64*", "int64 [width], of the last; its first is the generation"),
    Argument("width", "u32", "arguments of the last"),
    Argument("words", "u64*", "uint64 [slots]"),
    Argument("arena", "u8*", "uint8 [slots, bytes]", alignment=16),
    Argument("bytes", "u32", "of a slot, a multiple of 16"),
    Argument("rounds", "u32", "how often each slot is taken anew at most, unless somebody has it pinned"),
)
REWRITE = Kernel(
    "rewrite",
    "words.cu",
    (*_REWRITING, Argument("taken", "u32*", "uint32 [slots], written: how often it was")),
    headers=HEADERS,
    threads=32,
)
"""A warp a slot: evicts it, takes it, fills it with the pattern of its new generation, seals it; and again."""

_SIGNALS = Argument("signals", "u32*", "uint32 [3]: warps that have begun; not 0: stop; 1: the reader saw all begin")
CHURN = Kernel(
    "churn",
    "words.cu",
    (
        *_REWRITING,
        Argument("pause", "u32", "looks at the signals before each round, for which a slot is left alone"),
        _SIGNALS,
        Argument("taken", "u32*", "uint32 [slots], counted up: how often it was taken anew"),
        Argument("held", "u32*", "uint32 [slots], counted up: how often it was not, because of a pin"),
        Argument("stopped", "u32*", "uint32 [slots], written: not 0 where the signal ended it, and not the rounds"),
    ),
    headers=HEADERS,
    threads=32,
)
"""The same without end, until a launch of another stream says stop."""

AWAIT = Kernel(
    "await",
    "words.cu",
    (_SIGNALS, Argument("warps", "u32", "that are to begin"), Argument("tries", "u32", "looks, at most")),
    headers=HEADERS,
    threads=32,
)
"""Holds its stream back until a churn beside it has begun."""

STOP = Kernel("stop", "words.cu", (_SIGNALS,), headers=HEADERS, threads=32)

PUBLISH = Kernel(
    "publish",
    "words.cu",
    (
        Argument("machine", "u32", "kv_events::Machine"),
        Argument("event", "u32", "seal"),
        Argument("arguments", "const i64*", "int64 [width], of the event"),
        Argument("word", "u64*", "uint64 [1]"),
        Argument("page", "u8*", "uint8 [16 x threads of the warp]", alignment=16),
        Argument("value", "u32", "what every 4 bytes become"),
    ),
    headers=HEADERS,
    threads=32,
)
"""Writes a slot that it owns, by plain stores, and seals it."""

PEEK = Kernel(
    "peek",
    "words.cu",
    (
        Argument("machine", "u32", "kv_events::Machine"),
        Argument("words", "const u64*", "uint64 [slots]"),
        Argument("ids", "const i32*", "int32 [count]"),
        Argument("count", "u32", "entries"),
        Argument("expected", "u32*", "uint32 [count], written: generations as they are now"),
        Argument("arguments", "i64*", "int64 [count], written: the same, as first argument of a pin"),
    ),
    headers=HEADERS,
)

PROGRAMS = (E4M3_DIFFERENCES, REWRITE, CHURN, AWAIT, STOP, PUBLISH, PEEK)

_FAULTY = (
    Argument("from", "const u32*", "uint32 [count]"),
    Argument("to", "u32*", "uint32 [count], which nobody has written"),
    Argument("count", "u32", "up to 64"),
)
FAULTY = {
    tool: Kernel(name, "faulty.cu", _FAULTY, threads=64)
    for tool, name in (
        ("memcheck", "past_the_end"), ("racecheck", "unordered"), ("initcheck", "unwritten"),
        ("synccheck", "divergent"),
    )
}  # fmt: skip
"""A kernel with a bug for each tool of compute-sanitizer, which must find it."""

PATTERN = 0x9E3779B1
"""Every 4 bytes of a slot in generation g are ``g * PATTERN + slot``."""


def program_source(kernel: Kernel) -> str:
    """Of a kernel of the project as it is; of one of these, its own text behind what it needs."""
    if kernel in FAULTY.values():
        return "".join(map(_text, BASE)) + _own(kernel.file)
    if kernel not in PROGRAMS:
        return source_of(kernel)
    if kernel is E4M3_DIFFERENCES:
        return "".join(map(_text, BASE)) + _own("e4m3.cu")
    return source_of(kernel) + _own("slots.cu")


def _own(name: str) -> str:
    return f'#line 1 "tests/gpu/{name}"\n{(HERE / name).read_text("utf-8")}'


def _text(name: str) -> str:
    return f'#line 1 "kernels/{name}"\n{(FOLDER / name).read_text("utf-8")}'
