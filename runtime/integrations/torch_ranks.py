"""A group of ranks over ``torch.distributed``: what ``agreement.py`` needs between processes.

A process group is made by whoever starts the processes; this only exchanges bytes over it, within a deadline::

    dist.init_process_group("nccl", ...)
    ranks = TorchGroup(dist.new_group(backend="gloo"), deadline=10.0)
    agreement = Agreement(ranks, manager)

With gloo each pair of ranks exchanges directly, so a rank knows which other it misses. Other backends, such as nccl,
use one collective over tensors on their device. What agreements exchange is small and lies in host memory: a gloo group
beside an nccl group spares the copies, and names a lost rank better. Over nccl this has not run on GPUs yet.

Give the group to nobody else: a message of another could be taken for one of ours.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, NoReturn, Protocol

from ..errors import RankLost

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

_LENGTH_BYTES = 8
_FIRST_NAP, _LONGEST_NAP = 20e-6, 2e-3  # seconds between looks at a collective
_GLANCE = 0.1  # seconds between looks at the store meanwhile

Way = Literal["pairs", "collective"]


class Board(Protocol):
    """The part of a ``torch.distributed`` store that is used."""

    def set(self, key: str, value: str, /) -> None:
        """Leave word."""

    def check(self, keys: list[str], /) -> bool:
        """Whether there is word under every key."""
        ...

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Leave word where there is none yet, when ``expected`` is empty; what is there afterwards."""
        ...


