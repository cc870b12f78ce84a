"""The check at the head of captured graphs, in a launcher's memory: ``check_topology`` for a ``GraphRunner``.

    runner = GraphRunner(manager, step, buckets, recorder)
    watch = GraphWatch(launcher, manager, runner, backend)

    def step(launch, inputs):
        watch.launch(launch, inputs)     # first; the launches after it leave alone what watch.refused(bucket) names
        ...

    watch.capture(4)                     # instead of runner.capture
    watch.before_replay(rows)            # copies a few numbers to the device, and waits for nothing
    runner.replay(rows)
    found, lost = watch.violations()     # whenever the host likes; waits for the launches so far
    for record in found:
        print(in_words(record))          # "WORD, STALE: row 1, column 0: found 10, wanted 3"

The host compares signatures before a replay, too (``runtime/topology.py``). This sees what the device sees: tables that
are not what was uploaded, and slots that are not what the words on the device say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..runtime.generated import Refusal
from ..runtime.requests import GUARD
from ..runtime.topology import Form, Signature, numbers_of
from .backend import KernelBackend
from .call_refusal import CallRefusal
from .launch import Buffer, Launcher, Pointer
from .topology_check import RECORD, Ring, Rows, Violations, What, check_topology_plan

if TYPE_CHECKING:
    from ..runtime.graphs import GraphRunner, Inputs, Launch
    from ..runtime.manager import Manager

WHOLE = 2**31 - 1
"""Tokens that an entry covers where a row has one for all."""


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Memory of the check of one graph.

    captured, present   int64 [numbers of the signature]
    epoch               int64 [1]
    refused             uint8 [rows]
    """

    captured: Buffer
    present: Buffer
    epoch: Buffer
    refused: Buffer


