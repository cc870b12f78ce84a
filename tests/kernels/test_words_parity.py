"""Kernels over words do what their references say: words, leases, verdicts and codes, bit by bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kvfsm.kernels import words as family
from kvfsm.kernels.call_refusal import CallRefusal
from kvfsm.kernels.launch import Launcher
from kvfsm.kernels.reading import MACHINES
from kvfsm.runtime.generated import KINDS, Refusal

from .pools import PINNED, Uploaded
from .references import References, any_words, drawn, resident

REQUESTS = [(), (0,), (1,), (0, 1, 0, 127, 128, 129, 3), (1,) * 60, (300,)]
"""References of each request: none, one, about as many as a block has threads, more."""

Codes = npt.NDArray[np.uint8]


def pin(launcher: Launcher, given: References, count: int | None = None) -> tuple[Any, ...]:
    """Words, leases and verdicts after a launch. Those that nobody writes stay 88 and 77."""
    up, requests = Uploaded(launcher), len(given.starts) - 1
    leases, verdicts = np.full(len(given.slots), 88, np.uint8), np.full(requests, 77, np.uint8)
    there = np.array([requests if count is None else count], np.uint32)
    plan = family.validate_pin_plan(
        **up_all(up, given),
        starts=up(given.starts),
        count=up(there),
        requests=requests,
        leases=up(leases),
        verdicts=up(verdicts),
    )
    launcher.launch(plan)
    return up.now(given.words), up.now(leases), up.now(verdicts)


def up_all(up: Uploaded, given: References) -> dict[str, Any]:
    arrays = ("words", "first", "machines", "slots", "arguments")
    return {name: up(getattr(given, name)) for name in arrays} | {"references": len(given.slots)}


def pinned(given: References) -> tuple[Any, ...]:
    """The same by the reference."""
    words, leases = given.words.copy(), np.full(len(given.slots), 88, np.uint8)
    verdicts = family.validate_pin(
        words, given.first, given.starts, given.machines, given.slots, given.arguments, leases
    )
    return words, leases, verdicts


def same(found: Sequence[Any], wanted: Sequence[Any]) -> None:
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("lengths", REQUESTS, ids=lambda lengths: f"{len(lengths)} requests of {sum(lengths)}")
@pytest.mark.parametrize("fit", [1.0, 0.98, 0.5])
def test_requests_are_pinned_whole_or_not_at_all(
    launcher: Launcher, rng: np.random.Generator, lengths: tuple[int, ...], fit: float
) -> None:
    given = drawn(rng, "validate_pin", lengths, fit)
    same(pin(launcher, given), pinned(given))


def test_a_slot_that_comes_twice_is_pinned_twice(launcher: Launcher) -> None:
    given = resident("swa_window", slots=1, references=7, lengths=(3, 4))
    words, leases, verdicts = pin(launcher, given)
    same((words, leases, verdicts), pinned(given))
    assert KINDS["swa_window"].LAYOUT.unpack(int(words[0]))["pins"] == 7
    assert not leases.any() and not verdicts.any()


@pytest.mark.parametrize("left", [0, 1, 5])
def test_pins_never_pass_their_most(launcher: Launcher, left: int) -> None:
    """Which reference is too many isn't said, but there are as many pins as leases, and requests have all or none."""
    most = KINDS["compressed_kv"].LAYOUT.field("pins").high
    given = resident("compressed_kv", slots=2, references=18, lengths=(3,) * 6, pins=most - left)
    words, leases, verdicts = pin(launcher, given)
    held = (leases == 0).reshape(6, 3)
    assert ((verdicts == 0) == held.all(axis=1)).all() and (held.all(axis=1) == held.any(axis=1)).all()
    assert {*leases.tolist()} <= {0, CallRefusal.RELEASED, Refusal.TOO_MANY_READERS}
    for slot in range(2):
        pins = KINDS["compressed_kv"].LAYOUT.unpack(int(words[slot]))["pins"]
        assert pins == most - left + np.count_nonzero((leases == 0) & (given.slots == slot)) <= most


