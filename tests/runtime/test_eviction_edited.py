"""Eviction goes by the spec alone: the YAML is edited, a package is generated from it, and a manager runs on that."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import itertools
import random
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvfsm.codegen.cli import main
from kvfsm.codegen.emit_python import Home, emit
from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.policy import WindowPolicy
from kvfsm.runtime.stores.local import LocalStore
from kvfsm.runtime.stores.memory import MemoryStore
from kvfsm.runtime.stores.store import Namespace, ObjectId, Verdict
from kvfsm.runtime.table import Fired, Table
from kvfsm.runtime.tenants import Tenants
from kvfsm.spec.language.load import load_spec
from kvfsm.spec.language.problems import SpecError

REPO = Path(__file__).parents[2]
KV, INDEXER, TAIL, WINDOW = "compressed_kv", "indexer_state", "uncompressed_tail", "swa_window"
Kinds = Mapping[str, type[Table]]
BY_STATE = "{by: state == expired, first: true}"
LAST_USE = "{by: last_use, first: lowest}"


@dataclass(frozen=True)
class Edit:
    """What is written into one object's YAML: meta fields beside ``last_use``, and keys of ``eviction:``."""

    kind: str = KV
    meta: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    leaves: str = ""
    more: tuple[str, ...] = ()

    def of(self, text: str) -> str:
        """The YAML with it."""
        if self.meta:
            text = re.sub(r"(?<=\nmeta:\n)", "".join(f"  {line}\n" for line in self.meta), text)
        if self.order:
            lines = "".join(f"    - {line}\n" for line in self.order)
            text = re.sub(r"(?<=\n  order:\n)(    - .*\n)+", lines, text)
        if self.leaves:
            text = re.sub(r"\n  leaves: .*", f"\n  leaves: {self.leaves}", text)
        return re.sub(r"(\n  leaves: .*)", "".join([r"\1", *(f"\n  {line}" for line in self.more)]), text)


Generate = Callable[..., Kinds]


def edited(spec: Path, *edits: Edit) -> Path:
    """A copy of the shipped spec with some edits, without protocols, which nothing is generated from."""
    for folder in ("objects", "safeguards", "models", "protocols/machines"):
        shutil.copytree(REPO / "spec" / folder, spec / folder)
    shutil.copy(REPO / "spec" / "vocabulary.yaml", spec)
    for edit in edits:
        path = spec / "objects" / f"{edit.kind}.yaml"
        before = path.read_text("utf-8")
        path.write_text(edit.of(before), "utf-8")
        assert path.read_text("utf-8") != before
    return spec


@pytest.fixture(scope="module")
def generate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Generate]:
    """Table classes by kind, generated from the shipped spec with some edits; made once for each."""
    home = tmp_path_factory.mktemp("edited")
    made: dict[tuple[Edit, ...], Kinds] = {}
    sys.path.insert(0, str(home))

    def generated(*edits: Edit) -> Kinds:
        if edits not in made:
            name = f"cache_{len(made)}"
            spec = load_spec(edited(home / f"{len(made)}" / "spec", *edits)).required()
            modules = emit(spec, Home("runtime", "kvfsm.runtime", "tests", f"{name}.runtime"))
            for path, text in {"__init__.py": "", **modules}.items():  # of what `kvfsm gen` writes only what runs here
                (home / name / path).parent.mkdir(parents=True, exist_ok=True)
                (home / name / path).write_text(text, "utf-8")
            made[edits] = importlib.import_module(f"{name}.runtime").KINDS
        return made[edits]

    yield generated
    sys.path.remove(str(home))


@dataclass
class Bench:
    """A manager over plain KV, prompts by name, and the victims in the order in which they went."""

    kinds: Kinds
    slots: int = 32
    model: str = "llama"
    clock: Callable[[], int] = field(default_factory=lambda: itertools.count(1).__next__)
    store: Any = None
    more: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.gone: list[tuple[str, int, str]] = []
        self.names: dict[tuple[str, int], str] = {}
        self.chains: dict[str, Keys] = {}
        profile = PROFILES[self.model]
        slots = dict.fromkeys(profile.kinds, self.slots) | dict(self.more)
        self.manager = Manager(
            profile, slots, NumpyBackend(), kinds=self.kinds, clock=self.clock, store=self.store, on_event=self.see
        )

    def see(self, fired: Fired) -> None:
        if fired.event == "evict":
            slots = fired.slots.tolist()[::-1] if fired.machine in (KV, INDEXER) else fired.slots.tolist()  # ends first
            self.gone += [(fired.machine, slot, self.names.get((fired.machine, slot), "")) for slot in slots]

    def keys(self, name: str, granules: int, after: str = "", salt: bytes = b"") -> Keys:
        """A prompt of its own, behind all of another one."""
        granule = self.manager.profile.granule
        before = self.chains[after].tokens if after else 0
        own = np.random.default_rng(list(name.encode())).integers(0, 1 << 20, granules * granule)
        tokens = np.concatenate((self.tokens[after], own)) if after else own
        self.tokens[name] = tokens
        self.chains[name] = self.manager.keys(tokens, salt=salt)
        assert len(self.chains[name]) == before // granule + granules
        return self.chains[name]

    @property
    def tokens(self) -> dict[str, Any]:
        return self.__dict__.setdefault("_tokens", {})  # type: ignore[no-any-return]

    def put(self, name: str, granules: int, after: str = "", salt: bytes = b"", **keeping: Any) -> None:
        """Publish a prompt; its own granules are called name0, name1, ..."""
        keys = self.keys(name, granules, after, salt)
        start = len(keys) - granules
        fill = self.manager.reserve(keys, start, len(keys))
        for kind, slots in fill.slots.items():
            for slot, place in zip(slots.tolist(), fill.places[kind].tolist(), strict=True):
                self.names[kind, slot] = f"{name}{place - start}"
        self.manager.publish(fill, **keeping)

    def answer(self, name: str, granules: int | None = None) -> Any:
        keys, granule = self.chains[name], self.manager.profile.granule
        return self.manager.match(keys, (len(keys) if granules is None else granules) * granule + 1)

    def use(self, name: str, granules: int | None = None, times: int = 1) -> None:
        for _ in range(times):
            self.manager.release(self.manager.acquire(self.answer(name, granules)))

    def held(self, name: str) -> int:
        """Granules of it that a match finds."""
        return int(self.answer(name).now) // self.manager.profile.granule

    def victims(self, kind: str = KV, step: int = 1) -> list[str]:
        """Evict all, ``step`` slots at a time; the names of what went, in order."""
        self.gone.clear()
        while self.manager.evict(kind, step):
            pass
        assert self.manager.audit().ok
        return self.went(kind)

    def went(self, kind: str = KV) -> list[str]:
        return [name for machine, _, name in self.gone if machine == kind]


