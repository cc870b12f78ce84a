"""What a user would write in torch instead of each kernel: a function by its name, over tensors like its arrays.

Each does the kernel's job, and its docstring says what of that it leaves out. All look at words once, before the copy,
and take slot numbers on trust; an entry that is refused reads or writes a scratch slot, whose bytes are zeros. Words
are int64 here, as torch does little with uint64, and bytes of whole rows go as int64, which it copies faster than
uint8. Arenas are uint8 [slots + 1, bytes].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kvfsm.kernels.call_refusal import CallRefusal
from kvfsm.kernels.checks import FROM, KEYS
from kvfsm.kernels.compress import INDEX_ELEMENTS, Compressor
from kvfsm.kernels.fp8_rows import (
    INDEX_LEAST_PEAK,
    LEAST_PEAK,
    V4_CODES,
    V4_DATA_BYTES,
    V4_GROUP,
    V4_LEAST_PEAK,
    V4_SCALE_BYTES,
    V32_BYTES,
    V32_CODES,
    V32_GROUP,
)
from kvfsm.kernels.packed_form import ALIGNMENT, PER_LANE
from kvfsm.runtime.generated import KINDS, Refusal

Tensor = torch.Tensor
Results = dict[str, Tensor]
"""What a kernel writes, by the names of its arguments."""

MASK32 = 0xFFFFFFFF
PAGE_ROWS, WINDOW_PAGES = 64, 2
"""Rows of a page, and pages of a window's slot."""


# -- Words -------------------------------------------------------------------------------------------------------------


def field(words: Tensor, kind: str, name: str) -> Tensor:
    """A field of some words. The mask takes away what an arithmetic shift brings down."""
    bits = KINDS[kind].LAYOUT.field(name)
    return words >> bits.shift & bits.mask


def one_pin(kind: str) -> int:
    return 1 << KINDS[kind].LAYOUT.field("pins").shift


def looked(
    words: Tensor, ids: Tensor, expected: Tensor, by_state: Tensor, kind: str, versions: Tensor | None = None
) -> Tensor:
    """What the words of some slots answer, uint8 [n].

    by_state  uint8 [2, states], by whether there are pins; what a reader or a writer is answered in the generation that
              it expects
    """
    word = words[ids]
    codes = by_state[(field(word, kind, "pins") > 0).long(), field(word, kind, "state")]
    if versions is not None:
        moved = (codes == 0) & (field(word, kind, "version") != versions)
        codes = torch.where(moved, Refusal.VERSION, codes)
    return torch.where(field(word, kind, "generation") != expected, Refusal.STALE, codes)


def validate_pin(
    words: Tensor, slots: Tensor, expected: Tensor, request: Tensor, requests: int, by_state: Tensor, kind: str
) -> Results:
    """Other machines, layouts, the bound on pins, and atomicity beside another stream that changes the words."""
    codes = looked(words, slots, expected, by_state, kind)
    places = torch.arange(len(slots), device=words.device)
    refused = torch.where(codes == 0, len(slots), places)
    first = torch.full((requests,), len(slots), device=words.device).scatter_reduce(0, request, refused, "amin")
    granted = (first == len(slots))[request]
    words.index_add_(0, slots, torch.where(granted, one_pin(kind), 0))
    leases = torch.where((codes == 0) & ~granted, CallRefusal.RELEASED, codes)
    verdicts = torch.where(first == len(slots), 0, codes[first.clamp(max=len(slots) - 1)])
    return {"words": words, "leases": leases, "verdicts": verdicts}


def unpin(words: Tensor, slots: Tensor, expected: Tensor, leases: Tensor, kind: str) -> Results:
    """Other machines, refusals of slots that hold no pin, and atomicity beside another stream."""
    stale = field(words[slots], kind, "generation") != expected
    held = leases == 0
    words.index_add_(0, slots, torch.where(held & ~stale, -one_pin(kind), 0))
    leases.copy_(torch.where(held, torch.where(stale, Refusal.STALE, CallRefusal.RELEASED), leases))
    return {"words": words, "leases": leases}


