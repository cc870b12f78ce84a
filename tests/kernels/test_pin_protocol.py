"""Who reads and who takes away, in every interleaving: kernels go where the checker's model of the protocol goes.

Each thread's every access to words and bytes is a place where another may come in between. What the kernels reach, word
by word and end by end, is compared with what ``spec.checking`` finds for the same scripts over the same YAML. Two
accesses of the bytes that no acquire and release order are a race. Protocols and kernels that leave something out are
caught, with the schedule that shows it.
"""

from __future__ import annotations

import pytest

from kvfsm.runtime.generated import KINDS

from ..hostcuda.building import Build
from ..hostcuda.exploring import ScheduleFailure, explore, replay
from ..hostcuda.host import HostLauncher, edited
from .actors import READ, WRITE, Play, Reached, Script, Stage, Step, actor_source, modelled, taking
from .pools import PINNED

KV = "compressed_kv"


def pin(kind: str, generation: int, deed: int = 0) -> Step:
    arguments = dict.fromkeys((given.name for given in KINDS[kind].EVENTS["pin"].given), 0)
    return Step("pin", arguments | {"expected": generation}, deed)


def unpin(generation: int, deed: int = 0) -> Step:
    return Step("unpin", {"expected": generation}, deed)


def reader(kind: str = KV, generation: int = 1) -> Script:
    """Pins, reads, gives back."""
    return Script((pin(kind, generation, READ), unpin(generation)), generation)


def seal(kind: str, generation: int) -> Step:
    sealing = {given.name: 0 for given in KINDS[kind].EVENTS["seal"].given} | {"expected": generation}
    if "layers" in sealing:
        sealing["layers"] = 1
    return Step("seal", sealing)


def evictor_and_writer(kind: str = KV, generation: int = 2) -> Script:
    """Takes the slot away, and fills it with other bytes."""
    return Script((Step("evict"), Step("take", taking(kind), WRITE, 2), seal(kind, generation)))


EVICTOR = Script((Step("evict"),))
COMPRESSOR = Script((
    Step("compress_begin", {"expected": 1}, WRITE, 77),  # exclusive now, it may do with the bytes what it likes
    Step("compress_done", {"expected": 1, "ok": 1}),
))  # fmt: skip
LOADER = Script((
    Step("load_begin", {"wanted_layout": 0, "wanted_form": 0, "at_version": 0}, WRITE, 2),
    Step("land", {"expected": 2, "layer": 0}),
    Step("load_done", {"expected": 2, "ok": 1, "layers": 1, "is_lossy": 0}),
))  # fmt: skip
RESETTER = Script((
    Step("expire", {"expected": 1}),
    Step("evict"),
    Step("take", {"wanted_layout": 0, "wanted_form": 0}, WRITE, 2),
))  # fmt: skip
LAYER_READER = Script((Step("use_layer", {"expected": 2, "layer": 0}, READ),), 2)
"""Reads a layer that has landed, without a lease: nobody takes away a slot that loads."""

PLAYS: dict[str, Play] = {
    **{f"evicted_{kind}": Play(kind, (reader(kind), evictor_and_writer(kind))) for kind in PINNED},
    "two_readers_evicted": Play(KV, (reader(), reader(), evictor_and_writer())),
    "old_and_new_reader": Play(KV, (reader(), reader(generation=2), evictor_and_writer())),
    "compressed": Play(KV, (reader(), COMPRESSOR)),
    "two_readers_compressed": Play(KV, (reader(), reader(), COMPRESSOR)),
    "expired": Play(KV, (reader(), RESETTER)),
    "loaded": Play(KV, (reader(generation=2), EVICTOR, LOADER)),
    "loaded_by_layers": Play(KV, (LAYER_READER, EVICTOR, LOADER)),
    "old_and_new_reader_loaded": Play(KV, (reader(), reader(generation=2), EVICTOR, LOADER)),
    "evicted_compressed_loaded": Play(KV, (reader(), EVICTOR, COMPRESSOR, LOADER)),
    "everybody": Play(KV, (reader(), reader(generation=2), EVICTOR, COMPRESSOR, LOADER)),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reached]:
    return modelled(tmp_path_factory.mktemp("played"), PLAYS)


def staged(play: Play, *edits: tuple[str, str], races: bool = True) -> tuple[HostLauncher, Stage]:
    launcher = HostLauncher(Build.CHECK, sources=edited(*edits, sources=actor_source(play.kind)), races=races)
    return launcher, Stage(launcher, play)