LFU = Edit(meta=("uses: u32",), order=(BY_STATE, "{by: uses, first: lowest}", LAST_USE))
MRU = Edit(order=("{by: last_use, first: highest}",))
PRIORITY = Edit(meta=("priority: u8",), order=("{by: priority, first: lowest}", LAST_USE))
TTL = Edit(meta=("expires: u64",), order=("{by: expires, first: lowest}", LAST_USE))


# ---- orders ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 2, 5, 32])
def test_by_last_use_what_was_used_last_goes_last(generate: Generate, step: int) -> None:
    bench = Bench(generate(Edit(order=(LAST_USE,))))
    for name, granules in (("a", 3), ("b", 2), ("c", 1)):
        bench.put(name, granules)
    bench.use("a", 2)
    assert bench.victims(step=step) == ["a2", "b1", "b0", "c0", "a1", "a0"]


def test_the_command_writes_what_these_tests_run_on(generate: Generate, tmp_path: Path) -> None:
    spec = edited(tmp_path / "spec", LFU)
    assert main(["gen", "--spec", str(spec), "--out", str(tmp_path / "cache"), "--json"]) == 0
    written = (tmp_path / "cache" / "runtime" / "compressed_kv.py").read_text("utf-8")
    assert written == Path(inspect.getfile(generate(LFU)[KV])).read_text("utf-8")


@pytest.mark.parametrize("step", [1, 2, 5, 32])
def test_turned_round_it_goes_first(generate: Generate, step: int) -> None:
    bench = Bench(generate(MRU))
    for name, granules in (("a", 3), ("b", 2), ("c", 1)):
        bench.put(name, granules)
    bench.use("a")
    bench.use("b")  # while it waits: its key shrinks
    assert bench.victims(step=step) == ["b1", "b0", "a2", "a1", "a0", "c0"]


def test_entries_that_were_bettered_do_not_pile_up(generate: Generate) -> None:
    bench = Bench(generate(MRU))
    for name in ("a", "b", "c"):
        bench.put(name, 1)
    for _ in range(100):
        for name in ("a", "b", "c"):
            bench.use(name)
    leaves = bench.manager.core.leaf_first[KV]
    assert leaves.nbytes <= 160 * (64 + 4 * 3)
    assert bench.victims() == ["c0", "b0", "a0"]


@pytest.mark.parametrize("step", [1, 2, 5, 32])
def test_by_uses_what_was_leased_least_goes_first(generate: Generate, step: int) -> None:
    bench = Bench(generate(LFU))
    for name, granules in (("a", 3), ("b", 2), ("c", 1)):
        bench.put(name, granules)
    bench.use("a", times=2)
    bench.use("a", 1)
    bench.use("b")
    bench.use("c", times=3)
    bench.put("d", 1, after="a")  # an end that nobody used, behind what was used
    assert bench.victims(step=step) == ["d0", "b1", "b0", "a2", "a1", "a0", "c0"]


@pytest.mark.parametrize("step", [1, 2, 5, 32])
def test_by_priority_the_least_goes_first_and_equal_ones_by_age(generate: Generate, step: int) -> None:
    bench = Bench(generate(PRIORITY))
    for name, priority in (("dear", 5), ("b", 1), ("c", 1), ("d", 1), ("cheap", 0)):
        bench.put(name, 2, priority=priority)
    bench.use("b")
    bench.use("dear")
    assert bench.victims(step=step) == ["cheap1", "cheap0", "c1", "c0", "d1", "d0", "b1", "b0", "dear1", "dear0"]


def test_children_go_before_parents_that_are_cheaper(generate: Generate) -> None:
    bench = Bench(generate(PRIORITY))
    bench.put("parent", 2, priority=0)
    bench.put("child", 2, after="parent", priority=9)
    bench.put("other", 1, priority=5)
    assert bench.victims() == ["other0", "child1", "child0", "parent1", "parent0"]


def test_what_several_published_is_kept_as_the_dearest_of_them_said(generate: Generate) -> None:
    bench = Bench(generate(PRIORITY))
    bench.put("a", 1, priority=1)
    bench.put("b", 1, priority=2)
    names = dict(bench.names)
    bench.put("a", 1, priority=3)  # a duplicate: the slots of before stay
    bench.names = names
    assert bench.victims() == ["b0", "a0"]


@pytest.mark.parametrize("step", [1, 2, 5, 32])
def test_by_deadline_what_ends_first_goes_first_and_what_never_ends_last(generate: Generate, step: int) -> None:
    bench = Bench(generate(TTL))
    bench.put("never", 1)
    bench.put("late", 2, ttl=900)
    bench.put("soon", 2, ttl=300)
    bench.put("behind", 1, after="soon", ttl=800)  # goes before what it stands behind, but not before "soon" could
    assert bench.victims(step=step) == ["behind0", "soon1", "soon0", "late1", "late0", "never0"]


