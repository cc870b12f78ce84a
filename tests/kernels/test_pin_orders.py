"""The order of memory: searches and ThreadSanitizer are silent about pins as they are, and not about weaker ones.

The bytes of a slot are read and written plainly, so what keeps them apart is that words are changed by operations that
acquire and release. A search says so of every schedule, ThreadSanitizer of real threads.
"""

from __future__ import annotations

import pytest

from ..hostcuda.building import Build
from ..hostcuda.exploring import ScheduleFailure
from ..hostcuda.host import HostLauncher, edited
from ..hostcuda.threads import ThreadRace, run_threads
from .actors import Play, Stage, actor_source
from .test_pin_protocol import KV, PLAYS, USED_WRONGLY, evictor_and_writer, explored, reader

READERS = Play(KV, (reader(), reader(), reader(generation=2), evictor_and_writer()))
LOADED = PLAYS["loaded_by_layers"]


def run(play: Play, *edits: tuple[str, str], rounds: int) -> int:
    """Different ends that came up.

    Raises:
        ThreadRace: nothing orders two accesses.
    """
    launcher = HostLauncher(Build.FAST, sources=edited(*edits, sources=actor_source(play.kind)))
    stage = Stage(launcher, play)

    def at_end() -> None:
        stage.readers_read_what_they_meant()
        stage.no_pin_is_left()

    return run_threads(launcher, stage.plans, at_end, rounds, threads=1)


@pytest.mark.parametrize("play", [READERS, LOADED, PLAYS["compressed"], PLAYS["expired"], PLAYS["everybody"]])
def test_what_changes_words_orders_the_bytes(play: Play) -> None:
    assert run(play, rounds=300) > 1


CAS = "const kv_u64 found = kv_cas_acq_rel(word, seen, next);"
CHANGE = "      const kv_u8 code = kv_words::change(word, [=](kv_u64 now, kv_u64* next) {"
UNPIN = "    if (event == kv_events::compressed_kv::kUnpin) {\n      {add};\n      continue;\n    }\n"
ONLY = "const kv_u64 found = kv_host::cas(word, seen, next, {order}, __ATOMIC_RELAXED);"
RELAXED_LOOK = ("kv_u64 seen = kv_load_acquire(word);", "kv_u64 seen = kv_load_relaxed(word);")
WEAKER: dict[str, tuple[Play, tuple[tuple[str, str], ...]]] = {
    "a relaxed compare-and-swap": (READERS, ((CAS, "const kv_u64 found = atomicCAS(word, seen, next);"),)),
    "nothing releases": (READERS, ((CAS, ONLY.replace("{order}", "__ATOMIC_ACQUIRE")),)),
    "nothing acquires": (READERS, (RELAXED_LOOK, (CAS, ONLY.replace("{order}", "__ATOMIC_RELEASE")))),
    "a relaxed look before a use": (LOADED, (RELAXED_LOOK,)),
    "a relaxed add to give back": (
        PLAYS["evicted_compressed_kv"],
        ((CHANGE, UNPIN.replace("{add}", "atomicAdd(word, 0 - 16ull)") + CHANGE),),
    ),
}


RARE: dict[str, tuple[Play, tuple[tuple[str, str], ...]]] = {
    "a compare-and-swap that doesn't acquire": (
        PLAYS["compressed"],
        ((CAS, ONLY.replace("{order}", "__ATOMIC_RELEASE")),),
    ),
}
"""The compressor must have looked before a reader pinned, read and gave back, and then find the same word again."""


@pytest.mark.parametrize("how", [*WEAKER, *RARE])
def test_a_weaker_order_is_a_race_in_some_schedule(how: str) -> None:
    play, edits = (WEAKER | RARE)[how]
    with pytest.raises(ScheduleFailure) as caught:
        explored(play, *edits)
    assert caught.value.fault is not None and caught.value.fault.kind == "race"
    assert "actors.cu" in str(caught.value.fault.place), "of the bytes of the slot"


@pytest.mark.parametrize("how", WEAKER)
def test_a_weaker_order_is_a_race_of_threads(how: str) -> None:
    play, edits = WEAKER[how]
    with pytest.raises(ThreadRace, match="data race") as caught:
        run(play, *edits, rounds=3000)
    assert len(caught.value.places) == 2
    assert all("actors.cu" in place for place in caught.value.places), "of the bytes of the slot"


def test_an_add_that_releases_is_enough_to_give_back() -> None:
    """The control of the relaxed one: the same edit, with the operation that kv_validate_pin undoes with."""
    edit = (CHANGE, UNPIN.replace("{add}", "kv_add_release(word, 0 - 16ull)") + CHANGE)
    assert run(PLAYS["evicted_compressed_kv"], edit, rounds=300) > 1


@pytest.mark.parametrize("bug", ["validated, then used without a pin", "given back before it was read"])
def test_a_reader_without_a_pin_races(bug: str) -> None:
    with pytest.raises(ThreadRace, match="data race"):
        run(USED_WRONGLY[bug], rounds=3000)
