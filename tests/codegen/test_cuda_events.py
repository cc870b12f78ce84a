"""Transition functions by number: the header of all machines, compiled, decides as the interpreter does."""

from __future__ import annotations

import ctypes
import functools
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kvfsm.codegen.emit_cuda import emit
from kvfsm.codegen.names import k_name
from kvfsm.kernels.call_refusal import CallRefusal
from kvfsm.spec.language.coverage import Sample, all_samples, argument_max
from kvfsm.spec.language.interpreter import step
from kvfsm.spec.language.model import Event, Machine
from kvfsm.spec.language.word import pack, unpack

from .test_cuda import CODES, REPO, SPEC, random_firings

EVENTS = "kernels/generated/events.cuh"
KERNELS = ("validate_pin", "unpin", "revalidate")


Firing = tuple[int, dict[str, int]]

# Each function takes words [n] and arguments [width, n], and gives the next words [n] and codes [n].
DRIVER = """
extern "C" void fire(long n, kv_u32 machine, kv_u32 event, const kv_u64* words, const kv_i64* args,
                     kv_u64* next, kv_u8* codes) {
  for (long i = 0; i < n; ++i) codes[i] = kv_events::fire(machine, event, words[i], args + i, (kv_u64)n, next + i);
}
extern "C" void on(long n, kv_u32 machine, kv_u32 kernel, const kv_u64* words, const kv_i64* args,
                   kv_u64* next, kv_u8* codes) {
  for (long i = 0; i < n; ++i) {
    codes[i] = kernel == 0   ? kv_events::on_validate_pin(machine, words[i], args + i, (kv_u64)n, next + i)
               : kernel == 1 ? kv_events::on_unpin(machine, words[i], args + i, (kv_u64)n, next + i)
                             : kv_events::on_revalidate(machine, words[i], args + i, (kv_u64)n, next + i);
  }
}
extern "C" void read(long n, kv_u32 machine, kv_u32, const kv_u64* words, const kv_i64* args,
                     kv_u64* next, kv_u8* codes) {
  for (long i = 0; i < n; ++i) codes[i] = kv_events::read(machine, words[i], args[i]), next[i] = words[i];
}
extern "C" kv_u64 pins(kv_u32 machine) { return kv_events::pins_bits(machine); }
"""


def compiled(headers: dict[str, str], folder: Path) -> ctypes.CDLL:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++ (Debian package g++)")
    texts = [(REPO / "kernels" / "cuda" / "kvfsm_base.cuh").read_text("utf-8"), *headers.values(), DRIVER]
    (folder / "events.cc").write_text("\n".join(texts))
    strict = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Wconversion", "-Wno-sign-conversion", "-Werror"]
    words = ["-D__device__=", "-D__forceinline__=inline"]
    made = [compiler, "-shared", "-fPIC", *strict, *words, "-o", folder / "events.so", folder / "events.cc"]
    subprocess.run(made, check=True)
    library = ctypes.CDLL(str(folder / "events.so"))
    library.pins.restype = ctypes.c_uint64
    return library


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compiled(emit(SPEC), tmp_path_factory.mktemp("events"))


def call(
    library: ctypes.CDLL, function: str, machine: int, number: int, firings: list[Firing]
) -> list[tuple[int, int]]:
    """The word afterwards and the code of each firing; all firings give the same arguments, in the event's order."""
    words = np.array([word for word, _ in firings], np.uint64)
    rows = np.array([list(given.values()) for _, given in firings], np.int64).reshape(len(firings), -1)
    args = np.ascontiguousarray(rows.T)
    after, codes = np.zeros_like(words), np.zeros(len(firings), np.uint8)
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (words, args, after, codes)]
    getattr(library, function)(ctypes.c_long(len(firings)), machine, number, *pointers)
    return [(int(word), int(code)) for word, code in zip(after, codes, strict=True)]


def decided(machine: Machine, event: Event, firings: list[Firing]) -> list[tuple[int, int]]:
    outcomes = [step(machine, word, event, given) for word, given in firings]
    return [(outcome.word, CODES[outcome.refusal]) for outcome in outcomes]


@functools.cache
def samples() -> dict[str, list[Sample]]:
    """All cases in all states, by machine."""
    return {machine.name: list(all_samples(machine)) for machine in SPEC.machines}


def firings_of(machine: Machine, event: Event, rng: random.Random) -> list[Firing]:
    """All cases in all states, and random words; arguments in the order of the event."""
    found = [(sample.word, sample.args) for sample in samples()[machine.name] if sample.event == event.name]
    found += random_firings(rng, machine, event, 200)
    return [(word, {argument.name: given[argument.name] for argument in event.given}) for word, given in found]


def differing(library: ctypes.CDLL) -> Iterator[str]:
    """The events that the header decides otherwise than the interpreter."""
    rng = random.Random(5)
    for number, machine in enumerate(SPEC.machines):
        for place, event in enumerate(machine.events):
            firings = firings_of(machine, event, rng)
            if call(library, "fire", number, place, firings) != decided(machine, event, firings):
                yield f"{machine.name}.{event.name}, seed 5"


