"""A crash at every operation: what was acknowledged is there, nothing torn is served, nothing is left over."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kvfsm.runtime.stores import records, segments
from kvfsm.runtime.stores.files import TEMPORARY
from kvfsm.runtime.stores.local import LocalStore
from kvfsm.runtime.stores.store import Item, Namespace, ObjectId, Verdict

from . import faulty_files
from .faulty_files import FaultyFiles, PowerCut, Survival, all_but_first, all_but_last, everything, nothing, some
from .promises import Promises, acts, served

ROOT = Path("/disk/cache")
NAMESPACE = Namespace("model", {"compressed_kv": "layout a", "swa_window": "layout b"}, "raw")
SEGMENT_BYTES = 6 * 8192  # small, so that sequences use several files


def an_id(number: int) -> ObjectId:
    return ObjectId("compressed_kv" if number % 2 else "swa_window", hashlib.sha256(b"%d" % number).digest())


def payload(number: int, lossy: bool = False) -> bytes:
    seed = hashlib.sha256(b"payload %d %d" % (number, lossy)).digest()
    return seed * (40 + 37 * (number % 9))  # 1280 to 10752 bytes


@dataclass(slots=True)
class Ledger:
    """What a store has promised: objects that must be there, and those of the call that was under way."""

    must: dict[int, bool] = field(default_factory=dict)  # number -> lossy
    may: dict[int, set[bool | None]] = field(default_factory=dict)  # number -> what else is allowed; None: a miss
    together: tuple[int, ...] = ()  # these are all there or none is
    epoch_at_least: int = 0


Act = Callable[[LocalStore, Ledger], None]


def put(*numbers: int, lossy: bool = False) -> Act:
    def act(store: LocalStore, ledger: Ledger) -> None:
        new = tuple(number for number in numbers if number not in ledger.must)
        ledger.may = {number: {ledger.must.get(number), lossy} for number in numbers}
        ledger.together = new
        store.put_many([Item(an_id(n), payload(n, lossy), {"boundary": n, "lossy": lossy}) for n in numbers])
        for number in numbers:
            ledger.must[number] = ledger.must.get(number, True) and lossy
        ledger.may, ledger.together = {}, ()

    return act


def delete(*numbers: int) -> Act:
    def act(store: LocalStore, ledger: Ledger) -> None:
        ledger.may = {number: {None, ledger.must.pop(number)} for number in numbers if number in ledger.must}
        ledger.together = tuple(ledger.may)
        store.delete([an_id(number) for number in numbers])
        ledger.may, ledger.together = {}, ()

    return act


def reset(store: LocalStore, ledger: Ledger) -> None:
    ledger.may = {number: {None, lossy} for number, lossy in ledger.must.items()}
    ledger.together, ledger.must = tuple(ledger.must), {}
    ledger.epoch_at_least = store.reset()
    ledger.may, ledger.together = {}, ()


def collect(store: LocalStore, ledger: Ledger) -> None:
    store.collect(verify=True)


def close_and_open(store: LocalStore, ledger: Ledger) -> None:
    store.close()
    store.__init__(ROOT, NAMESPACE, store._files, segment_bytes=SEGMENT_BYTES)  # type: ignore[misc]


SEQUENCES: dict[str, tuple[Act, ...]] = {
    "puts": (put(1), put(2), put(3)),
    "batches": (put(1, 2, 3), put(4, 5, 6, 7, 8), put(3, 9)),
    "files": (put(1, 2, 3, 4, 5), put(6, 7, 8), put(10, 11, 12, 13, 14, 15, 16)),
    "reset": (put(1, 2), reset, put(2, 3), reset, put(4)),
    "delete": (put(1, 2, 3), delete(2), put(4), delete(1, 4), put(2)),
    "collect": (put(1, 2, 3, 4, 5), put(6, 7), delete(2, 6), collect, put(8), reset, put(1), collect),
    "upgrade": (put(1, 2, lossy=True), put(1), collect, put(2), delete(1)),
    "reopen": (put(1, 2), close_and_open, put(3), close_and_open, delete(1), close_and_open, collect, put(1)),
}
SURVIVALS: dict[str, Callable[[], Survival]] = {
    "nothing": lambda: nothing,
    "everything": lambda: everything,
    "all but the first": lambda: all_but_first,
    "all but the last": lambda: all_but_last,
    **{f"seed {seed}": (lambda seed=seed: some(seed)) for seed in range(4)},
}


def play(acts: tuple[Act, ...], files: FaultyFiles) -> Ledger:
    """Act until the power goes. The ledger says what was promised by then."""
    ledger = Ledger()
    try:
        store = LocalStore(ROOT, NAMESPACE, files, segment_bytes=SEGMENT_BYTES)
        for act in acts:
            act(store, ledger)
    except PowerCut:
        pass
    return ledger


def wrong(files: FaultyFiles, ledger: Ledger) -> list[str]:
    """Reopen after a crash; everything that is not as it must be."""
    found = []
    store = LocalStore(ROOT, NAMESPACE, files, segment_bytes=SEGMENT_BYTES)
    present = store.contains([an_id(number) for number in range(20)])
    served: dict[int, bool | None] = {}
    for number in range(20):
        into = bytearray(20_000)
        answer = store.get(an_id(number), into)
        lossy = bool(answer.meta.get("lossy", False))
        served[number] = lossy if answer.verdict is Verdict.OK else None
        if (answer.verdict is Verdict.OK) != bool(present[number]):
            found.append(f"{number}: contains says {present[number]}, get says {answer.verdict.name}")
        if answer.verdict is Verdict.OK and into[: answer.length] != payload(number, lossy):
            found.append(f"{number}: wrong bytes were served")
        allowed = ledger.may.get(number, {ledger.must.get(number)})
        if served[number] not in allowed:
            found.append(f"{number}: {served[number]} ({answer.verdict.name}), allowed is {allowed}")
    there = {served[number] is not None for number in ledger.together}
    if len(there) > 1:
        found.append(f"{ledger.together} are not all there or all gone")
    if store.epoch < ledger.epoch_at_least:
        found.append(f"epoch {store.epoch} came back after {ledger.epoch_at_least}")
    names = files.list_directory(store.path)
    found += [f"{name} was left over" for name in names if name.endswith(TEMPORARY)]
    size = sum(len(files.names[store.path / name].visible) for name in names if name.endswith(".segment"))
    if store.usage().file_bytes != size:
        found.append(f"usage counts {store.usage().file_bytes} bytes, the files have {size}")
    store.put(an_id(18), payload(18), meta={})  # and it goes on
    if store.get(an_id(18), bytearray(20_000)).verdict is not Verdict.OK:
        found.append("nothing can be stored any more")
    store.close()
    return found


def crashes(acts: tuple[Act, ...], make: Callable[[], FaultyFiles]) -> Iterator[tuple[int, FaultyFiles, Ledger]]:
    """The machine at each operation of ``acts``, last at their end."""
    whole = make()
    play(acts, whole)
    assert not whole.dead
    for number in range(len(whole.operations) + 1):
        files = make()
        files.cut_before = number
        yield number, files, play(acts, files)


@pytest.mark.parametrize("name", SEQUENCES)
def test_a_power_cut_at_any_operation_keeps_every_promise(name: str) -> None:
    for number, files, ledger in crashes(SEQUENCES[name], FaultyFiles):
        for survival, choose in SURVIVALS.items():
            assert wrong(files.power_cut(choose()), ledger) == [], f"cut before operation {number}, {survival} survives"


@pytest.mark.parametrize("name", SEQUENCES)
def test_a_kill_at_any_operation_and_a_power_cut_later_keep_every_promise(name: str) -> None:
    for number, files, ledger in crashes(SEQUENCES[name], FaultyFiles):
        after = files.killed()
        store = LocalStore(ROOT, NAMESPACE, after, segment_bytes=SEGMENT_BYTES)
        served = store.contains([an_id(n) for n in range(20)])
        for survival, choose in SURVIVALS.items():
            cut = after.power_cut(choose())
            assert wrong(cut, ledger) == [], f"killed before operation {number}, {survival} survives"
            again = LocalStore(ROOT, NAMESPACE, after.power_cut(choose()), segment_bytes=SEGMENT_BYTES)
            assert (again.contains([an_id(n) for n in range(20)]) == served).all(), "what was served is gone"


def test_a_power_cut_while_reopening_keeps_every_promise() -> None:
    acts = SEQUENCES["collect"]
    for number, files, ledger in crashes(acts, FaultyFiles):
        first = files.power_cut(some(number))
        probe = files.power_cut(some(number))
        LocalStore(ROOT, NAMESPACE, probe, segment_bytes=SEGMENT_BYTES)
        for cut in range(len(probe.operations)):
            again = first.power_cut(everything)
            again.cut_before = cut
            try:
                LocalStore(ROOT, NAMESPACE, again, segment_bytes=SEGMENT_BYTES)
            except PowerCut:
                pass
            for choose in (nothing, everything, some(cut)):
                assert wrong(again.power_cut(choose), ledger) == [], f"cut {number}, then {cut} while reopening"


class ForgetsToSync(FaultyFiles):
    """A mutant: bytes are never made durable."""

    def sync(self, handle: int) -> None:
        self._changes("sync", self.handles[handle][0])


class ForgetsNames(FaultyFiles):
    """A mutant: names are never made durable."""

    def sync_directory(self, path: Path) -> None:
        self._changes("sync_directory", path)


@pytest.mark.parametrize("mutant", [ForgetsToSync, ForgetsNames])
def test_a_missing_sync_is_seen(mutant: Callable[[], FaultyFiles]) -> None:
    complaints = [
        complaint
        for _, files, ledger in crashes(SEQUENCES["puts"], mutant)
        for complaint in wrong(files.power_cut(nothing), ledger)
    ]
    assert any("allowed is" in complaint for complaint in complaints)


@pytest.mark.parametrize("seed", range(6))
def test_a_power_cut_in_random_acts_keeps_every_promise(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sectors of 512 bytes survive one by one, so that records are torn in their headers and in their padding, too."""
    monkeypatch.setattr(faulty_files, "BLOCK", 512)
    cuts = random.Random(seed)

    def live(files: FaultyFiles, count: int) -> Promises:
        promises = Promises()
        try:
            store = LocalStore(ROOT, NAMESPACE, files, segment_bytes=SEGMENT_BYTES)
            for act in itertools.islice(acts(seed), count):
                promises.begin(act)
                store = act.perform(store, lambda: LocalStore(ROOT, NAMESPACE, files, segment_bytes=SEGMENT_BYTES))
                promises.end(act)
        except PowerCut:
            pass
        return promises

    whole = FaultyFiles()
    live(whole, 20)
    for number in sorted(cuts.sample(range(len(whole.operations)), 20)):
        files = FaultyFiles()
        files.cut_before = number
        promises = live(files, 20)
        for survival in (nothing, all_but_first, some(number)):
            after = LocalStore(ROOT, NAMESPACE, files.power_cut(survival), segment_bytes=SEGMENT_BYTES)
            found, complaints = served(after)
            assert complaints + promises.broken(found) == [], f"cut before operation {number}"
            assert after.epoch >= promises.epoch_at_least


def test_recovery_that_serves_unverified_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: neither the last group nor what is read is checked."""
    monkeypatch.setattr(segments, "is_whole", lambda *_: True)
    monkeypatch.setattr(records, "payload_fits", lambda payload, expected: True)
    complaints = [
        complaint
        for _, files, ledger in crashes(SEQUENCES["batches"], FaultyFiles)
        for complaint in wrong(files.power_cut(some(1)), ledger)
    ]
    assert any("wrong bytes were served" in complaint for complaint in complaints)
