"""What a run of kernels on the host was stopped by, told in the words of the source."""

from __future__ import annotations

from .places import SourcePlace

KINDS = (
    "none",
    "out_of_bounds",
    "use_after_free",
    "const_write",
    "misaligned",
    "uninitialised",
    "race",
    "barrier_divergence",
    "barrier_after_exit",
    "warp_divergence",
    "lane_outside_mask",
    "deadlock",
    "trap",
    "undefined",
    "crash",
    "endless",
    "not_deterministic",
)
"""In the order of ``FaultKind`` in runtime/faults.h."""


class HostFault(Exception):
    """A kernel did what no kernel may do.

    kind    of ``KINDS``
    kernel  its name
    place   where in the source; ``line`` is its line, both None where nobody knows
    block   coordinates in the grid
    thread  in its block, or None
    """

    def __init__(
        self,
        kind: str,
        kernel: str,
        place: SourcePlace | None,
        block: tuple[int, int, int],
        thread: int | None,
        text: str,
    ) -> None:
        where = f"{place}: " if place is not None else ""
        who = f"thread {thread} of block {block[0]}" if thread is not None else "a thread"
        if block[1:] != (0, 0):
            who = f"thread {thread} of block {block}"
        super().__init__(f"{where}{kind} in kv_{kernel}: {who} {text}")
        self.kind = kind
        self.kernel = kernel
        self.place = place
        self.block = block
        self.thread = thread

    @property
    def line(self) -> int | None:
        """Of the source file."""
        return self.place.line if self.place is not None else None
