"""What a kernel takes and how it is launched: specs, plans, and the refusals of bad plans.

A ``Kernel`` says what one ``extern "C"`` function takes. A plan function beside it makes a ``LaunchPlan``: that kernel,
a grid and a value an argument, checked here one by one, and by ``draft.py`` together. A ``Launcher`` carries plans out;
which one is the caller's choice. This module knows no CUDA and touches no device.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

SCALARS: dict[str, np.dtype[Any]] = {
    "u8": np.dtype(np.uint8),
    "u16": np.dtype(np.uint16),
    "u32": np.dtype(np.uint32),
    "u64": np.dtype(np.uint64),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "float": np.dtype(np.float32),
}
"""Types of kvfsm_base.cuh without their ``kv_``, and what carries one on the host."""

ELEMENTS: dict[str, tuple[str, ...]] = {
    "u16": ("bfloat16", "float16", "uint16", "int16"),
    "u32": ("uint32", "int32"),
    "u64": ("uint64", "int64"),
    "i32": ("int32", "uint32"),
    "i64": ("int64", "uint64"),
    "float": ("float32",),
}
"""Dtypes whose elements can be those of a scalar: of its size, and floats for floats. Those of u8, bytes, all can."""

_LIMITS = {
    name: (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)) for name, dtype in SCALARS.items() if dtype.kind in "iu"
}
_FLOAT_MAX = float(np.finfo(np.float32).max)
_FLOAT_INT_MAX = 2**24
"""Up to there float32 holds every int."""

GRID_MAX = (2**31 - 1, 65535, 65535)
THREADS_MAX = 1024
SHARED_BYTES_MAX = 48 * 1024
"""What every architecture grants without asking. All from the CUDA C++ Programming Guide, "Compute Capabilities"."""

PARAMETER_BYTES_MAX = 4096
"""What a kernel's arguments may take together on every architecture. Same source."""

WARP = 32

SHOWN_MAX = 100
"""Characters of a value that a message shows."""

_TYPE = re.compile(r"(?P<const>const )?(?P<scalar>\w+)(?P<pointer>\*)?")
_NAME = re.compile(r"[a-z][a-z0-9_]*")


class LaunchRefused(ValueError):
    """A kernel spec or a launch plan that no launcher carries out. The message says where, what, and how to fix it."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """Memory that a kernel may touch.

    address  of its first byte, in the launcher's memory; 0 where an array is empty
    bytes    from there on; what plan functions need they say by ``Draft.require_bytes``
    dtype    name of what its array holds, such as ``int64``; None: bytes for any argument. See ``ELEMENTS``
    """

    address: int
    bytes: int
    dtype: str | None = field(default=None, compare=False)

    def skip(self, offset: int) -> Pointer:
        """The same memory without its first ``offset`` bytes.

        Raises:
            LaunchRefused: it has no so many bytes.
        """
        if not 0 <= offset <= self.bytes:
            raise LaunchRefused(f"{self} has no byte {offset}; fix: skip at most {self.bytes}")
        return Pointer(self.address + offset, self.bytes - offset, self.dtype)

    def shortage(self, need: int) -> str | None:
        """Why it isn't enough for so many bytes, with the fix, or None if it is."""
        return f"is {self}; fix: the plan needs {need} bytes there" if self.bytes < need else None

    def __str__(self) -> str:
        return f"memory at {self.address:#x} of {self.bytes} bytes"


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a kernel.

    type       a scalar of ``SCALARS``, or a pointer to one: ``u32``, ``u64*``, ``const u8*``
    about      shape and meaning, for pointers: ``uint8 [slots, slot_bytes], read``
    alignment  of a pointer's address in bytes, where it is more than one element's: 16 where 16-byte access is used
    nullable   a pointer that may be None
    bytes_min  of a pointer's memory, whatever the other values are: 8 of ``int64 [1]``
    is_flag    a number that is 0 or 1, given as a truth value
    """

    name: str
    type: str
    about: str = ""
    alignment: int = 0
    nullable: bool = False
    bytes_min: int = 0
    is_flag: bool = False

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise LaunchRefused(f"argument {self.name!r} has no name that C and Python take; fix: use a-z, 0-9 and _")
        found = _TYPE.fullmatch(self.type)
        if found is None or found["scalar"] not in SCALARS or (found["const"] and not found["pointer"]):
            raise LaunchRefused(
                f"argument {self.name!r} has type {self.type!r}; fix: use one of {', '.join(SCALARS)}, "
                "or a pointer to one, such as 'u64*' or 'const u8*'"
            )
        if not self.is_pointer and (self.alignment or self.nullable or self.bytes_min):
            raise LaunchRefused(
                f"argument {self.name!r} is a {self.type}, and only pointers are aligned or nullable or have bytes; "
                "fix: leave it out"
            )
        if self.is_flag and self.type not in ("u8", "u32"):
            raise LaunchRefused(f"argument {self.name!r} is a flag and a {self.type}; fix: make it a u32")
        if self.alignment and (self.alignment & (self.alignment - 1) or self.alignment < self.dtype.itemsize):
            raise LaunchRefused(
                f"argument {self.name!r} ({self.type}) has alignment {self.alignment}; fix: use a power of two "
                f"of at least {self.dtype.itemsize}, or leave it out"
            )

    @property
    def is_pointer(self) -> bool:
        """Memory rather than a number."""
        return self.type.endswith("*")

    @property
    def is_const(self) -> bool:
        """A pointer that the kernel only reads through."""
        return self.type.startswith("const ")

    @property
    def scalar(self) -> str:
        """Its type, or that of the elements that a pointer points to: a name of ``SCALARS``."""
        return self.type.removeprefix("const ").removesuffix("*")

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the scalar, or of the elements that a pointer points to."""
        return SCALARS[self.scalar]

    @property
    def address_multiple(self) -> int:
        """What a pointer's address must be a multiple of."""
        return max(self.alignment, self.dtype.itemsize)

    def refusal(self, value: Value) -> str | None:
        """Why the argument can't be ``value``, with the fix, or None if it can."""
        if self.is_pointer:
            return self._refuses_pointer(value)
        if self.is_flag:
            return None if type(value) is bool else f"is {shown(value)}; fix: pass True or False"
        if self.type == "float":
            if type(value) is int and abs(value) <= _FLOAT_INT_MAX:
                return None
            if type(value) is not float:
                return f"is {shown(value)}; fix: pass a float"
            if math.isfinite(value) and abs(value) > _FLOAT_MAX:
                return f"is {value!r}, which no float32 holds; fix: pass at most {_FLOAT_MAX!r}"
            return None
        if type(value) is not int:
            return f"is {shown(value)}; fix: pass an int"
        least, most = _LIMITS[self.type]
        if not least <= value <= most:
            return f"is {value}; fix: pass an int of [{least}, {most}]"
        return None

    def _refuses_pointer(self, value: Value) -> str | None:
        if value is None:
            return None if self.nullable else "is None and not nullable; fix: pass a Pointer"
        if not isinstance(value, Pointer):
            return f"is {shown(value)}; fix: pass {_memory_of(value)}{' or None' if self.nullable else ''}"
        whole = type(value.address) is int and type(value.bytes) is int
        if not whole or value.bytes < 0 or not 0 <= value.address < 2**64:
            return f"is {shown(value)}; fix: pass an address of 64 bits and a count of bytes that isn't negative"
        takes = ELEMENTS.get(self.scalar)
        if takes is not None and value.dtype is not None and value.dtype not in takes:
            return f"holds {value.dtype}; fix: pass {' or '.join(takes)}"
        if not value.address and value.bytes:  # of an empty array CuPy and torch give address 0
            return f"is {value}; fix: pass memory that is there, or 0 bytes"
        if value.address % self.address_multiple:
            return f"is {value}; fix: its address must be a multiple of {self.address_multiple}"
        return value.shortage(self.bytes_min)


