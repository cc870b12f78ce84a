"""Keys are equal exactly when everything before them is."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from kvfsm.runtime.keys import Keys, Media

BASE: dict[str, Any] = {"granule": 4, "identity": "model", "tokens": list(range(12)), "salt": b"s", "adapter": "a@1"}


def keys(**changes: Any) -> Keys:
    given = BASE | changes
    return Keys(given.pop("granule"), given.pop("identity"), given.pop("tokens"), **given)


@pytest.mark.parametrize(
    "changes",
    [{"identity": "model2"}, {"salt": b"t"}, {"salt": b""}, {"adapter": "a@2"}, {"adapter": ""}, {"granule": 2},
     {"identity": "models", "salt": b""}, {"media": [Media(b"x", 0, 3)]}, {"tokens": [9, *range(1, 12)]}],
)  # fmt: skip
def test_everything_that_matters_changes_the_first_key(changes: dict[str, Any]) -> None:
    assert keys().digest(0) == keys().digest(0) != keys(**changes).digest(0)


def test_a_change_of_a_token_changes_all_keys_from_there_on() -> None:
    other = keys(tokens=[*range(6), 99, *range(7, 12)])
    assert [a == b for a, b in zip(keys().digests, other.digests, strict=True)] == [True, False, False]


@pytest.mark.parametrize("cuts", list(itertools.combinations(range(13), 2)))
def test_growing_gives_the_keys_of_the_whole(cuts: tuple[int, int]) -> None:
    grown = keys(tokens=BASE["tokens"][: cuts[0]])
    grown.extend(BASE["tokens"][cuts[0] : cuts[1]])
    branch = grown.fork()
    grown.extend(np.array(BASE["tokens"][cuts[1] :], np.int64))
    branch.extend([77] * 20)
    assert grown.digests == keys().digests
    assert grown.array.shape == (3, 32) and bytes(grown.array[2]) == grown.digest(2)
    assert branch.tokens == cuts[1] + 20


def test_media_change_the_keys_they_touch_and_those_after() -> None:
    plain, one = keys(), keys(media=[Media(b"\x01" + b"\0" * 31, 5, 7)])
    two, moved = keys(media=[Media(b"\x02" + b"\0" * 31, 5, 7)]), keys(media=[Media(b"\x01" + b"\0" * 31, 6, 8)])
    found = [plain, one, two, moved]
    assert len({each.digest(0) for each in found}) == 1
    assert len({each.digest(1) for each in found}) == len({each.digest(2) for each in found}) == 4


def test_a_media_frame_is_not_mistaken_for_tokens() -> None:
    with pytest.raises(ValueError, match="ids in"):
        keys(tokens=[-1, 0, 0, 0])
    with pytest.raises(ValueError, match="ids in"):
        keys(tokens=[1 << 31])
    with pytest.raises(ValueError, match="overlap"):
        keys(media=[Media(b"a", 0, 3), Media(b"b", 2, 4)])
    with pytest.raises(ValueError, match="whole numbers"):
        keys(tokens=[0.5])


def test_the_dtype_of_tokens_does_not_matter() -> None:
    assert keys(tokens=np.arange(12, dtype=np.uint16)).digests == keys(tokens=np.arange(12, dtype=np.int64)).digests
