"""The 64-bit state word: bit ranges, packing, unpacking. Plain ints and integer arrays alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .errors import BadWord, FieldOverflow


@dataclass(frozen=True, slots=True)
class Bits:
    """One field: bits [shift, shift + bits) of the word, and the greatest value that it may hold."""

    name: str
    shift: int
    bits: int
    high: int

    @property
    def mask(self) -> int:
        """The field's bits, at the low end."""
        return (1 << self.bits) - 1


@dataclass(frozen=True, slots=True)
class WordLayout:
    """The fields of a machine's word, from the low bit up.

    >>> layout = WordLayout("toy", (Bits("state", 0, 4, 2), Bits("pins", 4, 12, 4095)))
    >>> layout.pack(state=2, pins=5)
    82
    >>> layout.unpack(82)
    {'state': 2, 'pins': 5}
    """

    machine: str
    fields: tuple[Bits, ...]

    def field(self, name: str) -> Bits:
        """The field of that name; KeyError with the names there are."""
        for field in self.fields:
            if field.name == name:
                return field
        raise KeyError(f"'{self.machine}' has no field '{name}'; it has: {', '.join(f.name for f in self.fields)}")

    def pack(self, **values: int) -> int:
        """The word with these values; fields that are left out are 0. FieldOverflow when one does not fit."""
        return self.replaced(0, values)

    def replaced(self, word: int, values: Mapping[str, int]) -> int:
        """``word`` with some fields set anew. FieldOverflow when a value does not fit."""
        for name, value in values.items():
            field = self.field(name)
            if not 0 <= value <= field.high:
                raise FieldOverflow(name, int(value), field.high)
            word = word & ~(field.mask << field.shift) | int(value) << field.shift
        return word

    def unpack(self, word: int) -> dict[str, int]:
        """Every field of ``word``, in the order of the spec."""
        return {field.name: word >> field.shift & field.mask for field in self.fields}

    def all_but(self, *names: str) -> int:
        """The signed 64-bit mask that clears some fields and keeps the rest."""
        mask = (1 << 64) - 1
        for name in names:
            field = self.field(name)
            mask &= ~(field.mask << field.shift)
        return mask - (1 << 64) if mask >> 63 else mask

    def check(self, word: int, slot: int | None = None) -> None:
        """Raise BadWord unless every field holds one of its values and no other bit is set."""
        end = self.fields[-1].shift + self.fields[-1].bits
        if not 0 <= word < 1 << end:
            raise BadWord(self.machine, slot, word, f"it uses the low {end} bits only")
        for field in self.fields:
            value = word >> field.shift & field.mask
            if value > field.high:
                why = f"'{field.name}' is {value}, and its values end at {field.high}"
                raise BadWord(self.machine, slot, word, why)