Value = int | float | Pointer | None
"""Of an argument: a number for a scalar, a bool for a flag; for a pointer a Pointer, or None where it is nullable."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One ``extern "C"`` function ``kv_<name>`` of a file under ``cuda/``.

    file          under ``cuda/``; one file is one module, so all its kernels name the same headers
    headers       of ``generated/`` or ``cuda/`` without their ending, in the order in which they are read
    threads       of a block, in x; the C function has them as its ``__launch_bounds__``
    shared_bytes  of dynamic shared memory
    """

    name: str
    file: str
    arguments: tuple[Argument, ...]
    headers: tuple[str, ...] = ()
    threads: int = 256
    shared_bytes: int = 0

    def __post_init__(self) -> None:
        where = f"kernel {self.name!r} of kernels/cuda/{self.file}"
        if not _NAME.fullmatch(self.name):
            raise LaunchRefused(f"{where} has no name that C and Python take; fix: use a-z, 0-9 and _")
        if not 1 <= self.threads <= THREADS_MAX or self.threads % WARP:
            raise LaunchRefused(
                f"{where} has blocks of {self.threads} threads; fix: use a multiple of {WARP} up to {THREADS_MAX}"
            )
        if not 0 <= self.shared_bytes <= SHARED_BYTES_MAX:
            raise LaunchRefused(
                f"{where} asks for {self.shared_bytes} bytes of shared memory; fix: use at most {SHARED_BYTES_MAX}"
            )
        names = [argument.name for argument in self.arguments]
        if len(set(names)) != len(names):
            raise LaunchRefused(f"{where} has two arguments of one name: {', '.join(names)}; fix: rename one")
        # Each argument takes at most 8 bytes, padding included.
        if 8 * len(names) > PARAMETER_BYTES_MAX:
            raise LaunchRefused(f"{where} has {len(names)} arguments; fix: use at most {PARAMETER_BYTES_MAX // 8}")

    @property
    def symbol(self) -> str:
        """Of the C function."""
        return f"kv_{self.name}"

    def refusal(self, name: str, why: str) -> LaunchRefused:
        """To raise for the argument of that name. ``why`` goes on from its name: ``is 0; fix: pass at least 1``."""
        position = [argument.name for argument in self.arguments].index(name)
        where = f"argument {position} {name!r} ({self.arguments[position].type})"
        return LaunchRefused(f"kernels/cuda/{self.file}: {self.symbol}: {where} {why}")

    def fitting(self, values: tuple[Value, ...]) -> tuple[Value, ...]:
        """The same values, one an argument, in their order.

        Raises:
            LaunchRefused: there are more or fewer, or one doesn't fit its argument.
        """
        if len(values) != len(self.arguments):
            takes = ", ".join(f"{argument.type} {argument.name}" for argument in self.arguments)
            raise LaunchRefused(
                f"kernels/cuda/{self.file}: {self.symbol} is given {len(values)} values; fix: pass "
                f"{len(self.arguments)}: {takes}"
            )
        for argument, value in zip(self.arguments, values, strict=True):
            if (why := argument.refusal(value)) is not None:
                raise self.refusal(argument.name, why)
        return values


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """One launch: a kernel, its grid, and a value an argument, in their order. Checked when it is made.

    grid  blocks in x, y, z. No block at all in x is a launch that does nothing: launchers leave it out.

    Raises:
        LaunchRefused: the values are not what the kernel takes, or the grid is over the limits of CUDA.
    """

    kernel: Kernel
    grid: tuple[int, int, int]
    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        kernel = self.kernel
        kernel.fitting(self.values)
        axes = zip("xyz", self.grid, (0, 1, 1), GRID_MAX, strict=True)
        for axis, blocks, least, most in axes:
            if type(blocks) is not int or not least <= blocks <= most:
                raise LaunchRefused(
                    f"kernels/cuda/{kernel.file}: {kernel.symbol} has grid {self.grid}; fix: its {axis} must be an int "
                    f"of [{least}, {most}]{'' if axis == 'x' else ', so a batch goes on x'}"
                )

    @property
    def is_empty(self) -> bool:
        """There is no block to launch."""
        return self.grid[0] == 0

    @property
    def block(self) -> tuple[int, int, int]:
        """Threads of a block in x, y, z."""
        return (self.kernel.threads, 1, 1)

    def value(self, name: str) -> Value:
        """Of the argument with that name.

        Raises:
            KeyError: the kernel has no such argument.
        """
        return self.named()[name]

    def named(self) -> dict[str, Value]:
        """Values by the names of their arguments."""
        names = (argument.name for argument in self.kernel.arguments)
        return dict(zip(names, self.values, strict=True))