class GraphWatch:
    """Checks the graphs of one runner where they run. Used by the thread that uses the runner, on the replays' stream.

    Args:
        launcher: in whose memory the runner's tables lie, too.
        manager: that of the runner.
        runner: which has captured nothing yet.
        backend: that of the manager, whose copy of the state words is looked at; None looks at no words.
        capacity: violations that are kept until the host takes them; more are counted.

    Raises:
        ValueError: these don't belong together, or the runner has captured something.
    """

    def __init__(
        self,
        launcher: Launcher,
        manager: Manager,
        runner: GraphRunner,
        backend: KernelBackend | None = None,
        *,
        capacity: int = 256,
    ) -> None:
        _check_together(launcher, manager, runner, backend)
        self._launcher, self._manager, self._runner, self._backend = launcher, manager, runner, backend
        self._capacity, self._form = capacity, Form(manager.profile)
        self._buckets = {bucket: self._memory(bucket) for bucket in runner.buckets}
        self._records = launcher.upload(np.zeros((capacity, RECORD.itemsize // 4), np.uint32))
        self._cursor = launcher.upload(np.zeros(1, np.uint64))
        self._consumed = launcher.upload(np.zeros(1, np.uint64))
        self._taken = 0
        self._signatures: dict[int, Signature] = {}  # of what was captured here, by bucket
        self._checked: set[int] = set()  # buckets whose step has launched the check

    def launch(self, launch: Launch, inputs: Inputs) -> None:
        """The launches of the check, one a table, for the step of a bucket."""
        memory, tables = self._buckets[inputs.bucket], self._runner.tables
        ring = Ring(self._records.pointer, self._cursor.pointer, self._consumed.pointer, self._capacity)
        for place, (kind, width) in enumerate(tables.widths.items()):
            span, is_ring = self._shape(kind)
            rows = Rows(
                pointer_of(inputs.tables[kind]), pointer_of(inputs.tables["live"]),
                pointer_of(inputs.tables["positions"]), span, is_ring, int(GUARD), tables.scratch[kind],
            )  # fmt: skip
            plan = check_topology_plan(
                rows, inputs.bucket, width, memory.captured.pointer, memory.present.pointer,
                memory.present.pointer.bytes // 8, memory.epoch.pointer, self._manager.memory.epoch,
                memory.refused.pointer, ring, kind=kind, slots=self._manager.core.pools[kind].hot,
                words=None if self._backend is None else self._backend.words.of(kind), is_first=place == 0,
            )  # fmt: skip
            launch(self._launcher.launch, plan)
        self._checked.add(inputs.bucket)

    def capture(self, bucket: int) -> Signature:
        """As ``runner.capture``; the check in the graph, which is run for that, has nothing to find meanwhile.

        Raises:
            ValueError: the step doesn't launch the check, and the bucket has no graph then; or as ``runner.capture``.
        """

        def tell(signature: Signature) -> None:
            memory = self._buckets[bucket]
            memory.captured.write(signature.numbers)
            memory.present.write(signature.numbers)
            self._tell_epoch(memory)

        self._checked.discard(bucket)
        signature = self._runner.capture(bucket, before=tell)
        if bucket not in self._checked:
            self._runner.drop(bucket)
            what = f"the step for {bucket} rows doesn't launch the check"
            raise ValueError(f"{what}; fix: begin it with watch.launch(launch, inputs)")
        self._signatures[bucket] = signature
        return signature

    def before_replay(self, rows: npt.ArrayLike) -> None:
        """Tell the device what is there now, for the replay of these rows that follows.

        Raises:
            ValueError: the graph of these rows was not captured here; or as ``runner.bucket_of``.
        """
        bucket = self._runner.bucket_of(np.size(rows))
        signature = self._runner.signature(bucket)
        if signature is not None and signature is not self._signatures.get(bucket):
            raise ValueError(f"runner.capture({bucket}) told the watch nothing; fix: use watch.capture({bucket})")
        memory = self._buckets[bucket]
        if self._backend is not None:
            self._backend.send_words()
        memory.present.write(self._present(bucket))
        self._tell_epoch(memory)

    def refused(self, bucket: int) -> Pointer:
        """uint8 [bucket], 0 or why the launches that follow must leave a row alone; see ``check_topology``."""
        return self._buckets[bucket].refused.pointer

    def refusals(self, bucket: int) -> npt.NDArray[np.uint8]:
        """The same, as the last replay left it."""
        return self._buckets[bucket].refused.download()

    def violations(self) -> tuple[npt.NDArray[np.void], int]:
        """(RECORD [n], lost): what was found since the last call, and how much more there was than the ring holds.

        ``what`` of a record is a ``What``, ``code`` a ``Refusal`` or a ``CallRefusal``; ``in_words`` says it all.
        """
        cursor = int(self._cursor.download()[0])
        ring = Violations(self._records.download().view(RECORD).reshape(-1), cursor, self._taken)
        lost, found = ring.lost, ring.take()
        self._taken = ring.consumed
        self._consumed.write(np.array([ring.consumed], np.uint64))
        return found, lost

    def _memory(self, bucket: int) -> _Bucket:
        numbers, epoch, refused = self._present(bucket), np.zeros(1, np.int64), np.zeros(bucket, np.uint8)
        upload = self._launcher.upload
        return _Bucket(upload(numbers), upload(numbers), upload(epoch), upload(refused))

    def _tell_epoch(self, memory: _Bucket) -> None:
        memory.epoch.write(np.array([self._manager.memory.epoch], np.int64))

    def _present(self, bucket: int) -> npt.NDArray[np.int64]:
        with self._manager.lock:
            return numbers_of(self._manager, self._runner.tables, bucket, self._form)

    def _shape(self, kind: str) -> tuple[int, bool]:
        """Tokens that an entry covers, and whether the entries are a ring."""
        profile = self._manager.profile
        if kind in self._runner.tables.paged:
            return profile.granule, False
        if kind == "swa_window" and profile.window_block is not None:
            return profile.window_block, True
        return WHOLE, False


def _check_together(launcher: Launcher, manager: Manager, runner: GraphRunner, backend: KernelBackend | None) -> None:
    """Raise ValueError for a watch that would look at what is another's."""
    if runner.manager is not manager:
        raise ValueError("the runner is another manager's; fix: pass runner.manager")
    if captured := [bucket for bucket in runner.buckets if runner.signature(bucket) is not None]:
        what = f"the runner has captured {', '.join(map(str, captured))} rows already, without the check"
        raise ValueError(f"{what}; fix: make the watch first, and capture by watch.capture")
    if backend is not None and manager.backend is not backend:
        raise ValueError("the backend is not the manager's, and has other words; fix: pass manager.backend")
    if isinstance(manager.backend, KernelBackend) and manager.backend.launcher is not launcher:
        raise ValueError("the slots lie in another launcher's memory; fix: pass backend.launcher")


def in_words(record: np.void) -> str:
    """One record of ``violations``.

    >>> in_words(np.array((What.WORD, 1, 0, Refusal.ILLEGAL, 10, 3), RECORD)[()])
    'WORD, ILLEGAL: row 1, column 0: found 10, wanted 3'
    """
    what, row, column, code, found, wanted = record.tolist()
    why = CallRefusal(code) if code in set(CallRefusal) else Refusal(code)
    return f"{What(what).name}, {why.name}: row {row}, column {column}: found {found}, wanted {wanted}"


def pointer_of(placed: Any) -> Pointer:
    """Memory of a table as a recorder placed it: a NumPy array, or a tensor."""
    if isinstance(placed, np.ndarray):
        return Pointer(placed.ctypes.data, placed.nbytes)
    return Pointer(int(placed.data_ptr()), int(placed.numel()) * int(placed.element_size()))
