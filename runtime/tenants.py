"""Whose slots are whose, and whose go when somebody wants room: the budget that a kind's spec gives each tenant.

A tenant is the salt of its keys. Budgets are soft: one that is alone may have the whole pool. When room is wanted,

1. a tenant that would be over its budget gives of its own, down to its budget;
2. then those give who are over theirs, none below it;
3. then the tenant gives of its own;
4. and when it has nothing left that can go, anybody gives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

from .pool import Pool

_AT_FIRST = 1024
Evict = Callable[[int, frozenset[int] | None], int]
"""Evicts up to so many slots of some tenants (None: of anybody) in the spec's order; returns how many went."""


class Tenants:
    """Numbers for salts, from 1 on. One whose slots are all free may go to another salt.

    Args:
        most: the greatest number. While all others are in use, further salts share it.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._numbers: dict[bytes, int] = {}
        self._spare: list[int] = []
        self._room = min(_AT_FIRST, most - 1)  # so many numbers are given before unused ones are looked for

    def number(self, salt: bytes, pools: Collection[Pool]) -> int:
        """The number of a salt, a new one if it has none; ``pools`` say which are in use."""
        if (known := self._numbers.get(salt)) is not None:
            return known
        if not self._spare and len(self._numbers) >= self._room:
            self._forget_unused(pools)
            self._room = min(max(self._room, 2 * len(self._numbers)), self._most - 1)
        if self._spare:
            number = self._spare.pop()
        elif len(self._numbers) < self._room:
            number = len(self._numbers) + 1
        else:
            return self._most
        self._numbers[salt] = number
        return number

    def _forget_unused(self, pools: Collection[Pool]) -> None:
        """Take back the numbers of tenants that have no slot in any pool."""
        used = {tenant for pool in pools for tenant, count in pool.usage.items() if count}
        for pool in pools:
            pool.usage = Counter({tenant: count for tenant, count in pool.usage.items() if count})
        self._spare = [number for number in self._numbers.values() if number not in used]
        self._numbers = {salt: number for salt, number in self._numbers.items() if number in used}


def evict_in_turn(pool: Pool, budget: int, count: int, tenant: int | None, want: int, evict: Evict) -> int:
    """Evict up to ``count`` slots of a pool, in the order of turns above; returns how many went.

    Args:
        pool: whose ``usage`` is followed.
        budget: slots of each tenant.
        count: how many are to go.
        tenant: who wants room; None when it is nobody's, and then there is no own.
        want: slots that the tenant will have besides those it has.
        evict: takes victims.
    """
    done = 0
    if tenant is not None and (over := pool.usage[tenant] + want - budget) > 0:
        done += evict(min(count, over), frozenset((tenant,)))
    while done < count:
        surplus = {other: used - budget for other, used in pool.usage.items() if used > budget and other != tenant}
        if not surplus:
            break
        gone = evict(min(count - done, *surplus.values()), frozenset(surplus))
        if not gone:
            break
        done += gone
    if done < count and tenant is not None:
        done += evict(count - done, frozenset((tenant,)))
    if done < count:
        done += evict(count - done, None)
    return done
