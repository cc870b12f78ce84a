"""Kernels that only these tests have: they run long on a device, beside or instead of the project's own."""

from __future__ import annotations

from pathlib import Path

from kvfsm.kernels.launch import Argument, Kernel
from kvfsm.kernels.source import source_of
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

REWRITE = Kernel(
    "rewrite",
    "words.cu",
    (
        Argument("machine", "u32", "kv_events::Machine"),
        Argument("events", "const u32*", "uint32 [3]: evict, take, seal, or others around a change"),
        Argument("arguments", "const i64*", "int64 [8], of the first two"),
        Argument("seal_arguments", "const i64*", "int64 [width], of the last; its first is the generation"),
        Argument("width", "u32", "arguments of the last"),
        Argument("words", "u64*", "uint64 [slots]"),
        Argument("arena", "u8*", "uint8 [slots, bytes]", alignment=16),
        Argument("bytes", "u32", "of a slot, a multiple of 16"),
        Argument("rounds", "u32", "how often each slot is taken anew, unless somebody has it pinned"),
        Argument("taken", "u32*", "uint32 [slots], written: how often it was"),
    ),
    headers=HEADERS,
    threads=32,
)
"""A warp a slot: evicts it, takes it, fills it with the pattern of its new generation, seals it; and again."""

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

PROGRAMS = (E4M3_DIFFERENCES, REWRITE, PUBLISH, PEEK)

PATTERN = 0x9E3779B1
"""Every 4 bytes of a slot in generation g are ``g * PATTERN + slot``."""


def program_source(kernel: Kernel) -> str:
    """Of a kernel of the project as it is; of one of these, its own text behind what it needs."""
    if kernel not in PROGRAMS:
        return source_of(kernel)
    text, own = source_of(kernel), HERE / "slots.cu"
    if kernel is E4M3_DIFFERENCES:
        text, own = text.partition('#line 1 "kernels/generated/')[0], HERE / "e4m3.cu"
    return f'{text}#line 1 "tests/gpu/{own.name}"\n{own.read_text("utf-8")}'
