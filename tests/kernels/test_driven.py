"""Kernels are driven, not only tested alone: the demo and scenarios run over them, and leave what the NumPy runs leave.

Each run is made twice: over NumPy arrays, and over memory that only kernels touch, which here run on the host. Then all
managers must hold the same words and, in every slot that somebody may read, the same bytes.
"""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvfsm.kernels.backend import AT_ITS_EVENT, WITH_A_READ, WITH_BYTES, KernelBackend
from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.profile import Profile
from kvfsm.runtime.profile_plan import GroupPlan, PartPlan
from kvfsm.runtime.stores.store import Namespace
from kvfsm.runtime.ticket import Ticket

from ..hostcuda.host import HostLauncher
from ..scenarios.conftest import Bench, Disturbed

SCENARIOS = {
    "test_H01_window_frontier": ("test_H01_the_window_of_the_published_boundary_stays_whole",),
    "test_H02_unasked_window": (
        "test_H02_a_window_that_nobody_vouches_for_is_a_miss",
        "test_H02_without_kept_windows_the_replay_is_part_of_the_hit",
        "test_H02_a_published_window_makes_it_a_hit",
    ),
    "test_H03_draft_allowance": ("test_H03_the_allowance_is_taken_once",),
    "test_H04_joint_length": ("test_H04_no_kinds_private_length_leaks_out",),
    "test_H06_hidden_granule": ("test_H06_a_miss_for_want_of_a_granule_says_so",),
    "test_H07_partial_chunk": ("test_H07_a_load_begins_where_memory_ends",),
    "test_H08_full_prompt_hit": ("test_H08_the_last_granule_of_a_hybrid_model_is_computed_anew",),
    "test_H09_lease_belongs_to_one": ("test_H09_two_lookups_and_one_retrieval",),
    "test_H11_load_targets": ("test_H11_a_stretch_in_the_middle_is_loaded",),
    "test_H15_decode_compresses": ("test_H15_every_position_is_covered_at_every_step",),
    "test_H17_indexer_waits_for_its_layer": ("test_H17_a_layer_is_used_when_all_its_objects_have_landed",),
    "test_H36_received_stays_received": ("test_H36_a_request_that_is_put_back_keeps_what_it_received",),
    "test_engine_admission": ("test_S24_a_lease_that_the_device_still_reads_is_released_later",),
}

BY_THE_BACKEND = {*AT_ITS_EVENT, *WITH_A_READ, *WITH_BYTES, "gather", "scatter", "put_words"}

WHILE_LAYERS_ARRIVE = {"revalidate"}
"""Driven by the scenario of that name only; nothing of the demo reads while layers arrive."""


class WideBench(Bench):
    """The scenarios' bench with rows of 16 bytes, which kernels can copy; keeps the managers that it made."""

    def __init__(self) -> None:
        self.managers: list[Manager] = []

    @staticmethod
    def part(granule: int, ratio: int = 1) -> tuple[PartPlan, ...]:
        return (PartPlan("rows", granule // ratio, (16,), "uint8", "tag"),)

    @staticmethod
    def window(span: int, rows: int, layers: tuple[int, ...] = (0,)) -> GroupPlan:
        parts = (PartPlan("rows", rows, (16,), "uint8", "tag", "window"),)
        return GroupPlan("window", "swa_window", layers, parts, 1, span)

    @staticmethod
    def tail(ratio: int, span: int, layers: tuple[int, ...] = (0,)) -> GroupPlan:
        parts = (PartPlan("pending", ratio - 1, (16,), "uint8", "tag", "pending"),)
        return GroupPlan("tail", "uncompressed_tail", layers, parts, ratio, span)

    def manager(self, profile: Profile, slots: int | Mapping[str, int], **options: Any) -> Manager:  # type: ignore[override]
        counts = dict.fromkeys(profile.kinds, slots) if isinstance(slots, int) else slots
        self.managers.append(self.made(profile, counts, **options))
        return self.managers[-1]

    def made(self, profile: Profile, counts: Mapping[str, int], **options: Any) -> Manager:
        return Manager(profile, counts, NumpyBackend(), **options)

    @staticmethod
    def read_in(manager: Manager, ticket: Ticket, kind: str) -> list[int]:
        """As of the bench, by way of the host's memory."""
        assert manager.store is not None
        claim, places, failed = ticket.plan.claim, ticket.plan.wanted[kind], []
        arena = manager.core.pools[kind].arena
        names = manager.object_of(claim.digests, claim.salt, kind, places)
        for place, slot, name in zip(places.tolist(), ticket.slots(kind).tolist(), names, strict=True):
            row = np.zeros((1, arena.stride), np.uint8)
            if manager.store.get(name, row[0]).verdict != 0:
                failed.append(place)
            else:
                manager.backend.scatter(arena.region, np.array([slot]), row)
        return failed


class KernelBench(WideBench):
    """The same over kernels."""

    def made(self, profile: Profile, counts: Mapping[str, int], **options: Any) -> Manager:
        backend = KernelBackend(HostLauncher(), staged_bytes=1 << 16, entries=256)
        return Manager(profile, counts, backend, buffers=backend.arenas(profile, counts), **options)


def launches(managers: list[Manager]) -> Counter[str]:
    """By kernel, of all of these managers."""
    found: Counter[str] = Counter()
    for launcher in {id(each): each for each in (manager.backend.launcher for manager in managers)}.values():
        found += launcher.launches
    return found


def contents(manager: Manager) -> dict[str, tuple[list[int], bytes]]:
    """By kind: all words, and the bytes of all slots that may be read."""
    found = {}
    for kind, pool in manager.core.pools.items():
        readable = np.flatnonzero(pool.in_state(np.arange(pool.hot), "resident", "expired"))
        found[kind] = pool.table.words.tolist(), manager.backend.gather(pool.arena.region, readable).tobytes()
    return found


@pytest.fixture
def opener(tmp_path: Path) -> Iterator[Callable[[str], Callable[[Profile], Disturbed]]]:
    """By the name of a run, what opens stores for it."""
    with ExitStack() as stores:

        def of(run: str) -> Callable[[Profile], Disturbed]:
            def opened(profile: Profile) -> Disturbed:
                store = Disturbed(tmp_path / run, Namespace.of(profile))
                stores.callback(store.close)
                return store

            return opened

        yield of


def scenario(module: str, name: str) -> Callable[..., None]:
    found: Callable[..., None] = getattr(importlib.import_module(f"..scenarios.{module}", __package__), name)
    return found


@pytest.mark.xdist_group("driven")
@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in SCENARIOS.items() for name in names])
def test_a_scenario_over_kernels_leaves_what_it_leaves_over_numpy(
    module: str, name: str, opener: Callable[[str], Callable[[Profile], Disturbed]]
) -> None:
    run = scenario(module, name)
    wanted = run.__code__.co_varnames[: run.__code__.co_argcount]
    benches = {"numpy": WideBench(), "kernels": KernelBench()}
    for which, bench in benches.items():
        given = {"bench": bench, "open_store": opener(which)}
        run(**{argument: given[argument] for argument in wanted})
    expected, found = ([contents(manager) for manager in bench.managers] for bench in benches.values())
    assert expected == found and len(found) >= 1
    counts = launches(benches["kernels"].managers)
    assert counts["scrub"] > 0 and (counts["scatter"] > 0 or module == "test_H15_decode_compresses")  # it has no bytes
    if module == "test_H17_indexer_waits_for_its_layer":
        assert all(counts[kernel] for kernel in WHILE_LAYERS_ARRIVE)


