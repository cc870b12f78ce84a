"""The explorer: engines that count alike, shortest runs, limits that are held, and faults that are found."""

from __future__ import annotations

import signal
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvfsm.spec.checking.engines.compiling import compiler
from kvfsm.spec.checking.engines.transitions import transitions_of, truth_of
from kvfsm.spec.checking.exploration import Exploration
from kvfsm.spec.checking.explore import explore
from kvfsm.spec.checking.folding import either, equal, number
from kvfsm.spec.checking.layout import Layout
from kvfsm.spec.checking.limits import Limits, Progress
from kvfsm.spec.checking.system import NOWHERE, Cell, Claim, Command, System
from kvfsm.spec.language.expressions import INT, Arithmetic, Compare

from .searching import Reference, assert_agrees, assert_is_run, random_system, reference
from .shipped import grounded

ENGINES = ("numpy", "c")
PROTOCOLS = sorted(path.stem for path in (Path(__file__).parents[3] / "spec/protocols").glob("*.yaml"))
TOCTOU = {(2, 2): (30_192, 120_640, 32), (3, 2): (931_200, 4_795_968, 41), (3, 3): (15_508_608, 93_078_720, 48)}
TOCTOU_LARGE = (496_520_448, 3_530_625_024, 57)
LARGE_BYTES = 12 << 30

# What CuPy has too, with the same meaning.
ALSO_CUPY = (
    "append arange concatenate cumsum empty flatnonzero full int32 int64 left_shift lexsort maximum minimum "
    "ones sort stack uint8 uint64 where zeros"
).split()


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Compiled code goes where the tests own it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp().parent / "compiled"))
        yield


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    if request.param == "c" and compiler() is None:
        pytest.skip("no C compiler")
    name: str = request.param
    return name


def toctou(slots: int, readers: int, mutant: str | None = None) -> System:
    return grounded("toctou", mutant, slots=slots, readers=readers)


@cache
def expected(name: str) -> Reference:
    return reference(grounded(name))


def counts(exploration: Exploration) -> tuple[int, int, int]:
    return exploration.states, exploration.transitions, exploration.depth


# Counts.


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_shipped_protocol_is_explored_like_the_reference(name: str) -> None:
    for engine in ENGINES if compiler() is not None else ENGINES[:1]:
        exploration = explore(grounded(name), engine=engine)
        assert exploration.engine == engine
        assert_agrees(exploration, expected(name))


@pytest.mark.parametrize("bounds", [(2, 2), (3, 2)])
def test_toctou_has_the_known_counts(bounds: tuple[int, int], engine: str) -> None:
    exploration = explore(toctou(*bounds), engine=engine)
    assert counts(exploration) == TOCTOU[bounds]
    assert not exploration.violations
    assert set(exploration.verdicts().values()) == {"holds"}


@pytest.mark.skipif(compiler() is None, reason="no C compiler")
def test_the_larger_toctou_has_the_known_counts_in_c() -> None:
    exploration = explore(toctou(3, 3), engine="c", threads=2)
    assert counts(exploration) == TOCTOU[3, 3]
    assert set(exploration.verdicts().values()) == {"holds"}


@pytest.mark.long
def test_the_larger_toctou_has_the_known_counts_in_numpy() -> None:
    assert counts(explore(toctou(3, 3), engine="numpy")) == TOCTOU[3, 3]


@pytest.mark.long
@pytest.mark.skipif(compiler() is None, reason="no C compiler")
def test_half_a_billion_states_are_explored_within_12_gib() -> None:
    exploration = explore(toctou(4, 3), engine="c", limits=Limits(bytes=LARGE_BYTES))
    assert counts(exploration) == TOCTOU_LARGE
    assert set(exploration.verdicts().values()) == {"holds"}


@pytest.mark.parametrize("seed", range(120))
def test_numpy_explores_random_systems_like_the_reference(seed: int) -> None:
    system = random_system(seed)
    assert_agrees(explore(system, engine="numpy"), reference(system))