@pytest.mark.parametrize("count", [0, 1, 3, 9])
def test_the_device_knows_how_many_requests_there_are(launcher: Launcher, rng: np.random.Generator, count: int) -> None:
    given = drawn(rng, "validate_pin", (4,) * 5, 0.98)
    words, leases, verdicts = pin(launcher, given, count)
    live = min(count, 5)
    same((words, leases[: 4 * live], verdicts[:live]), pinned(given.only(live)))
    assert (leases[4 * live :] == 88).all() and (verdicts[live:] == 77).all()


def test_a_range_that_is_none_is_refused_and_the_others_go_on(launcher: Launcher) -> None:
    given = resident("swa_window", slots=4, references=8, lengths=(2, 2, 2, 2))
    given.starts[:] = (0, 2, 1, 9, 8)  # of which [2, 1) runs backwards, [1, 9) past the end, [9, 8) backwards
    words, leases, verdicts = pin(launcher, given)
    same((words, leases, verdicts), pinned(given))
    assert verdicts.tolist() == [0, *[CallRefusal.BAD_ARGUMENT] * 3]
    assert leases.tolist() == [0, 0, *[88] * 6]


@pytest.mark.parametrize("references", [0, 1, 255, 256, 257])
@pytest.mark.parametrize("fit", [1.0, 0.6])
def test_pins_are_given_back_once(launcher: Launcher, rng: np.random.Generator, references: int, fit: float) -> None:
    given = drawn(rng, "unpin", (references,), fit, pins=(0, 1, 40))
    leases = np.where(rng.random(references) < 0.3, np.uint8(Refusal.BUSY), np.uint8(0))
    up, there = Uploaded(launcher), np.array([references + 5], np.uint32)
    plan = family.unpin_plan(**up_all(up, given), count=up(there), leases=up(leases))
    words, wanted = given.words.copy(), leases.copy()
    for _ in range(2):
        launcher.launch(plan)
        family.unpin(words, given.first, given.machines, given.slots, given.arguments, wanted)
        # Of firings on one slot it isn't said which comes first, so codes are compared slot by slot.
        same([up.now(given.words)], [words])
        assert by_slot(given, up.now(leases)) == by_slot(given, wanted)


def by_slot(given: References, codes: Codes) -> list[tuple[int, int, list[int], int]]:
    """Machine, slot, arguments and code of each reference, in an order that doesn't depend on theirs."""
    return sorted(
        (int(machine), int(slot), row.tolist(), int(code))
        for machine, slot, row, code in zip(given.machines, given.slots, given.arguments.T, codes, strict=True)
    )


@pytest.mark.parametrize("references", [0, 1, 256, 300])
@pytest.mark.parametrize("fit", [1.0, 0.7])
def test_words_are_looked_at_again(launcher: Launcher, rng: np.random.Generator, references: int, fit: float) -> None:
    given = drawn(rng, "revalidate", (references,), fit, usual=0.5)
    refusals, up = np.full(references, 88, np.uint8), Uploaded(launcher)
    live = references - references // 7
    there = np.array([live], np.uint32)
    launcher.launch(family.revalidate_plan(**up_all(up, given), count=up(there), refusals=up(refusals)))
    part = (given.machines[:live], given.slots[:live], given.arguments[:, :live])
    wanted = family.revalidate(given.words, given.first, *part)
    same((up.now(given.words), up.now(refusals)[:live]), (given.words, wanted))
    assert (up.now(refusals)[live:] == 88).all()


