"""States that differ only by the numbers of slots and copies count once, and nothing else does."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import random
from collections.abc import Iterator

import numpy as np
import pytest

from kvfsm.spec.checking.engines import canonical, canonical_c
from kvfsm.spec.checking.engines.canonical import Renumbering
from kvfsm.spec.checking.engines.compiling import compiler, load
from kvfsm.spec.checking.explore import explore
from kvfsm.spec.checking.grounding import ground
from kvfsm.spec.checking.layout import Layout
from kvfsm.spec.checking.symmetry import CopyClass, Pointer, SlotClass, Symmetry, symmetry_of
from kvfsm.spec.checking.system import Cell, State, System
from kvfsm.spec.language.expressions import INT, Compare, Number, Remote
from kvfsm.spec.language.protocol import Protocol

from . import shipped

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C compiler")
ENGINES = ("numpy", pytest.param("c", marks=needs_compiler))


def laid_out(protocol: Protocol) -> tuple[System, Symmetry, Renumbering]:
    system = ground(protocol)
    found = symmetry_of(protocol, system)
    return system, found, Renumbering(found, Layout(system))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("slots", "orbits", "depth"), [(2, 8_254, 32), (3, 84_884, 41)])
def test_toctou_has_these_orbits(engine: str, slots: int, orbits: int, depth: int) -> None:
    system, _, renumbering = laid_out(shipped.protocol("toctou", slots=slots))
    found = explore(system, engine=engine, symmetry=renumbering)
    assert (found.states, found.depth, found.complete) == (orbits, depth, True)


@pytest.mark.long
@needs_compiler
def test_toctou_with_three_readers_has_these_orbits() -> None:
    system, _, renumbering = laid_out(shipped.protocol("toctou", slots=3, readers=3))
    assert explore(system, engine="c", symmetry=renumbering).states == 520_340


WITH_LIKES = (
    "bring", "capture", "evict", "fill", "generate", "join", "pack", "publish", "queue", "rewrite", "scrub", "split",
    "toctou",
)  # fmt: skip


def test_these_protocols_have_slots_or_copies_that_are_alike() -> None:
    assert tuple(item.name for item in shipped.spec().protocols if not laid_out(item)[1].trivial) == WITH_LIKES


@pytest.mark.parametrize("name", WITH_LIKES)
def test_verdicts_are_those_of_the_full_search(name: str) -> None:
    system, _, renumbering = laid_out(shipped.protocol(name))
    full, reduced = explore(system, engine="numpy"), explore(system, engine="numpy", symmetry=renumbering)
    assert reduced.verdicts() == full.verdicts()
    assert reduced.states < full.states and reduced.depth == full.depth
    assert {claim: len(reduced.path(at)) for claim, at in reduced.reached.items()} == {
        claim: len(full.path(at)) for claim, at in full.reached.items()
    }


@pytest.mark.parametrize("name", ["toctou", "pack", "evict"])
def test_as_many_states_stand_for_others_as_there_are_classes(name: str) -> None:
    """Against a search through every renumbering, of every state that the full search found."""
    system, found, renumbering = laid_out(shipped.protocol(name))
    full = explore(system, engine="numpy")
    states = [full.state(index) for index in range(full.states)]
    classes = {least_renumbered(system, found, state) for state in states}
    stored = {tuple(row) for row in renumbering.canonical(full.words, np).tolist()}
    assert len(stored) == len(classes)
    reduced = explore(system, engine="numpy", symmetry=renumbering)
    assert reduced.states == len(classes)


def least_renumbered(system: System, found: Symmetry, state: State) -> State:
    return min(renumberings(system, found, state))


def renumberings(system: System, found: Symmetry, state: State) -> Iterator[State]:
    """All states that a renumbering turns a state into, with 0 in locals that are dead."""
    awake = dict(zip((cell.name for cell in system.cells), state, strict=True))
    for part in found.slots:
        for pointer in part.pointers:
            if (awake[pointer.at] if pointer.at else 0) in pointer.dead:
                awake[pointer.cell] = 0
    slot_orders = [list(itertools.permutations(part.numbers)) for part in found.slots]
    copy_orders = [list(itertools.permutations(range(part.count))) for part in found.copies]
    for slots in itertools.product(*slot_orders):
        for copies in itertools.product(*copy_orders):
            moved = dict(awake)
            for part, order in zip(found.slots, slots, strict=True):
                numbers = dict(zip(part.numbers, order, strict=True))
                for cell in system.cells:
                    if cell.is_slot and cell.owner in part.instances and cell.number in numbers:
                        moved[f"{cell.owner}[{numbers[cell.number]}].{cell.field}"] = awake[cell.name]
                for pointer in part.pointers:
                    if (awake[pointer.at] if pointer.at else 0) not in pointer.dead:
                        moved[pointer.cell] = numbers.get(awake[pointer.cell], awake[pointer.cell])
            shuffled = dict(moved)
            for part, order in zip(found.copies, copies, strict=True):
                for cell in system.cells:
                    if not cell.is_slot and cell.owner == part.actor:
                        shuffled[f"{cell.owner}[{order[cell.number]}].{cell.field}"] = moved[cell.name]
            yield tuple(shuffled[cell.name] for cell in system.cells)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_fault_is_found_at_the_same_depth_and_told_as_a_true_run(engine: str) -> None:
    protocol = shipped.protocol("toctou")
    system = shipped.grounded("toctou", "unchecked_pin")
    renumbering = Renumbering(symmetry_of(protocol, system), Layout(system))
    found = explore(system, engine=engine, symmetry=renumbering, stop_at_first=True)
    path = found.path(found.violations["lease_holds"])
    assert len(path) == 5
    state = system.initial
    for number, after in path:
        assert (number, after) in list(system.successors(state))
        state = after


def test_a_claim_that_names_a_slot_makes_slots_unlike_and_says_so() -> None:
    protocol = shipped.protocol("toctou")
    first = next(item for item in protocol.properties if item.name == "lease_holds")
    named = changed_to_name_slot_0(protocol, first.name)
    system = ground(named)
    found = symmetry_of(named, system)
    assert found.slots == ()
    assert found.unlike == ("slots of block: property 'only_of_slot_0' tells them apart",)
    assert [part.actor for part in found.copies] == ["reader"]


def changed_to_name_slot_0(protocol: Protocol, name: str) -> Protocol:
    """With a claim that holds, and speaks of slot 0 only."""
    at = protocol.at
    pins = Remote("block", Number(0, at), "pins", INT, 3, at)
    base = next(item for item in protocol.properties if item.name == name)
    claim = dataclasses.replace(base, name="only_of_slot_0", that=Compare("<", pins, Number(3, at), at))
    return dataclasses.replace(protocol, properties=(*protocol.properties, claim))


def test_where_nothing_ever_changes_there_is_nothing_to_renumber() -> None:
    protocol = shipped.protocol("toctou")
    found = symmetry_of(protocol, ground(protocol))
    assert not found.trivial
    assert dataclasses.replace(found, system=dataclasses.replace(found.system, cells=())).trivial


def test_slots_that_steps_name_are_unlike_and_the_report_says_so() -> None:
    _, found, _ = laid_out(shipped.protocol("evict"))
    assert found.slots == ()
    assert found.unlike == ("slots of kv: steps name some of them by number",)


def test_a_wrong_claim_of_likeness_is_caught_by_the_cross_check() -> None:
    """Negative control: slots of ``evict`` are parent and child, and treating them as alike loses states."""
    protocol = shipped.protocol("evict")
    system = ground(protocol)
    honest = symmetry_of(protocol, system)
    pointers = tuple(
        Pointer(cell.name, f"{cell.owner}[{cell.number}].at", frozenset())
        for cell in system.cells
        if cell.field == "slot" and f"{cell.owner}[{cell.number}].at" in system.place
    )
    wrong = Symmetry(system, (SlotClass(("kv",), (0, 1), pointers),), honest.copies, ())
    full = explore(system, engine="numpy")
    reduced = explore(system, engine="numpy", symmetry=Renumbering(wrong, Layout(system)))
    differs = {name for name, verdict in reduced.verdicts().items() if verdict != full.verdicts()[name]}
    assert differs == {"children_first", "leases_balance"}
    assert (full.depth, reduced.depth) == (18, 21)


# The same rows from NumPy and from C.


def rows_in_c(found: Symmetry, layout: Layout, words: np.ndarray) -> np.ndarray:
    each = f"for (size_t i = 0; i < rows; i++) canonical(s + i * {layout.word_count});"
    ending = f"void canonical_rows(uint64_t *s, size_t rows) {{ {each} }}\n"
    head = "#include <stddef.h>\n#include <stdint.h>\n"
    library = load({"rows.c": head + canonical_c.canonical_c(found, layout) + ending})
    changed = np.ascontiguousarray(words).copy()
    library.canonical_rows(ctypes.c_void_p(changed.ctypes.data), ctypes.c_size_t(len(changed)))
    return changed


def rows_in_numpy(found: Symmetry, layout: Layout, words: np.ndarray) -> np.ndarray:
    return Renumbering(found, layout).canonical(words, np)


@needs_compiler
@pytest.mark.parametrize(
    ("name", "bounds"),
    [*((name, {}) for name in WITH_LIKES), ("toctou", {"slots": 3, "readers": 1}), ("scrub", {"slots": 3})],
)
def test_every_state_of_a_protocol_becomes_the_same_row_in_c(name: str, bounds: dict[str, int]) -> None:
    system, found, _ = laid_out(shipped.protocol(name, **bounds))
    words, layout = explore(system, engine="c").words, Layout(system)
    rows = rows_in_numpy(found, layout, words)
    assert np.array_equal(rows, rows_in_c(found, layout, words))
    assert np.array_equal(rows, rows_in_numpy(found, layout, rows))


def random_alike(seed: int) -> tuple[System, Symmetry]:
    """Slots of one or two instances and copies with locals that name them, all alike; locals are dead at some steps."""
    pick = random.Random(seed)
    cells: list[Cell] = []
    classes = []
    slots = [pick.randint(2, 4) for _ in range(pick.randint(1, 2))]
    for place, count in enumerate(slots):
        fields = [(field, pick.choice((1, 2, 3, 6, 5000, (1 << 40) - 1))) for field in "fg"[: pick.randint(1, 2)]]
        owner = f"kv{place}"
        cells += [
            Cell(f"{owner}[{n}].{f}", owner, n, f, INT, high, (), True) for n in range(count) for f, high in fields
        ]
    copies, steps = pick.randint(1, 3), pick.randint(1, 3)
    names = [(f"to{local}", pick.randrange(len(slots))) for local in range(pick.randint(1, 3))]
    dead = [frozenset(pick.sample(range(steps + 1), pick.randint(0, steps))) for _ in names]
    pointers: dict[int, list[Pointer]] = {place: [] for place in range(len(slots))}
    for copy in range(copies):
        cells.append(Cell(f"p[{copy}].at", "p", copy, "at", "p.at", steps, (), False))
        for (local, place), steps_dead in zip(names, dead, strict=True):
            cells.append(Cell(f"p[{copy}].{local}", "p", copy, local, INT, slots[place] - 1, (), False))
            pointers[place].append(Pointer(f"p[{copy}].{local}", f"p[{copy}].at", steps_dead))
        cells.append(Cell(f"p[{copy}].seen", "p", copy, "seen", INT, 3, (), False))
    system = System(f"alike{seed}", (), tuple(cells), (), (), (), ())
    for place, count in enumerate(slots):
        classes.append(SlotClass((f"kv{place}",), tuple(range(count)), tuple(pointers[place])))
    alike = (CopyClass("p", copies),) if copies > 1 else ()
    return system, Symmetry(system, tuple(classes), alike, ())


def random_states(system: System, count: int, seed: int) -> list[State]:
    """States of few values, so that many slots hold the same."""
    pick = random.Random(seed)
    return [tuple(pick.choice((0, 1, cell.high, pick.randint(0, cell.high))) if cell.high > 1 else pick.randint(0, 1)
                  for cell in system.cells) for _ in range(count)]  # fmt: skip


@needs_compiler
@pytest.mark.parametrize("mix", [canonical.MIX, 1])
@pytest.mark.parametrize("seed", range(12))
def test_random_states_become_the_same_rows_in_c_even_where_hashes_collide(
    seed: int, mix: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the factor 1 hashes are sums, so that many slots have the same and many differ in their lowest bits only."""
    monkeypatch.setattr(canonical, "MIX", mix)
    monkeypatch.setattr(canonical_c, "MIX", mix)
    system, found = random_alike(seed)
    layout = Layout(system)
    words = layout.pack(random_states(system, 2_000, seed))
    assert np.array_equal(rows_in_numpy(found, layout, words), rows_in_c(found, layout, words))