@pytest.mark.skipif(compiler() is None, reason="no C compiler")
@pytest.mark.parametrize("seed", [3, 18, 23, 24, 37, 41])
def test_c_explores_random_systems_like_the_reference(seed: int) -> None:
    system = random_system(seed)
    assert_agrees(explore(system, engine="c"), reference(system))


def test_random_systems_are_not_all_trivial() -> None:
    systems = [random_system(seed) for seed in range(120)]
    assert sum(Layout(system).word_count > 1 for system in systems) > 20
    assert sum(len(reference(system).states) > 50 for system in systems) > 20


@pytest.mark.skipif(compiler() is None, reason="no C compiler")
def test_a_larger_index_takes_the_states_in_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that Ctrl-C is heard meanwhile; pieces of any size take in all of them."""
    monkeypatch.setattr("kvfsm.spec.checking.engines.engine_c.FIRST_PLACES", 1)
    monkeypatch.setattr("kvfsm.spec.checking.engines.engine_c.WORTH", 0)
    monkeypatch.setattr("kvfsm.spec.checking.engines.engine_c.SMALL_BITS", 0)
    monkeypatch.setattr("kvfsm.spec.checking.engines.engine_c.INDEXED", 1000)
    assert counts(explore(toctou(2, 2), engine="c")) == TOCTOU[2, 2]


@pytest.mark.skipif(compiler() is None, reason="no C compiler")
@pytest.mark.parametrize("worth", [0, 1024], ids=["table", "bits"])
def test_threads_find_the_same_states(worth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    system = toctou(3, 2)
    monkeypatch.setattr("kvfsm.spec.checking.engines.engine_c.WORTH", worth)
    monkeypatch.setattr("kvfsm.spec.checking.engines.engine_c.SMALL_BITS", 0)
    one, three = explore(system, engine="c"), explore(system, engine="c", threads=3)
    assert counts(one) == counts(three) == TOCTOU[3, 2]
    assert np.array_equal(np.sort(one.words, axis=0), np.sort(three.words, axis=0))
    assert one.taken.tolist() == three.taken.tolist()
    levels = [len(three.path(index)) for index in range(0, three.states, 40_001)]
    assert levels == sorted(levels)
    assert_is_run(system, three.path(three.states - 1), three.state(three.states - 1))


# Modules like NumPy.


def test_only_functions_that_cupy_has_are_used() -> None:
    strict = SimpleNamespace(**{name: getattr(np, name) for name in ALSO_CUPY})
    for system in (toctou(2, 2), grounded("rollback"), *map(random_system, (3, 18, 24))):
        assert_agrees(explore(system, engine="numpy", xp=strict), reference(system))  # type: ignore[arg-type]


# Faults are found.


def test_the_unchecked_pin_is_found_after_five_steps(engine: str) -> None:
    exploration = explore(toctou(2, 2, "unchecked_pin"), engine=engine)
    index = exploration.violations["lease_holds"]
    path = exploration.path(index)
    assert len(path) == 5
    assert exploration.verdicts()["lease_holds"] == "violated"
    assert_is_run(exploration.system, path, exploration.state(index))


def test_stopping_at_the_first_violation_leaves_the_rest_unknown(engine: str) -> None:
    exploration = explore(toctou(3, 2, "unchecked_pin"), engine=engine, stop_at_first=True)
    assert not exploration.complete
    assert exploration.why_incomplete == "stopped at the first violation"
    assert exploration.states < TOCTOU[3, 2][0] // 4
    assert len(exploration.path(exploration.violations["lease_holds"])) == 5
    assert exploration.verdicts()["pins_count_readers"] == "unknown"


def counter(high: int, claims: tuple[Claim, ...] = (), derived: bool = False, honest: bool = True) -> System:
    """Two numbers that are raised in turn up to ``high``, and a third that says how far the first is."""
    cells = tuple(Cell(f"it[0].{name}", "it", 0, name, INT, high, (), True) for name in ("first", "second", "copy"))
    first, second, copy = (cell.read() for cell in cells)

    def raised(cell: Cell, more: bool = False) -> Command:
        step = Arithmetic("+", cell.read(), number(1), NOWHERE)
        updates = ((cell.name, step), *(((cells[2].name, Arithmetic("+", copy, number(1), NOWHERE)),) if more else ()))
        guard = (Compare("<", cell.read(), number(high), NOWHERE),)
        return Command("actor", 0, f"raise_{cell.field}", (), "applied", (), guard, updates)

    commands = [raised(cells[0], more=True), raised(cells[1])]
    if not honest:  # the copy is forgotten once
        forgets = (equal(first, number(2)), equal(second, number(1)))
        commands.append(Command("actor", 0, "forget", (), "applied", (), forgets, ((cells[2].name, number(0)),)))
    says = Claim("copy_follows", "always", None, (equal(copy, first),), ("",), NOWHERE)
    value = ((cells[2].name, first),) if derived else ()
    return System("counter", (), cells, tuple(commands), (says, *claims), (), value)


def test_a_derived_cell_that_does_not_follow_is_found_and_leaves_no_state_out(engine: str) -> None:
    honest = counter(6, derived=True)
    assert_agrees(explore(honest, engine=engine), reference(honest))
    system = counter(6, derived=True, honest=False)
    exploration = explore(system, engine=engine)
    assert_agrees(exploration, reference(system))
    assert exploration.verdicts()["copy_follows"] == "violated"
    assert len(exploration.path(exploration.violations["copy_follows"])) == 4


def test_a_state_that_nobody_leaves_breaks_a_claim_about_quiet_states(engine: str) -> None:
    cells = counter(3).cells
    ends = Claim("ends_early", "deadlock", None, (Compare("<", cells[0].read(), number(3), NOWHERE),), ("",), NOWHERE)
    ends_late = Claim("ends_late", "deadlock", None, (equal(cells[0].read(), number(3)),), ("",), NOWHERE)
    system = counter(3, (ends, ends_late))
    exploration = explore(system, engine=engine)
    assert exploration.verdicts() == {"copy_follows": "holds", "ends_early": "violated", "ends_late": "holds"}
    assert len(exploration.path(exploration.violations["ends_early"])) == 6


def test_a_step_that_changes_nothing_does_not_lead_away(engine: str) -> None:
    idle = Command("actor", 0, "idle", (), "applied", (), (), ())
    cells = counter(2).cells
    ends = Claim("ends", "deadlock", None, (Compare("<", cells[0].read(), number(2), NOWHERE),), ("",), NOWHERE)
    system = counter(2, (ends,))
    system = replace(system, commands=(*system.commands, idle))
    assert_agrees(explore(system, engine=engine), reference(system))
    assert explore(system, engine=engine).verdicts()["ends"] == "violated"


def test_a_system_without_commands_has_one_state(engine: str) -> None:
    system = replace(counter(3), commands=())
    exploration = explore(system, engine=engine)
    assert_agrees(exploration, reference(system))
    assert counts(exploration) == (1, 0, 0)
    assert len(transitions_of(exploration)[0]) == 0


def test_a_claim_that_fails_at_once_is_found_in_the_first_state(engine: str) -> None:
    never = Claim("never", "always", None, (equal(number(1), number(2)),), ("",), NOWHERE)
    exploration = explore(counter(3, (never,)), engine=engine)
    assert exploration.violations == {"never": 0}
    assert exploration.path(0) == []


def test_what_is_never_reached_is_reported(engine: str) -> None:
    cells = counter(3).cells
    apart = Compare("<", cells[0].read(), cells[2].read(), NOWHERE)
    never = Claim("apart", "sometimes", None, (apart,), ("",), NOWHERE)
    either_ = (equal(cells[0].read(), number(3)), equal(cells[1].read(), number(2)))
    once = Claim("far", "sometimes", None, either_, ("", ""), NOWHERE)
    exploration = explore(counter(3, (never, once)), engine=engine)
    assert exploration.verdicts()["apart"] == "violated"
    assert len(exploration.path(exploration.reached["far"])) == 2


def test_states_of_several_words_are_told_apart_by_each_of_them(engine: str) -> None:
    high = (1 << 40) - 1
    cells = tuple(Cell(f"v[{place}].x", "v", place, "x", INT, high, (), True) for place in range(3))
    commands = tuple(
        Command("actor", 0, f"set{place}{value % 7}", (), "applied", (), (), ((cell.name, number(value)),))
        for place, cell in enumerate(cells)
        for value in (0, 1, high - 1, high)
    )
    far = either((equal(cells[2].read(), number(high)),))
    claim = Claim("never_far", "always", None, (Compare("!=", cells[2].read(), number(high), NOWHERE),), ("",), NOWHERE)
    system = System("wide", (), cells, commands, (claim,), (), ())
    assert Layout(system).word_count == 3
    exploration = explore(system, engine=engine)
    assert_agrees(exploration, reference(system))
    assert truth_of(exploration, far).sum() == 16


# Limits.


def test_a_search_that_needs_more_memory_than_allowed_is_incomplete(engine: str) -> None:
    system = toctou(3, 2)
    exploration = explore(system, engine=engine, limits=Limits(bytes=4_000_000))
    assert not exploration.complete
    assert "the limit of 4,000,000 bytes of memory" in str(exploration.why_incomplete)
    kept = exploration.words.nbytes + exploration.found.parents.nbytes
    assert 400_000 < kept <= 4_000_000
    assert exploration.states < TOCTOU[3, 2][0]
    assert "holds" not in {v for name, v in exploration.verdicts().items() if name not in exploration.reached}
    index = exploration.states - 1
    assert_is_run(system, exploration.path(index), exploration.state(index))


def test_no_memory_at_all_ends_at_once(engine: str) -> None:
    exploration = explore(toctou(2, 2), engine=engine, limits=Limits(bytes=1000))
    assert not exploration.complete
    assert 1 <= exploration.states < 100


def test_a_search_past_its_limit_of_states_is_incomplete_and_keeps_no_more(engine: str) -> None:
    system = toctou(2, 2)
    exploration = explore(system, engine=engine, limits=Limits(states=5000))
    assert exploration.states == 5000
    assert exploration.why_incomplete == "the limit of 5,000 states"
    assert exploration.verdicts()["lease_holds"] == "unknown"


def test_a_limit_that_is_just_enough_does_not_end_a_search(engine: str) -> None:
    assert explore(toctou(2, 2), engine=engine, limits=Limits(states=30_192)).complete
    assert not explore(toctou(2, 2), engine=engine, limits=Limits(states=30_191)).complete


def test_interrupting_a_search_returns_what_is_known(engine: str) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.states > 1000:
            signal.raise_signal(signal.SIGINT)

    exploration = explore(toctou(3, 2), engine=engine, on_progress=interrupt)
    assert exploration.why_incomplete == "interrupted"
    assert 1000 < exploration.states < TOCTOU[3, 2][0]
    assert exploration.verdicts()["lease_holds"] == "unknown"
    index = exploration.states - 1
    assert_is_run(exploration.system, exploration.path(index), exploration.state(index))


def test_progress_is_told(engine: str) -> None:
    seen: list[Progress] = []
    explore(toctou(3, 2), engine=engine, on_progress=seen.append)
    assert [progress.states for progress in seen] == sorted(progress.states for progress in seen)
    assert [progress.depth for progress in seen] == sorted(progress.depth for progress in seen)
    assert (seen[-1].states, seen[-1].frontier, seen[-1].depth) == (931_200, 0, 41)
    assert seen[-1].rate > 0


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(ValueError, match="no engine 'spin'; there are auto, numpy, c"):
        explore(toctou(2, 2), engine="spin")


# Which engine.


def test_auto_stays_with_numpy_for_few_states() -> None:
    assert explore(toctou(2, 2)).engine == "numpy"


def test_auto_goes_on_in_c_for_many_states() -> None:
    exploration = explore(toctou(3, 2))
    assert exploration.engine == ("numpy" if compiler() is None else "c")
    assert counts(exploration) == TOCTOU[3, 2]


def test_auto_does_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    exploration = explore(toctou(3, 2))
    assert exploration.engine == "numpy"
    assert counts(exploration) == TOCTOU[3, 2]


def test_auto_keeps_a_limit_of_states() -> None:
    exploration = explore(toctou(3, 2), limits=Limits(states=200_000))
    assert (exploration.states, exploration.why_incomplete) == (200_000, "the limit of 200,000 states")


# What is worked out afterwards.


@pytest.mark.parametrize("name", ["rollback", "evict"])
def test_transitions_are_those_of_the_system(name: str, engine: str) -> None:
    system = grounded(name)
    exploration = explore(system, engine=engine)
    source, command, target = transitions_of(exploration)
    assert len(source) == exploration.transitions
    assert (np.diff(source) >= 0).all()
    found = {
        (exploration.state(a), int(c), exploration.state(b)) for a, c, b in zip(source, command, target, strict=True)
    }
    states = expected(name).states
    assert found == {(state, number_, after) for state in states for number_, after in system.successors(state)}
    assert np.bincount(command, minlength=len(system.commands)).tolist() == exploration.taken.tolist()


def test_transitions_of_an_incomplete_search_are_refused() -> None:
    with pytest.raises(ValueError, match="not complete: the limit of 100 states"):
        transitions_of(explore(toctou(2, 2), limits=Limits(states=100)))


def test_each_state_knows_its_parent_and_the_command_from_there(engine: str) -> None:
    system = grounded("rollback")
    exploration = explore(system, engine=engine)
    assert (exploration.parents[0], exploration.commands[0]) == (-1, -1)
    assert (exploration.parents < np.arange(exploration.states)).all()
    for index in range(1, exploration.states):
        step = int(exploration.commands[index]), exploration.state(index)
        assert step in list(system.successors(exploration.state(int(exploration.parents[index]))))
    last = exploration.states - 1
    steps = exploration.steps_to(last)
    assert steps[0] == (None, 0)
    assert [exploration.state(index) for _, index in steps[1:]] == [state for _, state in exploration.path(last)]


def test_conditions_are_true_where_the_reference_says_so(engine: str) -> None:
    for seed in (3, 18):
        system = random_system(seed)
        exploration = explore(system, engine=engine)
        for claim in system.claims:
            for expr in claim.exprs:
                function = system.function(expr)
                wanted = [bool(function(exploration.state(index))) for index in range(exploration.states)]
                assert truth_of(exploration, expr).tolist() == wanted


# Symmetry.


class Swapped:
    """The first two numbers of ``counter`` are alike: the larger one stands first."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def canonical(self, words: Any, xp: Any) -> Any:
        columns = self.layout.columns(words, xp)
        first, second = columns["it[0].first"], columns["it[0].second"]
        columns |= {"it[0].first": xp.maximum(first, second), "it[0].second": xp.minimum(first, second)}
        return self.layout.packed(columns, xp)

    def c_text(self) -> str:
        (_, one, mask), (_, other, _) = self.layout.place("it[0].first"), self.layout.place("it[0].second")
        return f"""static void canonical(uint64_t *s) {{
            const uint64_t a = s[0] >> {one} & {mask}, b = s[0] >> {other} & {mask};
            if (a < b) s[0] = s[0] ^ (a ^ b) << {one} ^ (a ^ b) << {other};
        }}"""


def test_with_symmetry_one_of_all_that_are_alike_is_stored_and_paths_are_true_runs(engine: str) -> None:
    full = counter(5)
    commands = tuple(replace(command, updates=command.updates[:1]) for command in full.commands)
    far = equal(Arithmetic("+", full.cells[0].read(), full.cells[1].read(), NOWHERE), number(9))
    claim = Claim("near", "always", None, (Compare("!=", *_sides(far), NOWHERE),), ("",), NOWHERE)
    system = replace(full, commands=commands, claims=(claim,))
    plain = explore(system, engine=engine)
    folded = explore(system, engine=engine, symmetry=Swapped(Layout(system)))
    assert (plain.states, folded.states) == (36, 21)
    assert folded.depth == plain.depth == 10
    assert folded.verdicts() == plain.verdicts() == {"near": "violated"}
    path = folded.path(folded.violations["near"])
    assert len(path) == 9
    assert_is_run(system, path, path[-1][1])
    assert len(transitions_of(folded)[0]) == folded.transitions


def _sides(expr: Any) -> tuple[Any, Any]:
    assert isinstance(expr, Compare)
    return expr.left, expr.right
