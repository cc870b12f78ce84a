"""CUDA graphs as a recorder: what is asked of torch, and in which order, on a torch that has no device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.graphs import GraphRunner, Inputs, Launch
from kvfsm.runtime.integrations.cuda_graphs import CudaGraphs
from kvfsm.runtime.manager import Manager

PROFILE = PROFILES["tiny_llama"]
KV, A = "compressed_kv", PROFILE.granule


class Stream:
    def __init__(self, cuda: FakeCuda, name: str) -> None:
        self.cuda, self.name = cuda, name

    def wait_stream(self, other: Stream) -> None:
        self.cuda.log.append(f"{self.name} waits for {other.name}")


class Event:
    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda, self.recorded = cuda, False

    def record(self) -> None:
        self.cuda.unsafe_under_capture()
        self.recorded = True
        self.cuda.events.append(self)

    def query(self) -> bool:
        self.cuda.unsafe_under_capture()
        assert self.recorded
        return self in self.cuda.ended

    def synchronize(self) -> None:
        self.cuda.log.append("the host waits for an event")
        self.cuda.ended.append(self)


class Graph:
    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda, self.kernels = cuda, []  # type: ignore[var-annotated]

    def replay(self) -> None:
        self.cuda.log.append("replay")
        for kernel, arguments in self.kernels:
            kernel(*arguments)


class FakeCuda:
    """Runs what is launched at once; under a capture it is kept for the replay, as CUDA does."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.events: list[Event] = []
        self.ended: list[Event] = []
        self.capturing: Graph | None = None
        self.forbidden: int | None = None  # a thread for which calls are unsafe under the capture; None: for all
        self.pools: list[int] = []
        self.device_now: str | None = None  # None: the one that is torch's own choice
        self.of_events: list[str | None] = []
        self._main = self._stream = Stream(self, "main")

    @contextmanager
    def device(self, device: str) -> Iterator[None]:
        before, self.device_now = self.device_now, device
        yield
        self.device_now = before

    def Event(self) -> Event:
        self.of_events.append(self.device_now)
        return Event(self)

    def Stream(self) -> Stream:
        assert self.device_now is not None
        return Stream(self, "side")

    def CUDAGraph(self) -> Graph:
        return Graph(self)

    def current_stream(self) -> Stream:
        return self._stream

    def unsafe_under_capture(self) -> None:
        is_forbidden = self.forbidden in (None, threading.get_ident())
        assert self.capturing is None or not is_forbidden, "this call ends the capture"

    def synchronize(self) -> None:
        self.unsafe_under_capture()
        self.log.append("the host waits for the device")
        self.ended += self.events

    def graph_pool_handle(self) -> int:
        return 7

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self._stream = self._stream, stream
        yield
        self._stream = before

    @contextmanager
    def graph(self, graph: Graph, pool: int, capture_error_mode: str = "global") -> Iterator[None]:
        assert self.device_now is not None
        self.log.append("capture begins")
        self.forbidden = threading.get_ident() if capture_error_mode == "thread_local" else None
        self.capturing = graph
        self.pools.append(pool)
        yield
        self.capturing = None
        self.log.append("capture ends")

    def run(self, kernel: Callable[..., None], *arguments: Any) -> None:
        if self.capturing is not None:
            self.capturing.kernels.append((kernel, arguments))
        else:
            self.log.append(f"runs on {self._stream.name}")
            kernel(*arguments)


class FakeTorch:
    """Torch on the CPU, with a device of its own."""

    def __init__(self) -> None:
        self.cuda = FakeCuda()
        self.pinned: list[Any] = []

    def empty(self, shape: Any, *, dtype: Any, pin_memory: bool) -> Any:
        assert pin_memory
        self.pinned.append(torch.empty(tuple(shape), dtype=dtype))
        return self.pinned[-1]

    def from_numpy(self, host: Any) -> Any:
        return torch.from_numpy(host)


