"""Everything that these tests do to managers and stores is recorded, and held against the model when a test ends."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def traces_are_paths_of_the_model(traced: object) -> None:
    """See ``traced``."""


@pytest.fixture
def short_slices() -> Iterator[None]:
    """Threads take turns often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)