class TorchGroup:
    """The ranks of a process group.

    Args:
        group: the process group; the default one when None.
        deadline: seconds that an exchange may take, from the call of this rank on. Longer than the ranks' steps differ.
        device: where a collective's tensors lie; the present CUDA device for nccl, else the CPU.
        store: where ranks leave word of whom they miss, so that one which hears of it second-hand names the right one:
            a store of ``torch.distributed``, best on a host that outlives the ranks.
        frame_bytes: what one exchange carries; longer data take a second one.
        way: "pairs" for gloo and "collective" for others by default.

    Raises:
        ValueError: there is no process group, the frame is too short for a length, or the deadline is not positive.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        deadline: float = 30.0,
        device: torch.device | str | None = None,
        store: Board | None = None,
        frame_bytes: int = 4096,
        way: Way | None = None,
    ) -> None:
        import torch
        import torch.distributed as dist

        if deadline <= 0 or frame_bytes <= _LENGTH_BYTES:
            what = f"deadline={deadline}, frame_bytes={frame_bytes}"
            raise ValueError(f"{what}; give more than 0 seconds and more than {_LENGTH_BYTES} bytes")
        group = group or dist.group.WORLD
        if group is None:
            raise ValueError("torch.distributed has no process group yet; call init_process_group first")
        backend = dist.get_backend(group)
        self._group, self._deadline, self._frame_bytes = group, deadline, frame_bytes
        self._ranks = dist.get_process_group_ranks(group)
        self._rank = dist.get_rank(group)
        self._way = way or ("pairs" if backend == "gloo" else "collective")
        self._device = torch.device(device or ("cuda" if backend == "nccl" else "cpu"))
        self._store, self._shelf = store, f"kvfsm/ranks/{group.group_name}"
        self._lost: RankLost | None = None

    @property
    def rank(self) -> int:
        """See ``Group``."""
        return self._rank

    @property
    def size(self) -> int:
        """See ``Group``."""
        return len(self._ranks)

    def all_gather(self, data: bytes) -> list[bytes]:
        """See ``Group``. The second exchange, for long data, follows from lengths that all ranks have heard."""
        if self._lost is not None:
            raise RankLost(self._lost.ranks, self._lost.why)
        until, room = time.monotonic() + self._deadline, self._frame_bytes - _LENGTH_BYTES
        try:
            frame = len(data).to_bytes(_LENGTH_BYTES, "little") + data[:room]
            frames = self._exchange(frame.ljust(self._frame_bytes, b"\0"), until)
            lengths = [int.from_bytes(one[:_LENGTH_BYTES], "little") for one in frames]
            told = [one[_LENGTH_BYTES:] for one in frames]
            if (rest := max(lengths) - room) > 0:
                more = self._exchange(data[room:].ljust(rest, b"\0"), until)
                told = [first + second for first, second in zip(told, more, strict=True)]
            return [one[:length] for one, length in zip(told, lengths, strict=True)]
        except RankLost as error:
            self._lost = error
            raise

    def _exchange(self, frame: bytes, until: float) -> list[bytes]:
        """Frames of equal size, by rank."""
        import torch

        mine = torch.frombuffer(bytearray(frame), dtype=torch.uint8)
        if self.size == 1:
            return [frame]
        told = self._in_pairs(mine, until) if self._way == "pairs" else self._collectively(mine, until)
        return [one.numpy().tobytes() for one in told]

    def _in_pairs(self, mine: torch.Tensor, until: float) -> torch.Tensor:
        """From each rank to each other; the n-th to a rank meets the n-th that it waits for."""
        import torch
        import torch.distributed as dist

        told = torch.empty((self.size, len(mine)), dtype=torch.uint8)
        told[self._rank] = mine
        works: list[tuple[int, dist.Work | None]] = []
        for peer, name in enumerate(self._ranks):
            if peer != self._rank:
                try:
                    works.append((peer, dist.irecv(told[peer], src=name, group=self._group)))
                    works.append((peer, dist.isend(mine, dst=name, group=self._group)))
                except RuntimeError as error:
                    self._miss([peer], error)
        for peer, work in sorted(works, key=lambda one: one[0]):
            try:
                if work is not None:
                    work.wait(timedelta(milliseconds=max(1, round(1000 * (until - time.monotonic())))))
            except RuntimeError as error:
                self._miss([peer], error)
        return told

    def _collectively(self, mine: torch.Tensor, until: float) -> torch.Tensor:
        """By one collective, looked at again and again: waiting for it might never end."""
        import torch
        import torch.distributed as dist

        told = [torch.empty(len(mine), dtype=torch.uint8, device=self._device) for _ in self._ranks]
        try:
            work = dist.all_gather(told, mine.to(self._device), group=self._group, async_op=True)
            nap, glance = _FIRST_NAP, time.monotonic() + _GLANCE
            while work is not None and not work.is_completed():
                if (now := time.monotonic()) > until:
                    self._miss(self._absent(), TimeoutError(f"no answer within {self._deadline:g} s"))
                if self._store is not None and now > glance:
                    if self._store.check([f"{self._shelf}/alarm"]):
                        self._miss(self._absent(), TimeoutError("another rank misses one"))
                    glance = now + _GLANCE
                time.sleep(nap)
                nap = min(2 * nap, _LONGEST_NAP)
            if work is not None:
                work.wait()
            return torch.stack(told).cpu()
        except RuntimeError as error:
            self._miss(self._absent(), error)

    def _absent(self) -> list[int]:
        """Ranks that don't report to the store within another deadline; all others where that tells nothing."""
        others = [rank for rank in range(self.size) if rank != self._rank]
        if self._store is None:
            return others
        until, missing = time.monotonic() + self._deadline, others
        try:
            self._store.set(f"{self._shelf}/here/{self._rank}", "")
            self._store.set(f"{self._shelf}/alarm", "")
            while missing and time.monotonic() < until:
                missing = [rank for rank in missing if not self._store.check([f"{self._shelf}/here/{rank}"])]
                time.sleep(_LONGEST_NAP)
        except RuntimeError:  # the store is gone too
            return others
        return missing or others  # all are there: it is the network, or one that came late

    def _miss(self, ranks: list[int], error: Exception) -> NoReturn:
        """Raise RankLost, with what the first rank to notice found where that can be known."""
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        why = first_line if len(ranks) == 1 else f"one or more of them; {first_line}"
        if self._store is not None:
            mine = f"{','.join(map(str, ranks))};{why}"
            try:
                listed, _, first = self._store.compare_set(f"{self._shelf}/lost", "", mine).decode().partition(";")
                found = [int(rank) for rank in listed.split(",")]
                if self._rank not in found:
                    ranks, why = found, first
            except RuntimeError:
                why = f"{why} (and the store is gone)"
        raise RankLost(ranks, why) from error
