"""H-21: alignment is judged for the I/O mode in force: buffered I/O takes any stride, direct I/O whole blocks.

Slots of 3098112 bytes are multiples of 512 and not of 4096. Buffered: accepted. Direct: refused; or padded to 3100672
bytes, at which slot 1 then lies, in memory and in a file that is written and read past the page cache.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvfsm.runtime import manager as managers
from kvfsm.runtime.profile import ProfileError
from kvfsm.runtime.profile_plan import GroupPlan, PartPlan

KV, PAYLOAD, PADDED, DISK = "compressed_kv", 3098112, 3100672, 4096


def opened(bench: Any, alignment: int, io_bytes: int) -> tuple[Any, Any]:
    """A manager over slots of that alignment with two granules published, and its answer."""
    parts = (PartPlan("rows", 16, (PAYLOAD // 16,), "uint8", "tag"),)
    profile = bench.profile(16, GroupPlan("full", KV, (0,), parts, 1, 16), alignment=alignment)
    manager = bench.manager(profile, 2, io_bytes=io_bytes)
    keys = manager.keys(bench.tokens(33))
    for place in range(2):
        bench.put(manager, keys, place, place + 1, tag=place + 1)
    return manager, manager.match(keys)


def open_direct(path: Path) -> int:
    """Past the page cache, where the file system can do that; else the checks of alignment alone count."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    except OSError as problem:
        assert problem.errno == errno.EINVAL
        return os.open(path, os.O_RDWR | os.O_CREAT)


def scenario(bench: Any, path: Path) -> None:
    manager, answer = opened(bench, 512, io_bytes=1)
    layout = manager.profile.layouts[KV]
    assert (layout.slot_bytes, layout.check_io("buffered", DISK), answer.kind) == (PAYLOAD, PAYLOAD, "HIT")

    with pytest.raises(ProfileError, match=f"pad the stride to {PADDED}"):
        layout.check_io("direct", DISK)
    _, answer = opened(bench, 512, io_bytes=DISK)
    # sign of the defect: accepted, and slot 1 is written at byte 3098112
    assert (answer.kind, answer.reason, answer.length) == ("REJECT", "ALIGN", 0)

    assert layout.check_io("direct", DISK, pad=True) == PADDED
    manager, answer = opened(bench, DISK, io_bytes=DISK)
    arena = manager.core.pools[KV].arena
    assert (arena.stride, answer.kind, answer.length) == (PADDED, "HIT", 32)
    assert manager.profile.layouts[KV].copy_ranges(1) == ((PADDED, PAYLOAD),)
    handle = open_direct(path)
    try:
        for slot in (0, 1):
            assert os.pwrite(handle, arena.bytes[slot], slot * arena.stride) == PADDED
        back = managers.Manager(manager.profile, {KV: 2}, manager.backend, io_bytes=DISK).core.pools[KV].arena
        assert os.preadv(handle, [back.bytes[1]], PADDED) == PADDED
    finally:
        os.close(handle)
    assert (back.bytes[1, :PAYLOAD] == 2).all() and np.array_equal(back.bytes[1], arena.bytes[1])
    bench.audited(manager)


def test_H21_strides_fit_the_mode_in_force(bench: Any, tmp_path: Path) -> None:
    scenario(bench, tmp_path / "slots")


def test_H21_control_a_check_that_does_not_know_the_mode_is_noticed(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = managers.alignment
    monkeypatch.setattr(managers, "alignment", lambda arenas, copy_bytes, io_bytes: judged(arenas, copy_bytes, 1))
    with pytest.raises(AssertionError, match="REJECT"):
        scenario(bench, tmp_path / "slots")