@needs_compiler
def test_slots_ordered_by_other_bits_of_a_hash_are_other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: with one bit less in the keys of NumPy some rows differ."""
    monkeypatch.setattr(canonical, "MIX", 1)
    monkeypatch.setattr(canonical_c, "MIX", 1)
    monkeypatch.setattr(canonical, "place_mask", lambda part: 2 * canonical_c.place_mask(part) + 1)
    differ = []
    for seed in range(12):
        system, found = random_alike(seed)
        layout = Layout(system)
        words = layout.pack(random_states(system, 500, seed))
        differ.append(not np.array_equal(rows_in_numpy(found, layout, words), rows_in_c(found, layout, words)))
    assert any(differ)


@pytest.mark.parametrize("collide", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_a_random_state_becomes_a_renumbering_of_itself_and_all_of_those_the_same(
    seed: int, collide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where hashes collide the second may fail, and the first never does: states that differ are not merged."""
    if collide:
        monkeypatch.setattr(canonical, "MIX", 1)
    system, found = random_alike(seed)
    layout = Layout(system)
    states = random_states(system, 60, seed)
    pick = random.Random(seed)
    states += [pick.choice(list(renumberings(system, found, state))) for state in states]
    rows = [layout.unpack(row) for row in rows_in_numpy(found, layout, layout.pack(states))]
    classes = [least_renumbered(system, found, state) for state in states]
    assert [least_renumbered(system, found, row) for row in rows] == classes
    if not collide:
        assert len(set(rows)) == len(set(classes)) < len(set(states))
