"""Which slots a launch may touch: what their words answer, beside the copy itself.

A launch that is handed a ``Check`` looks at a slot's word before it touches the bytes, and once more when it has read
them. Words may change meanwhile, for other streams go on. The answers come from the spec: bytes may be *read* where a
pin would be taken, or where one could still be given back; they may be *written* where somebody is at work on them.
On the device that is ``kv_events::read`` of ``generated/events.cuh``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from ..runtime.generated import KINDS, Refusal
from .call_refusal import CallRefusal
from .draft import Draft
from .launch import Argument, Kernel, LaunchRefused, Pointer, Value, shown

Codes = npt.NDArray[np.uint8]
Memory = TypeVar("Memory", Pointer, npt.NDArray[Any])

MACHINES = tuple(KINDS)
"""Machines by number: ``kv_events::Machine``."""

HEADERS = ("refusal", *MACHINES, "events", "reading")
"""What a .cu needs that looks at words."""

ROW_HEADERS = (*HEADERS, "rows")
"""What one needs that has FP8 rows or scales besides: ``rows.cuh``, of which ``fp8_rows.py`` is the meaning."""


class Side(IntEnum):
    """What a launch does with the bytes: read sealed ones, or read and write those that are being made."""

    READER = 0
    WRITER = 1


@dataclass(frozen=True, slots=True)
class Check(Generic[Memory]):
    """The words beside some bytes, in a launcher's memory for a plan, in arrays for a reference.

    kind      whose slots they are: a name of ``KINDS``
    words     uint64 [slots]. A launch adds zero to words that it read by, and so orders its reads before that look
    expected  uint32, one an entry: the generation in which the entry was handed out
    refusals  uint8, one an entry, read and written: an entry that has a code already is left alone, and one that is
              refused gets its code (of ``Refusal``, or of ``CallRefusal``). Who calls clears it, or lets the launch
              that pinned the slots fill it
    versions  uint32, one an entry, for an indexer's keys: of the entries that they are to route to. Plans of kernels
              that don't compare them refuse them
    """

    kind: str
    words: Memory
    expected: Memory
    refusals: Memory
    side: Side = Side.READER
    versions: Memory | None = None


MACHINE = Argument("machine", "u32", "kv_events::Machine of the slots")

CHECK = (
    MACHINE,
    Argument("side", "u32", "0 reads sealed bytes, 1 is at work on the bytes"),
    Argument("words", "u64*", "uint64 [slots], the state words", nullable=True),
    Argument("expected", "const u32*", "uint32 [entries], generations", nullable=True),
    Argument("refusals", "u8*", "uint8 [entries], read and written; None: nothing is checked", nullable=True),
)
"""The arguments that a kernel takes for a ``Check``, at the end of its list."""


def check_values(kernel: Kernel, check: Check[Pointer] | None) -> dict[str, Value]:
    """Values for the arguments ``CHECK``, and for ``versions`` where the kernel takes them.

    Raises:
        LaunchRefused: no ``Check``, or one without its memory, or of no kind; versions that the kernel doesn't compare.
    """
    takes_versions = any(argument.name == "versions" for argument in kernel.arguments)
    values: dict[str, Value] = {"versions": None} if takes_versions else {}
    if check is None:
        return values | {"machine": 0, "side": 0, "words": None, "expected": None, "refusals": None}
    if not isinstance(check, Check):
        raise refused_check(kernel, check)
    if check.versions is not None and not takes_versions:
        raise refused_versions(kernel)
    if not isinstance(check.side, Side):
        raise kernel.refusal("side", f"is {check.side!r}; fix: pass a Side")
    if takes_versions:
        values["versions"] = check.versions
    memory: dict[str, Value] = {"words": check.words, "expected": check.expected, "refusals": check.refusals}
    for name, value in memory.items():
        if value is None:
            raise kernel.refusal(name, "is None in a check; fix: pass a Pointer, or no check")
    machine = machine_of(kernel, check.kind)
    if check.versions is not None and check.kind != "indexer_state":
        raise kernel.refusal("versions", f"is for {check.kind!r}, and keys alone have versions; fix: pass None")
    return values | memory | {"machine": machine, "side": int(check.side)}


def machine_of(kernel: Kernel, kind: str) -> int:
    """Number of a kind, for the argument ``machine``.

    Raises:
        LaunchRefused: there is no such kind.
    """
    if kind not in MACHINES:
        raise kernel.refusal("machine", f"is of kind {kind!r}; fix: pass one of {', '.join(MACHINES)}")
    return MACHINES.index(kind)


def refused_check(kernel: Kernel, given: object) -> LaunchRefused:
    """To raise for what is passed as a check, and is none."""
    return kernel.refusal("machine", f"comes from a check, not from {shown(given)}; fix: pass a Check")


def refused_versions(kernel: Kernel) -> LaunchRefused:
    """To raise for a check with versions, where the kernel would pass over them."""
    return kernel.refusal("machine", "comes with versions, which this kernel doesn't compare; fix: pass versions=None")


def require_check(draft: Draft, entries: int) -> None:
    """Refuse a check with less memory than ``slots`` words, or than so many generations, refusals and versions.

    Raises:
        LaunchRefused: so it is.
    """
    draft.require_bytes(words=8 * draft.number("slots"), expected=4 * entries, refusals=entries)
    if "versions" in draft:
        draft.require_bytes(versions=4 * entries)


def touchable(
    check: Check[npt.NDArray[Any]] | None,
    pool: int,
    slots: npt.NDArray[Any],
    entries: npt.NDArray[np.intp] | None = None,
) -> npt.NDArray[np.bool_]:
    """Which of some slots a launch may touch, bool [n]; the others' refusals are written.

    Args:
        check: None where nobody asks: any slot there is, then.
        pool: slots there are.
        slots: as for ``answers``, like ``entries``.
        entries: of the check.
    """
    allowed: npt.NDArray[np.bool_]
    if check is None:
        allowed = (slots >= 0) & (slots < pool)
        return allowed
    at = np.arange(len(slots)) if entries is None else entries
    check.refusals[at] = codes = answers(check, slots, at)
    allowed = codes == 0
    return allowed


def answers(
    check: Check[npt.NDArray[Any]], slots: npt.NDArray[Any], entries: npt.NDArray[np.intp] | None = None
) -> Codes:
    """What the words of some slots answer now, uint8 [n]: 0 where a launch may go on.

    Args:
        check: its refusals are left as they are; an entry that has one answers with it.
        slots: whole numbers [n]; any that is no slot answers no slot.
        entries: [n] of the check that they are; all, one after the other, by default.

    >>> from ..runtime.generated.swa_window import LAYOUT
    >>> words = np.array([LAYOUT.pack(state=2, generation=7), LAYOUT.pack(state=1, generation=7)], np.uint64)
    >>> check = Check("swa_window", words, np.array([7, 7, 6, 7]), np.zeros(4, np.uint8))
    >>> answers(check, np.array([0, 1, 0, -1])).tolist()
    [0, 3, 2, 255]
    """
    at = np.arange(len(slots)) if entries is None else entries
    known = (slots >= 0) & (slots < len(check.words))
    words = check.words[np.where(known, slots, 0)] if len(check.words) else np.zeros(len(slots), np.uint64)
    codes = _answers(check, words, at)
    before = check.refusals[at]
    found: Codes = np.where(before != 0, before, np.where(known, codes, np.uint8(CallRefusal.NO_SLOT)))
    return found


def only_for_holders(kind: str, words: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Which words have pins, in a state that nobody else may read, such as EXPIRED: bool [n].

    >>> from ..runtime.generated.swa_window import LAYOUT
    >>> from ..runtime.generated.swa_window import SwaWindowState as State
    >>> fields = {"state": State.RESIDENT, "pins": 1}, {"state": State.EXPIRED, "pins": 1}, {"state": State.EXPIRED}
    >>> only_for_holders("swa_window", np.array([LAYOUT.pack(**some) for some in fields], np.uint64)).tolist()
    [False, True, False]
    """
    without, with_some = _by_state(kind) == 0
    state = field_of(kind, "state", words)
    found: npt.NDArray[np.bool_] = (field_of(kind, "pins", words) > 0) & with_some[state] & ~without[state]
    return found