class Served:
    """A runner on the device, whose step writes 1 + the position to each row's slot."""

    def __init__(self, **options: Any) -> None:
        self.torch = FakeTorch()
        self.manager = Manager(PROFILE, {KV: 9}, NumpyBackend())
        self.device = CudaGraphs("cpu", torch=self.torch, **options)
        self.runner = GraphRunner(self.manager, self.step, [1, 2], self.device)
        self.written = torch.zeros(9, A, dtype=torch.int64)

    def step(self, launch: Launch, inputs: Inputs) -> None:
        launch(self.torch.cuda.run, self.kernel, inputs.tables[KV], inputs.tables["positions"], self.written)

    @staticmethod
    def kernel(table: Any, positions: Any, written: Any) -> None:
        for blocks, (position,) in zip(table, positions.tolist(), strict=True):
            written[blocks[position // A], position % A] = position + 1


def test_a_capture_warms_up_on_a_side_stream_and_writes_scratch_alone() -> None:
    served = Served(warmups=2)
    served.runner.capture(2)
    assert served.torch.cuda.log == [
        "side waits for main", "runs on side", "runs on side", "main waits for side", "the host waits for the device",
        "capture begins", "capture ends",
    ]  # fmt: skip
    scratch = served.manager.set_aside()[KV]
    assert served.written.nonzero().tolist() == [[scratch, 0]]


def test_graphs_of_one_recorder_share_a_pool() -> None:
    served = Served()
    served.runner.capture(1)
    served.runner.capture(2)
    assert served.torch.cuda.pools == [7, 7]


def test_everything_is_done_on_the_recorders_device() -> None:
    """Not on torch's current one: a launch would go to a stream that is not captured, an event to another stream."""
    served = Served()
    served.runner.capture(1)
    served.runner.replay([served.manager.requests.admit(1)])
    assert len(served.torch.cuda.of_events) >= 2 and set(served.torch.cuda.of_events) == {"cpu"}
    assert served.torch.cuda.device_now is None


def test_another_thread_may_ask_its_events_while_a_step_is_captured() -> None:
    """A load worker does; under a capture in the mode ``global`` CUDA takes that for a mistake, and ends it."""
    served, asked = Served(), []
    event = served.torch.cuda.Event()
    event.record()

    def step(launch: Launch, inputs: Inputs) -> None:
        if served.torch.cuda.capturing is not None:
            worker = threading.Thread(target=lambda: asked.append(event.query()))
            worker.start()
            worker.join()
        served.step(launch, inputs)

    GraphRunner(served.manager, step, [1], served.device).capture(1)
    assert asked == [True]


def test_a_replay_reads_the_tables_of_its_batch_and_waits_for_nothing() -> None:
    served = Served()
    served.runner.capture(2)
    cuda = served.torch.cuda
    rows = [served.manager.requests.admit(A + 3), served.manager.requests.admit(1)]
    cuda.log.clear()
    served.written.zero_()
    served.runner.replay(rows)
    table = served.manager.requests.table(KV, rows)
    assert served.written[table[0, 1], 2] == A + 3 and served.written[table[1, 0], 0] == 1
    served.manager.requests.finish(rows.pop(), done=served.runner.begun())
    served.runner.capture(1)
    cuda.log.clear()
    served.runner.replay(rows)
    assert cuda.log == ["replay"]


def test_slots_and_memory_wait_until_the_event_after_a_replay_has_passed() -> None:
    served = Served()
    served.runner.capture(1)
    row = served.manager.requests.admit(1)
    served.runner.replay([row])
    served.manager.requests.finish(row, done=served.runner.begun())
    assert served.manager.given_up and served.manager.memory.running
    with pytest.raises(Refused, match="PINNED"):
        served.manager.reallocate()
    served.torch.cuda.ended += served.torch.cuda.events
    assert served.manager.reallocate() == 2
    with pytest.raises(Refused, match="EPOCH"):
        served.runner.replay([])
    assert served.manager.audit().ok


def test_the_host_waits_for_the_first_upload_when_too_many_are_under_way() -> None:
    served = Served(staged=2)
    served.runner.capture(1)
    served.torch.cuda.ended += served.torch.cuda.events
    served.torch.cuda.log.clear()
    for _ in range(3):
        served.runner.replay([])
    assert served.torch.cuda.log == ["replay", "replay", "the host waits for an event", "replay"]


def test_what_an_upload_reads_is_not_what_the_next_one_fills() -> None:
    served = Served()
    served.runner.capture(1)
    before = len(served.torch.pinned)
    served.runner.replay([])
    first = served.torch.pinned[before:]
    kept = [one.clone() for one in first]
    row = served.manager.requests.admit(2)
    served.runner.replay([row])
    assert all(torch.equal(one, copy) for one, copy in zip(first, kept, strict=True))
    assert len({one.data_ptr() for one in served.torch.pinned[before:]}) == 2 * len(first)


def test_only_columns_that_changed_are_uploaded() -> None:
    served = Served()
    served.runner.capture(1)
    before = len(served.torch.pinned)
    served.runner.replay([])
    served.runner.replay([])
    widths = [one.shape[1] for one in served.torch.pinned[before:]]
    assert widths == [8, 1, 1, 1, 1, 1]  # after a capture the whole table, then a column of each of three


def test_addresses_on_the_device_are_in_the_signature() -> None:
    served = Served()
    signature = served.runner.capture(1)
    tables = served.runner.tables.tables
    assert [one.address for one in signature.tables] == [table.placed.data_ptr() for table in tables.values()]
    assert all(table.placed.data_ptr() != table.host.ctypes.data for table in tables.values())


def test_options_out_of_range_are_named() -> None:
    for options in ({"warmups": 0}, {"staged": 0}):
        with pytest.raises(ValueError, match="give at least 1"):
            CudaGraphs("cpu", torch=FakeTorch(), **options)  # type: ignore[arg-type]


@pytest.mark.needs_gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_graph_on_a_gpu_writes_where_its_batch_says() -> None:
    manager = Manager(PROFILE, {KV: 9}, NumpyBackend())
    written = torch.zeros(9, A, dtype=torch.int64, device="cuda")

    def kernel(table: Any, positions: Any) -> None:
        slots = torch.gather(table.long(), 1, positions // A)[:, 0]
        written.view(-1).index_put_((slots * A + positions[:, 0] % A,), positions[:, 0] + 1)

    def step(launch: Launch, inputs: Inputs) -> None:
        launch(kernel, inputs.tables[KV], inputs.tables["positions"])

    runner = GraphRunner(manager, step, [4], CudaGraphs())
    runner.capture(4)
    scratch = manager.set_aside()[KV]
    assert set(written.cpu().nonzero()[:, 0].tolist()) == {scratch}
    rows = [manager.requests.admit(A + 3), manager.requests.admit(1)]
    runner.replay(rows)
    table = manager.requests.table(KV, rows)
    torch.cuda.synchronize()
    found = written.cpu().numpy()
    assert found[table[0, 1], 2] == A + 3 and found[table[1, 0], 0] == 1
    found[[table[0, 1], table[1, 0], scratch]] = 0
    assert not np.any(found)
    assert runner.begun()() and manager.reallocate(void=True) == 2
