"""One of four processes that agree over gloo: ``python -m tests.integrations.rank_worker RANK PORT`` reports JSON.

The scenarios come one after the other, each on a process group of its own, so that losing one group leaves the next.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.agreement import Agreement, Ask, Decision
from kvfsm.runtime.errors import RankError, RankLost
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.integrations.torch_ranks import TorchGroup
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.scheduler import Scheduler
from kvfsm.runtime.stores.local import LocalStore
from kvfsm.runtime.stores.store import Namespace

from ..runtime.meddling import Meddling
from ..runtime.serving import bytes_at, leaks, make, stored, write

PROFILE = PROFILES["tiny_deepseek_v4"]
A = PROFILE.granule
NAMESPACE = Namespace.of(PROFILE)
LONG, SHORT = 120.0, 6.0  # seconds: more than any delay here, and what is waited for who never comes
PROMPT = list(range(10 * A + 1))
CUTS = {0: (2, 5, 8), 1: (2, 8), 2: (2, 5), 3: (2, 5, 9)}  # windows and tails are kept where fills end


def filled(cuts: tuple[int, ...]) -> Manager:
    manager = Manager(PROFILE, dict.fromkeys(PROFILE.kinds, 32), NumpyBackend())
    keys, start = manager.keys(PROMPT), 0
    for stop in cuts:
        manager.publish(manager.reserve(keys, start, stop))
        start = stop
    return manager


def rot(folder: Path, granule: int) -> None:
    """One bit of some entries of a granule flips on the disk, wherever they lie."""
    written = bytes([granule + 1]) * 256
    (path,) = [path for path in folder.rglob("*") if path.is_file() and written in path.read_bytes()]
    data = bytearray(path.read_bytes())
    data[data.index(written) + 100] ^= 1
    path.write_bytes(data)


def goes_on_as_cold(manager: Manager, keys: Keys, start: int) -> bool:
    """Whether what a request goes on from has the bytes of a run that computed all of it."""
    cold = make(32)
    write(cold, cold.keys(PROMPT), start // A)
    return bytes_at(manager, keys, start) == bytes_at(cold, cold.keys(PROMPT), start)


def told(decision: Decision) -> dict[str, Any]:
    """What is to be equal on all ranks, and what this rank leases."""
    leases = [0 if one.lease is None else one.lease.length // A for one in decision.agreed]
    lengths = [one.length // A for one in decision.agreed]
    decision.release()
    return {
        "step": decision.step, "lengths": lengths, "votes": decision.votes, "stream": decision.stream.hex(),
        "refused_by": [one.refused_by for one in decision.agreed], "leases": leases,
    }  # fmt: skip


def failed(call: Callable[[], Any], manager: Manager) -> dict[str, Any]:
    """How a call fails, and what is held afterwards."""
    try:
        call()
    except RankError as error:
        lost = list(error.ranks) if isinstance(error, RankLost) else []
        held = len(manager.receipts)
        return {"error": type(error).__name__, "ranks": lost, "text": str(error), "held": held}
    return {"error": None}


class Worker:
    """One rank and what it did."""

    def __init__(self, rank: int, port: int) -> None:
        self.rank = rank
        self.store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=LONG))
        dist.init_process_group("gloo", store=self.store, rank=rank, world_size=4)
        self.report: dict[str, Any] = {}

    def group(self, deadline: float, *, way: str | None = None, noted: bool = True) -> TorchGroup:
        store = self.store if noted else None
        return TorchGroup(dist.new_group(backend="gloo"), deadline=deadline, store=store, way=way)  # type: ignore[arg-type]

    def evicting_differently(self) -> None:
        """Steps in between which each rank evicts by its own lights; rank 3 is slow."""
        manager = filled(CUTS[self.rank])
        keys, steps = manager.keys(PROMPT), []
        agreement = Agreement(Meddling(self.group(LONG), lambda n: time.sleep(0.2 if self.rank == 3 else 0)), manager)
        own = [manager.boundaries(keys).tolist()]
        steps.append(told(agreement.step([Ask(keys), Ask(keys, 2 * A + 1), Ask(manager.keys([7] * 99))])))
        if self.rank == 1:  # of its two windows the one that was leased longer ago goes
            manager.evict("swa_window", 1)
        steps.append(told(agreement.step([Ask(keys)])))
        steps.append(told(agreement.step([Ask(keys, admit=self.rank != 2)])))
        if self.rank == 1:
            manager.evict("swa_window", 1)
        own.append(manager.boundaries(keys).tolist())
        steps.append(told(agreement.step([Ask(keys)])))
        self.report["evicting"] = {
            "steps": steps, "own": own, "exchanges": agreement.exchanges, "audit": manager.audit().ok,
        }  # fmt: skip

    def scheduling(self) -> None:
        """A scheduler each, over caches that evict differently; rank 3 is slow."""
        manager = filled(CUTS[self.rank])
        agreement = Agreement(Meddling(self.group(LONG), lambda n: time.sleep(0.05 if self.rank == 3 else 0)), manager)
        scheduler = Scheduler(manager, ThreadPoolExecutor(1), chunk=4 * A, agreement=agreement)
        alone = manager.match(manager.keys(PROMPT)).now // A
        log, prompts = [], [PROMPT, PROMPT[: 7 * A], [7] * 99, PROMPT]
        while prompts or scheduler.live:
            if prompts:
                scheduler.submit(manager.keys(prompts.pop(0)))
            if log and self.rank == len(log) % 4:
                manager.evict("swa_window", 1)
            work = scheduler.schedule()
            log.append([(one.live.number, one.start, one.stop) for one in work])
            for one in work:
                scheduler.publish(one.live)
                if one.stop == one.live.known:
                    scheduler.decode([one.live], tokens=[9])
                    scheduler.finish(one.live)
        self.report["scheduling"] = {
            "log": log, "alone": alone, "exchanges": agreement.exchanges, "audit": manager.audit().ok,
            "held": len(manager.receipts) + len(manager.reservations) + int(manager.requests.active.sum()),
        }  # fmt: skip

    def loading(self) -> None:
        """Nothing is in memory. Rank 1's store has a rotten granule, rank 2's lacks the last one; rank 3 is slow."""
        with tempfile.TemporaryDirectory() as folder, LocalStore(folder, NAMESPACE, budget_bytes=1 << 30) as store:
            stored(store, [PROMPT[: (9 if self.rank == 2 else 10) * A]])
            if self.rank == 1:
                rot(Path(folder), 7)
            go_on = threading.Event()
            manager = make(32, store=store, writes="none")
            agreement = Agreement(self.group(LONG), manager)
            with ThreadPoolExecutor(1) as executor:
                if self.rank == 3:
                    executor.submit(go_on.wait, LONG)  # its only thread
                scheduler = Scheduler(manager, executor, agreement=agreement)
                warm, cold = (scheduler.submit(manager.keys(tokens)) for tokens in (PROMPT, [7] * 99))
                log, same = list[tuple[int, int, int]](), False
                while warm.number in scheduler.live:
                    for work in scheduler.schedule():
                        log.append((work.live.number, work.start, work.stop))
                        if work.live is warm and not same:
                            same = goes_on_as_cold(manager, warm.keys, work.start)
                        scheduler.publish(work.live)
                    if warm.row is not None and warm.computed == warm.tokens:
                        scheduler.finish(warm)
                    if cold.row is not None and cold.computed == cold.tokens < 104:
                        log.append((cold.number, cold.tokens, cold.tokens + 1))
                        scheduler.decode([cold], tokens=[9])
                    elif cold.tokens == 104:
                        go_on.set()
                scheduler.finish(cold)
            self.report["loading"] = {
                "log": log, "same": same, "loads": scheduler.report().loads, "tries": warm.brought,
                "failed": scheduler.report().loads_failed,
                "exchanges": agreement.exchanges, "leaks": leaks(scheduler),
            }  # fmt: skip

    def losing_between_look_and_lease(self) -> None:
        """Rank 0 loses what was agreed after it has said that it has it."""
        manager = filled((2, 5, 8) if self.rank == 0 else (2, 5))

        def lose(call: int) -> None:
            if call == 1 and self.rank == 0:
                manager.evict("swa_window", 2)  # those at 2 and 5: the one at 8 is leased, being its greatest

        keys = manager.keys(PROMPT)
        agreement = Agreement(Meddling(self.group(LONG), lose), manager)
        steps = [told(agreement.step([Ask(keys)]))]
        self.report["losing"] = {"steps": steps, "exchanges": agreement.exchanges, "held": len(manager.receipts)}

    def long_messages(self) -> None:
        group, data = self.group(LONG), bytes([self.rank]) * (3000 * self.rank)
        sent = [bytes([rank]) * (3000 * rank) for rank in range(4)]
        both = [group.all_gather(data) == sent, self.group(LONG, way="collective").all_gather(data) == sent]
        self.report["long"] = both

    def another_order(self) -> None:
        manager = filled((2, 5))
        asks = [Ask(manager.keys(PROMPT)), Ask(manager.keys(PROMPT[:70]))]
        agreement = Agreement(self.group(LONG), manager)
        call = lambda: agreement.step(asks[::-1] if self.rank == 1 else asks)  # noqa: E731
        self.report["order"] = failed(call, manager)

    def one_never_comes(self) -> None:
        """Rank 3 takes its step when the others have given it up."""
        manager, group = filled((2, 5)), self.group(SHORT)
        group.all_gather(b"")  # together up to here
        agreement = Agreement(group, manager)
        if self.rank == 3:
            self.store.wait([f"gave up/{rank}" for rank in range(3)], timedelta(seconds=LONG))
        self.report["late"] = failed(lambda: agreement.step([Ask(manager.keys(PROMPT))]), manager)
        self.store.set(f"gave up/{self.rank}", "")

    def one_is_killed(self) -> None:
        """Rank 2, between its two exchanges; then those who are left on groups that had it."""
        manager = filled((2, 5))
        groups = [self.group(LONG), self.group(SHORT, way="collective"), self.group(LONG, noted=False)]
        scheduler = Scheduler(manager, ThreadPoolExecutor(1), agreement=Agreement(self.group(LONG), manager))
        scheduler.submit(manager.keys(PROMPT))

        def die(call: int) -> None:
            if self.rank == 2 and call == 2:
                os.kill(os.getpid(), signal.SIGKILL)

        agreement = Agreement(Meddling(groups[0], die), manager)
        ask = Ask(manager.keys(PROMPT))
        self.report["killed"] = failed(lambda: agreement.step([ask]), manager)
        try:
            agreement.step([ask])
        except RuntimeError as error:
            self.report["afterwards"] = str(error)
        self.report["killed, scheduling"] = failed(scheduler.schedule, manager) | {
            "states": dict(scheduler.report().states)
        }
        self.report["killed, collective"] = failed(lambda: Agreement(groups[1], manager).step([ask]), manager)
        self.report["killed, unnoted"] = failed(lambda: groups[2].all_gather(b""), manager)
        self.report["again"] = failed(lambda: groups[2].all_gather(b""), manager)
        self.report["audit"] = manager.audit().ok


def main() -> None:
    worker = Worker(int(sys.argv[1]), int(sys.argv[2]))
    worker.evicting_differently()
    worker.scheduling()
    worker.loading()
    worker.losing_between_look_and_lease()
    worker.long_messages()
    worker.another_order()
    worker.one_never_comes()
    worker.one_is_killed()
    print(json.dumps(worker.report), flush=True)
    worker.store.set(f"done/{worker.rank}", "")
    worker.store.wait([f"done/{rank}" for rank in (0, 1, 3)], timedelta(seconds=LONG))
    os._exit(0)  # what torch has left to say to a dead rank is not waited for


if __name__ == "__main__":
    main()