def explored(play: Play, *edits: tuple[str, str], races: bool = True) -> Stage:
    """All schedules; each must end well, and have no race.

    Raises:
        ScheduleFailure: one doesn't.
    """
    launcher, stage = staged(play, *edits, races=races)

    def at_end() -> None:
        stage.note_end()
        stage.readers_read_what_they_meant()
        stage.no_pin_is_left()

    print(explore(launcher, stage.plans, at_end, stage.note_step, threads=1))
    return stage


@pytest.mark.parametrize("name", PLAYS)
def test_kernels_go_where_the_model_goes(name: str, models: dict[str, Reached]) -> None:
    reached = explored(PLAYS[name]).reached
    assert reached.words == models[name].words
    assert reached.ends == models[name].ends
    assert len(reached.ends) > 2


# Protocols that leave something out: the kernels are right, and used wrongly.

USED_WRONGLY: dict[str, Play] = {
    "validated, then used without a pin": Play(
        KV, (Script((Step("use_layer", {"expected": 1, "layer": 0}, READ),), 1), evictor_and_writer())
    ),
    "given back before it was read": Play(
        KV, (Script((pin(KV, 1), unpin(1, READ)), 1), evictor_and_writer())
    ),
    "given back twice": Play(
        KV, (reader(), Script((pin(KV, 1), unpin(1), unpin(1))), evictor_and_writer())
    ),
    "published before it was written": Play(
        KV,
        (
            reader(generation=2),
            Script((Step("evict"), Step("take", taking(KV)), seal(KV, 2), Step(None, {}, WRITE, 2))),
        ),
    ),
    "landed before it was written": Play(
        KV,
        (
            LAYER_READER,
            EVICTOR,
            Script((Step(LOADER.steps[0].event, LOADER.steps[0].given), LOADER.steps[1], Step(None, {}, WRITE, 2))),
        ),
    ),
}  # fmt: skip


# Kernels that leave something out.

TAKE = "return kv_compressed_kv_take(word, arguments[0], arguments[stride], next);"
BROKEN: dict[str, tuple[Play, str, str]] = {
    "evicted in spite of pins": (
        PLAYS["evicted_compressed_kv"],
        "return kv_compressed_kv_evict(word, next);",
        "return kv_compressed_kv_evict(word & ~0xFFF0ull, next);",
    ),
    "compressed in spite of pins": (
        PLAYS["compressed"],
        "return kv_compressed_kv_compress_begin(word, arguments[0], next);",
        "return kv_compressed_kv_compress_begin(word & ~0xFFF0ull, arguments[0], next);",
    ),
    "claimed by a plain store": (
        PLAYS["evicted_compressed_kv"],
        "const kv_u64 found = kv_cas_acq_rel(word, seen, next);",
        "const kv_u64 found = seen;\n    kv_host::store(word, next, __ATOMIC_RELEASE);",
    ),
    "a generation comes twice": (
        Play(KV, (reader(), evictor_and_writer(generation=1))),
        TAKE,
        TAKE.replace("return", "const kv_u8 code =") + " if (code == 0) *next -= 1ull << 20; return code;",
    ),
    "generations aren't compared": (
        PLAYS["evicted_compressed_kv"],
        "return kv_compressed_kv_pin(word, arguments[0],",
        "return kv_compressed_kv_pin(word, kv_get(word, kv_compressed_kv::kGenerationShift, 0xFFFFF),",
    ),
    "a failed try counts as done": (
        PLAYS["two_readers_evicted"],
        "if (found == seen) return kv_refusal::kApplied;",
        "if (found == seen || tries == 0) return kv_refusal::kApplied;",
    ),
    "a failed try keeps what it saw": (
        PLAYS["two_readers_evicted"],
        "    seen = found;\n",
        "    if (tries > 2) return kv_refusal::kApplied;\n",
    ),
}


@pytest.mark.parametrize("bug", [*USED_WRONGLY, *BROKEN])
def test_what_is_left_out_is_caught_with_its_schedule(bug: str) -> None:
    if bug in USED_WRONGLY:
        play, edits = USED_WRONGLY[bug], ()
    else:
        play, find, replace = BROKEN[bug]
        edits = ((find, replace),)
    with pytest.raises(ScheduleFailure) as caught:
        explored(play, *edits, races=False)
    print(caught.value)
    assert "kv_actor (plan 1, block 0, thread 0)" in str(caught.value) and caught.value.fault is None
    again, stage = staged(play, *edits, races=False)
    replay(again, stage.plans, caught.value.schedule, threads=1)
    with pytest.raises(AssertionError):
        stage.readers_read_what_they_meant()
        stage.no_pin_is_left()
