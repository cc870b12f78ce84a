"""Whether there is a device."""

from __future__ import annotations

from functools import cache

from kvfsm.kernels.cupy_launcher import CupyLauncher, NoDevice


@cache
def missing() -> str | None:
    """What a launcher lacks here, or None."""
    try:
        CupyLauncher(kernels=())
    except NoDevice as error:
        return str(error)
    return None
