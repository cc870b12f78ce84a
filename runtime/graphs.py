"""Captured graphs: launches of a step, recorded once for a number of rows, and replayed where nothing has moved.

A runner keeps one graph for each *bucket* of batch sizes; a smaller batch is padded, and padding writes go to scratch.
A graph's word is that of the spec's ``captured_graph``, the memory's that of ``graph_pool``. A replay runs only in the
epoch of its capture and under its signature (``topology.py``), else it is refused and the graph is to be captured anew.

How launches are recorded is for the ``Recorder``: ``HostRecorder`` here, ``integrations/cuda_graphs.py`` on a GPU.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from .answers import Reason
from .arena import Region
from .errors import Refused
from .generated import CapturedGraphTable, Refusal
from .generated.captured_graph import CapturedGraphState
from .lease import Done
from .static_tables import Host, Placer, StaticTables
from .topology import Form, Signature, numbers_of, signature_of

if TYPE_CHECKING:
    from .manager import Manager

Launch = Callable[..., None]
"""``launch(kernel, *arguments)``: run a kernel, or record that it is to be run with these very arguments."""


class Recording(Protocol):
    """What was recorded."""

    def replay(self) -> Done | None:
        """Launch it. Returns what says whether it has ended; None when it has."""
        ...


class Recorder(Placer, Protocol):
    """Records launches, and places the tables that they read."""

    def record(self, step: Callable[[Launch], None]) -> Recording:
        """Warm ``step`` up, which really runs it, and record it; both have ended when this returns."""
        ...


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a step launches its kernels with; all of it stays where it is while the graph is good.

    Attributes:
        bucket: rows of the batch, padding included.
        tables: by name, see ``static_tables.py``; [bucket, width] as the recorder places them.
    """

    manager: Manager
    bucket: int
    tables: Mapping[str, Any]

    def part(self, kind: str, part: str, layer: int) -> Region:
        """One tensor of all slots, uint8 [slots, rows, row_bytes]; by its address where it lies on a device."""
        return self.manager.core.pools[kind].arena.part_region(self.manager.profile.layouts[kind].part(part, layer))


Step = Callable[[Launch, Inputs], None]


