"""What the C of a kernel declares, read from its source text and from its PTX."""

from __future__ import annotations

import re
from dataclasses import dataclass

_DECLARED = re.compile(
    r'extern "C" __global__ void(?: __launch_bounds__\((?P<threads>[^)]*)\))?\s+'
    r"kv_(?P<name>\w+)\((?P<arguments>[^)]*)\)",
    re.S,
)
_ARGUMENT = re.compile(
    r"(?P<const>const )?(?P<type>kv_\w+|float) ?(?P<pointer>\*)?(?P<restrict> ?__restrict__)? ?(?P<name>\w+)"
)
_ENTRY = re.compile(r"\.entry kv_(?P<name>\w+)\((?P<parameters>.*?)\)\s*(?:\.maxntid (?P<threads>\d+), 1, 1)?", re.S)
_COMMENT = re.compile(r"//[^\n]*")


@dataclass(frozen=True, slots=True)
class Signature:
    """Of one kernel.

    threads     in its ``__launch_bounds__`` as written, or None without them
    arguments   names and types, as ``Argument`` spells them
    restricted  names of the arguments that are ``const __restrict__``
    """

    threads: str | None
    arguments: tuple[tuple[str, str], ...]
    restricted: tuple[str, ...]


def declared(source: str) -> dict[str, Signature]:
    """Kernels that a source text defines, by name without ``kv_``."""
    found = {}
    for kernel in _DECLARED.finditer(_COMMENT.sub("", source)):
        arguments, restricted = [], []
        for text in kernel["arguments"].split(",") if kernel["arguments"].strip() else ():
            argument = _ARGUMENT.fullmatch(" ".join(text.split()))
            assert argument is not None, f"kv_{kernel['name']}: {text!r} is no argument of the dialect"
            kind = f"{argument['const'] or ''}{argument['type'].removeprefix('kv_')}{argument['pointer'] or ''}"
            arguments.append((argument["name"], kind))
            if argument["const"] and argument["restrict"]:
                restricted.append(argument["name"])
        found[kernel["name"]] = Signature(kernel["threads"], tuple(arguments), tuple(restricted))
    return found


def in_ptx(ptx: str) -> dict[str, tuple[int | None, tuple[str, ...]]]:
    """Greatest block and types of the parameters (``u64``, ``f32``) of each kernel, by name without ``kv_``."""
    found = {}
    for entry in _ENTRY.finditer(ptx):
        threads = int(entry["threads"]) if entry["threads"] else None
        found[entry["name"]] = (threads, tuple(re.findall(r"\.param(?: \.align \d+)? \.(\w+) ", entry["parameters"])))
    return found