@pytest.mark.parametrize(
    ("edit", "key"),
    [
        (LFU, lambda meta, slot: (meta["uses"][slot], meta["last_use"][slot])),
        (MRU, lambda meta, slot: (-int(meta["last_use"][slot]),)),
        (PRIORITY, lambda meta, slot: (meta["priority"][slot], meta["last_use"][slot])),
        (TTL, lambda meta, slot: (meta["expires"][slot], meta["last_use"][slot])),
    ],
    ids=["uses", "most recent", "priority", "deadline"],
)
@pytest.mark.parametrize("step", [1, 3, 32])
def test_of_all_ends_the_first_by_the_order_goes(generate: Generate, edit: Edit, key: Any, step: int) -> None:
    kinds = generate(edit)
    for seed in range(12):
        chance, bench = random.Random(seed), Bench(kinds)
        for number in range(12):
            whole = [name for name, keys in bench.chains.items() if bench.held(name) == len(keys)]
            behind = chance.choice(["", *whole])
            own = chance.randint(1, 3)
            if own <= bench.manager.core.pools[KV].free:
                keeping: dict[str, Any] = {}
                if edit is PRIORITY:
                    keeping["priority"] = chance.randint(0, 3)
                if edit is TTL:
                    keeping["ttl"] = chance.choice([None, chance.randint(1000, 1010)])
                bench.put(f"p{number}_", own, behind, **keeping)
            if whole and chance.random() < 0.6:
                name = chance.choice(whole)
                bench.use(name, chance.randint(1, len(bench.chains[name])))
            if not number % 5:
                bench.manager.evict(KV, 1)
        meta = {name: array.copy() for name, array in bench.manager.core.pools[KV].meta.items()}
        parents: dict[int, int | None] = {}
        index = bench.manager.core.index
        for keys in bench.chains.values():
            spot = index.locate(keys.digests, len(keys))
            slots = index.slots(0, spot, 0, index.live(0, spot)).tolist()
            parents |= dict(zip(slots, [None, *slots], strict=False))
        expected = []
        while parents:
            ends = set(parents) - set(parents.values())
            expected.append(min(ends, key=lambda slot: key(meta, slot)))
            del parents[expected[-1]]
        bench.gone.clear()
        sizes = []
        while gone := bench.manager.evict(KV, step):
            sizes.append(gone)
        found = [slot for _, slot, _ in bench.gone]
        assert [key(meta, slot) for slot in found] == [key(meta, slot) for slot in expected], f"seed {seed}"
        assert sum(sizes) == len(expected) and all(size == step for size in sizes[:-1])


def test_a_trailing_kind_goes_by_its_own_order(generate: Generate) -> None:
    edit = Edit(TAIL, meta=("uses: u8",), order=(BY_STATE, "{by: uses, first: lowest}", LAST_USE))
    bench = Bench(generate(edit), model="tiny_deepseek_v4")
    for name in ("a", "b", "c", "d"):
        bench.put(name, 1)
    bench.use("b", times=2)
    bench.use("a")
    assert bench.manager.evict(TAIL, 1) == 1  # makes the queue of victims
    bench.use("d", times=3)  # these change the order while others wait
    bench.put("e", 1)
    assert bench.victims(TAIL) == ["e1", "a1", "b1", "d1"]
    assert bench.manager.evict(WINDOW, 1) == 1  # by age, as before
    assert bench.went(WINDOW) == ["c1"]


def test_uses_stay_at_the_greatest_number_that_the_field_holds(generate: Generate) -> None:
    bench = Bench(generate(Edit(meta=("uses: u8",), order=("{by: uses, first: lowest}",))))
    bench.put("a", 1)
    bench.use("a", times=300)
    assert int(bench.manager.core.pools[KV].meta["uses"].max()) == 255
    assert bench.victims() == ["a0"]
    bench.put("b", 1)
    (slot,) = (slot for (_, slot), name in bench.names.items() if name == "b0")
    assert bench.manager.core.pools[KV].meta["uses"][slot] == 0


def test_what_no_spec_keeps_cannot_be_asked_for(generate: Generate) -> None:
    bench = Bench(generate(LFU))
    keys = bench.keys("a", 1)
    fill = bench.manager.reserve(keys, 0, 1)
    for keeping in ({"priority": 1}, {"ttl": 5}, {"ttl": 0}):
        with pytest.raises(ValueError, match=r"priority|expires|ttl"):
            bench.manager.publish(fill, **keeping)  # type: ignore[arg-type]
    bench.manager.publish(fill)
    with pytest.raises(ValueError, match="0 to 255"):
        dear = Bench(generate(PRIORITY))
        dear.put("a", 1, priority=256)


# ---- deadlines ------------------------------------------------------------------------------------------------------


@dataclass
class Clock:
    """Stands still until it is set."""

    now: int = 1

    def __call__(self) -> int:
        return self.now


def test_what_has_ended_is_found_no_more_and_is_free_as_its_readers_leave(generate: Generate) -> None:
    clock = Clock()
    bench = Bench(generate(TTL), clock=clock)
    bench.put("a", 1)
    bench.put("b", 2, after="a", ttl=10)
    bench.put("c", 1, after="b")  # never ends by itself, but stands behind what does
    lease = bench.manager.acquire(bench.answer("c", 3))  # a0 b0 b1
    free = bench.manager.core.pools[KV].free
    clock.now = 10
    assert bench.held("c") == 4
    clock.now = 11
    stale = bench.answer("c")
    assert bench.held("c") == bench.held("b") == 1
    assert stale.now == bench.manager.profile.granule
    pool = bench.manager.core.pools[KV]
    assert pool.free == free + 1  # c0, which nobody reads
    assert lease.length == 3 * bench.manager.profile.granule  # goes on
    bench.manager.release(lease)
    assert pool.free == free + 3
    assert bench.manager.audit().ok
    bench.put("b", 2, after="a", ttl=10)  # anew
    assert bench.held("b") == 3


@pytest.mark.parametrize("ask", ["acquire", "reserve", "boundaries", "loadable", "publish"])
def test_every_call_sees_that_the_time_is_over(generate: Generate, ask: str) -> None:
    clock = Clock()
    bench = Bench(generate(TTL), clock=clock, slots=8)
    bench.put("a", 2, ttl=10)
    manager, answer = bench.manager, bench.answer("a")
    keys = bench.keys("b", 1, after="a")
    fill = manager.reserve(keys, 2, 3)
    clock.now = 11
    if ask == "acquire":
        with pytest.raises(Refused) as refused:
            manager.acquire(answer)
        assert refused.value.refusal.name == "STALE"
    elif ask == "reserve":
        manager.reserve(bench.keys("c", 1), 0, 1)
    elif ask == "publish":
        with pytest.raises(Refused) as refused:
            manager.publish(fill)
        assert refused.value.refusal.name == "GAP"
    else:
        assert not len(getattr(manager, ask)(bench.chains["a"]))
    assert manager.core.pools[KV].free >= 6  # both of a's are free
    assert manager.audit().ok


