"""A decode step is captured once and replayed while pages change: each replay reads the pages of its own step."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kvfsm.kernels.backend import KernelBackend
from kvfsm.kernels.copies import gather_plan, window_gather, window_gather_plan
from kvfsm.kernels.entries import Entries
from kvfsm.kernels.graph_watch import GraphWatch, in_words, pointer_of
from kvfsm.kernels.launch import Launcher, Pointer
from kvfsm.kernels.reading import Check, Side, only_for_holders
from kvfsm.kernels.topology_check import What
from kvfsm.kernels.words import put_words_plan
from kvfsm.runtime.answers import Reason
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.generated import KINDS, Refusal
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.graphs import GraphRunner, Inputs, Launch, Recorder
from kvfsm.runtime.manager import Manager

BUCKET, SLOTS = 4, 24


class Decoding:
    """A manager over a launcher's memory, and a captured step that reads windows and pages of its batch."""

    def __init__(self, launcher: Launcher, recorder: Recorder, name: str) -> None:
        self.launcher, self.rng, self.profile = launcher, np.random.default_rng(11), PROFILES[name]
        slots = dict.fromkeys(self.profile.kinds, SLOTS)
        self.backend = KernelBackend(launcher)
        arenas = self.backend.arenas(self.profile, slots)
        self.manager = Manager(self.profile, slots, self.backend, buffers=arenas, rows=BUCKET)
        self.runner = GraphRunner(self.manager, self.step, [BUCKET], recorder)
        self.watch = GraphWatch(launcher, self.manager, self.runner, self.backend, capacity=8)
        self.window = next(part for part in self.profile.layouts["swa_window"].parts if part.role == "window")
        self.page = self.profile.layouts["compressed_kv"].parts[0]
        widths = self.runner.tables.widths
        self.rows = (self.profile.window or 1) - 1
        shape = BUCKET, self.rows, self.window.row_bytes
        self.windows = launcher.upload(np.zeros(shape, np.uint8))
        self.pages = launcher.upload(np.zeros((BUCKET * widths["compressed_kv"], self.page.payload_bytes), np.uint8))
        entries = BUCKET * widths["swa_window"]
        self.refusals = launcher.upload(np.zeros(entries, np.uint8))
        self.expected = launcher.upload(np.zeros(entries, np.uint32))
        self.bytes: dict[str, npt.NDArray[np.uint8]] = {}
        self.watch.capture(BUCKET)

    def fill(self, kind: str) -> npt.NDArray[np.uint8]:
        """New bytes in every slot of a kind."""
        layout = self.profile.layouts[kind]
        data = self.rng.integers(256, size=(SLOTS, layout.slot_bytes)).astype(np.uint8)
        self.backend.scatter(self.manager.core.pools[kind].arena.region, np.arange(SLOTS), data)
        return data

    def step(self, launch: Launch, inputs: Inputs) -> None:
        self.watch.launch(launch, inputs)
        tables, pools = inputs.tables, self.manager.core.pools
        live = pointer_of(tables["live"])
        window, width = pools["swa_window"].arena, self.runner.tables.widths["swa_window"]
        check = Check(
            "swa_window", self.backend.words.of("swa_window"), self.expected.pointer, self.refusals.pointer, Side.WRITER
        )
        launch(
            self.launcher.launch,
            window_gather_plan(
                self.part("swa_window", self.window), window.stride, SLOTS, pointer_of(tables["swa_window"]), width,
                self.window.rows, pointer_of(tables["positions"]), self.rows, BUCKET, self.window.row_bytes,
                self.windows.pointer, live=live, check=check,
            ),
        )  # fmt: skip
        size, stride = self.page.payload_bytes, pools["compressed_kv"].arena.stride
        arena, ids = self.part("compressed_kv", self.page), pointer_of(tables["compressed_kv"])
        entries = Entries(arena, stride, SLOTS, ids, self.pages.pointer.bytes // size)
        launch(self.launcher.launch, gather_plan(entries, size, self.pages.pointer))

    def part(self, kind: str, part: Any) -> Pointer:
        """Memory of a part of all slots, from the first on."""
        arena = self.manager.core.pools[kind].arena
        return Pointer(arena.base + part.offset, (SLOTS - 1) * arena.stride + part.payload_bytes)

    def replay(self, rows: list[int]) -> None:
        """One step of some requests: a token each, new bytes in every slot, then the graph."""
        self.manager.requests.step(rows)
        self.bytes = {kind: self.fill(kind) for kind in ("swa_window", "compressed_kv")}
        table = self.manager.requests.window_table(np.array(rows, np.intp))
        pool = self.manager.core.pools["swa_window"]
        expected = np.zeros((BUCKET, table.shape[1]), np.uint32)
        expected[: len(rows)] = np.where(
            table >= 0, pool.generations(np.maximum(table, 0).ravel()).reshape(table.shape), 0
        )
        self.expected.write(expected.reshape(-1))
        self.refusals.write(np.zeros(expected.size, np.uint8))
        self.watch.before_replay(rows)
        self.runner.replay(rows)

    def compare(self, rows: list[int]) -> None:
        """What the last replay read is what lies in the pages of its rows."""
        requests, count = self.manager.requests, len(rows)
        table, row = requests.window_table(np.array(rows, np.intp)), self.window
        data = self.bytes["swa_window"][:, row.offset : row.end].reshape(SLOTS, 1, row.rows, row.row_bytes)
        positions, right = requests.tokens[rows] - 1, np.zeros((count, self.rows, row.row_bytes), np.uint8)
        window_gather(data, table, positions, right)
        assert not self.refusals.download().any()
        found = self.windows.download()[:count]
        for at, position in enumerate(positions.tolist()):
            filled = min(self.rows, position + 1)
            np.testing.assert_array_equal(found[at, :filled], right[at, :filled])
        pages = self.pages.download().reshape(BUCKET, -1, self.page.payload_bytes)
        held = requests.table("compressed_kv", np.array(rows, np.intp))
        for at, slots in enumerate(held):
            for column, slot in enumerate(slots[slots >= 0].tolist()):
                right_page = self.bytes["compressed_kv"][slot, self.page.offset : self.page.end]
                np.testing.assert_array_equal(pages[at, column], right_page)


@pytest.fixture(params=["tiny_deepseek_v4", "tiny_gpt_oss"])
def decoding(request: pytest.FixtureRequest, launcher: Launcher, recorder: Recorder) -> Decoding:
    return Decoding(launcher, recorder, request.param)


def test_each_replay_reads_the_pages_of_its_step(decoding: Decoding) -> None:
    requests, granule = decoding.manager.requests, decoding.profile.granule
    first, second = requests.admit(granule - 2), requests.admit(3)
    seen = set()
    for turn in range(6):  # the first row's pages grow at a granule, and blocks slide out of the ring
        rows = [first, second] if turn % 2 else [second, first]
        decoding.replay(rows)
        decoding.compare(rows)
        seen.add(bytes(requests.table("compressed_kv", np.array([first])).tobytes()))
    assert len(seen) > 1, "the pages did not change"
    requests.finish(first)
    third = requests.admit(2 * granule + 1)
    decoding.replay([third, second])
    decoding.compare([third, second])
    decoding.replay([second])
    decoding.compare([second])
    told, lost = decoding.watch.violations()
    assert (len(told), lost, decoding.watch.refusals(BUCKET).tolist()) == (0, 0, [0] * BUCKET)


def test_rows_go_on_over_what_was_reset_under_them(decoding: Decoding) -> None:
    """They hold what they share, in a state that nobody new may read."""
    manager, granule = decoding.manager, decoding.profile.granule
    prompt = list(range(2 * granule + 3))
    keys = manager.keys(prompt)
    manager.publish(manager.reserve(keys, 0, 2))
    row = manager.requests.admit(len(prompt), lease=manager.acquire(manager.match(keys, len(prompt))))
    decoding.replay([row])
    pool, shared = manager.core.pools["compressed_kv"], manager.requests.table("compressed_kv", np.array([row]))[0, :2]
    assert only_for_holders("compressed_kv", pool.table.words[shared]).tolist() == [False, False]
    manager.reset()
    assert only_for_holders("compressed_kv", pool.table.words[shared]).tolist() == [True, True]
    other = manager.requests.admit(3)
    for rows in ([row], [other, row]):
        decoding.replay(rows)
        decoding.compare(rows)
    told, lost = decoding.watch.violations()
    assert (len(told), lost, decoding.watch.refusals(BUCKET).tolist()) == (0, 0, [0] * BUCKET)


def test_a_replay_over_a_slot_that_was_given_away_refuses_its_row_alone(decoding: Decoding) -> None:
    requests = decoding.manager.requests
    rows = [requests.admit(5), requests.admit(5)]
    decoding.replay(rows)
    slot = int(requests.table("compressed_kv", np.array([rows[1]]))[0, 0])
    free = np.array([KINDS["compressed_kv"].LAYOUT.pack(generation=1)], np.uint64)
    upload, own = decoding.launcher.upload, decoding.backend.words.of("compressed_kv")
    kept = [
        upload(array) for array in (np.ones(1, np.uint32), np.array([slot], np.uint32), free, np.zeros(1, np.uint8))
    ]
    plan = put_words_plan(
        "compressed_kv", words=own, slot_count=SLOTS, count=kept[0].pointer, values_max=1, slots=kept[1].pointer,
        values=kept[2].pointer, refusals=kept[3].pointer,
    )  # fmt: skip
    decoding.launcher.launch(plan)  # behind the host's back
    decoding.runner.replay(rows)
    assert decoding.watch.refusals(BUCKET).tolist() == [0, Refusal.ILLEGAL, 0, 0]
    (told,), lost = decoding.watch.violations()
    assert (What(int(told["what"])), told["row"], told["column"], told["found"], lost) == (What.WORD, 1, 0, slot, 0)
    decoding.runner.replay(rows)
    assert len(decoding.watch.violations()[0]) == 1  # again, and the room that it took before is free


def test_a_replay_after_the_memory_was_made_anew_is_seen_on_the_device(decoding: Decoding) -> None:
    rows = [decoding.manager.requests.admit(5)]
    decoding.replay(rows)
    epoch = decoding.watch._buckets[BUCKET].epoch
    epoch.write(epoch.download() + 1)  # as if the host had compared nothing
    decoding.runner.replay(rows)
    assert decoding.watch.refusals(BUCKET).tolist() == [Refusal.EPOCH] * BUCKET
    told, _ = decoding.watch.violations()
    assert {What(int(one["what"])) for one in told} == {What.EPOCH}


def test_a_capture_over_memory_that_moved_finds_nothing(decoding: Decoding) -> None:
    """The check is run for the capture, and the last replay's numbers are those of the memory of before."""
    manager, slots = decoding.manager, dict.fromkeys(decoding.profile.kinds, SLOTS)
    decoding.replay([manager.requests.admit(5)])
    manager.reallocate(slots, buffers=decoding.backend.arenas(decoding.profile, slots), void=True)
    decoding.watch.before_replay([])
    with pytest.raises(Refused, match=r"capture\(4\)") as refused:
        decoding.runner.replay([])
    assert refused.value.refusal is Reason.EPOCH
    decoding.watch.capture(BUCKET)
    row = manager.requests.admit(5)
    decoding.replay([row])
    decoding.compare([row])
    told, lost = decoding.watch.violations()
    assert ([in_words(one) for one in told], lost, decoding.watch.refusals(BUCKET).tolist()) == ([], 0, [0] * BUCKET)
