"""ThreadSanitizer is silent about the right protocol, and says where the order of memory is too weak."""

from __future__ import annotations

import numpy as np
import pytest

from kvfsm.kernels.launch import Argument, Kernel, LaunchPlan

from .building import Build
from .host import HostLauncher, edited
from .planted import planted_source
from .test_exploring import RELAXED, world
from .threads import ThreadRace, run_threads


@pytest.mark.parametrize("generation", [1, 2])
def test_the_right_protocol_is_ordered(generation: int) -> None:
    made = world(3, generation=generation)
    ends = run_threads(made.launcher, made.plans, made.check, rounds=300, threads=1)
    assert 1 < ends < 20, "readers and evictor met"
    assert int(made.word.array[0]) == 1 << 32 | 1, "the buffers are as they were"


@pytest.mark.parametrize(("which", "generation"), [("pin", 2), ("unpin", 1), ("take", 1), ("publish", 2)])
def test_a_relaxed_atomic_is_too_weak(which: str, generation: int) -> None:
    made = world(3, generation=generation, sources=edited(RELAXED[which], sources=planted_source))
    with pytest.raises(ThreadRace, match="data race") as caught:
        run_threads(made.launcher, made.plans, made.check, rounds=3000, threads=1)
    places = caught.value.places
    assert len(places) == 2 and all("tests/hostcuda/planted/protocol.cu:" in place for place in places), places


@pytest.mark.parametrize("reader", ["reader_without_pin", "reader_unpins_early"])
def test_a_wrong_protocol_races(reader: str) -> None:
    made = world(3, reader)
    with pytest.raises(ThreadRace, match="data race"):
        run_threads(made.launcher, made.plans, made.check, rounds=2000, threads=1)


def test_what_is_wrong_without_a_race_is_seen_in_the_ends() -> None:
    made = world(3)

    def nobody_read() -> None:
        assert (made.out.array.reshape(-1, 3)[:, 0] == 0).all()

    with pytest.raises(AssertionError, match=r"\.all"):
        run_threads(made.launcher, made.plans, nobody_read, rounds=20, threads=1)
    assert int(made.word.array[0]) == 1 << 32 | 1


def race_plan(launcher: HostLauncher, name: str) -> LaunchPlan:
    numbers, target = launcher.upload(np.arange(64, dtype=np.uint32)), launcher.upload(np.zeros(64, np.uint32))
    kernel = Kernel(name, "races.cu", (Argument("from", "const u32*"), Argument("to", "u32*")), threads=64)
    return LaunchPlan(kernel, (2, 1, 1), (numbers.pointer, target.pointer))


@pytest.mark.parametrize(("name", "first"), [("tree", 2016), ("backwards", 31)])
def test_barriers_and_syncwarp_order(name: str, first: int) -> None:
    launcher = HostLauncher(Build.FAST, sources=planted_source)
    plan = race_plan(launcher, name)
    target = launcher.buffer_at(plan.values[1])  # type: ignore[arg-type]
    assert target is not None

    def check() -> None:
        assert target.array[0] == first

    assert run_threads(launcher, [plan], check, rounds=5) == 1


@pytest.mark.parametrize("name", ["tree_without_barrier", "backwards_without_syncwarp"])
def test_a_ballot_orders_nothing(name: str) -> None:
    launcher = HostLauncher(Build.FAST, sources=planted_source)
    with pytest.raises(ThreadRace, match="data race"):
        run_threads(launcher, [race_plan(launcher, name)], rounds=20)