def test_published_again_it_lasts_as_long_as_the_last_of_its_publishers_said(generate: Generate) -> None:
    clock = Clock()
    bench = Bench(generate(TTL), clock=clock)
    bench.put("a", 2, ttl=10)
    keys = bench.chains["a"]
    for ttl, until in ((20, 21), (5, 21)):
        bench.manager.publish(bench.manager.reserve(keys, 0, 1), ttl=ttl)  # the first granule only
        assert set(bench.manager.core.pools[KV].meta["expires"].tolist()) >= {until, 11}
    clock.now = 11
    assert bench.held("a") == 1  # the second has ended, the first has not
    clock.now = 20
    assert bench.held("a") == 1
    clock.now = 21
    assert bench.held("a") == 0
    bench.manager.publish(bench.manager.reserve(keys, 0, 2), ttl=10)
    bench.manager.publish(bench.manager.reserve(keys, 0, 2))  # and now for good
    clock.now = 1000
    assert bench.held("a") == 2
    assert not bench.manager.core.deadlines


@pytest.mark.parametrize("again", ["filled", "by a row"])
@pytest.mark.parametrize("between", ["nothing", "packed", "stale"])
def test_what_one_publishes_for_good_does_not_end_when_another_publishes_it_for_a_time(
    generate: Generate, between: str, again: str
) -> None:
    clock, profile = Clock(), PROFILES["tiny_deepseek_v4"]
    fields = ("expires: u64", "priority: u8")
    kinds = generate(*(Edit(kind, meta=fields) for kind in (KV, INDEXER, TAIL, WINDOW)))
    manager = Manager(profile, dict.fromkeys(profile.kinds, 16), NumpyBackend(), kinds=kinds, clock=clock, cold=8)
    keys, tokens = manager.keys(list(range(2 * profile.granule))), 2 * profile.granule + 1
    manager.publish(manager.reserve(keys, 0, 2), ttl=10)
    manager.publish(manager.reserve(keys, 0, 2), priority=7)
    if between == "packed":
        assert manager.pack(keys) == 2
    elif between == "stale":
        pool = manager.core.pools[INDEXER]
        held = manager.core.slots_at(INDEXER, manager.core.index.locate(keys.digests, 2), 2).astype(np.intp)
        pool.sure("fall_behind", held, "S16", expected=pool.generations(held))
        manager.core.index.unready(1, manager.core.index.locate(keys.digests, 2), 0)
    if again == "filled":
        manager.publish(manager.reserve(keys, 0, 2), ttl=20)
    else:
        row = manager.requests.admit(2 * profile.granule)
        assert manager.requests.publish(row, keys, ttl=20) == 2
        manager.requests.finish(row)
    for now in (11, 21, 1000):
        clock.now = now
        assert manager.match(keys, tokens).now == 2 * profile.granule
    for kind, pool in manager.core.pools.items():
        spot = manager.core.index.locate(keys.digests, 2)
        assert set(pool.meta["priority"][manager.core.slots_at(kind, spot, 2)].tolist()) == {7}
    assert manager.audit().ok


def test_what_a_load_brings_in_place_of_a_packed_copy_is_kept_like_that(generate: Generate) -> None:
    """The copy was published and packed while the load was under way."""
    profile = PROFILES["tiny_deepseek_v4"]
    kinds = generate(*(Edit(kind, meta=("expires: u64", "priority: u8")) for kind in (KV, INDEXER, TAIL, WINDOW)))
    manager = Manager(
        profile, dict.fromkeys(profile.kinds, 16), NumpyBackend(), kinds=kinds, cold=8, store=MemoryStore()
    )
    keys = manager.keys(list(range(2 * profile.granule)))
    tokens = 2 * profile.granule + 1
    manager.publish(manager.reserve(keys, 0, 2))
    for kind in profile.kinds:
        manager.evict(kind, 99)
    plan = manager.match(keys, tokens).plan
    assert plan is not None
    ticket = manager.load_begin(plan)
    manager.publish(manager.reserve(keys, 0, 2), priority=7)
    assert manager.pack(keys) == 2
    ticket.transfer()
    assert (ticket.state, manager.match(keys, tokens).now) == ("done", 2 * profile.granule)
    spot = manager.core.index.locate(keys.digests, 2)
    assert manager.core.pools[KV].meta["priority"][manager.core.slots_at(KV, spot, 2)].tolist() == [7, 7]
    assert manager.audit().ok


def test_a_window_ends_by_its_own_deadline(generate: Generate) -> None:
    clock = Clock()
    edit = Edit(TAIL, meta=("expires: u64",), order=("{by: expires, first: lowest}",))
    bench = Bench(generate(edit), model="tiny_deepseek_v4", clock=clock)
    bench.put("a", 1)
    bench.put("b", 1, after="a", ttl=10)
    assert bench.held("b") == 2
    clock.now = 11
    answer = bench.answer("b")
    assert answer.now == bench.manager.profile.granule  # the tail at the first boundary has not ended
    assert answer.objects[KV].length == 2 * bench.manager.profile.granule
    assert bench.manager.audit().ok


def test_what_ends_is_not_stored(generate: Generate, tmp_path: Path) -> None:
    clock = Clock()
    with store_for("llama", tmp_path) as store:
        bench = Bench(generate(TTL), clock=clock, store=store)
        bench.put("a", 1)
        bench.put("b", 1, ttl=10)
        assert bench.manager.persist(bench.chains["b"]) == 0
        clock.now = 11
        bench.victims()
        assert bench.answer("a").kind == "HIT_PENDING"
        assert bench.answer("b").kind == "MISS"


def test_what_a_live_request_published_ends_though_it_reads_on(generate: Generate) -> None:
    clock = Clock()
    bench = Bench(generate(TTL, Edit(TAIL, meta=("expires: u64",))), model="tiny_deepseek_v4", clock=clock)
    keys, requests = bench.keys("a", 2), bench.manager.requests
    row = requests.admit(2 * bench.manager.profile.granule)
    assert requests.publish(row, keys, ttl=10) == 2 == bench.held("a")
    clock.now = 11
    assert bench.held("a") == 0
    assert int(requests.shared_tokens([row])[0]) == 2 * bench.manager.profile.granule
    assert bench.manager.core.pools[KV].free == bench.slots - 2
    assert bench.manager.core.pools[TAIL].free == bench.slots - 1  # the row's own
    requests.finish(row)
    assert bench.manager.core.pools[KV].free == bench.slots
    assert bench.manager.audit().ok