class GraphRunner:
    """Graphs of one step, used by one thread at a time.

    Args:
        manager: whose slots the step writes to.
        step: launches the step's kernels over its inputs; is run at each capture.
        buckets: batch sizes to capture for.
        recorder: a ``HostRecorder`` by default.

    Raises:
        ValueError: no buckets, or one below 1.
        Refused: POOL_FULL when no slot can be set aside.
    """

    def __init__(
        self, manager: Manager, step: Step, buckets: Iterable[int], recorder: Recorder | None = None
    ) -> None:
        self.buckets = tuple(sorted(set(buckets)))
        if not self.buckets or self.buckets[0] < 1:
            raise ValueError(f"buckets {list(self.buckets)}; give batch sizes of at least 1")
        self._manager, self._step = manager, step
        self._recorder: Recorder = HostRecorder() if recorder is None else recorder
        self._form = Form(manager.profile)
        manager.set_aside()
        with manager.lock:
            self.tables = StaticTables(manager, self.buckets[-1], self._recorder)
        self.words = manager.table(CapturedGraphTable, len(self.buckets))
        self._captured: dict[int, tuple[Recording, Signature]] = {}  # by number of the bucket

    @property
    def manager(self) -> Manager:
        """Whose slots the step writes to."""
        return self._manager

    def bucket_of(self, rows: int) -> int:
        """The bucket that a batch runs in. Raises ValueError for one larger than all: run that without a graph."""
        return self.buckets[self._number(rows)]

    def signature(self, bucket: int) -> Signature | None:
        """What the graph of a bucket has baked in; None while there is none."""
        captured = self._captured.get(self._exactly(bucket))
        return None if captured is None else captured[1]

    def capture(self, bucket: int, *, before: Callable[[Signature], None] | None = None) -> Signature:
        """Record the step for a bucket, over the memory as it is; what was recorded before is forgotten.

        The step is run for that. All that it may write to is scratch meanwhile.

        Args:
            bucket: one of ``buckets``.
            before: told of the signature before the step is run.

        Raises:
            ValueError: no such bucket.
            Exception: what the step or ``before`` raises; the bucket has no graph then.
        """
        number, manager = self._exactly(bucket), self._manager
        with manager.lock:
            if not self.tables.fits(manager):  # pools of another size: graphs over these tables are of an older epoch
                self.tables = StaticTables(manager, self.buckets[-1], self._recorder)
            memory = manager.memory
            self._forget(number)
            self._must("begin", number, at_epoch=memory.epoch, at_place=memory.place)
            launch = memory.launch()
            self.tables.point_at_scratch()
            signature = signature_of(manager, self.tables, bucket)
        inputs = Inputs(manager, bucket, self.tables.placed(bucket))
        try:
            self.tables.upload()
            if before is not None:
                before(signature)
            recording = self._recorder.record(lambda launch: self._step(launch, inputs))
        except BaseException:
            with manager.lock:
                memory.retire(launch)
                self._must("drop", number)
            raise
        with manager.lock:
            memory.retire(launch)
            self._must("end", number)
            self._captured[number] = recording, signature
        return signature

    def replay(self, rows: npt.ArrayLike) -> None:
        """Run the step for some live requests, in this order: the token that each of them took last.

        To be called after ``manager.requests.step``, and before the row is published.

        Args:
            rows: of ``manager.requests``, unique; the rest of the bucket is padding.

        Raises:
            Refused: EPOCH when the memory was allocated anew since the capture, LAYOUT when anything else of the
                signature is not as it was, ILLEGAL when nothing was captured; nothing was launched.
            ValueError: a row that holds no request, or whose last token is published already; a row twice, or more
                rows than the largest bucket has.
        """
        index, manager = np.asarray(rows, np.intp).reshape(-1), self._manager
        number = self._number(len(index))
        with manager.lock:
            self._check_rows(index)
            self._check(number)
            self.tables.fill(manager, index)
            launch = manager.memory.launch()
        done: Done | None = None
        try:
            self.tables.upload()
            done = self._captured[number][0].replay()
        finally:
            with manager.lock:
                manager.memory.retire(launch, done)

    def drop(self, bucket: int) -> None:
        """Forget the graph of a bucket, if there is one."""
        with self._manager.lock:
            self._forget(self._exactly(bucket))

    def begun(self) -> Done:
        """Says whether what was launched has ended: the ``done=`` of what gives slots back meanwhile.

        What is launched until it is first asked counts, which is when the slots are given back.
        """
        return self._manager.memory.begun()

    # ---- under the manager's lock ---------------------------------------------------------------------------------

    def _check(self, number: int) -> None:
        """Raise Refused unless the graph of a bucket may be replayed now."""
        manager = self._manager
        self._must("replay", number, pool_epoch=manager.memory.epoch)
        captured, bucket = self._captured[number][1], self.buckets[number]
        if not np.array_equal(captured.numbers, numbers_of(manager, self.tables, bucket, self._form)):
            differences = captured.differences(signature_of(manager, self.tables, bucket))
            more = f" and {len(differences) - 1} more" if len(differences) > 1 else ""
            raise Refused(Reason.LAYOUT, "graph", f"captured {differences[0]}{more}; capture({bucket}) anew")

    def _check_rows(self, rows: npt.NDArray[np.intp]) -> None:
        requests = self._manager.requests
        if len(rows) and not (0 <= rows.min() and rows.max() < len(requests.active) and requests.active[rows].all()):
            raise ValueError(f"rows {rows.tolist()} do not all hold a request")
        if len(np.unique(rows)) != len(rows):
            raise ValueError(f"rows {rows.tolist()} name one more than once; a step is one token a row")
        if len(sealed := rows[requests.shared_tokens(rows) >= requests.tokens[rows]]):
            raise ValueError(f"the last token of rows {sealed.tolist()} is published; step them first")

    def _forget(self, number: int) -> None:
        if self.words.states([number])[0] != CapturedGraphState.EMPTY:
            self._must("drop", number)
        self._captured.pop(number, None)

    def _must(self, event: str, number: int, **given: int) -> None:
        code = int(self.words.fire(event, [number], **given)[0])
        if code:
            word: Any = Refusal(code)
            what = f"the graph for {self.buckets[number]} rows refuses '{event}': {word.reason}"
            raise Refused(word, "graph", f"{what}; capture({self.buckets[number]})")

    # ---- small helpers --------------------------------------------------------------------------------------------

    def _number(self, rows: int) -> int:
        number = bisect.bisect_left(self.buckets, rows)
        if number == len(self.buckets):
            raise ValueError(f"{rows} rows, and the largest bucket has {self.buckets[-1]}; run them without a graph")
        return number

    def _exactly(self, bucket: int) -> int:
        if bucket not in self.buckets:
            raise ValueError(f"no bucket of {bucket} rows; there are {', '.join(map(str, self.buckets))}")
        return self.buckets.index(bucket)


@dataclass(frozen=True, slots=True)
class Recorded:
    """One launch on the host: the kernel, and its arguments as they were; arrays stay the memory that they were."""

    kernel: Callable[..., object]
    arguments: tuple[Any, ...]

    @property
    def addresses(self) -> tuple[int | None, ...]:
        """Address of each argument that is an array."""
        return tuple(int(one.ctypes.data) if isinstance(one, np.ndarray) else None for one in self.arguments)


@dataclass(frozen=True, slots=True)
class HostRecording:
    """Launches that are run again one by one."""

    launches: tuple[Recorded, ...]

    def replay(self) -> None:
        """Run them; they have ended when this returns."""
        for one in self.launches:
            one.kernel(*one.arguments)


class HostRecorder:
    """A capture on the host: kernels are plain functions over arrays."""

    def place(self, name: str, host: Host) -> Host:
        """Launches read the very memory that is filled."""
        return host

    def address(self, placed: Host) -> int:
        """Address of the first entry."""
        return int(placed.ctypes.data)

    def upload(self, changed: Mapping[str, tuple[Host, Host]]) -> None:
        """It is there already."""

    def record(self, step: Callable[[Launch], None]) -> HostRecording:
        """Run the step, then list its launches."""
        step(lambda kernel, *arguments: kernel(*arguments))
        launches: list[Recorded] = []
        step(lambda kernel, *arguments: launches.append(Recorded(kernel, arguments)))
        return HostRecording(tuple(launches))
