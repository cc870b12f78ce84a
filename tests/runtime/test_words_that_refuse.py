"""A slot's word that refuses an event of an operation: nothing has changed, or the manager does nothing more.

Events that take, pin or hold are asked first, and may be refused: what was done by then is undone. All others come when
something has changed already, of slots that are ours, as do pins that a live row takes of what it has just published,
and slots that are taken of new memory. If one of those refuses, an invariant is broken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy.typing as npt
import pytest

from kvfsm.runtime.errors import Broken, Poisoned, Refused
from kvfsm.runtime.generated import Refusal
from kvfsm.runtime.pool import Pool

from .injecting import World, complaints
from .test_injected import OPERATIONS

ASKED_FIRST = {"take", "load_begin", "expand_begin", "pin", "hold"}


@contextmanager
def refusing(at: int | None, patch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Events that are fired on any slots meanwhile; the one at place ``at`` is refused."""
    fired: list[str] = []
    fire = Pool.fire

    def counted(pool: Pool, event: str, slots: npt.NDArray[Any], /, **given: Any) -> int:
        if len(slots):
            fired.append(event)
            if len(fired) - 1 == at:
                return int(Refusal.BUSY)
        return fire(pool, event, slots, **given)

    with patch.context() as patched:
        patched.setattr(Pool, "fire", counted)
        yield fired


def refuse_each(prepare: Callable[[World], Callable[[], object]], patch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run an operation once for each of its events, which is refused; yields what is wrong then."""
    with refusing(None, patch) as events:
        world = World()
        run = prepare(world)
        first = len(events)
        run()
    for at in range(first, len(events)):
        world = World()
        with refusing(at, patch) as fired:
            run = prepare(world)
            told: Exception | None = None
            try:
                run()
            except (Refused, Poisoned, Broken) as problem:
                told = problem
        where = f"event {at}, {fired[at]}: {told!r}"
        if (reason := world.manager.lock.reason) is not None:
            if fired[at] in ASKED_FIRST - {"pin"} and "new memory" not in str(reason):
                yield f"{where} poisons"
        elif fired[at] not in ASKED_FIRST:
            yield f"{where} is no news"
        else:
            yield from (f"{where}: {one}" for one in complaints(world))


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_word_that_refuses_changes_nothing_or_stops_the_manager(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(refuse_each(OPERATIONS[name].prepare, monkeypatch)) == []
