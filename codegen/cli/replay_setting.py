"""What a replay is run with: a trace, a model's kinds, pools, rules; and how a run of it is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...kernels.reference import NumpyBackend
from ...runtime.manager import Manager
from ...runtime.profile import Profile
from ...runtime.stores.store import Store
from ...runtime.trace import EventTrace
from .replay_run import Replay, Rules
from .replay_tally import Tally
from .replay_trace import RequestTrace


@dataclass(frozen=True, slots=True)
class Setting:
    """All that a run depends on, besides what a store has.

    Attributes:
        trace: the requests.
        profile: with real slots.
        narrow: the same with stand-in slots.
        slots: of each kind.
        cold: slots for packed KV.
        rows: requests that may have slots at once.
        rules: how the requests are served.
    """

    trace: RequestTrace
    profile: Profile
    narrow: Profile
    slots: Mapping[str, int]
    cold: int
    rows: int
    rules: Rules


def serve(
    setting: Setting,
    *,
    store: Store | None = None,
    events: EventTrace | None = None,
    stopped: Callable[[], bool] = lambda: False,
    tell: Callable[[Tally], None] = lambda _: None,
) -> Tally:
    """Run it.

    Args:
        setting: what is run.
        store: a slower tier.
        events: records what happens.
        stopped: whether to end before the trace does.
        tell: hears of each step.
    """
    tally = Tally()
    manager = Manager(
        setting.narrow, setting.slots, NumpyBackend(), store=store, cold=setting.cold, rows=setting.rows,
        on_event=tally.told, trace=events,
    )  # fmt: skip
    Replay(setting.trace, manager, tally, setting.rules).run(stopped, tell)
    return tally
