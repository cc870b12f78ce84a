"""Numbers for parity tests: of every magnitude, and such as are no plain numbers."""

from __future__ import annotations

import numpy as np

SPECIAL = np.array(
    [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-39, 1.1754944e-38, -2e-38, 3.4e38, -3.4e38, 448.0, 464.0],
    np.float32,
)


def awkward_floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Rows along the last axis: plain, tiny, huge, of random bits, of one special value, and plain with specials."""
    found = rng.standard_normal(shape).astype(np.float32)
    rows = found.reshape(-1, shape[-1])
    for row in rows:
        kind = rng.integers(8)
        with np.errstate(all="ignore"):
            if kind == 0:
                row *= np.float32(10.0) ** np.float32(rng.integers(-40, 38))
            elif kind == 1:
                row *= np.float32(2e-38) / np.abs(row).max()
            elif kind == 2:
                row[:] = rng.integers(0, 2**32, len(row), dtype=np.uint64).astype(np.uint32).view(np.float32)
            elif kind == 3:
                row[:] = rng.choice(SPECIAL)
            elif kind == 4:
                places = rng.random(len(row)) < 0.1
                row[places] = rng.choice(SPECIAL, places.sum())
            elif kind == 5:
                row *= np.float32(10.0) ** rng.integers(-6, 6, len(row)).astype(np.float32)
    return found
