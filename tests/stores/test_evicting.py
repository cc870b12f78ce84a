"""A store with a budget makes room by the spec's order: children first, nothing that is read; no crash loses more."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest

from kvfsm.runtime.generated import SwaWindowTable
from kvfsm.runtime.stores.collecting import Collector
from kvfsm.runtime.stores.format import HEADER_BYTES, Header, encode, parse, stride
from kvfsm.runtime.stores.local import LocalStore
from kvfsm.runtime.stores.segments import Segment
from kvfsm.runtime.stores.store import Item, Namespace, ObjectId, StoreFull, Verdict

from .faulty_files import FaultyFiles, PowerCut, all_but_first, everything, nothing, some

ROOT = Path("/disk/cache")
NAMESPACE = Namespace("model", {"compressed_kv": "layout a", "swa_window": "layout b"}, "raw")
SIZE = stride(4096)


def an_id(name: str) -> ObjectId:
    """Windows begin with a "w"; the others are granules of chains."""
    kind = "swa_window" if name.startswith("w") else "compressed_kv"
    return ObjectId(kind, hashlib.sha256(name.encode()).digest())


def payload(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest() * 128


def item(name: str, parent: str | None = None) -> Item:
    return Item(an_id(name), payload(name), {} if parent is None else {"parent": an_id(parent).key.hex()})


def chain(name: str, count: int) -> list[Item]:
    """Granules name0, name1, ..., each behind the one before."""
    return [item(f"{name}{place}", f"{name}{place - 1}" if place else None) for place in range(count)]


def there(store: LocalStore, names: Sequence[str]) -> set[str]:
    return {name for name, found in zip(names, store.contains([an_id(one) for one in names]), strict=True) if found}


def read(store: LocalStore, *names: str) -> None:
    for name in names:
        into = bytearray(4096)
        assert store.get(an_id(name), into).verdict is Verdict.OK and into == payload(name)


def opened(objects: int, files: FaultyFiles | None = None, in_file: int = 1) -> LocalStore:
    """With room for so many objects; a file is begun after so many, and as many more may go as had to."""
    files = FaultyFiles() if files is None else files
    return LocalStore(ROOT, NAMESPACE, files, budget_bytes=objects * SIZE, segment_bytes=in_file * SIZE)


def test_what_was_used_last_goes_last_and_the_files_stay_within_the_budget() -> None:
    names = [f"{letter}0" for letter in "abcdefgh"]
    with opened(8) as store:
        for name in names:
            store.put_many([item(name)])
        read(store, "a0")
        store.put_many([item("c0")])  # it is there already; that is a use, too
        store.put_many([item("new0")])
        assert there(store, [*names, "new0"]) == {*names, "new0"} - {"b0", "d0"}  # and one file more than was needed
        read(store, *there(store, names))
        usage = store.usage()
        assert usage.file_bytes <= 8 * SIZE and usage.evicted == 2


def test_children_go_before_parents_that_are_older() -> None:
    with opened(8) as store:
        store.put_many(chain("a", 4))
        store.put_many(chain("b", 2))
        store.put_many([item("w1"), item("w2")])
        read(store, "a3", "a2")  # of the chain only the end is used
        gone = [f"{name}{place}" for name in "ab" for place in range(4)] + ["w1", "w2"]
        order = []
        for _ in range(8):
            store.collect(most_bytes=store.usage().bytes - 1)
            left = there(store, gone)
            order += sorted({*gone} - left)
            gone = sorted(left)
        assert [name for name in order if name not in ("b2", "b3")] == ["b1", "b0", "w1", "w2", "a3", "a2", "a1", "a0"]


def relinked(files: FaultyFiles, store: LocalStore, name: str, parent: str) -> None:
    """Have an object at rest say that it stands behind another one, in a header that is sound."""
    for path in (path for path in files.names if path.suffix == ".segment" and path.parent == store.path):
        for data in (files.names[path].visible, files.names[path].durable):
            for offset in range(0, len(data), SIZE):
                header = parse(data[offset : offset + HEADER_BYTES], offset)
                if isinstance(header, Header) and header.key == an_id(name).key:
                    changed = replace(header, extra={"parent": an_id(parent).key.hex()})
                    data[offset : offset + HEADER_BYTES] = encode(changed)


def evicted_one_by_one(store: LocalStore, names: list[str]) -> list[str]:
    order: list[str] = []
    for _ in names:
        left = there(store, names)
        store.collect(most_bytes=store.usage().bytes - 1)
        order += left - there(store, names)
    return order


def test_a_circle_of_parents_goes_first_though_it_fills_the_store() -> None:
    circle = [item("a0", "a2"), item("a1", "a0"), item("a2", "a1"), item("a3", "a2")]  # and a3 leads into it
    with opened(4) as store:
        store.put_many(circle)
        store.put_many([item("x0")])
        assert there(store, ["a0", "a1", "a2", "a3", "x0"]) == {"a2", "a3", "x0"}
    with opened(8) as store:
        store.put_many([item("x0"), *chain("b", 3)])
        store.put_many(circle)
        store.collect(most_bytes=4 * SIZE)
        assert there(store, ["x0", "a0", "a1", "a2", "a3", "b0", "b1", "b2"]) == {"x0", "b0", "b1", "b2"}


def test_what_is_put_behind_a_circle_keeps_its_parent_and_itself() -> None:
    with opened(4) as store:
        store.put_many([item("a0", "a2"), item("a1", "a0"), item("a2", "a1"), item("a3", "a2")])
        store.put_many([item("a4", "a1")])
        assert there(store, ["a1", "a4"]) == {"a1", "a4"}
        read(store, "a1", "a4")


def test_an_object_that_says_it_stands_behind_itself_goes_first() -> None:
    with opened(4, files := FaultyFiles()) as store:
        for name in ("x0", "y0", "a0"):
            store.put_many([item(name)])
    relinked(files, store, "a0", "a0")
    with opened(4, files) as store:
        assert evicted_one_by_one(store, ["x0", "y0", "a0"]) == ["a0", "x0", "y0"]


def test_a_chain_whose_beginning_is_gone_goes_by_age_for_that_may_come_again() -> None:
    with opened(8) as store:
        store.put_many([item("x0")])
        store.put_many([item("a1", "a0"), item("a2", "a1")])
        store.put_many([item("y0")])
        assert evicted_one_by_one(store, ["x0", "y0", "a1", "a2"]) == ["x0", "a2", "a1", "y0"]


def test_what_is_put_evicts_neither_itself_nor_what_it_stands_behind() -> None:
    with opened(4) as store:
        store.put_many(chain("a", 3))
        store.put_many([item("x0")])
        store.put_many([item("a3", "a2")])  # a2 is the oldest end, but a3 stands behind it
        assert there(store, ["a0", "a1", "a2", "a3", "x0"]) == {"a0", "a1", "a2", "a3"}
        with pytest.raises(StoreFull, match=r"would take .* bytes, its budget is .*; what is left is being read"):
            store.put_many([item("a4", "a3")])
        assert there(store, ["a0", "a1", "a2", "a3"]) == {"a0", "a1", "a2", "a3"} and store.usage().evicted == 1
        with pytest.raises(ValueError, match="behind itself"):
            store.put_many([item("a9", "a9")])
        with pytest.raises(ValueError, match="a content key in hex is expected"):
            store.put(an_id("a9"), payload("a9"), meta={"parent": "a8"})


def test_what_is_being_read_stays_and_so_does_its_chain() -> None:
    class Slow(FaultyFiles):
        during: ClassVar[list[Callable[[], object]]] = []

        def read(self, handle: int, buffers: list[memoryview], offset: int) -> int:  # type: ignore[override]
            if self.during:
                self.during.pop()()
            return super().read(handle, buffers, offset)

    files, told = Slow(), []
    with opened(4, files) as store:
        store.put_many(chain("a", 3))
        store.put_many([item("x0")])

        def meanwhile() -> None:
            store.put_many([item("y0")])  # x0 goes, although a0 to a2 are older
            told.append(there(store, ["a0", "a1", "a2", "x0", "y0"]))
            with pytest.raises(StoreFull):
                store.put_many([item("y0"), item("z0")])  # y0 stays, and there is no room for both beside the chain
            told.append(there(store, ["a0", "a1", "a2", "y0", "z0"]))

        files.during.append(meanwhile)
        read(store, "a2")
        assert told == [{"a0", "a1", "a2", "y0"}] * 2
        store.put_many([item("z0")])  # nobody reads now: y0 was used last
        assert there(store, ["a0", "a1", "a2", "y0", "z0"]) >= {"y0", "z0"}


def test_too_much_at_once_is_refused_whoever_it_is_put_with() -> None:
    class Gate(FaultyFiles):
        opened, entered = threading.Event(), threading.Event()

        def sync(self, handle: int) -> None:
            if self.handles[handle][0].suffix == ".segment":
                self.entered.set()
                self.opened.wait()
            super().sync(handle)

    files, outcomes = Gate(), {}
    with opened(4, files) as store:

        def put(name: str, items: list[Item]) -> None:
            try:
                outcomes[name] = store.put_many(items)
            except StoreFull:
                outcomes[name] = "full"

        calls = {"first": chain("a", 1), "b": chain("b", 3), "c": chain("c", 3), "d": chain("d", 5)}
        threads = []
        for place, (name, items) in enumerate(calls.items()):
            threads.append(threading.Thread(target=put, args=(name, items)))
            threads[-1].start()
            files.entered.wait()
            while len(store._puts._waiting) < place:
                pass
        files.opened.set()
        for thread in threads:
            thread.join()
        assert outcomes == {"first": 1, "b": 3, "c": 3, "d": "full"}  # b and c don't fit together, but one by one
        assert there(store, ["c0", "c1", "c2"]) == {"c0", "c1", "c2"} and store.usage().file_bytes <= 4 * SIZE


def test_a_smaller_budget_holds_from_the_next_write_on() -> None:
    with opened(8, files := FaultyFiles()) as store:
        for name in ("a0", "b0", "c0", "d0", "e0"):
            store.put_many([item(name)])
    with opened(3, files) as store:
        assert store.usage().objects == 5  # a crash may have left more than was kept: opening takes nothing away
        store.put_many([item("f0")])
        assert store.usage().file_bytes <= 3 * SIZE and store.usage().evicted == 4  # and one file more than was needed
        read(store, "e0", "f0")


def test_on_a_full_disk_what_has_been_evicted_makes_room_for_copies() -> None:
    """Of the last file a part lives; without room nothing could be copied out of it before the others have gone."""
    with opened(64, files := FaultyFiles(), in_file=4) as store:
        for number in range(32):
            store.put_many([item(f"{chr(ord('a') + number)}0" if number < 26 else f"w{number}")])
        files.capacity = sum(len(inode.visible) for inode in files.names.values())
        with pytest.raises(StoreFull, match=r"fix: free space on this disk, or collect\(most_bytes=\) less"):
            store.put_many([item("new0")])
        collected = store.collect(most_bytes=6 * SIZE)
        assert (collected.evicted, collected.bytes) == (26, 26 * SIZE)
        read(store, *(f"w{number}" for number in range(26, 32)))
        store.put_many([item("new0")])


def test_each_file_of_which_a_part_lives_is_freed_before_the_next_one_is_copied() -> None:
    """There is room for the copies of one file, not for those of two."""
    with opened(64, files := FaultyFiles(), in_file=4) as store:
        names = [f"w{number}" for number in range(16)]
        for name in names:
            store.put_many([item(name)])
        store.delete([an_id(name) for name in names[::4]])
        files.capacity = sum(len(inode.visible) for inode in files.names.values()) + 4 * SIZE
        store.collect()
        left = [name for name in names if name not in names[::4]]
        assert there(store, names) == {*left} and store.usage().garbage_bytes == 0
        read(store, *left)


def test_files_may_come_while_somebody_asks_for_the_bytes_of_all() -> None:
    with opened(8) as store:
        store.put_many([item("a0")])
        log = store._log

        class Growing(Segment):
            @property
            def size(self) -> int:  # type: ignore[override]
                log.start()  # as another thread may
                return SIZE

            @size.setter
            def size(self, size: int) -> None: ...

        ((number, old),) = log.by_number.items()
        log.by_number[number] = Growing(number, old.path, old.handle, SIZE, name_durable=True)
        assert store.usage().file_bytes == SIZE


@pytest.mark.parametrize("budget", [0, -1, SIZE - 1, 1e9, float("nan"), True, "1e9"])
def test_a_budget_that_nothing_fits_into_or_that_is_no_number_is_told(budget: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"budget_bytes is .*; give"):
        LocalStore(ROOT, NAMESPACE, FaultyFiles(), budget_bytes=budget)


def test_other_numbers_of_bytes_and_other_classes_are_told() -> None:
    odd: Any
    for odd in (0, -4096, 1.5, True, "x"):
        with pytest.raises((TypeError, ValueError), match=r"segment_bytes is .*; give"):
            LocalStore(ROOT, NAMESPACE, FaultyFiles(), segment_bytes=odd)
    for odd in (SwaWindowTable, int, None):
        with pytest.raises(TypeError, match=r"kinds\['ondisk_prefix'\] is .*; give that of the KINDS of a generated"):
            LocalStore(ROOT, NAMESPACE, FaultyFiles(), kinds={"ondisk_prefix": odd})
    with opened(4) as store:
        store.put_many([item("a0")])
        for odd in (-1, float("nan"), 1e9, False, "1e9"):
            with pytest.raises((TypeError, ValueError), match=r"most_bytes is .*; give"):
                store.collect(most_bytes=odd)
        assert there(store, ["a0"]) == {"a0"}


def test_deletions_outlive_what_they_bury_whatever_makes_room() -> None:
    files = FaultyFiles()
    with opened(9, files) as store:
        store.put_many([item("gone0"), item("kept0")])
        store.delete([an_id("gone0")])
        for number in range(30):
            read(store, "kept0")
            store.put_many([item(f"n{number}")])
            with LocalStore(ROOT, NAMESPACE, files.killed()) as after:
                assert there(after, ["gone0", "kept0", f"n{number}"]) == {"kept0", f"n{number}"}


@pytest.mark.parametrize("seed", range(4))
def test_in_a_long_life_the_budget_holds_and_chains_have_no_gaps(seed: int, tmp_path: Path) -> None:
    chance, parents = random.Random(seed), {}
    budget = 40 * SIZE
    with LocalStore(tmp_path, NAMESPACE, budget_bytes=budget) as store:
        for number in range(150):
            whole = sorted(there(store, list(parents)))
            behind = chance.choice([None, *whole]) if whole else None
            items, before = [], behind
            for place in range(chance.randint(1, 6)):
                name = f"p{number}_{place}"
                items.append(item(name, before))
                parents[name], before = before, name
            store.put_many(items)
            assert there(store, [f"p{number}_{place}" for place in range(len(items))]) == {
                f"p{number}_{place}" for place in range(len(items))
            }
            if whole and chance.random() < 0.5:
                read(store, *there(store, [chance.choice(whole)]))
            if chance.random() < 0.1:
                store.delete([an_id(name) for name in parents if name.startswith(f"p{number}_")])
            found = there(store, list(parents))
            assert all(parents[name] is None or parents[name] in found for name in found), "a parent went first"
            size = sum(path.stat().st_size for path in store.path.glob("*.segment"))
            assert size == store.usage().file_bytes <= budget
        read(store, *found)
        assert store.usage().evicted > 100 and store.usage().bytes > budget / 2


# ---- crashes --------------------------------------------------------------------------------------------------------

BUDGET = 16
ACTS: tuple[tuple[list[Item], tuple[str, ...]], ...] = (  # what is put, and what is read then
    ([*chain("a", 2), item("w1"), item("x0")], ("a0",)),
    ([item("y0"), item("w2"), *chain("b", 3)], ("x0", "y0")),
    ([item("a2", "a1"), item("w3"), item("y1")], ("a1", "a2")),
    (chain("c", 4), ("w2", "x0")),
    ([item("b3", "b2"), item("w4"), item("x1")], ("y0", "x0")),
    ([*chain("d", 3), item("y2")], ("x1", "d0")),
    ([item("c4", "c3"), item("w0")], ("c0", "x0")),
    ([item("x2"), item("x3"), item("y3")], ()),
    ([item("d3", "d2"), item("y4"), item("x4")], ()),
)
EVERY = [f"{letter}{number}" for letter in "abcdwxy" for number in range(5)]


def play(files: FaultyFiles) -> list[set[str]]:
    """What was there after each act, until the power goes."""
    found: list[set[str]] = [set()]
    try:
        store = opened(BUDGET, files, 2)
        for items, then in ACTS:
            store.put_many(items)
            found.append(there(store, EVERY))
            read(store, *(name for name in then if name in found[-1]))
    except PowerCut:
        pass
    return found


def crashes() -> Iterator[tuple[int, FaultyFiles, set[str]]]:
    """A machine at each operation, and what must be there: what was there and is not evicted by the act under way."""
    whole = FaultyFiles()
    states = play(whole)
    assert len(states) == len(ACTS) + 1 and not whole.dead
    assert sum(len(before - after) for before, after in pairwise(states)) > 10, "nothing went"
    assert any(name == "unlink" for name, _ in whole.operations)
    for number in range(len(whole.operations)):
        files = FaultyFiles()
        files.cut_before = number
        reached = play(files)
        assert reached == states[: len(reached)]
        under_way = states[len(reached)] if len(reached) < len(states) else states[-1]
        yield number, files, reached[-1] & under_way


def lost() -> list[str]:
    """What is missing or wrong after a power cut at some operation."""
    wrong = []
    for number, files, must in crashes():
        for survival in (nothing, everything, all_but_first, some(number)):
            after = LocalStore(
                ROOT, NAMESPACE, files.power_cut(survival), budget_bytes=9 * SIZE, segment_bytes=3 * SIZE
            )
            found = there(after, EVERY)
            wrong += [f"cut before operation {number}: {name} is gone" for name in must - found]
            try:
                read(after, *found)
                after.put_many([item("z0")])
                read(after, "z0")
            except AssertionError as error:
                wrong.append(f"cut before operation {number}: {error}")
            after.close()
    return wrong


def test_a_power_cut_at_any_operation_loses_only_what_was_to_go() -> None:
    assert lost() == []


def test_files_that_go_before_their_copies_are_durable_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control."""

    def careless(self: Collector, segment: Segment, epoch: int) -> int:
        with self._lock:
            slots = self._directory.live(segment.number).tolist()
        copies = [(slot, *salvaged) for slot in slots if (salvaged := self._salvage(slot, epoch)) is not None]
        self._log.remove(segment)
        self._copy(copies)
        return 0

    monkeypatch.setattr(Collector, "_rewrite", careless)
    assert any("is gone" in one for one in lost())
