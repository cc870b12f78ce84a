"""What only the host shows of kernels over words: bytes moved, contention, planted bugs, each of which is caught."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvfsm.kernels import words as family
from kvfsm.kernels.call_refusal import CallRefusal
from kvfsm.kernels.launch import Launcher, LaunchPlan, LaunchRefused, Pointer
from kvfsm.kernels.reading import MACHINES
from kvfsm.kernels.source import source_of
from kvfsm.runtime.generated import KINDS, Refusal

from ..hostcuda.building import Build
from ..hostcuda.faults import HostFault
from ..hostcuda.host import HostLauncher, edited
from ..hostcuda.schedules import Random
from . import test_words_parity as parity
from .pools import PINNED, Uploaded
from .references import drawn, resident

ANYWHERE = Pointer(4096, 1 << 40)


# Numbers of machines, events and arguments.


def test_the_header_counts_machines_and_events_as_python_does() -> None:
    text = source_of(family.VALIDATE_PIN)
    space = text[text.index("namespace kv_events {") :]
    for number, kind in enumerate(MACHINES):
        assert f"  k{''.join(map(str.capitalize, kind.split('_')))} = {number},\n" in space
        of_machine = space[space.index(f"namespace {kind} {{") :]
        for event in KINDS[kind].EVENTS:
            name = "".join(map(str.capitalize, event.split("_")))
            assert f"  k{name} = {family.event_number(kind, event)},\n" in of_machine[: of_machine.index("};")]


@pytest.mark.parametrize("kind", PINNED)
def test_what_pins_serves_to_unpin(kind: str) -> None:
    """The same array of arguments does for both, as unpin takes the first ones of pin."""
    pin, unpin = (KINDS[kind].EVENTS[str(family.event_of(kind, name))].given for name in ("validate_pin", "unpin"))
    assert unpin and pin[: len(unpin)] == unpin


def test_inputs_of_the_parity_tests_meet_every_code() -> None:
    rng = np.random.default_rng(3)
    given = drawn(rng, "validate_pin", (5, 2, 9) * 100, 0.9)
    leases = np.zeros(len(given.slots), np.uint8)
    words = given.words.copy()
    verdicts = family.validate_pin(
        words, given.first, given.starts, given.machines, given.slots, given.arguments, leases
    )
    calls = {CallRefusal.RELEASED, CallRefusal.NO_SLOT, CallRefusal.BAD_ARGUMENT}
    refusals = {Refusal.ILLEGAL, Refusal.STALE, Refusal.BUSY, Refusal.LAYOUT, Refusal.VERSION, Refusal.POSITION}
    assert {0} | calls | refusals <= {*leases.tolist()}
    assert {0} | refusals <= {*verdicts.tolist()}


# Refused plans.


def pin_plan(**changes: Any) -> LaunchPlan:
    pointers = ("words", "first", "starts", "count", "machines", "slots", "arguments", "leases", "verdicts")
    given = dict.fromkeys(pointers, ANYWHERE) | {"requests": 2, "references": 10}
    return family.validate_pin_plan(**(given | changes))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"words": Pointer(4100, 800)}, "'words' .*must be a multiple of 8"),
        ({"arguments": Pointer(4100, 800)}, "'arguments' .*must be a multiple of 8"),
        ({"slots": Pointer(4098, 800)}, "'slots' .*must be a multiple of 4"),
        ({"starts": Pointer(4096, 8)}, "'starts' .*needs 12 bytes"),
        ({"first": Pointer(4096, 20)}, "'first' .*needs 24 bytes"),
        ({"arguments": Pointer(4096, 319)}, "'arguments' .*needs 320 bytes"),
        ({"leases": Pointer(4096, 9)}, "'leases' .*needs 10 bytes"),
        ({"verdicts": Pointer(4096, 1)}, "'verdicts' .*needs 2 bytes"),
        ({"references": 1 << 31}, r"planned for references=2147483648; fix: an int of \[0, 2147483647\]"),
        ({"requests": -1}, "planned for requests=-1"),
    ],
)
def test_a_bad_plan_is_refused(changes: dict[str, Any], why: str) -> None:
    assert pin_plan().grid == (2, 1, 1)
    with pytest.raises(LaunchRefused, match=why):
        pin_plan(**changes)


def event_plan(kind: str, event: str, firings: int, arguments: Pointer | None) -> LaunchPlan:
    return family.apply_event_plan(
        kind,
        event,
        words=ANYWHERE,
        slot_count=5,
        count=ANYWHERE,
        firings=firings,
        slots=ANYWHERE,
        arguments=arguments,
        refusals=ANYWHERE,
    )


def test_an_event_is_planned_with_the_arguments_that_it_takes() -> None:
    assert event_plan("swa_window", "evict", 10, None).grid == (1, 1, 1)
    assert event_plan("swa_window", "take", 0, None).is_empty
    with pytest.raises(LaunchRefused, match=r"'arguments' .* is None; fix: pass the 3 of 'seal'"):
        event_plan("swa_window", "seal", 10, None)
    with pytest.raises(LaunchRefused, match="needs 240 bytes"):
        event_plan("swa_window", "seal", 10, Pointer(4096, 239))
    with pytest.raises(LaunchRefused, match=r"'event' .* is 'close'; fix: pass one of take, slide, "):
        event_plan("swa_window", "close", 10, None)
    with pytest.raises(LaunchRefused, match=r"'machine' .* is of kind 'block'; fix: pass one of compressed_kv, "):
        event_plan("block", "take", 10, None)


# Bytes moved.

LOOKED_UP = ("first[", "*count", "starts[")
"""What all threads of a warp read alike, and caches keep."""


def plain_bytes(launcher: HostLauncher, file: str) -> tuple[int, int]:
    """Bytes that were asked for beside words and look-ups, and bytes of the sectors that hold them."""
    lines = (source_of(family.VALIDATE_PIN).split(f'#line 1 "kernels/cuda/{file}"\n')[1]).splitlines()
    assert launcher.traffic is not None
    asked = moved = 0
    for site in launcher.traffic.sites:
        text = lines[site.place.line - 1] if site.place is not None and site.place.file.endswith(file) else ""
        if not site.is_atomic and not any(what in text for what in LOOKED_UP):
            asked, moved = asked + site.bytes, moved + 32 * site.sectors
    return asked, moved


@pytest.mark.parametrize("kind", PINNED)
def test_pinning_moves_what_it_says(kind: str) -> None:
    launcher = HostLauncher(Build.CHECK)
    given = resident(kind, slots=512, references=512, lengths=(256, 256))
    parity.pin(launcher, given)
    row = len(KINDS[kind].EVENTS["pin"].given)
    asked, moved = plain_bytes(launcher, "words.cu")
    assert asked == 512 * (1 + 4 + 8 * row + 1) + 2  # and a verdict a request
    assert moved <= 1.05 * asked


def test_other_kernels_move_what_they_say() -> None:
    launcher, n = HostLauncher(Build.CHECK), 512
    given = resident("compressed_kv", slots=n, references=n, lengths=(n,), pins=1)
    up, codes, count = Uploaded(launcher), np.zeros(n, np.uint8), np.array([n], np.uint32)
    arrays = parity.up_all(up, given)
    of_one = {"words": arrays["words"], "slot_count": n, "count": up(count), "slots": arrays["slots"]}
    expected = Uploaded(launcher)(given.arguments[:1].copy())
    for plan, asked in (
        (family.revalidate_plan(**arrays, count=up(count), refusals=up(codes)), n * (1 + 4 + 16 + 1)),
        (family.unpin_plan(**arrays, count=up(count), leases=up(codes)), n * (1 + 4 + 8 + 2)),
        (
            family.apply_event_plan(
                "compressed_kv", "hold", **of_one, firings=n, arguments=expected, refusals=up(codes)
            ),
            n * (4 + 8 + 1),
        ),
        (
            family.put_words_plan(
                "compressed_kv", **of_one, values_max=n, values=up(given.words + np.uint64(16)), refusals=up(codes)
            ),
            n * (4 + 8 + 1),
        ),
    ):
        launcher.launch(plan)
        found, moved = plain_bytes(launcher, "words.cu")
        assert found <= 1.05 * asked, plan.kernel.name
        assert found >= asked, plan.kernel.name
        assert moved <= 1.05 * asked, plan.kernel.name


# Contention.

ONE_TRY = edited(("constexpr kv_u32 kTries = 65536;", "constexpr kv_u32 kTries = 1;"))


def test_who_loses_every_try_is_told_and_has_changed_nothing() -> None:
    """With one try instead of 65536, threads that meet at a word give up; as many pins are left as leases."""
    given = resident("compressed_kv", slots=1, references=96, lengths=(3,) * 32)
    contended = 0
    for seed in range(5):
        launcher = HostLauncher(Build.CHECK, Random(seed, resident=32), sources=ONE_TRY)
        words, leases, verdicts = parity.pin(launcher, given)
        held = (leases == 0).reshape(32, 3)
        assert (held.all(axis=1) == held.any(axis=1)).all() and ((verdicts == 0) == held.all(axis=1)).all()
        assert {*leases.tolist()} <= {0, CallRefusal.RELEASED, CallRefusal.CONTENDED}
        assert KINDS["compressed_kv"].LAYOUT.unpack(int(words[0]))["pins"] == np.count_nonzero(held)
        contended += np.count_nonzero(leases == CallRefusal.CONTENDED)
    assert contended > 0


def test_a_pin_that_could_not_be_given_back_is_still_held() -> None:
    given = resident("compressed_kv", slots=1, references=96, lengths=(96,), pins=96)
    launcher = HostLauncher(Build.CHECK, Random(1, resident=4), sources=ONE_TRY)
    leases, up = np.zeros(96, np.uint8), Uploaded(launcher)
    plan = family.unpin_plan(**parity.up_all(up, given), count=up(np.array([96], np.uint32)), leases=up(leases))
    left = 96
    for _ in range(96):
        launcher.launch(plan)
        held = np.count_nonzero(up.now(leases) == 0)
        assert KINDS["compressed_kv"].LAYOUT.unpack(int(up.now(given.words)[0]))["pins"] == held <= left
        left = held
    assert left == 0 and {*up.now(leases).tolist()} == {CallRefusal.RELEASED}


# Planted bugs.

Scenario = Callable[[Launcher], None]


def pins_some(launcher: Launcher) -> None:
    rng = np.random.default_rng(9)
    for fit in (0.98, 0.7):
        given = drawn(rng, "validate_pin", (3, 200, 1, 0, 7, 129), fit)
        parity.same(parity.pin(launcher, given), parity.pinned(given))


def pins_strangers(launcher: Launcher) -> None:
    given = resident("swa_window", slots=4, references=4, lengths=(4,))
    given.slots[2] = 900
    parity.same(parity.pin(launcher, given), parity.pinned(given))


def gives_back_twice(launcher: Launcher) -> None:
    parity.test_pins_are_given_back_once(launcher, np.random.default_rng(4), 257, 0.6)


def fires(launcher: Launcher) -> None:
    parity.test_events_are_applied_once_each(launcher, np.random.default_rng(5), "compressed_kv", 300)


def puts(launcher: Launcher) -> None:
    for kind in PINNED:
        parity.test_words_of_the_host_come_but_for_the_pins(launcher, np.random.default_rng(6), kind, 40)


@pytest.mark.parametrize("scenario", [pins_some, pins_strangers, gives_back_twice, fires, puts])
def test_nothing_is_left_to_a_compiler(scenario: Scenario) -> None:
    """Shifts too far, indexes past arrays and misaligned pointers would differ between host and device."""
    scenario(HostLauncher(Build.UNDEFINED, Random(2)))


FAULTS: dict[str, tuple[Scenario, str, str, str]] = {
    "nobody waits until the first place is cleared": (
        pins_some,
        "first_refused = kv_words::kNobody;\n  __syncthreads();",
        "first_refused = kv_words::kNobody;",
        "race or uninitialised",  # whichever the first thread to come meets
    ),
    "nobody waits for the refusals of others": (
        pins_some,
        "  __syncthreads();\n\n  const kv_u32 refused",
        "\n  const kv_u32 refused",
        "race",
    ),
    "the first place is never cleared": (
        pins_some,
        "if (threadIdx.x == 0) first_refused",
        "if (threadIdx.x == 200) first_refused",
        "uninitialised",
    ),
    "threads leave before a barrier": (
        pins_some,
        "  if (begin > end || end > references) {",
        "  if (begin + threadIdx.x > end) return;\n  if (begin > end || end > references) {",
        "barrier_after_exit",
    ),
    "a barrier in a branch": (
        pins_some,
        "    leases[i] = code;\n    if (code",
        "    leases[i] = code;\n    if (code == 0) __syncthreads();\n    if (code",
        "barrier_divergence",
    ),
    "slots aren't compared with the end": (
        pins_strangers,
        "if (slot >= end - begin) return",
        "if (end == begin) return",
        "out_of_bounds",
    ),
    "a pin by load and plain store": (
        pins_some,
        "const kv_u64 found = kv_cas_acq_rel(word, seen, next);",
        "const kv_u64 found = seen;\n    *word = next;",
        "race",
    ),
    "firings past the end": (
        fires,
        "  if (i >= firings || i >= *count) return;\n  if (slots[i] >= slot_count) {\n    refusals",
        "  if (i >= firings + *count) return;\n  if (slots[i] >= slot_count) {\n    refusals",
        "out_of_bounds",
    ),
}


@pytest.mark.parametrize("bug", FAULTS)
def test_a_planted_fault_is_caught_with_its_kind(bug: str) -> None:
    scenario, find, replace, kind = FAULTS[bug]
    scenario(HostLauncher(Build.CHECK, Random(3)))
    with pytest.raises(HostFault) as caught:
        for seed in range(20):
            scenario(HostLauncher(Build.CHECK, Random(seed), sources=edited((find, replace))))
    assert caught.value.kind in kind.split(" or "), caught.value


DIFFERENCES: dict[str, tuple[Scenario, str, str]] = {
    "no pin is given back": (
        pins_some,
        "kv_add_release(words + first[machine] + slots[i], 0 - one);",
        "(void)one;",
    ),
    "one reference too few is taken": (
        pins_some,
        "i < end; i += blockDim.x) {\n    const kv_u32 machine",
        "i + 1 < end; i += blockDim.x) {\n    const kv_u32 machine",
    ),
    "the last refusal decides": (
        pins_some,
        "atomicMin(&first_refused, i)",
        "atomicExch(&first_refused, i)",
    ),
    "leases aren't looked at": (
        gives_back_twice,
        "  if (leases[i] != kv_refusal::kApplied) return;",
        "",
    ),
    "released isn't written down": (
        gives_back_twice,
        "if (code == kv_refusal::kApplied) code = kv_call::kReleased;",
        "",
    ),
    "generations aren't compared": (
        pins_some,
        "  return kv_swa_window_pin(word, arguments[0],",
        "  return kv_swa_window_pin(word, kv_get(word, kv_swa_window::kGenerationShift, 0xFFFFF),",
    ),
    "arguments aren't bounded": (
        fires,
        "return (kv_u64)value > max; }",
        "return (kv_u64)value == ~max; }",
    ),
    "pins of the host are taken over": (
        puts,
        "const kv_u64 wanted = (value & ~pins) | kept;",
        "const kv_u64 wanted = value;",
    ),
    "words are put under any pins": (
        puts,
        "if (kept == 0) return",
        "if (kept <= pins) return",
    ),
}


@pytest.mark.parametrize("bug", DIFFERENCES)
def test_a_planted_difference_is_seen_by_parity(bug: str) -> None:
    scenario, find, replace = DIFFERENCES[bug]
    scenario(HostLauncher(Build.CHECK, Random(3)))
    with pytest.raises(AssertionError):
        for seed in range(20):
            scenario(HostLauncher(Build.CHECK, Random(seed), sources=edited((find, replace))))