def hands_over(kind: str, before: npt.NDArray[np.uint64], after: npt.NDArray[np.uint64]) -> bool:
    """Whether who was at work on one of some slots has let go of it: of all, or of one more layer that has landed.

    >>> from ..runtime.generated.swa_window import LAYOUT
    >>> from ..runtime.generated.swa_window import SwaWindowState as State
    >>> filling, resident = (np.array([LAYOUT.pack(state=one)], np.uint64) for one in (State.FILLING, State.RESIDENT))
    >>> hands_over("swa_window", filling, resident), hands_over("swa_window", filling, filling)
    (True, False)
    """
    state, landed = _bits_of(kind, "state"), _bits_of(kind, "landed")
    changed = before ^ after
    if not (changed & (state | landed)).any():  # as of most events
        return False
    left = _at_work(_by_state(kind)[0])[field_of(kind, "state", before)] & (changed & state != 0)
    return bool((left | (after & landed > before & landed)).any())


def field_of(kind: str, name: str, words: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """A field of some words of a kind, [n]; whether any slot can have such a word is not asked."""
    bits = KINDS[kind].LAYOUT.field(name)
    return (words >> np.uint64(bits.shift) & np.uint64(bits.mask)).astype(np.int64)


def _answers(check: Check[npt.NDArray[Any]], words: npt.NDArray[np.uint64], entries: npt.NDArray[np.intp]) -> Codes:
    def field(name: str) -> npt.NDArray[np.int64]:
        return field_of(check.kind, name, words)

    codes = _by_state(check.kind)[(field("pins") > 0).astype(np.intp), field("state")]
    if check.side == Side.WRITER:
        codes = np.where(_at_work(codes), 0, np.where(codes == 0, np.uint8(Refusal.ILLEGAL), codes))
    if check.versions is not None:
        codes = np.where((codes == 0) & (field("version") != check.versions[entries]), np.uint8(Refusal.VERSION), codes)
    moved = field("generation") != check.expected[entries].astype(np.int64)
    found: Codes = np.where(moved, np.uint8(Refusal.STALE), codes).astype(np.uint8)
    return found


@cache
def _bits_of(kind: str, name: str) -> np.uint64:
    """Where a word of a kind has a field; nowhere, if it has none."""
    return np.uint64(sum(one.mask << one.shift for one in KINDS[kind].LAYOUT.fields if one.name == name))


def _at_work(codes: Codes) -> npt.NDArray[np.bool_]:
    """Which answers to readers say that somebody is at work on the bytes."""
    found: npt.NDArray[np.bool_] = (codes == Refusal.BUSY) | (codes == Refusal.PENDING)
    return found


@cache
def _by_state(kind: str) -> Codes:
    """What a reader is answered in each state, uint8 [2, values of the state field]: without pins, and with some."""
    made = KINDS[kind].SLOT
    table = np.full((2, made.LAYOUT.field("state").mask + 1), Refusal.ILLEGAL, np.uint8)
    for state in made.STATES:
        pin = {given.name: 0 for given in made.EVENTS["pin"].given}
        said = made(made.LAYOUT.pack(state=state)).fire("pin", **pin)
        given_back = made(made.LAYOUT.pack(state=state, pins=1)).fire("unpin", expected=0) is None
        code = 0 if said is None else Refusal[said.upper()]
        table[:, state] = code, 0 if given_back else code
    return table
