"""What covers the tokens of one live request: compressed entries, tail and window together leave no gap (S13).

All of it is read off the state words. Two numbers tie a block's word to tokens: the batches in which the entries of its
prompt came, and one batch a stride since.
"""

from __future__ import annotations

from dataclasses import dataclass

from .live_rows import LiveRows


@dataclass(frozen=True, slots=True)
class Coverage:
    """What covers the tokens [0, ``tokens``) of one request, read off the state words.

    ``entries`` counts compressed entries by ratio, ``indexed`` those that the indexer has keys of; ``compressed``,
    ``tail`` and ``window`` are token ranges; ``gaps`` are what none covers.
    """

    tokens: int
    entries: dict[int, int]
    indexed: int
    compressed: range
    tail: range
    window: range
    gaps: tuple[range, ...]


def gaps(tokens: int, covers: tuple[range, ...]) -> tuple[range, ...]:
    """What none of some ranges covers of [0, ``tokens``), in order.

    >>> gaps(10, (range(0, 4), range(6, 9)))
    (range(4, 6), range(9, 10))
    """
    at, found = 0, []
    for cover in sorted((one for one in covers if len(one)), key=lambda one: one.start):
        if cover.start > at:
            found.append(range(at, cover.start))
        at = max(at, cover.stop)
    if at < tokens:
        found.append(range(at, tokens))
    return tuple(found)


def coverage_of(rows: LiveRows, row: int, window: int | None) -> Coverage:
    """What covers a row whose tail's word is up to date; ``window`` tokens are read by a query."""
    now, profile = int(rows.tokens[row]), rows.manager.profile
    ratios = sorted({group.ratio for group in profile.groups_of("compressed_kv")})
    compressed = _vouched_for(rows, row, "compressed_kv") if ratios else 0
    keyed = profile.groups_of("indexer_state")
    indexed = _vouched_for(rows, row, "indexer_state") // keyed[0].ratio if keyed else 0
    tail = range(now, now)
    if rows.has_tail:
        table, one = rows.pool("uncompressed_tail").table, rows.tail[row : row + 1]
        begin = int(table.fields("position", one)[0]) * rows.widest
        tail = range(begin, begin + int(table.fields("rows", one)[0]))
    read = range(now, now) if window is None else range(max(0, now - window + 1), now)
    entries = {ratio: compressed // ratio for ratio in ratios}
    widest = max((ratio * count for ratio, count in entries.items()), default=0)
    least = min((ratio * count for ratio, count in entries.items()), default=0)
    uncovered = gaps(now, (range(0, least), tail, read))
    return Coverage(now, entries, indexed, range(0, widest), tail, read, uncovered)


def version_at(rows: LiveRows, row: int, block: int, tokens: int) -> int:
    """Batches that a block has seen when the row is at ``tokens``, which is in it or at its end."""
    start, prefilled = block * rows.granule, int(rows.prefilled[row])
    whole = tokens - tokens % rows.stride
    if prefilled <= start:
        return (whole - start) // rows.stride
    before = min(prefilled, start + rows.granule) // rows.stride * rows.stride
    return int(rows.batches[row, block]) + max(0, whole - before) // rows.stride


def _vouched_for(rows: LiveRows, row: int, kind: str) -> int:
    """Tokens from the start whose entries, or keys, the words of a row's blocks vouch for."""
    shared, blocks = int(rows.shared[row]), int(rows.blocks[row])
    if max(group.ratio for group in rows.manager.profile.groups_of("compressed_kv")) == 1:
        return min(int(rows.tokens[row]), blocks * rows.granule)  # plain rows are there as soon as they are written
    versions = rows.pool(kind).table.fields("version", rows.held(kind, row, shared, blocks)).tolist()
    owned = sum(_entries_of(rows, row, block, version) for block, version in enumerate(versions, shared))
    return shared * rows.granule + owned


def _entries_of(rows: LiveRows, row: int, block: int, version: int) -> int:
    """Tokens of a block whose entries its word vouches for."""
    start, prefilled = block * rows.granule, int(rows.prefilled[row])
    batch = min(prefilled, start + rows.granule) // rows.stride * rows.stride - start
    if batch <= 0:
        return version * rows.stride
    return batch + (version - int(rows.batches[row, block])) * rows.stride if version else 0
