"""Requests that are open at once, in sequences that Hypothesis makes up."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from .machine_of_requests import Requests

SETTINGS = settings(
    max_examples=100, stateful_step_count=40, deadline=None, derandomize=True, database=None, print_blob=True,
    phases=[Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck),
)  # fmt: skip
WANTED = {
    "acquire", "acquire STALE", "shared", "parked", "released", "read exact", "read not exact", "published",
    "admitted", "admitted on a lease", "rolled back", "row published", "evicted", "packed", "packed with loss",
    "loaded", "open, then done", "abort what is open", "swa_window given up in flight",
    "compressed_kv given up in flight", "extended", "proposed", "accepted", "rejected", "resumed",
    "resumed from nothing", "rebuilt", "rebuilt in place", "reserved, loading", "reserved, ready", "entered",
    "cancelled, ready", "loaded in part", "joined", "left",
}  # fmt: skip


class AllKinds(Requests):
    profile = "tiny_deepseek_v4"
    reached: ClassVar[Counter[str]] = Counter()


class Blocks(Requests):
    profile = "tiny_gpt_oss"
    reached: ClassVar[Counter[str]] = Counter()


def test_interleaved_requests_read_their_own_bytes_or_are_refused() -> None:
    for machine in (AllKinds, Blocks):
        run_state_machine_as_test(machine, settings=SETTINGS)
    reached = AllKinds.reached + Blocks.reached
    print(reached)
    assert WANTED - set(reached) == set(), "steps that come to nothing show nothing"
