"""The demo's rounds: one model under several settings, each request held against its cold reference.

Cold references are computed from the first token on the chunk schedule of every other run, and never read the cache.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from ...kernels.backend import KernelBackend
from ...kernels.reference import NumpyBackend
from ...runtime.answers import Answer, AnswerKind
from ...runtime.backend import Backend
from ...runtime.generated.models import PROFILES
from ...runtime.integrations import tiny_models
from ...runtime.integrations.transformers import TransformersAdapter
from ...runtime.manager import Manager
from ...runtime.policy import WindowPolicy
from ...runtime.profile import Profile
from ...runtime.stores.local import LocalStore
from ...runtime.stores.store import Namespace, Store
from ...runtime.trace import EventTrace
from .demo_prompts import Request, requests
from .demo_report import OBJECTS, Round, Served
from .demo_runs import OnChunk, Trace, compare, run

DECODE = 5
"""Tokens of each answer."""

SLOTS = 64
"""Slots of each kind; the requests of one model need about a third of them."""

EVENTS = 1 << 20
"""Events on state words that a trace keeps: many times as many as there are."""

REPLAY_ERROR_MAX = 1e-4
"""A complete replay is right to about 1e-6 in float32; one that starts a row too late is off by 1e-4 and more."""

FP8_ERROR_MAX = math.inf
"""No bound is claimed: FP8 has 3 bits of mantissa, and random weights forgive nothing."""

Tell = Callable[[str], None]
"""Called with a few words before each piece of work."""


@dataclass(frozen=True, slots=True)
class Cast:
    """A model with its profile and adapter, ready to run."""

    name: str
    model: Any
    profile: Profile
    adapter: TransformersAdapter

    def run(self, cache: Any, tokens: Sequence[int], start: int, on_chunk: OnChunk | None = None) -> Trace:
        """Prefill from ``start`` and decode."""
        return run(self.model, cache, tokens, start, self.profile.granule, DECODE, on_chunk)

    def cold_run(self, tokens: Sequence[int]) -> Trace:
        """From the first token, into an empty cache; the cache at each boundary is kept for comparison."""
        empty = self.adapter.new_cache()
        return run(self.model, empty, tokens, 0, self.profile.granule, DECODE, keep_boundaries=True)


@dataclass(frozen=True, slots=True)
class Stage:
    """A cast with its requests, and the cold reference of each; ``events`` records what its managers do."""

    cast: Cast
    requests: tuple[Request, ...]
    cold: tuple[Trace, ...]
    events: EventTrace | None = None

    @property
    def name(self) -> str:
        """The model's name on the command line."""
        return self.cast.name

    def expected(self, every: int = 1) -> tuple[int, ...]:
        """The most tokens that each request can reuse, in whole steps of ``every`` granules; one is left to compute."""
        step = self.cast.profile.granule * every
        return tuple((len(request.tokens) - 1) // step * step for request in self.requests)


def make_cast(name: str) -> Cast:
    """Build a model from its seed."""
    model, profile_name = tiny_models.build(name)
    profile = PROFILES[profile_name]
    return Cast(name, model, profile, TransformersAdapter(profile, model))


def set_stage(name: str, tell: Tell, events: EventTrace | None = None) -> Stage:
    """Build a model and run every request cold."""
    tell(f"{name}: building the model")
    cast = make_cast(name)
    asked = requests(cast.profile.granule, lambda tokens: cast.cold_run(tokens).answer)
    cold = []
    for request in asked:
        tell(f"{name}: cold run of '{request.name}', {len(request.tokens)} tokens")
        cold.append(cast.cold_run(request.tokens))
    return Stage(cast, asked, tuple(cold), events)


def make_manager(
    profile: Profile,
    *,
    window: WindowPolicy | None = None,
    store: Store | None = None,
    backend: Backend | None = None,
    events: EventTrace | None = None,
) -> Manager:
    """A manager with room for the demo's requests, over NumPy's kernels or over those of ``backend``."""
    slots = dict.fromkeys(profile.kinds, SLOTS)
    return Manager(
        profile,
        slots,
        NumpyBackend() if backend is None else backend,
        buffers=backend.arenas(profile, slots) if isinstance(backend, KernelBackend) else None,
        store=store,
        clock=itertools.count(1).__next__,
        window=window,
        cold=SLOTS,
        trace=events,
    )


@contextmanager
def open_store(profile: Profile, directory: str, events: EventTrace | None = None) -> Iterator[LocalStore]:
    """The local store of a profile's objects in a directory, closed at the end."""
    store = LocalStore(directory, Namespace.of(profile), trace=events)
    try:
        yield store
    finally:
        store.close()


def publish_all(stage: Stage, manager: Manager, tell: Tell) -> int:
    """Run every request from its first token and publish each granule that isn't known yet; returns how many.

    The publisher computes and never reads: what it publishes can't rest on what was published before.
    """
    published = 0
    for request in stage.requests:
        tell(f"{stage.name}: publishing '{request.name}'")
        published += publish(stage.cast, manager, request.tokens)
    return published


def publish(cast: Cast, manager: Manager, tokens: Sequence[int]) -> int:
    """Run one prompt cold and publish each of its granules that isn't known yet; returns how many."""
    keys = manager.keys(tokens)
    granule = cast.profile.granule
    known = manager.match(keys, tokens=len(tokens) + 1).length
    published = 0

    def on_chunk(cache: Any, begin: int, end: int) -> None:
        nonlocal published
        if end % granule or end <= known:
            return
        fill = manager.reserve(keys, begin // granule, end // granule)
        try:
            cast.adapter.publish_chunk(cache, fill)
        except BaseException:
            manager.abandon(fill)
            raise
        manager.publish(fill)
        published += 1

    cast.run(cast.adapter.new_cache(), tokens, 0, on_chunk)
    return published


@dataclass(frozen=True, slots=True)
class Warm:
    """A warm run: the first answer in words, and what was computed after it."""

    first: str
    reason: str
    objects: dict[str, str]
    exact: bool
    replayed: int
    trace: Trace


def read(cast: Cast, manager: Manager, tokens: Sequence[int]) -> Warm:
    """Match, load what lies in a slower tier, acquire, restore, and compute the rest."""
    keys = manager.keys(tokens)
    first = answer = manager.match(keys, tokens=len(tokens), asks=cast.adapter.asks)
    if answer.kind is AnswerKind.HIT_PENDING:
        assert answer.plan is not None
        answer = manager.load(answer.plan)
    exact, replayed = True, 0
    if answer.kind is not AnswerKind.HIT:
        trace = cast.cold_run(tokens)
    else:
        with manager.acquire(answer) as lease:
            if lease.replay is None:
                cache = cast.adapter.restore(lease)
            else:
                cache = cast.adapter.restore_by_replay(lease, tokens, lease.replay.start)
                replayed = len(lease.replay)
            exact, length = lease.exact, lease.length
        trace = cast.run(cache, tokens, length)
    reason = "" if first.reason is None else first.reason.value
    return Warm(first.kind.value, reason, _said(first), exact, replayed, trace)


def _said(answer: Answer) -> dict[str, str]:
    """What each of the five objects said of the length that was answered."""
    return {kind: answer.objects[kind].verdict for kind in OBJECTS}


def judge(stage: Stage, warm: Sequence[Warm]) -> tuple[Served, ...]:
    """Each request's warm run against its cold reference."""
    return tuple(
        Served(
            request,
            run.first,
            run.reason,
            run.objects,
            run.trace.start,
            run.replayed,
            run.exact,
            compare(run.trace, cold),
        )
        for request, cold, run in zip(stage.requests, stage.cold, warm, strict=True)
    )


def read_all(stage: Stage, manager: Manager, tell: Tell, what: str) -> tuple[Served, ...]:
    """Every request, warm."""
    warm = []
    for request in stage.requests:
        tell(f"{stage.name}: {what}, '{request.name}'")
        warm.append(read(stage.cast, manager, request.tokens))
    return judge(stage, warm)


def warm_round(stage: Stage, manager: Manager, tell: Tell) -> Round:
    """Everything from memory."""
    return Round("warm", "from memory", read_all(stage, manager, tell, "warm"), stage.expected())


def packed_round(stage: Stage, manager: Manager, tell: Tell, *, lossy: bool) -> Round:
    """Compressed KV is packed into its cold form first, and expanded when it is read."""
    # Chains are packed from their ends, so the longest prompt goes first.
    for request in sorted(stage.requests, key=lambda request: -len(request.tokens)):
        tell(f"{stage.name}: packing the blocks of '{request.name}'")
        manager.pack(manager.keys(request.tokens), lossy=lossy)
    if lossy:
        served = read_all(stage, manager, tell, "packed to FP8")
        return Round("packed to FP8", "KV rounded in its cold form", served, stage.expected(), FP8_ERROR_MAX)
    served = read_all(stage, manager, tell, "packed")
    return Round("packed", "without loss, expanded to be read", served, stage.expected())


def window_round(
    stage: Stage, keep: Literal["checkpoint", "none"], tell: Tell, backend: Backend | None = None
) -> Round:
    """A manager that keeps windows at every other place where a window is whole, or none."""
    profile = stage.cast.profile
    steps = 2 * profile.window_slots
    window = WindowPolicy.none() if keep == "none" else WindowPolicy.checkpoint(steps * profile.granule)
    manager = make_manager(profile, window=window, backend=backend, events=stage.events)
    publish_all(stage, manager, tell)
    if keep == "none":
        served = read_all(stage, manager, tell, "without windows")
        return Round("no windows", "windows replayed from tokens", served, stage.expected(), REPLAY_ERROR_MAX)
    name = f"checkpoint({window.every})"
    served = read_all(stage, manager, tell, name)
    return Round(name, f"windows kept every {window.every} tokens", served, stage.expected(steps))