def test_what_is_packed_and_expanded_ends_when_it_was_to_end(generate: Generate) -> None:
    clock = Clock()
    profile = PROFILES["tiny_deepseek_v4"]
    slots = dict.fromkeys(profile.kinds, 16)
    manager = Manager(profile, slots, NumpyBackend(), kinds=generate(TTL), clock=clock, cold=8)
    keys = manager.keys(list(range(2 * profile.granule)))
    manager.publish(manager.reserve(keys, 0, 2), ttl=10)
    assert manager.pack(keys) == 2
    assert manager.expand(keys, 2 * profile.granule + 1).now == 2 * profile.granule
    clock.now = 11
    assert manager.match(keys, 2 * profile.granule + 1).now == 0
    assert manager.audit().ok


def test_what_ends_while_it_is_expanded_is_not_found_again(generate: Generate) -> None:
    clock, profile = Clock(), PROFILES["llama"]
    manager = Manager(profile, {KV: 16}, NumpyBackend(), kinds=generate(TTL), clock=clock, cold=8)
    keys = manager.keys(list(range(4 * profile.granule + 1)))
    manager.publish(manager.reserve(keys, 0, 2))
    manager.publish(manager.reserve(keys, 2, 4), ttl=10)
    assert manager.pack(keys, 2) == 2
    answer = manager.match(keys)
    assert answer.plan is not None
    ticket = manager.load_begin(answer.plan)
    clock.now = 11
    assert manager.match(keys).now == 2 * profile.granule
    ticket.transfer()
    assert ticket.state == "failed" and manager.match(keys).now == 2 * profile.granule
    assert manager.core.pools[KV].free == 14 and manager.audit().ok


def test_entries_that_end_while_a_rebuilding_begins_are_stale(generate: Generate) -> None:
    """The clock moves with each call, so that the time may be over after the first look."""
    profile, said = PROFILES["tiny_deepseek_v32"], []
    for ttl in range(3, 7):
        manager = Manager(profile, dict.fromkeys(profile.kinds, 8), NumpyBackend(), kinds=generate(TTL))
        keys = manager.keys(list(range(4 * profile.granule + 1)))
        manager.publish(manager.reserve(keys, 0, 2))
        manager.publish(manager.reserve(keys, 2, 4), ttl=ttl)
        manager.evict(INDEXER, 2)
        answer = manager.match(keys)
        assert answer.rebuild is not None
        try:
            manager.publish(manager.rebuild_begin(answer))
            said.append("")
        except Refused as refused:
            said.append(f"{refused.layer} {refused.refusal.name}")
        assert manager.audit().ok
    assert said == ["rebuild STALE", "publish STALE", "", ""]


# ---- budgets --------------------------------------------------------------------------------------------------------


QUARTER = Edit(meta=("tenant: u32",), more=("budget: {tenant: 25}",))


def shares(bench: Bench) -> list[int]:
    return [bench.held(name) for name in bench.chains]


def test_a_tenant_that_is_alone_may_have_the_whole_pool(generate: Generate) -> None:
    bench = Bench(generate(QUARTER), slots=16)
    for number in range(4):
        bench.put(f"a{number}_", 4, salt=b"a")
    assert shares(bench) == [4, 4, 4, 4]
    bench.put("more", 4, salt=b"a")  # gives of its own
    assert shares(bench) == [0, 4, 4, 4, 4]


def test_who_is_over_its_budget_gives_first_though_others_are_older(generate: Generate) -> None:
    bench = Bench(generate(QUARTER), slots=16)
    bench.put("old", 4, salt=b"b")  # as much as its budget
    for number in range(3):
        bench.put(f"a{number}_", 4, salt=b"a")
    bench.gone.clear()
    bench.put("c", 4, salt=b"c")  # a third one wants room: of those over their budgets, the oldest go
    assert bench.went() == ["a0_3", "a0_2", "a0_1", "a0_0"]
    bench.put("a3_", 4, salt=b"a")  # it would be over: of its own
    assert bench.went()[4:] == ["a1_3", "a1_2", "a1_1", "a1_0"]
    assert bench.held("old") == bench.held("c") == 4
    assert bench.manager.audit().ok


def test_within_its_budget_a_tenant_gives_of_its_own_before_others_within_theirs_do(generate: Generate) -> None:
    bench = Bench(generate(Edit(meta=("tenant: u32",), more=("budget: {tenant: 50}",))), slots=16)
    for name, granules in (("b", 6), ("c", 6), ("a", 4)):
        bench.put(name, granules, salt=name.encode())
    bench.use("a")
    bench.put("more", 3, salt=b"a")
    assert bench.went() == ["a3", "a2", "a1"]  # the youngest of all
    bench.put("d", 2, salt=b"d")  # has nothing of its own
    assert bench.went()[3:] == ["b5", "b4"]


def test_without_budgets_the_oldest_goes_whosever_it_is(generate: Generate) -> None:
    bench = Bench(generate(Edit(meta=("tenant: u32",))), slots=16)
    bench.put("old", 4, salt=b"b")
    for number in range(3):
        bench.put(f"a{number}_", 4, salt=b"a")
    bench.put("a3_", 4, salt=b"a")
    assert bench.held("old") == 0


def test_under_pressure_a_quiet_tenant_keeps_its_budget(generate: Generate) -> None:
    """One floods the pool, another comes back now and then: what it had within its budget is there each time."""
    kinds = {True: generate(QUARTER), False: generate(Edit(meta=("tenant: u32",)))}
    hits = {}
    for fair in kinds:
        bench = Bench(kinds[fair], slots=32)
        bench.put("quiet", 8, salt=b"quiet")
        hits[fair] = 0
        for number in range(30):
            bench.put(f"flood{number}_", 6, salt=b"flood")
            if not number % 6:
                hits[fair] += bench.held("quiet") == 8
        assert bench.manager.audit().ok
    assert hits == {True: 5, False: 1}


