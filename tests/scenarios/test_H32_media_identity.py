"""H-32: a picture's full identity, and the place in it, are part of the key of each block that its placeholders touch.

Two pictures whose identities agree in the last 16 bits, under equal text: they share the block before the picture, and
none after.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from kvfsm.runtime.keys import Keys, Media

START, STOP = 100, 500


def pictures() -> tuple[bytes, bytes]:
    """Two 256-bit identities with equal low 16 bits."""
    first = hashlib.sha256(b"picture").digest()
    return first, hashlib.sha256(b"another").digest()[:-2] + first[-2:]


def scenario(bench: Any, open_store: Any) -> None:
    profile = bench.profile(64, bench.group("full", "compressed_kv", 64, 64))
    store, prompt = open_store(profile), bench.tokens(600)
    prompt[START:STOP] = [1000] * (STOP - START)
    first, second = pictures()
    manager = bench.manager(profile, 16, store=store)

    def keys(picture: bytes, start: int = START) -> Keys:
        made: Keys = manager.keys(prompt, media=[Media(picture, start, STOP)])
        return made

    bench.put(manager, keys(first), 0, 9, tag=1)
    assert manager.match(keys(first)).length == 576
    # sign of the defect: anything above 64
    assert manager.match(keys(second)).length == 64
    cold = bench.manager(profile, 16, store=store)
    assert cold.match(keys(second)).length == 64 and cold.match(keys(first)).length == 576
    assert manager.match(keys(first, START + 1)).length == 64  # another place in the same picture
    assert manager.match(manager.keys(prompt)).length == 64

    bench.put(manager, keys(second), 1, 9, tag=2)
    for picture, tag in ((first, 1), (second, 2)):
        with manager.acquire(manager.match(keys(picture))) as lease:
            rows = lease.view("compressed_kv", "rows", 0)
            assert (rows[0] == 1).all() and (rows[1:] == tag).all()
    bench.audited(manager)


def test_H32_pictures_that_agree_in_16_bits_share_no_block(bench: Any, open_store: Any) -> None:
    scenario(bench, open_store)


def test_H32_control_sixteen_bits_of_an_identity_are_noticed(
    bench: Any, open_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = Keys._frames

    def truncated(self: Keys, start: int) -> Any:
        self._media = tuple(replace(item, content=item.content[-2:]) for item in self._media)
        return frames(self, start)

    monkeypatch.setattr(Keys, "_frames", truncated)
    with pytest.raises(AssertionError, match="576"):
        scenario(bench, open_store)