def test_ten_scenarios_and_more_are_driven() -> None:
    assert len(SCENARIOS) >= 10


@pytest.mark.xdist_group("driven")
def test_a_byte_that_differs_is_seen() -> None:
    bench = KernelBench()
    scenario("test_H03_draft_allowance", "test_H03_the_allowance_is_taken_once")(bench)
    (manager,) = bench.managers
    before = contents(manager)
    pool = manager.core.pools["compressed_kv"]
    slot = np.flatnonzero(pool.in_state(np.arange(pool.hot), "resident"))[:1]
    row = manager.backend.gather(pool.arena.region, slot)
    row[0, 5] ^= 1
    manager.backend.scatter(pool.arena.region, slot, row)
    assert contents(manager) != before


@pytest.mark.xdist_group("driven")
def test_the_demo_over_kernels_leaves_what_it_leaves_over_numpy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers", reason="the package transformers is not installed")
    from kvfsm.codegen.cli import demo, demo_rounds
    from kvfsm.codegen.cli.demo_report import Round

    made: list[Manager] = []
    left: list[list[dict[str, tuple[list[int], bytes]]]] = []
    make = demo_rounds.make_manager

    def kept(profile: Profile, **options: Any) -> Manager:
        if made:
            left[-1].append(contents(made.pop()))  # as it was when the next one comes, to whom the backend goes
        made.append(make(profile, **options))
        return made[-1]

    def no_new_process(stages: Any, *_: Any) -> dict[str, Round]:
        return {stage.name: Round("new process", "left out", (), ()) for stage in stages}

    monkeypatch.setattr(demo_rounds, "make_manager", kept)
    monkeypatch.setattr(demo, "rounds_in_a_new_process", no_new_process)
    launcher = HostLauncher()
    reports = []
    for backend in (NumpyBackend(), KernelBackend(launcher, staged_bytes=1 << 20)):
        made.clear()
        left.append([])
        reports.append(demo.demonstrate(("tiny-deepseek-v4",), tmp_path / str(len(left)), lambda _: None, backend))
        left[-1].append(contents(made[-1]))
    assert left[0] == left[1] and len(left[0]) == 4
    assert reports[0] == reports[1]
    assert all(report.bit_identical for report in reports[1])
    driven = {name: launcher.launches[name] for name in BY_THE_BACKEND - WHILE_LAYERS_ARRIVE}
    assert all(driven.values()), driven


def test_the_demo_of_the_command_line_runs_over_kernels_where_it_is_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers", reason="the package transformers is not installed")
    from kvfsm.codegen.cli import demo, demo_spec, main

    given: list[Any] = []
    monkeypatch.setattr(demo_spec, "spec_report", lambda: {"ok": True, "text": "the spec is sound"})
    monkeypatch.setattr(demo, "demonstrate", lambda *arguments: given.append(arguments[3]) or ())
    monkeypatch.setattr("kvfsm.kernels.cupy_launcher.CupyLauncher", HostLauncher)
    for options in ([], ["--cuda"]):
        assert main(["demo", "--keep", str(tmp_path), *options]) == 0
    assert given[0] is None
    assert isinstance(given[1], KernelBackend) and isinstance(given[1].launcher, HostLauncher)


def test_the_demo_says_what_a_gpu_lacks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers", reason="the package transformers is not installed")
    from kvfsm.codegen.cli import main

    monkeypatch.setitem(sys.modules, "cupy", None)
    assert main(["demo", "--cuda"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("kvfsm demo --cuda: kernels on a GPU need CuPy") and "kvfsm[cuda13]" in told
