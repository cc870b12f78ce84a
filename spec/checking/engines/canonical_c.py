"""``canonical.py`` as C: the same choice of state, one state at a time, with every loop over cells written out."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from ..layout import Layout
from ..symmetry import CopyClass, Pointer, SlotClass, Symmetry
from .canonical import MIX, Bundle, bundles, copy_cells, place_mask, pointers_of, slot_cells, weight_of

HEAD = """\
static inline uint64_t spread(uint64_t total, uint64_t number) {
    total = (number + total) * UINT64_C(%d);
    return total ^ total >> 29;
}
"""


def canonical_c(symmetry: Symmetry, layout: Layout) -> str:
    """C text with ``static void canonical(uint64_t *s)``: the representative of a packed state takes its place."""
    return "\n".join([HEAD % MIX, *_Text(symmetry, layout).lines(), ""])


def _neighbours(count: int) -> Iterator[int]:
    """Which of each two neighbours to compare, one after the other, so that all get sorted."""
    return (at for last in range(count - 1, 0, -1) for at in range(last))


def _swap(when: str, pairs: Iterable[tuple[str, str]]) -> str:
    """Swap under a condition, without a branch: processors guess it wrong half the time."""
    swaps = " ".join(f"swap = ({one} ^ {other}) & when; {one} ^= swap; {other} ^= swap;" for one, other in pairs)
    return f"{{ const uint64_t when = -(uint64_t)({when}); uint64_t {swaps} }}"


class _Text:
    def __init__(self, symmetry: Symmetry, layout: Layout) -> None:
        self.symmetry = symmetry
        self.layout = layout
        self.cells = symmetry.system.cells
        self.number = {cell.name: place for place, cell in enumerate(self.cells)}
        self.pointers = pointers_of(symmetry)
        self.count = max(len(self.cells), 1)

    def lines(self) -> Iterator[str]:
        yield from self._pack()
        yield from self._sort_copies()
        for number, part in enumerate(self.symmetry.slots):
            yield from self._keys(number, part)
            yield from self._sort_slots(number, part)
        if self.symmetry.slots:
            yield from self._least()
        yield "static inline void canonical(uint64_t *s) {"
        yield f"    uint64_t c[{self.count}];"
        for place, cell in enumerate(self.cells):
            spot = self.layout.place(cell.name)
            yield f"    c[{place}] = s[{spot.word}] >> {spot.shift} & UINT64_C({spot.mask});"
        for pointer in self.pointers.values():
            yield f"    {self.c(pointer.cell)} &= -({self._live(pointer)});"
        for number, part in enumerate(self.symmetry.slots):
            yield f"    int order_{number}[{len(part.numbers)}];"
            yield f"    int tied_{number} = sort_slots_{number}(c, order_{number});"
        if self.symmetry.slots:
            either = " | ".join(f"tied_{number}" for number in range(len(self.symmetry.slots)))
            yield f"    if ({either}) {{ least(c, s); return; }}"
        yield "    sort_copies(c);"
        yield "    pack(c, s);"
        yield "}"

    def c(self, cell: str) -> str:
        """A cell, taken apart."""
        return f"c[{self.number[cell]}]"

    def _pack(self) -> Iterator[str]:
        yield f"static inline void pack(const uint64_t c[{self.count}], uint64_t *s) {{"
        for word in range(self.layout.word_count):
            parts = [
                f"{self.c(cell.name)} << {spot.shift}"
                for cell in self.cells
                for spot in [self.layout.place(cell.name)]
                if spot.word == word
            ]
            yield f"    s[{word}] = {' | '.join(parts) or '0'};"
        yield "}"
        yield ""

    def _live(self, pointer: Pointer) -> str:
        if pointer.at is None:
            return "UINT64_C(0)" if 0 in pointer.dead else "UINT64_C(1)"
        dead = sum(1 << step for step in pointer.dead)
        return f"(~UINT64_C({dead}) >> {self.c(pointer.at)} & 1)"

    def _bundled(self, bundle: Bundle) -> str:
        return " | ".join(f"{self.c(name)} << {shift}" if shift else self.c(name) for name, shift, _ in bundle)

    def _unbundle(self, bundle: Bundle, number: str) -> str:
        return " ".join(f"{self.c(name)} = {number} >> {shift} & UINT64_C({mask});" for name, shift, mask in bundle)

    def _spread(self, cells: Sequence[str], start: int) -> str:
        text = f"UINT64_C({start})"
        for bundle in bundles(self.symmetry, cells):
            text = f"spread({text}, {self._bundled(bundle)})"
        return text

    # Slots.

    def _keys(self, number: int, part: SlotClass) -> Iterator[str]:
        """A number for each slot, the same under every renumbering.

        In its lowest bits stands which slot it is of, and above them whether anybody points there.
        """
        slots = len(part.numbers)
        yield f"#define PLACE_{number} {place_mask(part)}"
        yield f"static inline void slot_keys_{number}(const uint64_t *c, uint64_t key[{slots}]) {{"
        yield f"    uint64_t live, weight, here, held[{slots}] = {{0}};"
        for row, slot in enumerate(part.numbers):
            yield f"    key[{row}] = {self._spread(slot_cells(self.symmetry, part, slot), 1)};"
        for pointer in part.pointers:
            cell = self.symmetry.system.cell(pointer.cell)
            rest = [o for o in copy_cells(self.symmetry, cell.owner, cell.number) if o not in self.pointers]
            yield f"    live = {self._live(pointer)}; weight = {self._spread(rest, weight_of(cell.owner, cell.field))};"
            for row, slot in enumerate(part.numbers):
                yield (
                    f"    here = live & ({self.c(pointer.cell)} == {slot}); "
                    f"key[{row}] += weight & -here; held[{row}] |= here;"
                )
        below = f"{2 * place_mask(part) + 1}"
        for row in range(slots):
            yield f"    key[{row}] = (key[{row}] & ~UINT64_C({below})) | held[{row}] * (PLACE_{number} + 1) | {row};"
        yield "    (void)live; (void)weight; (void)here;"
        yield "}"
        yield ""

    def _sort_slots(self, number: int, part: SlotClass) -> Iterator[str]:
        """Slots by ascending keys; whether some that are held compare equal."""
        slots = len(part.numbers)
        yield f"static inline void renumber_{number}(uint64_t *c, const int order[{slots}]) {{"
        for bundle_row in zip(
            *(bundles(self.symmetry, slot_cells(self.symmetry, part, slot)) for slot in part.numbers), strict=True
        ):
            yield f"    {{ const uint64_t t[{slots}] = {{{', '.join(map(self._bundled, bundle_row))}}};"
            for row, bundle in enumerate(bundle_row):
                yield f"      const uint64_t b{row} = t[order[{row}]]; {self._unbundle(bundle, f'b{row}')}"
            yield "    }"
        highest = max((self.symmetry.system.cell(pointer.cell).high for pointer in part.pointers), default=0)
        names = ", ".join(map(str, range(highest + 1)))
        yield f"    uint64_t name[{highest + 1}] = {{{names}}};"
        yield f"    static const int number[{slots}] = {{{', '.join(map(str, part.numbers))}}};"
        yield f"    for (int k = 0; k < {slots}; k++)"
        yield f"        if (number[order[k]] <= {highest}) name[number[order[k]]] = number[k];"
        yield "    (void)name;"
        for pointer in part.pointers:
            yield f"    {self.c(pointer.cell)} = name[{self.c(pointer.cell)}] & -({self._live(pointer)});"
        yield "}"
        yield ""
        yield f"static inline int sort_slots_{number}(uint64_t *c, int order[{slots}]) {{"
        yield f"    uint64_t key[{slots}], tied = 0;"
        yield f"    slot_keys_{number}(c, key);"
        for at in _neighbours(slots):
            yield f"    {_swap(f'key[{at + 1}] < key[{at}]', [(f'key[{at}]', f'key[{at + 1}]')])}"
        for row in range(1, slots):
            # Of two that differ by their places alone, both are held or none is.
            equal = f"(key[{row}] | PLACE_{number}) == (key[{row - 1}] | PLACE_{number})"
            yield f"    tied |= key[{row}] & -(uint64_t)({equal});"
        yield f"    for (int k = 0; k < {slots}; k++) order[k] = (int)(key[k] & PLACE_{number});"
        yield f"    renumber_{number}(c, order);"
        yield f"    return tied & (PLACE_{number} + 1) ? 1 : 0;"
        yield "}"
        yield ""

    # Copies.

    def _sort_copies(self) -> Iterator[str]:
        yield f"static inline void sort_copies(uint64_t c[{self.count}]) {{"
        for part in self.symmetry.copies:
            yield from self._sort(part)
        yield "    (void)c;"
        yield "}"
        yield ""

    def _sort(self, part: CopyClass) -> Iterator[str]:
        """Copies of one actor in ascending order of their cells, the first cell weighing most."""
        copies = [bundles(self.symmetry, copy_cells(self.symmetry, part.actor, copy)) for copy in range(part.count)]
        width = len(copies[0])
        if not width:
            return
        rows = ", ".join("{" + ", ".join(map(self._bundled, row)) + "}" for row in copies)
        yield f"    {{   uint64_t t[{part.count}][{width}] = {{{rows}}};"
        for at in _neighbours(part.count):
            pairs = [(f"t[{at}][{place}]", f"t[{at + 1}][{place}]") for place in range(width)]
            less = "{1} < {0}".format(*pairs[-1])
            for one, other in reversed(pairs[:-1]):
                less = f"({other} < {one}) | (({other} == {one}) & ({less}))"
            yield f"        {_swap(less, pairs)}"
        for copy, row in enumerate(copies):
            for place, bundle in enumerate(row):
                yield f"        {self._unbundle(bundle, f't[{copy}][{place}]')}"
        yield "    }"

    # Slots that compare equal.

    def _least(self) -> Iterator[str]:
        """The least packed state over every order of slots that compare equal."""
        words = self.layout.word_count
        orders = [list(itertools.permutations(range(len(part.numbers)))) for part in self.symmetry.slots]
        yield "static void least(const uint64_t *c, uint64_t *s) {"
        for number, part in enumerate(self.symmetry.slots):
            slots = len(part.numbers)
            rows = ", ".join("{" + ", ".join(map(str, order)) + "}" for order in orders[number])
            yield f"    static const int orders_{number}[{len(orders[number])}][{slots}] = {{{rows}}};"
            yield f"    uint64_t key_{number}[{slots}];"
            yield f"    slot_keys_{number}(c, key_{number});"
        yield "    int first = 1;"
        for number in range(len(orders)):
            yield f"    for (int o{number} = 0; o{number} < {len(orders[number])}; o{number}++)"
        yield "    {"
        for number, part in enumerate(self.symmetry.slots):
            order = f"orders_{number}[o{number}]"
            same = " && ".join(
                f"(key_{number}[{order}[{row}]] | PLACE_{number}) == (key_{number}[{row}] | PLACE_{number})"
                for row in range(len(part.numbers))
            )
            yield f"        if (!({same})) continue;"
        yield f"        uint64_t d[{self.count}], w[{words}];"
        yield f"        for (int i = 0; i < {self.count}; i++) d[i] = c[i];"
        for number in range(len(orders)):
            yield f"        renumber_{number}(d, orders_{number}[o{number}]);"
        yield "        sort_copies(d);"
        yield "        pack(d, w);"
        yield "        int below = 0;"
        yield f"        for (int i = {words} - 1; !first && i >= 0; i--)"
        yield "            if (w[i] != s[i]) { below = w[i] < s[i]; break; }"
        yield f"        if (first || below) for (int i = 0; i < {words}; i++) s[i] = w[i];"
        yield "        first = 0;"
        yield "    }"
        yield "}"
        yield ""
