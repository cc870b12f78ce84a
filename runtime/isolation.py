"""What one tenant leaves in memory no other can read.

Keys keep tenants apart while their state is cached: a tenant is a salt, and other salts find nothing. But the bytes of
a slot stay when it is free, and whoever takes it sees them until they are overwritten: in the views of a fill, in rows
of a block that is filled in part, in a load that failed half way. So the last tenant of a slot is remembered, and where
it goes to another one it is cleared before anybody has it. One rule for all takers: fills, loads, live requests,
scratch.

What nobody said a tenant of counts as another one each time, and is always cleared. While no salt was seen at all
there is one tenant, and nothing is ever cleared. Memory that was handed in (``buffers``) may hold anything: it is
cleared at its first use.

Clearing costs a pass over the slots that change hands, under the manager's lock. ``Manager(scrub="none")`` leaves it
out, for those whose tenants may see each other's state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .backend import Backend

if TYPE_CHECKING:
    from .pool import Pool

CLEAN = 0
"""Whose bytes lie in a slot: nobody's, it is cleared."""
UNKNOWN = -1
"""Somebody's; nobody said whose."""
_ALL = 1  # of the one tenant that there is while no salt was seen
_REMEMBERED = 1 << 16  # salts whose numbers are remembered; one that comes again after that counts as new


class Isolation:
    """Clears slots that go to another tenant.

    Args:
        backend: clears them.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._apart = False
        self._numbers: dict[bytes, int] = {}
        self._next = _ALL + 1

    @property
    def apart(self) -> bool:
        """Whether tenants are told apart: some salt was seen."""
        return self._apart

    def see(self, salt: bytes) -> None:
        """A salt is in use somewhere: from now on tenants are told apart. Needs no lock."""
        if salt:
            self._apart = True

    def whose(self, salt: bytes | None) -> int:
        """The tenant of a salt as a number, never that of another one; None: nobody says. The caller holds the lock.

        Raises:
            TypeError: a salt that is not bytes.
        """
        if salt is not None and not isinstance(salt, bytes):
            raise TypeError(f"the salt is {salt!r}; give bytes, such as keys.salt, or None")
        self.see(salt or b"")
        if not self._apart:
            return _ALL
        if salt is None:
            return UNKNOWN
        if salt not in self._numbers:
            if len(self._numbers) == _REMEMBERED:
                self._numbers.clear()
            self._numbers[salt] = self._next
            self._next += 1
        return self._numbers[salt]

    def clear(self, pool: Pool, slots: npt.NDArray[np.intp], whose: int) -> None:
        """Clear those of some free slots that hold what is not this tenant's. The caller holds the lock."""
        left = pool.left[slots]
        foreign = left != CLEAN
        if whose != UNKNOWN:
            foreign &= left != whose
        if foreign.any():
            self._backend.scrub(pool.arena.region, slots[foreign])
            pool.left[slots[foreign]] = CLEAN
