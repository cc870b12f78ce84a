"""H-19: padding of the window's page table is a guard that nothing resolves, and the map of positions is total."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvfsm.runtime.errors import Refused
from kvfsm.runtime.requests import GUARD


def test_H19_positions_past_the_window_width_stay_with_their_user(bench: Any) -> None:
    profile = bench.profile(
        64, bench.group("full", "compressed_kv", 64, 64), bench.window(64, 64),
        window=1024, window_policy="blocks", window_block=64,
    )  # fmt: skip
    manager = bench.manager(profile, {"compressed_kv": 128, "swa_window": 40})
    other, user = manager.requests.admit(64), manager.requests.admit(1024)
    theirs = set(manager.requests.window_table([other])[0].tolist()) - {GUARD}
    assert theirs == {0}  # the block that a padding of 0 would name

    table = manager.requests.window_table([user], 64)[0]
    assert manager.requests.resolve(user, 1023) == (table[15], 63)
    assert (table[16:] == GUARD).all() and GUARD not in range(40)
    for position in range(1024, 2048):
        manager.requests.step([user])
        slot, offset = manager.requests.resolve(user, position)
        # sign of the defect: position 1024 reads padding and lands in block 0
        assert slot not in theirs and offset == position % 64
        owned = set(manager.requests.window_table([user])[0].tolist()) - {GUARD}
        assert slot in owned and len(owned) <= 17
    window = np.array([manager.requests.resolve(user, position) for position in range(2048 - 1024, 2048)])
    assert len(np.unique(window, axis=0)) == 1024  # total, and no two positions in one place
    for position in (2048, 2048 - 1025):
        with pytest.raises(Refused, match="not in the window"):
            manager.requests.resolve(user, position)
    with pytest.raises(Refused, match="padding"):
        manager.requests.resolve_entry(user, 40)
    bench.audited(manager)
