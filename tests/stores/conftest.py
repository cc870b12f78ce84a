"""Everything that these tests do to managers and stores is recorded, and held against the model when a test ends."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def traces_are_paths_of_the_model(traced: object) -> None:
    """See ``traced``."""