@pytest.mark.parametrize("kind", MACHINES)
@pytest.mark.parametrize("firings", [0, 1, 300])
def test_events_are_applied_once_each(launcher: Launcher, rng: np.random.Generator, kind: str, firings: int) -> None:
    """Slots repeat, and then with the same arguments, so that their order can't be told."""
    for event, about in KINDS[kind].EVENTS.items():
        words = any_words(rng, kind, 40)
        of_slot = np.stack(
            [rng.integers(0, min(given.high, 2) + 1, 43) for given in about.given] or [np.zeros(43)]
        ).astype(np.int64)[: len(about.given)]
        of_slot[..., rng.integers(43)] = 1 << 33
        slots = rng.integers(0, 43, firings).astype(np.uint32)  # three of which there aren't
        slots[slots == 42] = 2**32 - 1
        given = np.ascontiguousarray(of_slot[:, np.minimum(slots, 42)])
        refusals, up = np.full(firings, 88, np.uint8), Uploaded(launcher)
        live = firings - firings // 9
        there = np.array([live], np.uint32)
        plan = family.apply_event_plan(
            kind,
            event,
            words=up(words),
            slot_count=len(words),
            count=up(there),
            firings=firings,
            slots=up(slots),
            arguments=up(given) if about.given else None,
            refusals=up(refusals),
        )
        launcher.launch(plan)
        right = words.copy()
        codes = family.apply_event(kind, event, right, slots[:live], given[:, :live])
        same((up.now(words), up.now(refusals)[live:]), (right, refusals[live:]))
        found = up.now(refusals)[:live]
        assert sorted(zip(slots[:live], found, strict=True)) == sorted(zip(slots[:live], codes, strict=True))


@pytest.mark.parametrize("kind", MACHINES)
@pytest.mark.parametrize("count", [0, 1, 40])
def test_words_of_the_host_come_but_for_the_pins(
    launcher: Launcher, rng: np.random.Generator, kind: str, count: int
) -> None:
    words, values = any_words(rng, kind, 40), any_words(rng, kind, count)
    slots = rng.permutation(44)[:count].astype(np.uint32)  # four of which there aren't
    refusals, up = np.full(count, 88, np.uint8), Uploaded(launcher)
    there = np.array([count], np.uint32)
    plan = family.put_words_plan(
        kind,
        words=up(words),
        slot_count=len(words),
        count=up(there),
        values_max=count,
        slots=up(slots),
        values=up(values),
        refusals=up(refusals),
    )
    launcher.launch(plan)
    right = words.copy()
    codes = family.put_words(kind, right, slots, values)
    same((up.now(words), up.now(refusals)), (right, codes))
    pins = np.uint64(family.pins_bits(kind))
    same([up.now(words) & pins], [words & pins])


@pytest.mark.parametrize("kind", PINNED)
def test_a_word_is_not_put_under_pins_that_it_may_not_have(launcher: Launcher, kind: str) -> None:
    """Each state of the host against a device word with a pin, in the same generation and in another."""
    layout, states = KINDS[kind].LAYOUT, KINDS[kind].STATES
    there = layout.pack(state=states["RESIDENT"], pins=2, generation=4)
    values = np.array([layout.pack(state=s, pins=0, generation=g) for s in states for g in (4, 5)], np.uint64)
    words, slots = np.full(len(values), there, np.uint64), np.arange(len(values), dtype=np.uint32)
    refusals, up = np.zeros(len(values), np.uint8), Uploaded(launcher)
    plan = family.put_words_plan(
        kind,
        words=up(words),
        slot_count=len(words),
        count=up(np.array([len(values)], np.uint32)),
        values_max=len(values),
        slots=up(slots),
        values=up(values),
        refusals=up(refusals),
    )
    launcher.launch(plan)
    drains = {"RESIDENT", "EXPIRED", "STALE"}
    free = [state.name in drains and generation == 4 for state in states for generation in (4, 5)]
    assert up.now(refusals).tolist() == [0 if may else Refusal.PINNED for may in free]
    expected = [
        int(value) | 2 << layout.field("pins").shift if may else there for value, may in zip(values, free, strict=True)
    ]
    assert up.now(words).tolist() == expected
