"""Through the manager: what was published is matched, leased and restored to the last bit, and damage is noticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from kvfsm.codegen.cli import demo, demo_spec, main
from kvfsm.codegen.cli.demo_report import Round
from kvfsm.codegen.cli.demo_rounds import (
    Stage,
    make_cast,
    make_manager,
    open_store,
    packed_round,
    publish_all,
    read,
    read_all,
    set_stage,
    warm_round,
    window_round,
)
from kvfsm.kernels import reference
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.integrations import tiny_models
from kvfsm.runtime.integrations.transformers import Mismatch
from kvfsm.runtime.layout import Layout
from kvfsm.runtime.manager import Manager

from .conftest import Subject
from .profiles import with_parts
from .test_transformers import raw_scores

StageOf = Callable[[str], Stage]


def quiet(what: str) -> None:
    """Say nothing."""


@pytest.fixture(scope="session")
def stage_of() -> StageOf:
    made: dict[str, Stage] = {}

    def get(name: str) -> Stage:
        if name not in made:
            made[name] = set_stage(name, quiet)
        return made[name]

    return get


@pytest.fixture(scope="session")
def stage(stage_of: StageOf) -> Stage:
    return stage_of("tiny-deepseek-v4")


@pytest.fixture
def manager(stage: Stage) -> Iterator[Manager]:
    made = make_manager(stage.cast.profile)
    publish_all(stage, made, quiet)
    yield made
    assert made.audit().violations == ()


@pytest.mark.parametrize("name", tiny_models.NAMES)
def test_warm_reads_are_bit_identical(name: str, stage_of: StageOf) -> None:
    stage = stage_of(name)
    manager = make_manager(stage.cast.profile)
    publish_all(stage, manager, quiet)
    found = warm_round(stage, manager, quiet)
    assert found.faults() == [] and found.exact
    assert sum(served.reused for served in found.served) >= 5 * 64


def test_a_prompt_shorter_than_a_block_misses_for_that_reason(stage: Stage, manager: Manager) -> None:
    short = next(request for request in stage.requests if request.name == "too short")
    warm = read(stage.cast, manager, short.tokens)
    assert (warm.first, warm.reason, warm.trace.start) == ("MISS", "GRANULE", 0)


@pytest.mark.parametrize("name", tiny_models.NAMES)
def test_blocks_packed_without_loss_come_back_to_the_last_bit(name: str, stage_of: StageOf) -> None:
    stage = stage_of(name)
    manager = make_manager(stage.cast.profile)
    publish_all(stage, manager, quiet)
    found = packed_round(stage, manager, quiet, lossy=False)
    assert found.faults() == [] and found.exact
    assert any(served.objects["compressed_kv"] == "PACKED" for served in found.served)


def test_blocks_packed_to_fp8_are_called_approximate(stage: Stage, manager: Manager) -> None:
    found = packed_round(stage, manager, quiet, lossy=True)
    assert found.faults() == []
    hits = [served for served in found.served if served.reused]
    assert hits and not any(served.exact for served in hits)
    assert not any(served.comparison.identical for served in hits)


@pytest.mark.parametrize("name", ["tiny-deepseek-v4", "tiny-gpt-oss", "tiny-gemma3"])
def test_windows_at_checkpoints_are_exact_up_to_them(name: str, stage_of: StageOf) -> None:
    stage = stage_of(name)
    found = window_round(stage, "checkpoint", quiet)
    assert found.faults() == [] and found.exact


@pytest.mark.parametrize("name", ["tiny-deepseek-v4", "tiny-gpt-oss", "tiny-gemma3"])
def test_without_windows_reads_are_approximate_and_close(name: str, stage_of: StageOf) -> None:
    found = window_round(stage_of(name), "none", quiet)
    assert found.faults() == []
    hits = [served for served in found.served if served.reused]
    assert hits and not any(served.exact for served in hits)
    assert all(served.replayed and served.comparison.rows_error < 1e-4 for served in hits)


def test_slots_of_raw_scores_are_refused_before_they_are_read(stage: Stage, v4: Subject) -> None:
    """A manager whose layouts differ in meaning alone: sizes fit, and the adapter still refuses its lease."""
    folded = stage.cast.profile
    other = make_manager(replace(with_parts(folded, raw_scores), scores="raw"))
    fill = other.reserve(other.keys(list(v4.tokens)), 0, 1)
    with pytest.raises(Mismatch, match="layout of uncompressed_tail"):
        v4.adapter.publish_chunk(v4.adapter.restore(v4.store.lease(32)), fill)
    other.publish(fill)
    answer = other.match(other.keys(list(v4.tokens)))
    assert answer.length == 32
    with other.acquire(answer) as lease, pytest.raises(Mismatch, match="meaning: gate_raw, not gate_bias_folded"):
        v4.adapter.restore(lease)


def test_the_manager_refuses_the_other_layout_too(stage: Stage, manager: Manager) -> None:
    asks = {kind: layout.digest for kind, layout in with_parts(stage.cast.profile, raw_scores).layouts.items()}
    answer = manager.match(manager.keys(stage.requests[0].tokens), asks=asks)
    assert (answer.length, answer.reason and answer.reason.value) == (0, "LAYOUT")
    with pytest.raises(Refused):
        manager.acquire(answer)


# The demo can fail


@pytest.mark.parametrize("kind", ["compressed_kv", "uncompressed_tail", "swa_window", "indexer_state"])
def test_one_byte_flipped_after_publication_fails_the_round(kind: str, stage: Stage) -> None:
    manager = make_manager(stage.cast.profile)
    publish_all(stage, manager, quiet)
    request = stage.requests[0]
    with manager.acquire(manager.match(manager.keys(request.tokens), tokens=len(request.tokens))) as lease:
        component = next(
            part for part in lease.state_data_ptrs if part.kind == kind and not part.part.startswith("pending")
        )
        arena = manager.core.pools[kind].arena
        flat = arena.bytes.reshape(-1)
        at = component.item_bytes - 2 if kind == "swa_window" else 2  # a window's first rows are only to go back to
        flat[component.base - arena.base + int(component.slots[-1]) * component.stride + at] ^= 0x40
    found = warm_round(stage, manager, quiet)
    assert any("first turn: not bit-identical" in fault for fault in found.faults())


class Corrupting(reference.NumpyBackend):
    """Damages one byte of each block that it expands."""

    def expand(self, layout: Layout, packed: list[bytes]) -> np.ndarray:
        data = super().expand(layout, packed)
        data[:, layout.parts[-1].offset + 2] ^= 0x40
        return data


def empty_memory(
    stages: Sequence[Stage], directory: Path, tell: Callable[[str], None], events: Path | None
) -> dict[str, Round]:
    """What the new process does, with a new manager in this process instead."""
    found = {}
    for stage in stages:
        with open_store(stage.cast.profile, str(directory)) as store:
            served = read_all(stage, make_manager(stage.cast.profile, store=store), tell, "from disk")
            found[stage.name] = Round("new manager", "from disk", served, stage.expected())
    return found


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the check of the spec and the new process; test_demo.py has both."""
    monkeypatch.setattr(demo_spec, "spec_report", lambda: {"ok": True, "text": "the spec is sound"})
    monkeypatch.setattr(demo, "rounds_in_a_new_process", empty_memory)


