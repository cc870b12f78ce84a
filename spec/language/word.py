"""State words: field values <-> one number of at most 64 bits."""

from __future__ import annotations

from collections.abc import Mapping

from .model import Machine


class FieldOverflow(ValueError):
    """A value that its field cannot hold."""


def pack(machine: Machine, values: Mapping[str, int]) -> int:
    """Pack field values into one state word.

    Args:
        machine: whose word it is.
        values: field name -> number; states, named values and truth values as their codes. Absent fields are 0.

    Returns:
        The word, with 0 <= word < 2 ** machine.bits.

    Raises:
        FieldOverflow: a value is negative or needs more bits than its field has.
        KeyError: a name that is no field.

    """
    word = 0
    for name, value in values.items():
        field = machine.field(name)
        number = int(value)
        if not 0 <= number < 1 << field.bits:
            raise FieldOverflow(f"{machine.name}.{name} holds 0 to {(1 << field.bits) - 1}, not {number}")
        word |= number << field.shift
    return word


def unpack(machine: Machine, word: int) -> dict[str, int]:
    """The value of every field of a word, in the word's order.

    Raises:
        FieldOverflow: bits past the machine's fields are set, or the number is negative.

    """
    if word < 0 or word >> machine.bits:
        raise FieldOverflow(f"a word of {machine.name} has {machine.bits} bits, but this is {word:#x}")
    return {field.name: (word >> field.shift) & ((1 << field.bits) - 1) for field in machine.fields}
