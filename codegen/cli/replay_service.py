"""What work costs in a replay: the time of an engine's step, and of a load.

The engine does one step at a time. The disk moves one load after the other, and so does what expands packed granules;
both work beside the engine. Sizes are those of the profile's real slots. Writes to the store cost nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ...runtime.limits import TIERS
from ...runtime.ticket import Ticket
from .replay_clock import VirtualTime

T = TypeVar("T")

_PER_MS = 1e6  # bytes in a millisecond at 1 GB/s


@dataclass(frozen=True, slots=True)
class Stall:
    """The disk moves nothing in [``start``, ``stop``) milliseconds."""

    start: float
    stop: float


@dataclass(frozen=True, slots=True)
class Costs:
    """Constants of a machine.

    Attributes:
        step_ms: of an engine's step, however many requests it decodes for.
        prefill: tokens of prompts computed a second; they come on top of the step.
        disk: GB a second that the store gives.
        load_ms: until a load's first byte.
        expand: GB a second, of expanded bytes.
        stalls: of the disk, in the order of time.
    """

    step_ms: float = 20.0
    prefill: float = 60_000.0
    disk: float = 5.0
    load_ms: float = 1.0
    expand: float = 50.0
    stalls: tuple[Stall, ...] = ()

    def step(self, tokens: int) -> float:
        """Milliseconds of a step that computes so many tokens of prompts."""
        return self.step_ms + 1000.0 * tokens / self.prefill

    def read(self, begin: float, count: int) -> float:
        """When a disk that is free at ``begin`` has given so many bytes.

        >>> Costs(disk=1.0, load_ms=0.0, stalls=(Stall(5, 100),)).read(3, 4_000_000)
        102.0
        """
        left = self.load_ms + count / (self.disk * _PER_MS)
        for stall in self.stalls:
            if begin + left <= stall.start:
                break
            if begin < stall.stop:
                left -= max(0.0, stall.start - begin)
                begin = stall.stop
        return begin + left


@dataclass(slots=True)
class InFlight:
    """What open loads bring, by tier: destination slots and their real bytes, now and at most."""

    blocks: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    blocks_most: Counter[str] = field(default_factory=Counter)
    bytes_most: Counter[str] = field(default_factory=Counter)
    moved: Counter[str] = field(default_factory=Counter)  # bytes, all together

    def add(self, tier: str, blocks: int, count: int) -> None:
        """A load begins."""
        self.blocks[tier] += blocks
        self.bytes[tier] += count
        self.moved[tier] += count
        self.blocks_most[tier] = max(self.blocks_most[tier], self.blocks[tier])
        self.bytes_most[tier] = max(self.bytes_most[tier], self.bytes[tier])

    def remove(self, tier: str, blocks: int, count: int) -> None:
        """It has ended."""
        self.blocks[tier] -= blocks
        self.bytes[tier] -= count


class VirtualLoads(Executor):
    """An executor whose calls come when their loads have had their time. What a call raises goes to who advances time.

    Args:
        clock: the time.
        costs: of loads.
        slot_bytes: of the real slots, by kind.
        opened: told of the request and the ticket of each load, as the scheduler submits them.
    """

    def __init__(
        self,
        clock: VirtualTime,
        costs: Costs,
        slot_bytes: Mapping[str, int],
        opened: Callable[[Any, Ticket], None] = lambda live, ticket: None,
    ) -> None:
        self.in_flight = InFlight()
        self._clock, self._costs, self._slot_bytes, self._opened = clock, costs, slot_bytes, opened
        self._disk_free = self._expander_free = 0.0

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Have a load's call made when its bytes are there: ``fn(request, ticket)``."""
        live, ticket = args
        self._opened(live, ticket)
        amounts = _amounts(ticket, self._slot_bytes)
        for tier, (blocks, count) in amounts.items():
            self.in_flight.add(tier, blocks, count)
        future: Future[T] = Future()

        def ended() -> None:
            for tier, (blocks, count) in amounts.items():
                self.in_flight.remove(tier, blocks, count)
            if future.set_running_or_notify_cancel():
                future.set_result(fn(*args, **kwargs))

        self._clock.at(self._end(amounts), ended)
        return future

    def _end(self, amounts: Mapping[str, tuple[int, int]]) -> float:
        """When a load that is asked for now has ended: first its stored objects, then its packed granules."""
        end = self._clock.now
        if "store" in amounts:
            end = self._disk_free = self._costs.read(max(end, self._disk_free), amounts["store"][1])
        if "packed" in amounts:
            work = amounts["packed"][1] / (self._costs.expand * _PER_MS)
            end = self._expander_free = max(end, self._expander_free) + work
        return end


def _amounts(ticket: Ticket, slot_bytes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Slots and real bytes that a ticket brings, by tier; only tiers that bring any."""
    plan = ticket.plan
    stored = {kind: len(places) for kind, places in plan.wanted.items() if len(places)}
    packed = {"compressed_kv": len(plan.expand)} if plan.expand else {}
    return {
        tier: (sum(counts.values()), sum(count * slot_bytes[kind] for kind, count in counts.items()))
        for tier, counts in zip(TIERS, (stored, packed), strict=True)
        if counts
    }