def test_every_event_by_number_is_decided_as_the_interpreter_does(library: ctypes.CDLL) -> None:
    assert list(differing(library)) == []


@pytest.mark.parametrize("number", range(len(SPEC.machines)), ids=[machine.name for machine in SPEC.machines])
def test_a_kernel_fires_the_event_that_names_it(library: ctypes.CDLL, number: int) -> None:
    machine, rng = SPEC.machines[number], random.Random(6)
    for place, kernel in enumerate(KERNELS):
        event = next((event for event in machine.events if event.kernel == kernel), None)
        if event is None:
            assert call(library, "on", number, place, [(3, {})]) == [(3, CODES["illegal"])]
        else:
            firings = firings_of(machine, event, rng)
            assert call(library, "on", number, place, firings) == decided(machine, event, firings), "seed 6"


def test_an_argument_beyond_its_field_is_refused_and_changes_nothing(library: ctypes.CDLL) -> None:
    for number, machine in enumerate(SPEC.machines):
        for place, event in enumerate(machine.events):
            firings = firings_of(machine, event, random.Random(7))[:20]
            for argument in event.given:
                for wrong in (-1, argument_max(machine, argument) + 1, 1 << 40, -(1 << 63)):
                    beyond = [(word, given | {argument.name: wrong}) for word, given in firings]
                    want = [(word, CallRefusal.BAD_ARGUMENT) for word, _ in firings]
                    assert call(library, "fire", number, place, beyond) == want, (
                        machine.name,
                        event.name,
                        argument.name,
                    )


def test_a_number_of_nothing_is_illegal(library: ctypes.CDLL) -> None:
    many = len(SPEC.machines)
    for machine, event in ((many, 0), (2**32 - 1, 0), *((k, len(SPEC.machines[k].events)) for k in range(many))):
        assert call(library, "fire", machine, event, [(5, {})]) == [(5, CODES["illegal"])]
    assert call(library, "on", many, 0, [(5, {})]) == [(5, CODES["illegal"])]
    assert call(library, "read", many, 0, [(5, {"expected": 0})]) == [(5, CODES["illegal"])]


def test_pins_are_where_the_word_has_them(library: ctypes.CDLL) -> None:
    for number, machine in enumerate(SPEC.machines):
        pins = next((field for field in machine.fields if field.name == "pins"), None)
        assert library.pins(number) == (0 if pins is None else pins.max << pins.shift)
    assert library.pins(len(SPEC.machines)) == 0


def may_read(machine: Machine, word: int, expected: int) -> str | None:
    """What the spec says of a launch that reads: states declare it, and who may still give pins back reads on."""
    values = unpack(machine, word)
    state = machine.states[values["state"]]
    if values["generation"] != expected:
        return "stale"
    if state.readable:
        return None
    given_back = next((event for event in machine.events if event.kernel == "unpin"), None)
    if given_back is not None and step(machine, word, given_back, {"expected": expected}).refusal is None:
        return None
    pin = next((event for event in machine.events if event.kernel == "validate_pin"), None)
    if pin is None:
        return "illegal"
    refusals = {case.refuse for case in pin.cases_from(state.name) if case.when is None}
    return next(iter(refusals), "illegal")


def test_who_may_read_is_what_the_states_declare(library: ctypes.CDLL) -> None:
    met = set()
    for number, machine in enumerate(SPEC.machines):
        firings = []
        for state in machine.states:
            for pins in (0, 1, machine.field("pins").max):
                word = pack(machine, {"state": state.code, "pins": pins, "generation": 7})
                firings += [(word, {"expected": 7}), (word, {"expected": 8}), (word, {"expected": -1})]
        want = [may_read(machine, word, given["expected"]) for word, given in firings]
        assert call(library, "read", number, 0, firings) == [
            (word, CODES[refusal]) for (word, _), refusal in zip(firings, want, strict=True)
        ]
        met |= set(want)
    assert {None, "stale", "busy", "pending", "packed", "expired", "failed", "version", "illegal"} <= met


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("case kEvict: return evict(", "case kEvict: return expire("),
        (
            "return kv_swa_window_pin(word, arguments[0], arguments[stride]",
            "return kv_swa_window_pin(word, arguments[0], arguments[0]",
        ),
        ("  kHold = 8,\n  kUnhold = 9,", "  kHold = 9,\n  kUnhold = 8,"),
    ],
)
def test_a_wrong_entry_is_noticed(right: str, wrong: str, tmp_path: Path) -> None:
    """The negative control: a table that mixes up events, arguments or numbers no longer agrees."""
    headers = emit(SPEC)
    assert right in headers[EVENTS]
    broken = compiled(headers | {EVENTS: headers[EVENTS].replace(right, wrong, 1)}, tmp_path)
    assert next(differing(broken), None) is not None


def test_python_knows_the_codes_of_the_base_header() -> None:
    base = (REPO / "kernels" / "cuda" / "kvfsm_base.cuh").read_text("utf-8")
    for refusal in CallRefusal:
        assert f"  {k_name(*refusal.name.lower().split('_'))} = {refusal.value},  //" in base
    assert base.count(",  // ") == len(CallRefusal)
    assert max(CODES.values()) < min(CallRefusal)
