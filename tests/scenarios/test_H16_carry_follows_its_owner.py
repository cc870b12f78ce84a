"""H-16: what a compressor carries is found by its request and not by the request's place in the batch.

The batch is reordered between steps, and a newcomer takes the row of one that was aborted. Each entry is built from
rows of its own request, and the newcomer starts with nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvfsm.runtime.requests import RequestTable

TAIL, RATIO = "uncompressed_tail", 4


class Decoder:
    """Writes the raw row of each new token into its request's tail, or makes an entry of the last ``RATIO`` rows."""

    def __init__(self, manager: Any) -> None:
        self.manager = manager
        self.entries: list[list[int]] = []

    def write(self, rows: list[int], tags: list[int]) -> None:
        """The row of each request's last token."""
        tails = self.manager.requests.tail_table(rows)
        for row, tail, tag in zip(rows, tails.tolist(), tags, strict=True):
            pending = self.manager.read(TAIL, "pending", 0, np.array([tail]))[0, :, 0]
            at = (int(self.manager.requests.tokens[row]) - 1) % RATIO
            if at < RATIO - 1:
                pending[at] = tag
            else:
                self.entries.append([*pending.tolist(), tag])

    def step(self, rows: list[int], tags: list[int]) -> None:
        self.manager.requests.step(rows)
        self.write(rows, tags)


def scenario(bench: Any) -> None:
    profile = bench.profile(
        16, bench.group("compressed", "compressed_kv", 16, 16, ratio=RATIO), bench.tail(RATIO, 16), scores="raw"
    )
    manager = bench.manager(profile, 8)
    requests, decoder = manager.requests, Decoder(manager)
    a = requests.admit(1, owner="A")
    decoder.write([a], [1])
    for _ in range(2):
        decoder.step([a], [1])
    b = requests.admit(1, owner="B")
    decoder.write([b], [2])
    assert [len(requests.coverage(row).tail) for row in (a, b)] == [3, 1]

    decoder.step([b, a], [2, 1])  # the batch was [A, B]
    # sign of the defect: A's entry has a row of B
    assert decoder.entries == [[1, 1, 1, 1]]
    assert (requests.coverage(a).entries, len(requests.coverage(a).tail)) == ({RATIO: 1}, 0)
    assert (requests.coverage(b).entries, len(requests.coverage(b).tail)) == ({RATIO: 0}, 2)

    requests.finish(b)
    c = requests.admit(1, owner="C")
    assert c == b
    decoder.write([c], [3])
    # sign of the defect: C starts with the rows of B
    assert requests.coverage(c).tail == range(0, 1)
    for _ in range(3):
        decoder.step([a, c], [1, 3])
    assert decoder.entries[1:] == [[3, 3, 3, 3]] and len(requests.coverage(a).tail) == 3
    bench.audited(manager)


def test_H16_reordering_the_batch_changes_nothing(bench: Any) -> None:
    scenario(bench)


def test_H16_control_a_carry_by_place_in_the_batch_is_noticed(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    by_owner = RequestTable.tail_table
    monkeypatch.setattr(RequestTable, "tail_table", lambda self, rows: by_owner(self, np.arange(len(rows))))
    with pytest.raises(AssertionError, match=r"\[\[0, 0, 0, 1\]\] == \[\[1, 1, 1, 1\]\]"):
        scenario(bench)