@pytest.mark.usefixtures("one_process")
def test_a_backend_that_damages_bytes_makes_the_demo_exit_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kvfsm.codegen.cli.demo_rounds.NumpyBackend", Corrupting)
    code = main(["demo", "--model", "tiny-gpt-oss", "--keep", str(tmp_path)])
    page = capsys.readouterr().out
    assert code == 1
    assert "✗ packed, first turn: not bit-identical" in page
    assert "not bit-identical: tiny-gpt-oss" in page


@pytest.mark.usefixtures("one_process")
def test_a_stale_spec_makes_the_demo_exit_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo_spec, "spec_report", lambda: {"ok": False, "text": "1 of 40 files is not current"})
    monkeypatch.setattr(demo, "demonstrate", lambda *_, **__: ())
    assert main(["demo", "--keep", str(tmp_path)]) == 1
    page = capsys.readouterr().out
    assert "✗ 1 of 40 files is not current" in page and "not in order" in page


def test_every_model_of_the_command_line_can_be_built() -> None:
    assert demo.MODELS == tiny_models.NAMES
    for name in demo.MODELS:
        assert make_cast(name).profile.name == tiny_models.profile_name(name)


@pytest.mark.usefixtures("one_process")
def test_sound_runs_exit_0_put_threads_back_and_leave_a_store_that_serves_the_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.set_num_threads(2)
    try:
        for published in (16, 0):
            assert main(["demo", "--model", "tiny-gpt-oss", "--keep", str(tmp_path)]) == 0
            page = capsys.readouterr().out
            assert f"published: {published} blocks" in page and "✓ bit-identical, tiny-gpt-oss" in page
        assert torch.get_num_threads() == 2
    finally:
        tiny_models.fix_threads()


@pytest.mark.usefixtures("one_process")
def test_a_place_that_cannot_keep_a_store_is_used_wrongly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("in the way", "utf-8")
    assert main(["demo", "--model", "tiny-gpt-oss", "--keep", str(tmp_path / "file")]) == 2
    assert "cannot keep the store" in capsys.readouterr().err


def test_rounds_are_held_against_what_they_should_reuse(stage: Stage, manager: Manager) -> None:
    found = warm_round(stage, manager, quiet)
    less = Round(found.name, found.about, found.served, tuple(count + 32 for count in found.expected))
    assert len(less.faults()) == len(stage.requests)
