"""The generated headers, compiled by g++, decide every firing as the interpreter does, bit for bit."""

from __future__ import annotations

import ctypes
import random
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from kvfsm.codegen.emit_cuda import emit
from kvfsm.spec.language.coverage import all_samples, argument_max
from kvfsm.spec.language.interpreter import step
from kvfsm.spec.language.load import Spec, load_spec
from kvfsm.spec.language.model import Event, Machine
from kvfsm.spec.language.word import pack

REPO = Path(__file__).parents[2]
SPEC = load_spec().required()
CODES = {None: 0} | {word.name: word.code for word in SPEC.vocabulary.refusals}

Firing = tuple[int, dict[str, int]]


def driver(spec: Spec) -> str:
    """C++ that applies each event to arrays: words [n], arguments [n, count], next [n], codes [n]."""
    lines = []
    for machine in spec.machines:
        for event in machine.events:
            name = f"{machine.name}_{event.name}"
            passed = [f"args[i * count + {k}]{' != 0' * a.is_bool}" for k, a in enumerate(event.given)]
            lines += [
                f'extern "C" void {name}(long n, int count, const kv_u64* words, const kv_i64* args,',
                "                      kv_u64* next, kv_u8* codes) {",
                f"  for (long i = 0; i < n; ++i) codes[i] = kv_{name}({', '.join(['words[i]', *passed, '&next[i]'])});",
                "  (void)args; (void)count;",
                "}",
            ]
    return "\n".join(lines)


def compiled(spec: Spec, headers: dict[str, str], folder: Path) -> ctypes.CDLL:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++ (Debian package g++)")
    texts = [(REPO / "kernels" / "cuda" / "kvfsm_base.cuh").read_text("utf-8"), *headers.values(), driver(spec)]
    source = folder / "machines.cc"
    source.write_text("\n".join(texts))
    strict = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Wconversion", "-Wno-sign-conversion", "-Werror"]
    words = ["-D__device__=", "-D__forceinline__=inline"]
    library = folder / "machines.so"
    subprocess.run([compiler, "-shared", "-fPIC", *strict, *words, "-o", library, source], check=True)
    return ctypes.CDLL(str(library))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compiled(SPEC, emit(SPEC), tmp_path_factory.mktemp("cuda"))


def fire(library: ctypes.CDLL, machine: Machine, event: Event, firings: list[Firing]) -> list[tuple[int, int]]:
    """The word afterwards and the code of each firing."""
    words = np.array([word for word, _ in firings], np.uint64)
    names = [argument.name for argument in event.given]
    rows = [[given[name] for name in names] for _, given in firings]
    args = np.array(rows, np.int64).reshape(len(firings), len(names))
    after, codes = np.zeros_like(words), np.zeros(len(firings), np.uint8)
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (words, args, after, codes)]
    getattr(library, f"{machine.name}_{event.name}")(ctypes.c_long(len(firings)), len(names), *pointers)
    return [(int(word), int(code)) for word, code in zip(after, codes, strict=True)]


def random_firings(rng: random.Random, machine: Machine, event: Event, count: int) -> Iterable[Firing]:
    """Any legal word; arguments near the fields that they are compared with."""
    for _ in range(count):
        values = {
            field.name: rng.choice((0, min(1, field.max), field.max, rng.randint(0, field.max)))
            for field in machine.fields
        }
        values["state"] = rng.randrange(len(machine.states))
        args = {}
        for argument in event.given:
            high = argument_max(machine, argument)
            near = values[argument.like] if argument.like is not None else rng.randint(0, high)
            args[argument.name] = near if rng.random() < 0.7 else rng.randint(0, high)
        yield pack(machine, values), args


def differing(library: ctypes.CDLL, machine: Machine, event: Event, firings: list[Firing]) -> list[Firing]:
    """The firings that the compiled header decides otherwise than the interpreter."""
    outcomes = [step(machine, word, event, args) for word, args in firings]
    expected = [(outcome.word, CODES[outcome.refusal]) for outcome in outcomes]
    found = fire(library, machine, event, firings)
    return [firing for firing, want, got in zip(firings, expected, found, strict=True) if want != got]


@pytest.mark.parametrize("machine", SPEC.machines, ids=lambda machine: machine.name)
def test_every_state_and_case_is_decided_as_the_interpreter_does(library: ctypes.CDLL, machine: Machine) -> None:
    samples = list(all_samples(machine))
    for event in machine.events:
        firings = [(sample.word, sample.args) for sample in samples if sample.event == event.name]
        assert len(firings) >= len(machine.states)
        assert differing(library, machine, event, firings) == [], event.name


@pytest.mark.parametrize("machine", SPEC.machines, ids=lambda machine: machine.name)
def test_random_words_are_decided_as_the_interpreter_does(library: ctypes.CDLL, machine: Machine) -> None:
    seed = 11
    print(f"seed {seed}")
    rng = random.Random(seed)
    for event in machine.events:
        assert differing(library, machine, event, list(random_firings(rng, machine, event, 300))) == [], event.name


@pytest.mark.parametrize("machine", SPEC.machines, ids=lambda machine: machine.name)
def test_a_dropped_guard_is_noticed(machine: Machine, tmp_path: Path) -> None:
    """The negative control: the header without one comparison no longer agrees."""
    headers = emit(SPEC)
    path = f"kernels/generated/{machine.name}.cuh"
    guard = "if (expected != generation) return kv_refusal::kStale;"
    assert guard in headers[path]
    never = guard.replace("(", "(false && ", 1)
    library = compiled(SPEC, headers | {path: headers[path].replace(guard, never, 1)}, tmp_path)
    samples = list(all_samples(machine))
    assert any(
        differing(library, machine, event, [(s.word, s.args) for s in samples if s.event == event.name])
        for event in machine.events
    )


def test_headers_include_nothing() -> None:
    texts = [*emit(SPEC).values(), (REPO / "kernels" / "cuda" / "kvfsm_base.cuh").read_text("utf-8")]
    assert not any(line.startswith("#include") for text in texts for line in text.splitlines())
