"""A plan before its grid is known: where plan functions refuse what doesn't fit together, and say at which argument.

    draft = Draft(SCRUB, arena=arena, stride=stride, ...)      # each value fits its argument, or is refused
    draft.require_multiple(16, "bytes")
    draft.require_bytes(ids=4 * most)
    return draft.plan(blocks(most, 8))

No device is touched.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from .launch import Kernel, LaunchPlan, LaunchRefused, Pointer, Value, shown

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class Draft:
    """Values of a launch.

    Args:
        kernel: to launch.
        values: one an argument, by name.

    Raises:
        LaunchRefused: the names are not those of the arguments, or a value doesn't fit its argument.
    """

    __slots__ = ("_values", "kernel")

    def __init__(self, kernel: Kernel, /, **values: Value) -> None:
        names = [argument.name for argument in kernel.arguments]
        if strange := values.keys() ^ {*names}:
            raise LaunchRefused(
                f"kernels/cuda/{kernel.file}: {kernel.symbol} has too many or lacks {', '.join(sorted(strange))}; "
                f"fix: pass {', '.join(names)}"
            )
        self.kernel = kernel
        self._values = dict(zip(names, kernel.fitting(tuple(values[name] for name in names)), strict=True))

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def number(self, name: str) -> int:
        """Value of a scalar that is no float."""
        value = self._values[name]
        assert isinstance(value, int)
        return value

    def refusal(self, name: str, fix: str) -> LaunchRefused:
        """To raise for a number that doesn't fit the others."""
        return self.kernel.refusal(name, f"is {self._values[name]}; fix: {fix}")

    def require_least(self, least: int, *names: str) -> None:
        """Refuse smaller numbers. Raises LaunchRefused."""
        for name in names:
            if self.number(name) < least:
                raise self.refusal(name, f"pass at least {least}")

    def require_finite(self, least: float, *names: str) -> None:
        """Refuse floats that are smaller, infinite, or no number. Raises LaunchRefused."""
        for name in names:
            value = self._values[name]
            assert isinstance(value, int | float)
            if not least <= value < math.inf:
                raise self.refusal(name, f"pass a finite number of at least {least!r}")

    def require_multiple(self, multiple: int, *names: str) -> None:
        """Refuse numbers that 16-byte access, or rows of scales, can't have. Raises LaunchRefused."""
        for name in names:
            if self.number(name) % multiple:
                raise self.refusal(name, f"use a multiple of {multiple}")

    def require_bytes(self, **needs: int) -> None:
        """Refuse less memory than the kernel will touch, in bytes by argument; one that is None it doesn't touch.

        Raises:
            LaunchRefused: a pointer has fewer.
        """
        for name, need in needs.items():
            value = self._values[name]
            if isinstance(value, Pointer) and (why := value.shortage(need)) is not None:
                raise self.kernel.refusal(name, why)

    def plan(self, grid: tuple[int, int, int]) -> LaunchPlan:
        """The plan of these values."""
        return LaunchPlan(self.kernel, grid, tuple(self._values.values()))


def require_record(kernel: Kernel, at: str, record: object, expected: type) -> None:
    """Refuse what is passed for a record that the argument ``at`` comes from, and is none. Raises LaunchRefused."""
    if not isinstance(record, expected):
        name = expected.__name__
        raise kernel.refusal(at, f"comes from {name}, not from {shown(record)}; fix: pass {name}")


def named(kernel: Kernel, at: str, record: DataclassInstance, expected: type[DataclassInstance]) -> dict[str, Any]:
    """Fields of a record of values by their names, as they are, for a draft.

    Args:
        kernel: of the draft.
        at: an argument that comes from the record.
        record: what is passed for one.
        expected: its class.

    Raises:
        LaunchRefused: it is none of that class.
    """
    require_record(kernel, at, record, expected)
    return {field.name: getattr(record, field.name) for field in fields(record)}
