"""The engine's C interface, and modules loaded beside it. Structures mirror those of runtime/."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any

from kvfsm.kernels.launch import Kernel

from .building import Build, module, runtime

POISON = 0xA5
"""Of bytes that nobody has written, as kPoison in runtime/engine.h."""


class Span(ctypes.Structure):
    _fields_ = (
        ("begin", ctypes.c_size_t),
        ("end", ctypes.c_size_t),
        ("shadow", ctypes.c_void_p),
        ("argument", ctypes.c_int),
        ("writable", ctypes.c_int),
        ("contended", ctypes.c_int),
    )


class Launch(ctypes.Structure):
    _fields_ = (
        ("entry", ctypes.c_void_p),
        ("values", ctypes.POINTER(ctypes.c_void_p)),
        ("grid", ctypes.c_uint * 3),
        ("threads", ctypes.c_uint),
        ("dynamic_bytes", ctypes.c_ulong),
        ("shared_begin", ctypes.c_void_p),
        ("shared_end", ctypes.c_void_p),
        ("spans", ctypes.POINTER(Span)),
        ("span_count", ctypes.c_uint),
    )


class Options(ctypes.Structure):
    _fields_ = (
        ("is_random", ctypes.c_int),
        ("checked", ctypes.c_int),
        ("races", ctypes.c_int),
        ("seed", ctypes.c_uint64),
        ("resident", ctypes.c_ulong),
    )


CHECK_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int)


class Region(ctypes.Structure):
    _fields_ = (("begin", ctypes.c_void_p), ("bytes", ctypes.c_size_t))


class Step(ctypes.Structure):
    _fields_ = (("thread", ctypes.c_uint32), ("code", ctypes.c_size_t))


class SearchPlan(ctypes.Structure):
    _fields_ = (
        ("reduces", ctypes.c_int),
        ("preemptions", ctypes.c_long),
        ("limit", ctypes.c_ulong),
        ("at_end", CHECK_FUNCTION),
        ("at_each_step", CHECK_FUNCTION),
    )


class SearchResult(ctypes.Structure):
    _fields_ = (
        ("outcome", ctypes.c_int),
        ("executions", ctypes.c_ulong),
        ("cut_short", ctypes.c_ulong),
        ("steps_max", ctypes.c_ulong),
    )


class Fault(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int),
        ("launch", ctypes.c_int),
        ("block", ctypes.c_uint * 3),
        ("thread", ctypes.c_int),
        ("argument", ctypes.c_int),
        ("file", ctypes.c_char_p),
        ("line", ctypes.c_int),
        ("code", ctypes.c_size_t),
        ("other_code", ctypes.c_size_t),
        ("other_file", ctypes.c_char_p),
        ("other_line", ctypes.c_int),
        ("text", ctypes.c_char * 512),
    )


class SiteTraffic(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_size_t),
        ("requests", ctypes.c_uint64),
        ("sectors", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("width", ctypes.c_uint32),
        ("is_write", ctypes.c_uint32),
        ("is_atomic", ctypes.c_uint32),
    )


class Touched(ctypes.Structure):
    _fields_ = (("read", ctypes.c_uint64), ("written", ctypes.c_uint64))


class KernelRecord(ctypes.Structure):
    _fields_ = (
        ("signature", ctypes.c_char_p),
        ("entry", ctypes.c_void_p),
        ("launch_bound", ctypes.c_uint),
        ("shared_begin", ctypes.c_void_p),
        ("shared_end", ctypes.c_void_p),
    )


class NotTheKernel(ValueError):
    """A spec doesn't describe the C function of its name: another signature or another launch bound."""


@dataclass(frozen=True, slots=True)
class LoadedKernel:
    """A kernel's C function in memory.

    module  keeps it there
    """

    record: KernelRecord
    module: ctypes.CDLL


@cache
def engine() -> ctypes.CDLL:
    """There is one in the process, whatever modules are loaded: kernels of several can run side by side."""
    library = ctypes.CDLL(str(runtime()))
    pointer, size, integer, count = ctypes.c_void_p, ctypes.c_ulong, ctypes.c_int, ctypes.c_uint
    launches = (ctypes.POINTER(Launch), count)
    options = ctypes.POINTER(Options)
    signatures: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "run": (integer, (*launches, options)),
        "explore": (
            None,
            (
                *launches,
                ctypes.POINTER(Region),
                count,
                options,
                ctypes.POINTER(SearchPlan),
                ctypes.POINTER(SearchResult),
            ),
        ),
        "replay": (integer, (*launches, options, ctypes.POINTER(ctypes.c_uint32), count)),
        "steps": (size, (ctypes.POINTER(ctypes.POINTER(Step)),)),
        "fault": (ctypes.POINTER(Fault), ()),
        "locate": (ctypes.c_char_p, (ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t))),
        "new_shadow": (pointer, (ctypes.c_size_t, size, integer)),
        "delete_shadow": (None, (pointer,)),
        "initialise": (None, (pointer, size, size)),
        "mark_freed": (None, (pointer,)),
        "touched": (ctypes.POINTER(Touched), ()),
        "sites": (size, (ctypes.POINTER(ctypes.POINTER(SiteTraffic)),)),
    }
    for name, (result, arguments) in signatures.items():
        function = library[f"kv_host_{name}"]
        function.restype, function.argtypes = result, arguments
        setattr(library, name, function)
    return library


@cache
def loaded(text: str, build: Build) -> ctypes.CDLL:
    """The module of a source text."""
    engine()
    return ctypes.CDLL(str(module(text, build).path))


@cache
def load_kernel(kernel: Kernel, text: str, build: Build) -> LoadedKernel:
    """The C function that a spec describes.

    Raises:
        NotTheKernel: it takes something else, or there is none of that name.
        DoesNotCompile: the source.
    """
    where = f"kernels/cuda/{kernel.file}: {kernel.symbol}"
    library = loaded(text, build)
    symbols = module(text, build).symbols
    if kernel.symbol not in symbols:
        raise NotTheKernel(f"{where} is not there; fix: name one of {', '.join(symbols)}")
    tell = library[f"kv_host_record_{kernel.symbol}"]
    tell.restype = ctypes.POINTER(KernelRecord)
    record = tell().contents
    takes = record.signature.decode()
    described = ", ".join(argument.type for argument in kernel.arguments)
    if takes != described:
        raise NotTheKernel(f"{where} takes ({takes}), and its spec says ({described}); fix: make the spec say the same")
    if record.launch_bound != kernel.threads:
        raise NotTheKernel(
            f"{where} has __launch_bounds__({record.launch_bound}), and its spec has {kernel.threads} threads; "
            "fix: make them equal"
        )
    return LoadedKernel(record, library)
