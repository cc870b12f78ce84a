"""Ways to begin: what a request may load and lease, what each of these takes, and whether it can ever be had.

Nothing is taken here; that is for ``admission.py``. Callers hold the manager's lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .answers import Answer, Plan, Reason
from .expanding import packed_places
from .limits import Limits
from .reservation import Rejected

if TYPE_CHECKING:
    from .manager import Manager


@dataclass(frozen=True, slots=True)
class Way:
    """One way to begin.

    Attributes:
        plan: what is loaded; None: nothing is.
        leased: granules that are.
        destinations: slots that the load takes, by kind.
        beside: slots that the row takes besides, by kind.
        in_flight: what the load has under way, by name of the limit.
    """

    plan: Plan | None
    leased: int
    destinations: Mapping[str, int]
    beside: Mapping[str, int]
    in_flight: Mapping[str, int]


class Ways:
    """Ways to begin with a manager's slots.

    Args:
        manager: whose slots.
        limits: of what is under way at once.
        boundaries: as for ``Admission``.
    """

    def __init__(self, manager: Manager, limits: Limits, boundaries: bool) -> None:
        self._manager = manager
        self._most = limits.by_name()
        self.boundaries = boundaries and bool(manager.core.trailing)

    def of(self, answer: Answer, tokens: int, step: int | None) -> list[Way]:
        """From the most that is reused to nothing. Raises Refused (LEASE) for another manager's answer."""
        self._manager.check_own(answer)
        now, ways = answer.now // self._manager.profile.granule, []
        compute = self._need(tokens, now, step)
        if (plan := answer.plan) is not None:
            destinations, in_flight = self.of_plan(plan)
            # If the load fails, the row is computed from what is leased now, in the load's own slots and these.
            go_on = self._need(tokens, plan.boundary, step)
            beside = {kind: max(go_on[kind], compute[kind] - destinations.get(kind, 0)) for kind in compute}
            ways.append(Way(plan, now, destinations, beside, in_flight))
        if now:
            ways.append(Way(None, now, {}, compute, {}))
        ways.append(Way(None, 0, {}, self._need(tokens, 0, step), {}))
        return ways

    def of_plan(self, plan: Plan) -> tuple[dict[str, int], dict[str, int]]:
        """Destination slots of a plan by kind, and what it has in flight by name of the limit."""
        core = self._manager.core
        pools, spot = core.pools, core.index.locate(plan.claim.digests, plan.boundary)
        by_tier = {"store": {kind: len(places) for kind, places in plan.wanted.items()}}
        by_tier["packed"] = {"compressed_kv": len(packed_places(core, plan, spot))} if plan.expand else {}
        destinations: dict[str, int] = {}
        in_flight: dict[str, int] = {}
        for tier, counts in by_tier.items():
            for kind, count in counts.items():
                destinations[kind] = destinations.get(kind, 0) + count
            in_flight[f"blocks from the {tier}"] = sum(counts.values())
            in_flight[f"bytes from the {tier}"] = sum(n * pools[kind].arena.stride for kind, n in counts.items())
        return destinations, in_flight

    def never(self, way: Way, tokens: int) -> Rejected | None:
        """Why a way is closed for ever, be it for the prompt's later steps; None where it is not."""
        core, whole = self._manager.core, self._manager.requests.need(tokens, 0)
        if not len(self._manager.requests.active):
            return Rejected(Reason.CAPACITY, "requests", "a row, and the manager was made with rows=0")
        for name, amount in way.in_flight.items():
            if name in self._most and amount > self._most[name]:
                what = f"{amount} {name}, and {self._most[name]} may be in flight"
                return Rejected(Reason.CAPACITY, "admission", what)
        for kind, count in way.beside.items():
            leased = len(core.places(kind, way.leased)) if kind in core.kinds else 0
            need = max(whole[kind], count + way.destinations.get(kind, 0) + leased)
            if need > core.capacity(kind):
                what = f"{need} slots of {kind}, and the pool has {core.capacity(kind)}"
                return Rejected(Reason.CAPACITY, "pool", what)
        return None

    def first(self, tokens: int, reused: int, step: int | None) -> int:
        """Tokens that a first step ends at which goes on after ``reused`` granules."""
        return self.step_stop(tokens, reused * self._manager.profile.granule, step)

    def step_stop(self, tokens: int, start: int, step: int | None) -> int:
        """See ``Admission.step_stop``."""
        stop = tokens if step is None else min(tokens, start + step)
        whole = tokens - tokens % self._manager.profile.granule
        return whole if self.boundaries and start < whole < stop else stop

    def _need(self, tokens: int, reused: int, step: int | None) -> dict[str, int]:
        """Slots by kind of such a first step."""
        return self._manager.requests.need(self.first(tokens, reused, step), reused)
