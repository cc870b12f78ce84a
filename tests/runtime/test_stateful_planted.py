"""Negative controls of the machine of requests: a planted fault is found, and the printed test reproduces it."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from kvfsm.runtime.lease import Receipt
from kvfsm.runtime.manager import Manager

from .machine_of_requests import Requests

SETTINGS = settings(
    max_examples=500, stateful_step_count=12, deadline=None, derandomize=True, database=None, print_blob=True,
    phases=[Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck),
)  # fmt: skip


@pytest.fixture
def traces_are_paths_of_the_model() -> None:
    """Not here: faults are planted."""


class EvictsLeased(Manager):
    """Eviction that overlooks leases."""

    def evict(self, kind: str, count: int) -> int:
        table = self.core.pools[kind].table
        pins = table.LAYOUT.field("pins")
        table.words[:] &= table.words.dtype.type(~(pins.mask << pins.shift) % 2**64)
        return super().evict(kind, count)


class KeepsTheStore(Manager):
    """A reset that leaves the store as it is."""

    def reset(self) -> int:
        store, self.store = self.store, None
        try:
            return super().reset()
        finally:
            self.store = store


class ForgetsLoss(Manager):
    """Answers exact whatever the bytes went through."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        lease = self.lessor._lease
        self.lessor._lease = lambda receipt, answer, lossy: lease(receipt, answer, False)  # type: ignore[method-assign]


class FreesInFlight(Manager):
    """Frees what a writer gave up, whatever the device does."""

    def give_up(self, held: Any, done: Any) -> None:
        super().give_up(held, done if isinstance(held, Receipt) else None)


class Sound(Requests):
    profile = "tiny_llama"


class Leased(Requests):
    profile = "tiny_llama"
    make = EvictsLeased


class Kept(Requests):
    profile = "tiny_llama"
    make = KeepsTheStore


class Lost(Requests):
    profile = "tiny_llama"
    make = ForgetsLoss


class Freed(Requests):
    profile = "tiny_llama"
    make = FreesInFlight


PLANTED = {Leased: "S3", Kept: "is found", Lost: "other bytes of compressed_kv", Freed: "is used in flight"}


def printed(error: BaseException) -> str:
    """The test that Hypothesis prints with a failure."""
    notes = "\n".join(getattr(error, "__notes__", ()))
    found = re.search(r"^ *state = .*?state\.teardown\(\)", notes, re.DOTALL | re.MULTILINE)
    assert found is not None, notes
    return textwrap.dedent(found.group(0))


@pytest.mark.parametrize("machine", PLANTED, ids=lambda machine: machine.make.__name__)
def test_a_planted_fault_is_found_and_its_printed_test_reproduces_it(machine: type[Requests]) -> None:
    with pytest.raises(AssertionError, match=PLANTED[machine]) as caught:
        run_state_machine_as_test(machine, settings=SETTINGS)
    text = printed(caught.value)
    print(text)
    with pytest.raises(AssertionError, match=PLANTED[machine]):
        exec(compile(text, "printed", "exec"), {machine.__name__: machine})
    exec(compile(text, "printed", "exec"), {machine.__name__: Sound})  # without the plant it goes well
