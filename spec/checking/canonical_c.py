"""``canonical.py`` as C: the same choice of state, one state at a time, with every loop over cells written out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from .canonical import MIX, rank
from .layout import Layout
from .symmetry import CopyClass, Pointer, SlotClass, Symmetry

HEAD = """\
static inline uint64_t spread(uint64_t total, uint64_t value) {
    total = (total + value + 1) * UINT64_C(%d);
    return total ^ total >> 29;
}
"""


def canonical_c(symmetry: Symmetry, layout: Layout) -> str:
    """C text with ``static void canonical(uint64_t *s)``: the state that stands for a packed one takes its place."""
    return "\n".join([HEAD % MIX, *_Text(symmetry, layout).lines(), ""])


class _Text:
    def __init__(self, symmetry: Symmetry, layout: Layout) -> None:
        self.symmetry = symmetry
        self.layout = layout
        cells = symmetry.system.cells
        self.number = {cell.name: place for place, cell in enumerate(cells)}
        self.cells = cells
        self.pointers = {pointer.cell: pointer for part in symmetry.slots for pointer in part.pointers}

    def lines(self) -> Iterator[str]:
        count = max(len(self.cells), 1)
        yield from self._pack()
        yield f"static inline void sort_copies(uint64_t c[{count}]) {{"
        for copies in self.symmetry.copies:
            yield from self._sort(copies)
        yield "    (void)c;"
        yield "}"
        yield ""
        for number, part in enumerate(self.symmetry.slots):
            yield from self._keys(number, part)
            yield from self._renumber(number, part)
        yield "static void canonical(uint64_t *s) {"
        yield f"    uint64_t c[{count}];"
        for place, cell in enumerate(self.cells):
            word, shift, mask = self.layout.place(cell.name)
            yield f"    c[{place}] = s[{word}] >> {shift} & UINT64_C({mask});"
        for pointer in self.pointers.values():
            yield f"    if (!({self._live(pointer)})) {self.c(pointer.cell)} = 0;"
        yield "    int entangled = 0;"
        for number, part in enumerate(self.symmetry.slots):
            slots = len(part.numbers)
            yield "    {"
            yield f"        uint64_t key[{slots}]; int held[{slots}], order[{slots}];"
            yield f"        slot_keys_{number}(c, key, held);"
            yield f"        for (int i = 0; i < {slots}; i++) order[i] = i;"
            yield f"        for (int i = 1; i < {slots}; i++)"
            yield "            for (int j = i; j > 0 && key[order[j]] < key[order[j - 1]]; j--) {"
            yield "                int t = order[j]; order[j] = order[j - 1]; order[j - 1] = t;"
            yield "            }"
            yield f"        for (int i = 1; i < {slots}; i++)"
            yield "            if (key[order[i]] == key[order[i - 1]]) entangled |= held[order[i]] | held[order[i - 1]];"
            yield f"        renumber_{number}(c, order);"
            yield "    }"
        if self.symmetry.slots:
            yield "    if (entangled) {"
            yield from self._least(count)
            yield "        return;"
            yield "    }"
        else:
            yield "    (void)entangled;"
        yield "    sort_copies(c);"
        yield "    pack(c, s);"
        yield "}"

    def c(self, cell: str) -> str:
        return f"c[{self.number[cell]}]"

    def _pack(self) -> Iterator[str]:
        yield f"static inline void pack(const uint64_t c[{max(len(self.cells), 1)}], uint64_t *s) {{"
        for word in range(self.layout.word_count):
            parts = [
                f"{self.c(cell.name)} << {shift}"
                for cell in self.cells
                for at, shift, _ in [self.layout.place(cell.name)]
                if at == word
            ]
            yield f"    s[{word}] = {' | '.join(parts) or '0'};"
        yield "}"
        yield ""

    def _live(self, pointer: Pointer) -> str:
        if pointer.at is None:
            return "0" if 0 in pointer.dead else "1"
        dead = sum(1 << step for step in pointer.dead)
        return f"~UINT64_C({dead}) >> {self.c(pointer.at)} & 1"

    def _spread(self, cells: Sequence[str], start: int = 1) -> str:
        text = f"UINT64_C({start})"
        for cell in cells:
            text = f"spread({text}, {self.c(cell)})"
        return text

    def _slot_cells(self, part: SlotClass, slot: int) -> list[str]:
        return [c.name for c in self.cells if c.is_slot and c.owner in part.instances and c.number == slot]

    def _copy_cells(self, actor: str, copy: int) -> list[str]:
        return [c.name for c in self.cells if not c.is_slot and c.owner == actor and c.number == copy]

    def _keys(self, number: int, part: SlotClass) -> Iterator[str]:
        """A number for each slot, the same under every renumbering, and whether anybody points at it."""
        slots = len(part.numbers)
        yield f"static inline void slot_keys_{number}(const uint64_t *c, uint64_t key[{slots}], int held[{slots}]) {{"
        for row, slot in enumerate(part.numbers):
            yield f"    key[{row}] = {self._spread(self._slot_cells(part, slot))}; held[{row}] = 0;"
        for pointer in part.pointers:
            cell = self.symmetry.system.cell(pointer.cell)
            rest = [other for other in self._copy_cells(cell.owner, cell.number) if other not in self.pointers]
            yield f"    if ({self._live(pointer)}) {{"
            yield f"        uint64_t weight = {self._spread(rest, 1 + rank(cell.owner, cell.field))};"
            for row, slot in enumerate(part.numbers):
                yield f"        if ({self.c(pointer.cell)} == {slot}) {{ key[{row}] += weight; held[{row}] = 1; }}"
            yield "    }"
        yield "}"
        yield ""

    def _renumber(self, number: int, part: SlotClass) -> Iterator[str]:
        """The slot at ``order[k]`` becomes the one at ``k``."""
        slots = len(part.numbers)
        yield f"static inline void renumber_{number}(uint64_t *c, const int order[{slots}]) {{"
        for cells in zip(*(self._slot_cells(part, slot) for slot in part.numbers), strict=True):
            yield f"    {{ uint64_t t[{slots}] = {{{', '.join(map(self.c, cells))}}};"
            moved = " ".join(f"{self.c(cell)} = t[order[{row}]];" for row, cell in enumerate(cells))
            yield f"      {moved} }}"
        highest = max((self.symmetry.system.cell(pointer.cell).high for pointer in part.pointers), default=0)
        names = f"{highest + 1}"
        yield f"    uint64_t name[{names}];"
        yield f"    for (int i = 0; i < {names}; i++) name[i] = (uint64_t)i;"
        for row, slot in enumerate(part.numbers):
            goes = [
                f"if (order[{k}] == {row}) name[{slot}] = {to};" for k, to in enumerate(part.numbers) if slot <= highest
            ]
            yield "    " + " ".join(goes)
        yield "    (void)name;"
        for pointer in part.pointers:
            yield f"    if ({self._live(pointer)}) {self.c(pointer.cell)} = name[{self.c(pointer.cell)}];"
        yield "}"
        yield ""

    def _sort(self, part: CopyClass) -> Iterator[str]:
        """Copies of one actor in ascending order of their cells, the first cell weighing most."""
        cells = [self._copy_cells(part.actor, copy) for copy in range(part.count)]
        width = len(cells[0])
        if not width:
            return
        table = ", ".join("{" + ", ".join(str(self.number[cell]) for cell in copy) + "}" for copy in cells)
        yield f"    {{   static const int cell[{part.count}][{width}] = {{{table}}};"
        yield f"        for (int i = 1; i < {part.count}; i++)"
        yield "            for (int j = i; j > 0; j--) {"
        yield "                int before = 0;"
        yield f"                for (int k = 0; k < {width}; k++) {{"
        yield "                    uint64_t a = c[cell[j][k]], b = c[cell[j - 1][k]];"
        yield "                    if (a != b) { before = a < b; break; }"
        yield "                }"
        yield "                if (!before) break;"
        yield f"                for (int k = 0; k < {width}; k++) {{"
        yield "                    uint64_t t = c[cell[j][k]];"
        yield "                    c[cell[j][k]] = c[cell[j - 1][k]]; c[cell[j - 1][k]] = t;"
        yield "                }"
        yield "            }"
        yield "    }"

    def _least(self, count: int) -> Iterator[str]:
        """The least packed state over every order of slots that compare equal."""
        words = self.layout.word_count
        orders = [list(itertools.permutations(range(len(part.numbers)))) for part in self.symmetry.slots]
        for number, part in enumerate(self.symmetry.slots):
            slots = len(part.numbers)
            rows = ", ".join("{" + ", ".join(map(str, order)) + "}" for order in orders[number])
            yield f"        static const int orders_{number}[{len(orders[number])}][{slots}] = {{{rows}}};"
            yield f"        uint64_t key_{number}[{slots}]; int held_{number}[{slots}];"
            yield f"        slot_keys_{number}(c, key_{number}, held_{number});"
        yield "        int first = 1;"
        for number in range(len(orders)):
            yield f"        for (int o{number} = 0; o{number} < {len(orders[number])}; o{number}++)"
        yield "        {"
        for number, part in enumerate(self.symmetry.slots):
            same = " && ".join(
                f"key_{number}[orders_{number}[o{number}][{row}]] == key_{number}[{row}]"
                for row in range(len(part.numbers))
            )
            yield f"            if (!({same})) continue;"
        yield f"            uint64_t d[{count}], w[{words}];"
        yield f"            for (int i = 0; i < {count}; i++) d[i] = c[i];"
        for number in range(len(orders)):
            yield f"            renumber_{number}(d, orders_{number}[o{number}]);"
        yield "            sort_copies(d);"
        yield "            pack(d, w);"
        yield "            int below = 0;"
        yield f"            for (int i = {words} - 1; !first && i >= 0; i--)"
        yield "                if (w[i] != s[i]) { below = w[i] < s[i]; break; }"
        yield f"            if (first || below) for (int i = 0; i < {words}; i++) s[i] = w[i];"
        yield "            first = 0;"
        yield "        }"