def test_when_nothing_of_its_own_can_go_others_give(generate: Generate) -> None:
    bench = Bench(generate(QUARTER), slots=16)
    bench.put("b", 4, salt=b"b")
    bench.put("a", 12, salt=b"a")
    lease = bench.manager.acquire(bench.answer("a"))
    bench.put("c", 2, salt=b"c")  # a is over, but holds on to it
    assert bench.held("b") == 2
    bench.manager.release(lease)


def test_whose_slots_are_is_counted_as_they_come_and_go(generate: Generate) -> None:
    kinds, profile = generate(QUARTER), PROFILES["llama"]
    for seed in range(10):
        chance, manager = random.Random(seed), Manager(profile, {KV: 24}, NumpyBackend(), kinds=kinds)
        pool, fills = manager.core.pools[KV], []
        for _ in range(60):
            salt = bytes([chance.randint(1, 4)])
            start = chance.randint(0, 9) * 10_000
            keys = manager.keys(list(range(start, start + chance.randint(1, 6) * profile.granule)), salt=salt)
            try:
                fills.append(manager.reserve(keys, 0, len(keys)))
            except Refused:
                pass
            while fills and (len(fills) > 2 or chance.random() < 0.5):
                fill = fills.pop(0)
                (manager.publish if chance.random() < 0.7 else manager.abandon)(fill)
            if chance.random() < 0.1:
                manager.reset()
                while fills:
                    manager.abandon(fills.pop())
            busy = np.setdiff1d(np.arange(len(pool)), pool.free_slots)
            counted = {tenant: count for tenant, count in pool.usage.items() if count}
            tenants, counts = np.unique(pool.meta["tenant"][busy], return_counts=True)
            assert counted == dict(zip(tenants.tolist(), counts.tolist(), strict=True)), f"seed {seed}"


def test_a_number_goes_to_another_tenant_once_nothing_is_left_of_the_first(generate: Generate) -> None:
    bench = Bench(generate(Edit(meta=("tenant: u16",), more=("budget: {tenant: 25}",))), slots=8)
    core = bench.manager.core
    core._tenants = Tenants(4)  # as if the field were as narrow
    for number in range(20):
        bench.put(f"p{number}_", 4, salt=bytes([number]))
    assert 0 < min(core.pools[KV].usage) and max(core.pools[KV].usage) <= 4
    assert bench.manager.audit().ok


def test_a_kind_keeps_to_its_share_of_the_pool(generate: Generate) -> None:
    bench = Bench(generate(Edit(more=("budget: {kind: 50}",))), slots=16)
    bench.put("a", 6)
    lease = bench.manager.acquire(bench.answer("a"))
    bench.put("b", 4)  # 8 may be cached, and 6 are leased
    assert (bench.held("a"), bench.held("b")) == (6, 2)
    bench.put("c", 8)
    assert bench.held("b") + bench.held("c") == 2
    bench.manager.release(lease)
    assert bench.manager.core.pools[KV].free == 8
    bench.put("d", 12)  # more than its share: the beginning stays
    assert bench.held("d") == 8
    assert bench.manager.audit().ok


# ---- what goes along, and what stays --------------------------------------------------------------------------------


def test_what_hangs_on_a_granule_goes_with_it(generate: Generate) -> None:
    edit = Edit(more=(f"cascade: [{INDEXER}, {WINDOW}, {TAIL}]",))
    bench = Bench(generate(edit), model="tiny_deepseek_v4")
    bench.put("a", 2)
    bench.put("b", 2, after="a")
    bench.put("other", 1)
    assert bench.manager.evict(KV, 1) == 1
    assert bench.went(KV) == bench.went(INDEXER) == ["b1"]
    assert bench.went(WINDOW) == bench.went(TAIL) == ["b2"]  # at the boundary behind it
    assert bench.held("b") == 2 and bench.held("other") == 1
    assert bench.manager.evict(KV, 3) == 3
    assert sorted(bench.went(INDEXER)) == ["a0", "a1", "b0", "b1"]
    assert bench.manager.core.pools[INDEXER].free == bench.slots - 1
    assert bench.manager.audit().ok


@pytest.mark.parametrize("name", ["swa_windw", "compressed_kv", "ondisk_prefix", "queued"])
def test_only_another_kind_with_slots_in_memory_goes_along(tmp_path: Path, name: str) -> None:
    spec = edited(tmp_path / "spec", Edit(more=(f"cascade: {name}",)))
    with pytest.raises(SpecError, match=f"E313 '{name}' goes with 'compressed_kv', and is no other kind"):
        load_spec(spec).required()


def test_no_shipped_kind_has_a_cascade_or_a_tombstone_and_the_language_s_page_says_so() -> None:
    from kvfsm.runtime.generated import KINDS

    rules = {kind: table.EVICTION for kind, table in KINDS.items()}
    assert all(rule is not None and not rule.cascade and rule.leaves != "tombstone" for rule in rules.values())
    assert "No shipped object uses `tombstone` or `cascade:`" in (REPO / "spec" / "README.md").read_text("utf-8")


def test_without_a_cascade_it_stays(generate: Generate) -> None:
    bench = Bench(generate(Edit(order=(LAST_USE,))), model="tiny_deepseek_v4")
    bench.put("a", 2)
    assert bench.manager.evict(KV, 2) == 2
    assert not bench.went(INDEXER) and not bench.went(TAIL)


def test_what_ends_takes_along_what_hangs_on_it(generate: Generate) -> None:
    clock = Clock()
    edit = Edit(meta=("expires: u64",), more=(f"cascade: [{INDEXER}, {TAIL}]",))
    bench = Bench(generate(edit), model="tiny_deepseek_v4", clock=clock)
    bench.put("a", 1)
    bench.put("b", 1, after="a", ttl=10)
    lease = bench.manager.acquire(bench.answer("b"))
    clock.now = 11
    assert bench.held("b") == 1
    assert not bench.went(INDEXER)
    bench.manager.release(lease)
    assert bench.went(INDEXER) == ["b0"] and bench.went(TAIL) == ["b1"]
    assert bench.manager.audit().ok


