"""H-33: a length that a draft's allowance shortened has its own window checked, not the window of the longer one.

The query at 6 reads positions 3..5, blocks 1 and 2. That blocks 2 and 3 are there, which length 8 needs, says nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvfsm.runtime import publication
from kvfsm.runtime.matching import Matcher


def scenario(bench: Any) -> None:
    profile = bench.profile(
        2, bench.group("full", "compressed_kv", 2, 2), bench.window(2, 2),
        window=4, window_policy="blocks", window_block=2,
    )  # fmt: skip
    manager = bench.manager(profile, 16)
    keys = manager.keys(bench.tokens(9))
    bench.put(manager, keys, 0, 4, kinds=("compressed_kv",))
    spot = manager.core.index.locate(keys.digests, 4)
    window = manager.core.pools["swa_window"]
    for blocks, expected in (([2, 3], 0), ([1], 6)):  # residency {2, 3}, then {1, 2, 3}
        slots = window.take(len(blocks), {})
        places = np.array(blocks)
        publication.add(manager.core, "swa_window", spot, places, slots)
        given = window.rules.seal(places, places, lossy=False)
        window.must("seal", slots, "publish", expected=window.generations(slots), **given)
        assert manager.match(keys, 9).length == 8
        # sign of the defect: 6 with block 1 missing
        assert manager.match(keys, 9, draft=2).length == expected
    with manager.acquire(manager.match(keys, 9, draft=2)) as lease:
        assert len(lease.slots["swa_window"]) == 2
    bench.audited(manager)


def test_H33_the_window_is_asked_after_the_allowance(bench: Any) -> None:
    scenario(bench)


def test_H33_control_a_window_that_is_asked_before_is_noticed(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    joint = Matcher._joint
    monkeypatch.setattr(Matcher, "_joint", lambda self, found, cap, skip: max(0, joint(self, found, cap, 0) - skip))
    with pytest.raises(AssertionError, match="6 == 0"):
        scenario(bench)