def revalidate(words: Tensor, slots: Tensor, expected: Tensor, by_state: Tensor, kind: str) -> Results:
    """Other machines, and layers that are still arriving."""
    return {"refusals": looked(words, slots, expected, by_state, kind)}


def apply_event(words: Tensor, slots: Tensor, expected: Tensor, at: Tensor, by_state: Tensor, kind: str) -> Results:
    """All events but the pin of a window, slots that repeat, the bound on pins, and atomicity."""
    codes = looked(words, slots, expected, by_state, kind)
    word = words[slots]
    codes = torch.where((codes == 0) & (field(word, kind, "boundary") != at), Refusal.POSITION, codes)
    words[slots] = word + torch.where(codes == 0, one_pin(kind), 0)
    return {"words": words, "refusals": codes}


def put_words(words: Tensor, slots: Tensor, values: Tensor, by_state: Tensor, kind: str) -> Results:
    """Atomicity beside another stream."""
    bits = KINDS[kind].LAYOUT.field("pins").mask << KINDS[kind].LAYOUT.field("pins").shift
    now = words[slots]
    pins, wanted = now & bits, values & ~bits | now & bits
    readable = by_state[1, field(wanted, kind, "state")] == 0
    moved = field(now, kind, "generation") != field(wanted, kind, "generation")
    refused = (pins != 0) & (moved | ~readable)
    words[slots] = torch.where(refused, now, wanted)
    return {"words": words, "refusals": torch.where(refused, Refusal.PINNED, 0).to(torch.uint8)}


# -- Copies ------------------------------------------------------------------------------------------------------------


def gather(arena: Tensor, ids: Tensor, **check: Any) -> Results:
    """Nothing else."""
    codes, safe = guarded(arena, ids, **check)
    return {"out": arena.view(torch.int64)[safe], "refusals": codes}


def scatter(arena: Tensor, ids: Tensor, data: Tensor, **check: Any) -> Results:
    """Nothing else."""
    codes, safe = guarded(arena, ids, **check)
    arena.view(torch.int64).index_copy_(0, safe, data.view(torch.int64))
    return {"arena": arena[:-1], "refusals": codes}


def scrub(arena: Tensor, ids: Tensor) -> Results:
    """Nothing else; this launch has no words to look at."""
    return {"arena": arena.view(torch.int64).index_fill_(0, ids, 0)[:-1]}