def test_entries_take_along_keys_that_were_computed_again(generate: Generate) -> None:
    bench = Bench(generate(Edit(more=(f"cascade: [{INDEXER}, {WINDOW}, {TAIL}]",))), model="tiny_deepseek_v4")
    bench.put("a", 2)
    bench.manager.evict(INDEXER, 2)
    assert bench.answer("a").rebuild is not None
    bench.manager.publish(bench.manager.rebuild_begin(bench.answer("a")))
    assert bench.held("a") == 2
    bench.manager.evict(KV, 1)
    assert bench.answer("a").rebuild is None and bench.manager.core.pools[INDEXER].free == bench.slots - 1
    assert bench.manager.audit().ok


def test_keys_that_end_while_others_are_computed_from_them_are_found_by_nobody(generate: Generate) -> None:
    clock = Clock()
    bench = Bench(generate(Edit(INDEXER, meta=("expires: u64",))), model="tiny_deepseek_v4", clock=clock)
    bench.put("a", 1, ttl=10)
    bench.put("b", 2, after="a")
    bench.manager.evict(INDEXER, 1)
    fill = bench.manager.rebuild_begin(bench.answer("b"))
    clock.now = 11
    with pytest.raises(Refused, match="STALE"):
        bench.manager.publish(fill)
    bench.manager.abandon(fill)
    assert bench.manager.audit().ok and bench.answer("b").rebuild == range(3 * 32)
    bench.manager.publish(bench.manager.rebuild_begin(bench.answer("b")))
    assert bench.held("b") == 3
    assert bench.manager.audit().ok


def test_a_tombstone_tells_what_was_evicted_from_what_never_was(generate: Generate) -> None:
    edits = [Edit(kind, leaves="tombstone") for kind in (KV, TAIL)]
    bench = Bench(generate(*edits), model="tiny_deepseek_v4", slots=8)
    for name in ("a", "b"):
        bench.put(name, 2)
    bench.keys("never", 2)

    def said(name: str) -> list[str]:
        return [bench.answer(name).objects[kind].verdict for kind in (KV, INDEXER, TAIL, WINDOW)]

    assert said("a") == ["HIT"] * 4 and said("never") == ["MISS"] * 4
    bench.manager.evict(KV, 2)
    assert said("a") == ["EVICTED", "MISS", "MISS", "MISS"]
    bench.manager.evict(TAIL, 1)
    assert said("a") == ["EVICTED", "MISS", "EVICTED", "MISS"]
    assert said("never") == ["MISS"] * 4 and said("b") == ["HIT"] * 4
    bench.put("a", 2)
    assert said("a") == ["HIT"] * 4
    bench.manager.evict(KV, 8)
    bench.manager.reset()
    assert said("a") == ["MISS"] * 4
    for number in range(9):  # the oldest are forgotten
        bench.put(f"p{number}_", 1)
        bench.manager.evict(KV, 1)
    assert [said(f"p{number}_")[0] for number in range(9)] == ["MISS", *["EVICTED"] * 8]


def test_nothing_is_left_where_the_spec_says_so(generate: Generate, tmp_path: Path) -> None:
    """``disk_copy``: what is published is stored at once. Another word: it is not."""
    with store_for("tiny_deepseek_v4", tmp_path) as store:
        bench = Bench(generate(Edit(TAIL, leaves="nothing")), model="tiny_deepseek_v4", store=store)
        bench.put("a", 1)
        keys, stored = bench.chains["a"], {}
        for kind, place in ((KV, 0), (INDEXER, 0), (TAIL, 1), (WINDOW, 1)):
            names = bench.manager.object_of(keys.digests, keys.salt, kind, np.array([place]))
            stored[kind] = bool(store.contains(names)[0])
        assert stored == {KV: True, INDEXER: True, TAIL: False, WINDOW: True}
        assert bench.manager.persist(keys) == 1  # unless somebody asks for it
        for kind in (KV, TAIL):
            bench.manager.evict(kind, 1)
        assert bench.answer("a").kind == "HIT_PENDING"


def store_for(model: str, folder: Path) -> LocalStore:
    profile = PROFILES[model]
    namespace = Namespace.of(profile)
    return LocalStore(folder, namespace, budget_bytes=1 << 30)


# ---- what is stored -------------------------------------------------------------------------------------------------

STORED = "ondisk_prefix"
OLDEST_OF_ALL = Edit(STORED, order=(LAST_USE,))
NEWEST = Edit(STORED, order=("{by: last_use, first: highest}",))
LARGEST = Edit(STORED, order=("{by: bytes, first: highest}", LAST_USE))
WINDOWS = Edit(STORED, order=("{by: kind == swa_window, first: true}", LAST_USE))


@dataclass
class Shelf:
    """A store of named objects, and the order in which they go."""

    kinds: Kinds
    folder: Path
    parents: dict[str, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        namespace = Namespace("model", {KV: "layout a", WINDOW: "layout b"}, "raw")
        self.store = LocalStore(self.folder, namespace, kinds=self.kinds)

    def id(self, name: str) -> ObjectId:
        kind = WINDOW if name.startswith("w") else KV
        return ObjectId(kind, hashlib.sha256(name.encode()).digest())

    def put(self, name: str, behind: str | None = None, blocks: int = 1) -> None:
        meta = {} if behind is None else {"parent": self.id(behind).key.hex()}
        self.store.put(self.id(name), bytes([len(name)]) * 4096 * blocks, meta=meta)
        self.parents[name] = behind

    def read(self, name: str) -> None:
        assert self.store.get(self.id(name), bytearray(4096 * 9)).verdict is Verdict.OK

    def there(self) -> list[str]:
        found = self.store.contains([self.id(name) for name in self.parents])
        return [name for name, known in zip(self.parents, found.tolist(), strict=True) if known]

    def victims(self) -> list[str]:
        """Evict all, one after the other."""
        order: list[str] = []
        while left := self.there():
            assert self.store.collect(most_bytes=self.store.usage().bytes - 1).evicted == 1
            (gone,) = {*left} - {*self.there()}
            order.append(gone)
        return order


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (OLDEST_OF_ALL, ["w1", "b0", "w2", "a2", "a1", "a0"]),
        (NEWEST, ["a2", "w2", "b0", "w1", "a1", "a0"]),
        (LARGEST, ["b0", "w2", "w1", "a2", "a1", "a0"]),
        (WINDOWS, ["w1", "w2", "b0", "a2", "a1", "a0"]),
    ],
    ids=["oldest", "newest", "largest", "windows"],
)
def test_a_store_goes_by_the_order_of_its_spec(
    edit: Edit, expected: list[str], generate: Generate, tmp_path: Path
) -> None:
    shelf = Shelf(generate(edit), tmp_path)
    for name, behind, blocks in (
        ("a0", None, 5), ("a1", "a0", 1), ("a2", "a1", 1), ("w1", None, 1), ("b0", None, 3), ("w2", None, 2),
    ):  # fmt: skip
        shelf.put(name, behind, blocks)
    shelf.read("a2")
    assert shelf.victims() == expected


