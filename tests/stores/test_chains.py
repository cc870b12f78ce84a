"""Ends of chains come first, circles before all: against a search that looks at everything again for each."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from kvfsm.runtime.stores.chains import ends_first


def by_looking(order: list[int], before: list[int]) -> Iterator[int]:
    """The same, one by one: who goes is the first of those behind whom nobody stands any more."""

    def ancestors(one: int) -> set[int]:
        seen: set[int] = set()
        while (one := before[one]) >= 0 and one not in seen:
            seen.add(one)
        return seen

    circling = {one for one in range(len(before)) if any(each in ancestors(each) for each in {one, *ancestors(one)})}
    yield from (one for one in order if one in circling)
    left = [one for one in order if one not in circling]
    there = set(range(len(before))) - circling
    while left:
        ends = [one for one in left if not any(before[other] == one for other in there)]
        if not ends:
            return
        yield ends[0]
        left.remove(ends[0])
        there.remove(ends[0])


@pytest.mark.parametrize("seed", range(60))
def test_objects_go_as_a_search_finds_that_they_may(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.randint(1, 12)
    before = [chance.randint(-1, count - 1) if seed % 2 else chance.randint(-1, one - 1) for one in range(count)]
    order = chance.sample(range(count), chance.randint(0, count))
    assert list(ends_first(order, np.array(before, np.intp))) == list(by_looking(order, before))


def test_the_searches_meet_circles_chains_and_those_who_stay() -> None:
    found = [list(by_looking([0, 1, 2], before)) for before in ([1, 0, 0], [-1, 0, 1])]
    assert found == [[0, 1, 2], [2, 1, 0]] and list(by_looking([0, 1], [-1, 0, 1])) == []


def test_a_chain_as_long_as_all_objects_is_no_circle() -> None:
    for count in (1, 2, 3, 4, 5, 1023, 1024, 1025):
        before = np.arange(-1, count - 1)
        assert list(ends_first(range(count), before)) == list(range(count))[::-1]
