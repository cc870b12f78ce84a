"""Packed slots as the host keeps them: nothing that packing didn't make is expanded."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from kvfsm.kernels.packed_slot import PackedSlot, expand_slots, pack_slots, unwrapped, wrapped
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.layout import Layout

from .packable import random_slots

TINY = PROFILES["tiny_deepseek_v4"].layouts["compressed_kv"]


def altered(blob: bytes, at: int, with_: bytes) -> bytes:
    return blob[:at] + with_ + blob[at + len(with_) :]


def sealed(layout: Layout, body: bytes, lossy: bool = False) -> bytes:
    """A body that somebody made up, with the right checksum."""
    return wrapped(layout, PackedSlot(body, lossy))


def test_what_packing_did_not_make_is_refused_with_its_place() -> None:
    data = random_slots(TINY, 5, 1)
    (blob,) = pack_slots(TINY, data)
    body = unwrapped(TINY, blob).body
    other = PROFILES["tiny_gemma3"].layouts["compressed_kv"]
    wrong = {
        "0 bytes are fewer than the 24 of a header": b"",
        "begins with 00565001, which no packing writes": altered(blob, 0, b"\0"),
        "begins with 4b565003": altered(blob, 3, b"\3"),
        f"is of layout {TINY.digest[:16]}, not of layout": None,
        "behind its header, which says": blob[:-1],
        f"has {len(body) + 1} bytes behind": blob + b"\0",
        "its bytes don't match their checksum": altered(blob, len(blob) - 1, bytes((blob[-1] ^ 1,))),
        "ends before the payloads": sealed(TINY, body[:40]),
        "block 1 begins at byte 7": sealed(TINY, altered(body, 4, struct.pack("<I", 7))),
        "block 0 has a plane of 9 bits": sealed(TINY, altered(body, 4 * 4 + 1, b"\x09")),
        "and its blocks take": sealed(TINY, body + bytes(32)),
    }
    for message, bad in wrong.items():
        layout = other if bad is None else TINY
        with pytest.raises(ValueError, match="packed slot 1 of 2 of compressed_kv: ") as caught:
            expand_slots(layout, [pack_slots(layout, random_slots(layout, 6, 1))[0], blob if bad is None else bad])
        assert message in str(caught.value) and "; fix: " in str(caught.value)


def test_a_form_is_part_of_what_the_checksum_covers() -> None:
    (blob,) = pack_slots(TINY, random_slots(TINY, 7, 1))
    with pytest.raises(ValueError, match="checksum"):
        unwrapped(TINY, altered(blob, 3, b"\2"))


@pytest.mark.parametrize("lossy", [False, True])
def test_any_change_of_one_byte_is_refused(lossy: bool) -> None:
    chance = np.random.default_rng(8)
    (blob,) = pack_slots(TINY, random_slots(TINY, 8, 1), lossy)
    for at in [*range(40), *chance.integers(40, len(blob), 200).tolist()]:
        with pytest.raises(ValueError, match="fix: drop it"):
            unwrapped(TINY, altered(blob, at, bytes((blob[at] ^ int(chance.integers(1, 256)),))))