def test_the_shipped_store_goes_by_age(tmp_path: Path) -> None:
    from kvfsm.runtime.generated import KINDS

    shelf = Shelf(KINDS, tmp_path)
    for name in ("a0", "w1", "b0"):
        shelf.put(name)
    shelf.read("a0")
    assert shelf.victims() == ["w1", "b0", "a0"]


@pytest.mark.parametrize("edit", [OLDEST_OF_ALL, NEWEST, LARGEST, WINDOWS], ids=["oldest", "newest", "largest", "kind"])
def test_of_all_that_is_stored_the_first_end_by_the_order_goes(edit: Edit, generate: Generate, tmp_path: Path) -> None:
    kinds = generate(edit)
    keys: dict[Edit, Callable[[str, int, int], tuple[int, ...]]] = {
        OLDEST_OF_ALL: lambda name, age, blocks: (age,),
        NEWEST: lambda name, age, blocks: (-age,),
        LARGEST: lambda name, age, blocks: (-blocks, age),
        WINDOWS: lambda name, age, blocks: (not name.startswith("w"), age),
    }
    for seed in range(4):
        chance, shelf = random.Random(seed), Shelf(kinds, tmp_path / str(seed))
        ages, sizes = {}, {}
        for now in range(14):
            if ages and chance.random() < 0.4:
                name = chance.choice(sorted(ages))
                shelf.read(name)
            else:
                name, sizes[name] = f"{chance.choice('pw')}{now}", chance.randint(1, 3)
                pages = [other for other in ages if other.startswith("p")]
                behind = chance.choice([None, *pages]) if name.startswith("p") else None
                shelf.put(name, behind, sizes[name])
            ages[name] = now
        expected, left = [], set(ages)
        while left:
            ends = left - {shelf.parents[name] for name in left}
            expected.append(min(ends, key=lambda name: keys[edit](name, ages[name], sizes[name])))
            left.discard(expected[-1])
        assert shelf.victims() == expected, f"seed {seed}"


def test_what_a_manager_stores_goes_from_the_ends_of_its_chains(generate: Generate, tmp_path: Path) -> None:
    """The order alone would take the first granules first: they were stored first."""
    with store_for("tiny_deepseek_v4", tmp_path) as store:
        bench = Bench(generate(OLDEST_OF_ALL), model="tiny_deepseek_v4", store=store)
        bench.put("a", 3)
        bench.put("b", 2, after="a")
        keys = bench.chains["b"]
        names = {kind: bench.manager.object_of(keys.digests, keys.salt, kind, np.arange(5)) for kind in (KV, INDEXER)}
        while (used := store.usage()).objects:
            assert store.collect(most_bytes=used.bytes - 1).evicted == 1
            for kind, ids in names.items():
                found = store.contains(ids).tolist()
                assert found == sorted(found, reverse=True), kind
    with store_for("tiny_deepseek_v4", tmp_path / "again") as store:
        bench = Bench(generate(OLDEST_OF_ALL), model="tiny_deepseek_v4", store=store)
        bench.put("a", 3)
        store._directory._parents = [None] * len(store._directory._parents)  # the control: nobody knows of chains
        store.collect(most_bytes=store.usage().bytes - 1)
        keys = bench.chains["a"]
        assert store.contains(bench.manager.object_of(keys.digests, keys.salt, KV, np.arange(3))).tolist() == [
            False, True, True,
        ]  # fmt: skip


def test_of_windows_that_the_policy_keeps_none_of_nothing_is_evicted(generate: Generate) -> None:
    profile = PROFILES["tiny_gpt_oss"]
    kinds = generate(Edit(WINDOW, leaves="tombstone"))
    manager = Manager(profile, dict.fromkeys(profile.kinds, 8), NumpyBackend(), kinds=kinds, window=WindowPolicy.none())
    answer = manager.match(manager.keys(np.arange(40)))
    assert (answer.kind, answer.objects[WINDOW].verdict) == ("MISS", "MISS")


@pytest.mark.parametrize("ttl", [0, -1, 1.5, 2**63, 2**64, float("inf"), float("nan")])
def test_a_ttl_out_of_range_is_refused_before_anything(generate: Generate, ttl: Any) -> None:
    bench = Bench(generate(*(Edit(kind, meta=("expires: u64",)) for kind in (KV, WINDOW))), model="tiny_gpt_oss")
    manager = bench.manager
    keys = manager.keys(np.arange(40))
    fill = manager.reserve(keys, 0, 2)
    with pytest.raises((ValueError, TypeError), match="give a whole number of ticks of the clock"):
        manager.publish(fill, ttl=ttl)
    manager.publish(fill, ttl=2**63 - 1)  # late enough to be never
    assert manager.match(keys).now and manager.audit().ok


@pytest.mark.parametrize("time", [-1, 2**63, 2**64, float("nan")])
def test_what_no_field_keeps_a_clock_may_not_say(generate: Generate, time: Any) -> None:
    said = [1]
    bench = Bench(generate(Edit(KV, meta=("expires: u64",))), model="tiny_gpt_oss", clock=lambda: said[0])
    manager = bench.manager
    keys = manager.keys(np.arange(40))
    fill = manager.reserve(keys, 0, 2)
    said[0] = time
    with pytest.raises(ValueError, match=f"0 to {2**63 - 1}"):
        manager.publish(fill)
    said[0] = 2**63 - 1
    manager.publish(fill, ttl=5)
    assert manager.match(keys).kind == "HIT" and manager.audit().ok