def window_gather(arena: Tensor, table: Tensor, positions: Tensor, rows: int, **check: Any) -> Results:
    """Windows over several slots, and those that have fewer rows yet."""
    codes, safe = guarded(arena, table, **check)
    pages = rows_in(arena.unflatten(1, (WINDOW_PAGES, -1)), V4_DATA_BYTES).view(torch.int64)
    row = positions[:, None] - torch.arange(rows - 1, -1, -1, device=arena.device)
    return {"out": pages[safe[:, None], row // PAGE_ROWS % WINDOW_PAGES, row % PAGE_ROWS], "refusals": codes}


def indexer_gather(arena: Tensor, ids: Tensor, starts: Tensor, rows: int, **check: Any) -> Results:
    """Nothing else."""
    codes, safe = guarded(arena, ids, **check)
    keys, scales = rows_in(arena, INDEX_ELEMENTS), rows_in(arena, 4, INDEX_ELEMENTS)
    entry = torch.repeat_interleave(starts.diff(), output_size=rows)
    slot, row = safe[entry], torch.arange(rows, device=arena.device) - starts[entry]
    found = keys.view(torch.int64)[slot, row], scales.view(torch.int32)[slot, row]
    return {"out_keys": found[0], "out_scales": found[1], "refusals": codes}


def rows_in(pages: Tensor, size: int, behind: int = 0) -> Tensor:
    """The rows of each page, uint8 [..., 64, size]: from its start, or behind 64 rows of ``behind`` bytes."""
    begin = PAGE_ROWS * behind
    return pages[..., begin : begin + PAGE_ROWS * size].unflatten(-1, (PAGE_ROWS, size))


def guarded(arena: Tensor, ids: Tensor, **check: Any) -> tuple[Tensor, Tensor]:
    """Refusals, and slots in which those that are refused are the scratch slot, which is the arena's last."""
    codes = looked(ids=ids, **check)
    return codes, torch.where(codes == 0, ids, len(arena) - 1)


# -- Checks ------------------------------------------------------------------------------------------------------------


def page_checksum(arena: Tensor, ids: Tensor, **check: Any) -> Results:
    """Nothing else."""
    codes, safe = guarded(arena, ids, **check)
    numbers = arena.view(torch.int64)[safe].view(torch.int32).unflatten(1, (-1, 4)).long()
    at = torch.arange(numbers.shape[1], device=arena.device)[:, None]
    keys, begin = (torch.tensor(each.tolist(), device=arena.device) for each in (KEYS, FROM))
    keyed = numbers + at * keys + begin & MASK32
    total = (keyed[..., 0] * keyed[..., 1] + keyed[..., 2] * keyed[..., 3]).sum(1)
    mixed = total + signed(arena.shape[1] * 0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ shifted(mixed, shift)) * signed(factor)
    return {"sums": torch.where(codes == 0, mixed ^ shifted(mixed, 31), 0), "refusals": codes}


def signed(number: int) -> int:
    """The int64 with the same low 64 bits."""
    return (number + 2**63) % 2**64 - 2**63


def shifted(numbers: Tensor, by: int) -> Tensor:
    """To the right, with zeros from the left."""
    return numbers >> by & (1 << 64 - by) - 1


def verified_prefix(
    offsets: Tensor, ids: Tensor, request: Tensor, sums: Tensor, wanted: Tensor, **check: Any
) -> Results:
    """Nothing else."""
    codes = looked(ids=ids, **check)
    codes = torch.where((codes == 0) & (sums != wanted), Refusal.FAILED, codes)
    begin, end = offsets[:-1], offsets[1:]
    bad = torch.where(codes == 0, len(ids), torch.arange(len(ids), device=ids.device))
    first = end.scatter_reduce(0, request, bad, "amin")
    reasons = torch.where(first < end, codes[first.clamp(max=len(ids) - 1)], 0)
    return {"verified": (first - begin).int(), "reasons": reasons}


def check_topology(
    captured: Tensor, present: Tensor, epoch: Tensor, captured_epoch: int, table: Tensor, live: Tensor,
    positions: Tensor, span: int, slots: int, guard: int, scratch: int, words: Tensor, by_state: Tensor, kind: str,
) -> Results:  # fmt: skip
    """The ring of violations, generations, and tables that are rings."""
    rows, columns = (torch.arange(n, device=table.device) for n in table.shape)
    word = words[table.clamp(0, slots - 1)]
    codes = by_state[(field(word, kind, "pins") > 0).long(), field(word, kind, "state")]
    codes = torch.where(codes == Refusal.BUSY, 0, codes)
    no_slot = (table < 0) | (table >= slots) | (table == scratch)
    codes = torch.where(no_slot, CallRefusal.NO_SLOT, codes)
    missing = columns <= (positions // span)[:, None]
    codes = torch.where(table == guard, torch.where(missing, CallRefusal.NO_SLOT, 0), codes)
    padding = torch.where((table == scratch) | (table == guard), 0, CallRefusal.NO_SLOT)
    codes = torch.where((rows < live)[:, None], codes, padding)
    refused = codes.gather(1, (codes != 0).int().argmax(1, keepdim=True))[:, 0]
    refused = torch.where((live < 0) | (live > len(table)), Refusal.ILLEGAL, refused)
    refused = torch.where(epoch != captured_epoch, Refusal.EPOCH, refused)
    return {"refused": torch.where((captured != present).any(), Refusal.LAYOUT, refused).to(torch.uint8)}


# -- FP8 ---------------------------------------------------------------------------------------------------------------


def from_codes(codes: Tensor, scales: Tensor, group: int) -> Tensor:
    """bfloat16 [..., codes] of E4M3 codes with a scale a group."""
    values = codes.view(torch.float8_e4m3fn).float().unflatten(-1, (-1, group)) * scales[..., None]
    return values.bfloat16().flatten(-2)


def to_codes(values: Tensor, scales: Tensor) -> Tensor:
    """E4M3 codes uint8 [..., groups x group] of groups [..., groups, group]."""
    return (values / scales[..., None]).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8).flatten(-2)


def scales_of(groups: Tensor, least_peak: float) -> Tensor:
    return groups.abs().amax(-1).clamp(min=least_peak) / 448


def exponents_of(scales: Tensor) -> Tensor:
    """Exponent, with bias 127, of the least power of two that is no less."""
    return scales.view(torch.int32) + 0x7FFFFF >> 23


def power(exponents: Tensor) -> Tensor:
    return (exponents.int() << 23).view(torch.float32)


def gather_dequantise_v4(arena: Tensor, ids: Tensor, **check: Any) -> Results:
    """Pages of which only the first rows are wanted, and which of the NaNs it gives."""
    codes, safe = guarded(arena, ids, **check)
    rows, scales = rows_in(arena, V4_DATA_BYTES)[safe], rows_in(arena, V4_SCALE_BYTES, V4_DATA_BYTES)[safe]
    values = from_codes(rows[..., :V4_CODES], power(scales[..., : V4_CODES // V4_GROUP]), V4_GROUP)
    return {"out": torch.cat((values, rows[..., V4_CODES:].view(torch.bfloat16)), -1), "refusals": codes}


def gather_dequantise_v32(arena: Tensor, ids: Tensor, **check: Any) -> Results:
    """As gather_dequantise_v4."""
    codes, safe = guarded(arena, ids, **check)
    rows, end = rows_in(arena, V32_BYTES)[safe], V32_CODES + 4 * (V32_CODES // V32_GROUP)
    values = from_codes(rows[..., :V32_CODES], rows[..., V32_CODES:end].view(torch.float32), V32_GROUP)
    return {"out": torch.cat((values, rows[..., end:].view(torch.bfloat16)), -1), "refusals": codes}


def gather_dequantise_rows(arena: Tensor, ids: Tensor, **check: Any) -> Results:
    """As gather_dequantise_v4."""
    codes, safe = guarded(arena, ids, **check)
    rows, scales = rows_in(arena, INDEX_ELEMENTS)[safe], rows_in(arena, 4, INDEX_ELEMENTS)[safe]
    return {"out": from_codes(rows, scales.view(torch.float32), INDEX_ELEMENTS), "refusals": codes}


def quantise_insert_v4(arena: Tensor, ids: Tensor, rows: Tensor, values: Tensor, **check: Any) -> Results:
    """NaN and infinities, which here spoil the scale of their group."""
    codes, safe = guarded(arena, ids, **check)
    put_v4(arena, safe, rows, values[:, :V4_CODES].float(), values[:, V4_CODES:])
    return {"arena": arena[:-1], "refusals": codes}


def put_v4(arena: Tensor, slots: Tensor, rows: Tensor, values: Tensor, rope: Tensor) -> None:
    groups = values.unflatten(-1, (-1, V4_GROUP))
    exponents = exponents_of(scales_of(groups, V4_LEAST_PEAK))
    made = torch.cat((to_codes(groups, power(exponents)), rope.contiguous().view(torch.uint8)), -1)
    rows_in(arena, V4_DATA_BYTES)[slots, rows] = made
    scales = torch.nn.functional.pad(exponents.to(torch.uint8), (0, V4_SCALE_BYTES - exponents.shape[-1]))
    rows_in(arena, V4_SCALE_BYTES, V4_DATA_BYTES)[slots, rows] = scales


def quantise_insert_v32(arena: Tensor, ids: Tensor, rows: Tensor, values: Tensor, **check: Any) -> Results:
    """As quantise_insert_v4."""
    codes, safe = guarded(arena, ids, **check)
    groups = values[:, :V32_CODES].float().unflatten(-1, (-1, V32_GROUP))
    scales = scales_of(groups, LEAST_PEAK)
    rope = values[:, V32_CODES:].contiguous().view(torch.uint8)
    rows_in(arena, V32_BYTES)[safe, rows] = torch.cat((to_codes(groups, scales), scales.view(torch.uint8), rope), -1)
    return {"arena": arena[:-1], "refusals": codes}


def quantise_insert_rows(arena: Tensor, ids: Tensor, rows: Tensor, values: Tensor, **check: Any) -> Results:
    """As quantise_insert_v4."""
    codes, safe = guarded(arena, ids, **check)
    put_rows(arena, safe, rows, values.float(), LEAST_PEAK)
    return {"arena": arena[:-1], "refusals": codes}


def put_rows(arena: Tensor, slots: Tensor, rows: Tensor, values: Tensor, least_peak: float) -> None:
    groups = values[:, None]
    scale = scales_of(groups, least_peak)
    rows_in(arena, INDEX_ELEMENTS)[slots, rows] = to_codes(groups, scale)
    rows_in(arena, 4, INDEX_ELEMENTS)[slots, rows] = scale.view(torch.uint8)


# -- Compression -------------------------------------------------------------------------------------------------------


def compress(**windows: Any) -> Results:
    """Carried rows, gates without their bias, and the order of sums, so that last places differ."""
    return {"out": entries(**windows)}


def compress_v4(arena: Tensor, ids: Tensor, rows: Tensor, windows: dict[str, Any], **check: Any) -> Results:
    """As compress, and NaN as quantise_insert_v4."""
    codes, safe = guarded(arena, ids, **check)
    made = entries(**windows)
    put_v4(arena, safe, rows, made[:, :V4_CODES], made[:, V4_CODES:].bfloat16())
    return {"arena": arena[:-1], "refusals": codes}


def compress_index_key(arena: Tensor, ids: Tensor, rows: Tensor, windows: dict[str, Any], **check: Any) -> Results:
    """As compress_v4."""
    codes, safe = guarded(arena, ids, **check)
    put_rows(arena, safe, rows, entries(**windows), INDEX_LEAST_PEAK)
    return {"arena": arena[:-1], "refusals": codes}


def entries(
    layer: Compressor, kv: Tensor, gate: Tensor, current: Tensor, previous: Tensor, positions: Tensor, weight: Tensor,
    rotary: Tensor,
) -> Tensor:  # fmt: skip
    """Entries float32 [n, elements] of windows that have one before them where they overlap."""
    elements, at = layer.elements, torch.arange(layer.ratio, device=kv.device)
    places = [(current, slice(elements if layer.overlaps else 0, layer.width))]
    if layer.overlaps:
        places.insert(0, (previous, slice(0, elements)))
    values, gates = (torch.cat([rows[:, own][first[:, None] + at] for first, own in places], 1) for rows in (kv, gate))
    pooled = (gates.softmax(1) * values).sum(1)
    made = torch.nn.functional.rms_norm(pooled, (elements,), weight, layer.epsilon)
    cosines, sines = rotary[positions].chunk(2, -1)
    even, odd = made[:, -layer.rope :: 2], made[:, -layer.rope + 1 :: 2]
    turned = torch.stack((even * cosines - odd * sines, odd * cosines + even * sines), -1).flatten(-2)
    return torch.cat((made[:, : -layer.rope], turned), -1)


# -- The cold form -----------------------------------------------------------------------------------------------------

NUMBERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def pack(
    slots: Tensor, groups: Sequence[dict[str, Any]], count: int, forms_bytes: int, payload_offset: int, body: int,
    bits: Tensor,
) -> Results:  # fmt: skip
    """The lossy form, and words. ``groups`` are blocks of the cut that are alike; ``bits`` [256] those of a number."""
    n = len(slots)
    out = torch.zeros(n, body, dtype=torch.uint8, device=slots.device)
    forms = out[:, 4 * count : 4 * count + forms_bytes]
    sizes = torch.zeros(n, count, dtype=torch.int64, device=slots.device)
    made = []
    for group in groups:
        item, elements, lanes = group["item"], group["elements"], group["lanes"]
        numbers = slots[:, group["bytes"]].view(NUMBERS[item]).long()
        turned = numbers << 1 | numbers >> 8 * item - 1 & 1
        planes = torch.stack([turned >> 8 * plane & 0xFF for plane in range(item)], 2)
        least = planes.amin(-1)
        width = bits[planes.amax(-1) - least]
        above = torch.nn.functional.pad(planes - least[..., None], (0, PER_LANE * lanes - elements))
        above = above[..., group["order"]].unflatten(-1, (PER_LANE, lanes))
        places = torch.arange(PER_LANE, device=slots.device)[:, None]
        lane_bits = (above << places * width[..., None, None]).sum(-2)
        forms[:, group["forms"]] = torch.stack((least, width), -1).to(torch.uint8).flatten(-2)
        sizes[:, group["blocks"]] = -(-width.sum(-1) * lanes // ALIGNMENT) * ALIGNMENT
        made.append((group, width, lane_bits))
    starts = payload_offset + sizes.cumsum(1) - sizes
    out[:, : 4 * count] = starts.int().view(torch.uint8)
    for group, width, lane_bits in made:
        begin = starts[:, group["blocks"], None] + (width.cumsum(-1) - width) * group["lanes"]
        place = row_places(out) + begin[..., None] + torch.arange(group["lanes"], device=slots.device)
        for byte in range(8):
            there = (byte < width)[..., None].expand_as(place)
            out.view(-1)[(place + byte * group["lanes"])[there]] = (lane_bits >> 8 * byte).to(torch.uint8)[there]
    return {"out": out, "sizes": (payload_offset + sizes.sum(1)).int()}


def expand(slots: Tensor, bodies: Tensor, groups: Sequence[dict[str, Any]], count: int, forms_bytes: int) -> Results:
    """The lossy form, words, and bodies that don't lie in rows."""
    starts = bodies[:, : 4 * count].contiguous().view(torch.int32).long()
    forms = bodies[:, 4 * count : 4 * count + forms_bytes].long()
    places = torch.arange(PER_LANE, device=slots.device)[:, None]
    for group in groups:
        item, elements, lanes = group["item"], group["elements"], group["lanes"]
        least, width = forms[:, group["forms"]].unflatten(-1, (item, 2)).unbind(-1)
        begin = starts[:, group["blocks"], None] + (width.cumsum(-1) - width) * lanes
        at, wide = places * width[..., None, None], width[..., None, None]
        place = begin[..., None, None] + (at >> 3) * lanes + torch.arange(lanes, device=slots.device)
        place = row_places(bodies)[..., None] + place
        behind = (place + lanes).clamp(max=bodies.numel() - 1)  # what lies there counts where an element goes on there
        both = bodies.view(-1)[place].long() | bodies.view(-1)[behind].long() << 8
        planes = (both >> (at & 7) & (1 << wide) - 1) + least[..., None, None]
        apart = torch.empty_like(planes.flatten(-2))
        apart[..., group["order"]] = planes.flatten(-2)
        turned = sum(apart[:, :, plane, :elements] << 8 * plane for plane in range(item))
        assert isinstance(turned, Tensor)
        numbers = shifted(turned, 1) | turned << 8 * item - 1
        slots[:, group["bytes"]] = numbers.to(NUMBERS[item]).view(torch.uint8)
    return {"slots": slots}


def row_places(rows: Tensor) -> Tensor:
    """Where each row begins, [rows, 1, 1, 1]."""
    return (torch.arange(len(rows), device=rows.device) * rows.shape[1])[:, None, None, None]