class Buffer(Protocol):
    """An array in a launcher's memory."""

    @property
    def pointer(self) -> Pointer:
        """All of it, for the values of a plan."""
        ...

    def download(self, length: int | None = None) -> npt.NDArray[Any]:
        """A copy on the host, after all launches so far: of its first ``length`` elements, or of all."""
        ...

    def write(self, array: npt.NDArray[Any]) -> None:
        """Overwrite its first elements, or all, after all launches so far; ``array`` is like it, and no longer."""
        ...


class Mark(Protocol):
    """A place between two launches."""

    def ended(self) -> bool:
        """Whether all launches before it have ended. Asks, and doesn't wait."""
        ...


class Launcher(Protocol):
    """Carries launch plans out, one after the other, in memory of its own."""

    def upload(self, array: npt.NDArray[Any]) -> Buffer:
        """A new buffer with these bytes."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Buffer:
        """A new buffer with any bytes at all."""
        ...

    def launch(self, plan: LaunchPlan) -> None:
        """Carry it out after those before, without allocating; an empty one does nothing. May return before it ends."""
        ...

    def mark(self) -> Mark:
        """The place behind all launches so far."""
        ...

    def wait(self, mark: Mark) -> None:
        """Let what is launched from now on begin after a mark, on whatever stream. The host does not wait."""
        ...

    def synchronise(self) -> None:
        """Return when all launches so far have ended."""
        ...


def blocks(items: int, per_block: int) -> tuple[int, int, int]:
    """A grid in x that covers ``items``, with ``per_block`` of them in each block; none for none.

    >>> blocks(513, 256), blocks(0, 256)
    ((3, 1, 1), (0, 1, 1))
    """
    return (-(-items // per_block), 1, 1)


def element_name(dtype: np.dtype[Any]) -> str | None:
    """What an array of a launcher holds, for its ``Pointer``; records are bytes, and have no name.

    >>> element_name(np.dtype("<i8")), element_name(np.dtype(">i4")), element_name(np.dtype("i4, f4"))
    ('int64', '>i4', None)
    """
    if dtype.type is np.void:
        return None
    return dtype.name if dtype.isnative else dtype.str


def shown(value: object) -> str:
    """A value for a message: its type and itself, in short; of an array what it holds and its shape."""
    what, shape = type(value).__name__, getattr(value, "shape", None)
    if shape:
        return f"{what} of {getattr(value, 'dtype', 'elements')} {tuple(shape)}"
    text = repr(value)
    return f"{what} {text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + '...'}"


def _memory_of(value: object) -> str:
    """What to pass in the place of an array or a buffer."""
    if isinstance(getattr(value, "pointer", None), Pointer):
        return "its .pointer"
    return "launcher.pointer(x)" if getattr(value, "shape", None) else "a Pointer"
