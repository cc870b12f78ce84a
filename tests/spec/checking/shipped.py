"""The shipped spec for tests of the checker: read once a worker, in the file's bounds or in others."""

from __future__ import annotations

from functools import cache

from kvfsm.spec.checking.grounding import ground
from kvfsm.spec.checking.system import System
from kvfsm.spec.language.load import Spec, load_spec, resized
from kvfsm.spec.language.narrowing import with_faulty
from kvfsm.spec.language.protocol import Protocol


@cache
def spec() -> Spec:
    return load_spec().required()


@cache
def protocol(name: str, **bounds: int) -> Protocol:
    found, problems = resized(spec(), name, bounds) if bounds else (spec().protocol(name), None)
    assert found is not None, problems
    return found


def mutated(item: Protocol, mutant: str) -> Protocol:
    """A protocol with one of the faults that it declares."""
    return with_faulty(item, next(each.faulty for each in item.mutants if each.name == mutant))


@cache
def grounded(name: str, mutant: str | None = None, **bounds: int) -> System:
    """The system of a protocol, with one of its declared faults if that is named."""
    item = protocol(name, **bounds)
    return ground(item if mutant is None else mutated(item, mutant))
