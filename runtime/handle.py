"""What a caller holds of a manager: a lease or a fill. Dropping one frees nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .layout import Layout

if TYPE_CHECKING:
    from .manager import Manager


class Handle:
    """Base of leases and fills: it knows the manager that gave it."""

    __slots__ = ("_manager",)

    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    @property
    def manager(self) -> Manager:
        """The manager that gave it."""
        return self._manager

    @property
    def layouts(self) -> Mapping[str, Layout]:
        """How the slots of each kind lie."""
        return self._manager.profile.layouts
