"""Kernels over state words: pin, give back, look again, fire events, copy the host's words.

On a device the words of all machines lie in one array, a machine after the other in the order of ``KINDS``; ``first``
says where each begins. What an event does comes from the spec, by ``generated/events.cuh`` there and by the tables of
``runtime/generated`` here. Host words stay the truth of a slot's life (``put_words`` copies them in stream order);
pins on the device cover launches only, and the host waits for those before it takes a slot away.

Codes are those of ``Refusal``, and of ``CallRefusal`` where no event decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from ..runtime.generated import KINDS, Refusal
from .call_refusal import CallRefusal
from .draft import Draft
from .launch import Argument, Kernel, LaunchPlan, LaunchRefused, Pointer, blocks
from .reading import HEADERS, MACHINES, field_of, machine_of

Words = npt.NDArray[np.uint64]
Codes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]
Places = npt.NDArray[np.uint32]

ELEMENTS_MAX = 2**31 - 1
"""Of an array in a launch: threads number themselves in 32 bits, and the last block may go past the end."""


def event_number(kind: str, event: str) -> int:
    """Of an event of a machine, as ``kv_events`` counts them; KeyError when there is none."""
    return {name: number for number, name in enumerate(KINDS[kind].EVENTS)}[event]


def event_of(kind: str, kernel: str) -> str | None:
    """The event of a machine that says ``kernel:`` so in the spec, if there is one."""
    return next((event for event, named in KINDS[kind].KERNELS.items() if named == kernel), None)


def width_of(kernel: str) -> int:
    """Rows of an ``arguments`` array for a kernel: the most that any machine's event takes for it."""
    events = ((kind, event_of(kind, kernel)) for kind in MACHINES)
    return max(len(KINDS[kind].EVENTS[event].given) for kind, event in events if event is not None)


def pins_bits(kind: str) -> int:
    """The bits of a machine's words that count pins."""
    pins = KINDS[kind].LAYOUT.field("pins")
    return pins.mask << pins.shift


def first_places(slots: Mapping[str, int]) -> Places:
    """Where each machine's words begin, uint32 [machines + 1], for so many slots each; absent machines have none.

    >>> first_places({"compressed_kv": 10, "swa_window": 3}).tolist()
    [0, 10, 10, 13, 13, 13]
    """
    return np.cumsum([0, *(slots.get(kind, 0) for kind in MACHINES)]).astype(np.uint32)


_WORDS = Argument("words", "u64*", "uint64 [slots of all machines], read and changed")
_FIRST = Argument("first", "const u32*", "uint32 [machines + 1]: machine m has words [first[m], first[m + 1])")
_REFERENCES = (
    Argument("references", "u32", "length of the arrays of references"),
    Argument("machines", "const u8*", "uint8 [references], numbers of machines"),
    Argument("slots", "const u32*", "uint32 [references], numbered in their machine"),
    Argument("arguments", "const i64*", "int64 [width, references], of the machine's event, in the spec's order"),
)
_OF_ONE_MACHINE = (
    Argument("words", "u64*", "uint64 [slot_count], the words of one machine, read and changed"),
    Argument("slot_count", "u32"),
    Argument("machine", "u32", "its number"),
)

VALIDATE_PIN = Kernel(
    name="validate_pin",
    file="words.cu",
    headers=HEADERS,
    threads=128,
    arguments=(
        _WORDS,
        _FIRST,
        Argument("starts", "const u32*", "uint32 [requests + 1]: request r has references [starts[r], starts[r + 1])"),
        Argument("count", "const u32*", "uint32 [1]: requests that there are, of the grid", bytes_min=4),
        *_REFERENCES,
        Argument("leases", "u8*", "uint8 [references], written: 0 a pin is held, else why not"),
        Argument("verdicts", "u8*", "uint8 [requests], written: 0, or the code of the first reference refused"),
    ),
)
UNPIN = Kernel(
    name="unpin",
    file="words.cu",
    headers=HEADERS,
    arguments=(
        _WORDS,
        _FIRST,
        Argument("count", "const u32*", "uint32 [1]: references that there are", bytes_min=4),
        *_REFERENCES,
        Argument("leases", "u8*", "uint8 [references], read and written: 0 a pin is held, else why not"),
    ),
)
REVALIDATE = Kernel(
    name="revalidate",
    file="words.cu",
    headers=HEADERS,
    arguments=(
        Argument("words", "const u64*", "uint64 [slots of all machines], read"),
        _FIRST,
        Argument("count", "const u32*", "uint32 [1]: references that there are", bytes_min=4),
        *_REFERENCES,
        Argument("refusals", "u8*", "uint8 [references], written"),
    ),
)
APPLY_EVENT = Kernel(
    name="apply_event",
    file="words.cu",
    headers=HEADERS,
    arguments=(
        *_OF_ONE_MACHINE,
        Argument("event", "u32", "its number in the machine"),
        Argument("count", "const u32*", "uint32 [1]: firings that there are", bytes_min=4),
        Argument("firings", "u32", "length of the arrays of firings"),
        Argument("slots", "const u32*", "uint32 [firings], may repeat"),
        Argument("arguments", "const i64*", "int64 [width, firings], in the spec's order; None: none", nullable=True),
        Argument("refusals", "u8*", "uint8 [firings], written"),
    ),
)
PUT_WORDS = Kernel(
    name="put_words",
    file="words.cu",
    headers=HEADERS,
    arguments=(
        *_OF_ONE_MACHINE,
        Argument("count", "const u32*", "uint32 [1]: values that there are", bytes_min=4),
        Argument("values_max", "u32", "length of the arrays of values"),
        Argument("slots", "const u32*", "uint32 [values_max], each at most once"),
        Argument("values", "const u64*", "uint64 [values_max], words of the host"),
        Argument("refusals", "u8*", "uint8 [values_max], written"),
    ),
)


class References(TypedDict):
    """Values of the arguments that kernels over references share; shapes as ``validate_pin`` says."""

    words: Pointer
    first: Pointer
    references: int
    machines: Pointer
    slots: Pointer
    arguments: Pointer


def validate_pin_plan(
    *,
    starts: Pointer,
    count: Pointer,
    requests: int,
    leases: Pointer,
    verdicts: Pointer,
    **shared: Unpack[References],
) -> LaunchPlan:
    """Pins the references of each request, all or none; ``validate_pin`` says what that is.

    ``requests`` and ``references`` are how many there may be at most, before any launch of this plan is known; how many
    there are lies in ``count`` and ``starts``.

    Raises:
        LaunchRefused: a pointer that is misaligned, or to less memory than the launch touches.
    """
    draft = Draft(VALIDATE_PIN, starts=starts, count=count, leases=leases, verdicts=verdicts, **shared)
    _require_few(draft.kernel, "requests", requests)
    _require_references(draft, "leases")
    draft.require_bytes(starts=4 * (requests + 1), verdicts=requests)
    return draft.plan(blocks(requests, 1))


def validate_pin(
    words: Words,
    first: Places,
    starts: Places,
    machines: Codes,
    slots: Places,
    arguments: Numbers,
    leases: Codes,
) -> Codes:
    """Pin the references of each request, all or none.

    words      uint64 [slots of all machines], read and changed: the event that has ``kernel: validate_pin``
    first      uint32 [machines + 1], as ``first_places`` makes it
    starts     uint32 [requests + 1], request r has references [starts[r], starts[r + 1])
    machines   uint8 [references], numbers of machines
    slots      uint32 [references], numbered in their machine; a slot that comes twice is pinned twice
    arguments  int64 [width, references], the pin's, in the spec's order; rows that a machine doesn't take aren't read
    leases     uint8 [references], written: 0 a pin is held, else why not. RELEASED where the reference alone would have
               been pinned, and another one of its request was refused
    returns    verdicts uint8 [requests]: 0, or the code of the first reference that was refused; BAD_ARGUMENT for a
               range that isn't one, whose leases stay as they were

    Here requests come one after the other. On a device they come at the same time, so where pins are nearly at their
    most it isn't said which reference is too many, and pins that are given back again count while they are there.

    Bytes: 6 a reference (machine, slot, code), 8 an argument, 64 for the word (a sector of 32 read and written), and 5
    a request. Floor at 4.3 TB/s: 10,000 references of compressed KV 0.2 us, so the launch is what it costs.
    """
    verdicts = np.zeros(len(starts) - 1, np.uint8)
    for request, (begin, end) in enumerate(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)):
        if begin > end or end > len(slots):
            verdicts[request] = CallRefusal.BAD_ARGUMENT
            continue
        own = slice(begin, end)
        codes = _fire_references("validate_pin", words, first, machines[own], slots[own], arguments[:, own])
        refused = codes[codes != 0]
        if refused.size:
            verdicts[request] = refused[0]
            undone = own.start + np.flatnonzero(codes == 0)
            np.subtract.at(words, first[machines[undone]] + slots[undone], _ONE_PIN[machines[undone]])
            codes[codes == 0] = CallRefusal.RELEASED
        leases[own] = codes
    return verdicts


def unpin_plan(*, count: Pointer, leases: Pointer, **shared: Unpack[References]) -> LaunchPlan:
    """Gives back the pins that ``leases`` says are held; ``unpin`` says what that is.

    Raises:
        LaunchRefused: a pointer that is misaligned, or to less memory than the launch touches.
    """
    draft = Draft(UNPIN, count=count, leases=leases, **shared)
    _require_references(draft, "leases")
    return draft.plan(blocks(shared["references"], UNPIN.threads))


def unpin(words: Words, first: Places, machines: Codes, slots: Places, arguments: Numbers, leases: Codes) -> None:
    """Give back the pins that are held.

    words      uint64 [slots of all machines], read and changed: the event that has ``kernel: unpin``
    first, machines, slots   as for ``validate_pin``
    arguments  int64 [width, references], the unpin's. It takes the first ones of the pin, so the same array does
    leases     uint8 [references], read and written: where it is 0 the pin is given back, and it becomes RELEASED, or
               the code of a refusal; elsewhere nothing is done. So a pin is never given back twice

    On a device a reference that is CONTENDED keeps its 0 and its pin, and another launch may give it back.

    Bytes: 7 a reference, 8 an argument, 64 for the word. Floor at 4.3 TB/s: 10,000 references 0.18 us.
    """
    held = np.flatnonzero(leases == 0)
    codes = _fire_references("unpin", words, first, machines[held], slots[held], arguments[:, held])
    leases[held] = np.where(codes == 0, np.uint8(CallRefusal.RELEASED), codes)


def revalidate_plan(*, count: Pointer, refusals: Pointer, **shared: Unpack[References]) -> LaunchPlan:
    """Looks at the words of some references once more; ``revalidate`` says what for.

    Raises:
        LaunchRefused: a pointer that is misaligned, or to less memory than the launch touches.
    """
    draft = Draft(REVALIDATE, count=count, refusals=refusals, **shared)
    _require_references(draft, "refusals")
    return draft.plan(blocks(shared["references"], REVALIDATE.threads))


def revalidate(words: Words, first: Places, machines: Codes, slots: Places, arguments: Numbers) -> Codes:
    """Whether references may be used now, such as one layer of a block whose layers are still arriving.

    words      uint64 [slots of all machines], read
    first, machines, slots   as for ``validate_pin``
    arguments  int64 [width, references], those of the event that has ``kernel: revalidate``
    returns    uint8 [references]: 0, or why not; ILLEGAL for a machine that has no such event

    Bytes: 6 a reference, 8 an argument, 32 for the word. Floor at 4.3 TB/s: 10,000 references of compressed KV 0.13 us.
    """
    return _fire_references("revalidate", words.copy(), first, machines, slots, arguments)


def apply_event_plan(
    kind: str,
    event: str,
    *,
    words: Pointer,
    slot_count: int,
    count: Pointer,
    firings: int,
    slots: Pointer,
    arguments: Pointer | None,
    refusals: Pointer,
) -> LaunchPlan:
    """Fires one event of one machine on many slots; ``apply_event`` says what that is.

    Raises:
        LaunchRefused: no such machine or event; a pointer that is misaligned, or to less memory than the launch
            touches; no arguments for an event that takes some.
    """
    machine = machine_of(APPLY_EVENT, kind)
    events = KINDS[kind].EVENTS
    if event not in events:
        raise APPLY_EVENT.refusal("event", f"is {event!r}; fix: pass one of {', '.join(events)}")
    draft = Draft(
        APPLY_EVENT, words=words, slot_count=slot_count, machine=machine, event=event_number(kind, event), count=count,
        firings=firings, slots=slots, arguments=arguments, refusals=refusals,
    )  # fmt: skip
    _require_few(draft.kernel, "firings", firings)
    takes = len(events[event].given)
    if takes and arguments is None:
        raise draft.refusal("arguments", f"pass the {takes} of {event!r}")
    draft.require_bytes(words=8 * slot_count, slots=4 * firings, refusals=firings, arguments=8 * takes * firings)
    return draft.plan(blocks(firings, APPLY_EVENT.threads))


def apply_event(kind: str, event: str, words: Words, slots: Places, arguments: Numbers) -> Codes:
    """Fire one event of one machine on many slots.

    words      uint64 [slots of the machine], read and changed
    slots      uint32 [firings]. May repeat: each firing is applied once or refused, here in their order; on a device
               the order among firings on one slot is unspecified
    arguments  int64 [arguments, firings], in the spec's order; a truth value is 0 or 1
    returns    uint8 [firings]: 0 applied, else why not

    Bytes: 5 a firing, 8 an argument, 64 for the word. Floor at 4.3 TB/s: 10,000 firings with one argument 0.18 us.
    """
    codes = np.full(len(slots), CallRefusal.NO_SLOT, np.uint8)
    known = np.flatnonzero(slots < len(words))
    codes[known] = _fire(kind, event, words, slots[known], arguments[:, known])
    return codes


def put_words_plan(
    kind: str,
    *,
    words: Pointer,
    slot_count: int,
    count: Pointer,
    values_max: int,
    slots: Pointer,
    values: Pointer,
    refusals: Pointer,
) -> LaunchPlan:
    """Copies words of the host to the device, but for the pins; ``put_words`` says what that is.

    Raises:
        LaunchRefused: no such machine; a pointer that is misaligned, or to less memory than the launch touches.
    """
    draft = Draft(
        PUT_WORDS, words=words, slot_count=slot_count, machine=machine_of(PUT_WORDS, kind), count=count,
        values_max=values_max, slots=slots, values=values, refusals=refusals,
    )  # fmt: skip
    _require_few(draft.kernel, "values_max", values_max)
    draft.require_bytes(words=8 * slot_count, slots=4 * values_max, values=8 * values_max, refusals=values_max)
    return draft.plan(blocks(values_max, PUT_WORDS.threads))


def put_words(kind: str, words: Words, slots: Places, values: Words) -> Codes:
    """Copy words of the host to the device's, but for the pins: those of the device are of launches, and stay.

    words    uint64 [slots of the machine], read and changed
    slots    uint32 [values], each at most once
    values   uint64 [values], words of the host; their pins, which are leases, are left out
    returns  uint8 [values]: 0, or PINNED where the device has pins that could not be given back from the new word: its
             generation moved, or its state isn't one for readers. Such a word stays as it was

    Bytes: 13 a value, 64 for the word. Floor at 4.3 TB/s: 10,000 values 0.18 us.
    """
    codes = np.full(len(slots), CallRefusal.NO_SLOT, np.uint8)
    table = KINDS[kind]
    bits, unpin = np.uint64(pins_bits(kind)), event_of(kind, "unpin")
    for value, slot in enumerate(slots.tolist()):
        if slot >= len(words):
            continue
        wanted = int(values[value] & ~bits | words[slot] & bits)
        codes[value] = 0
        if words[slot] & bits:
            expected = int(field_of(kind, "generation", words[slot : slot + 1])[0])
            if unpin is None or table.SLOT(wanted).fire(unpin, expected=expected) is not None:
                codes[value] = Refusal.PINNED
                continue
        words[slot] = wanted
    return codes


_ONE_PIN = np.array([bits & -bits for bits in map(pins_bits, MACHINES)], np.uint64)


def _require_references(draft: Draft, codes: str) -> None:
    """Refuse too many references, or too little memory for them and for their ``codes``."""
    references = draft.number("references")
    _require_few(draft.kernel, "references", references)
    draft.require_bytes(
        first=4 * (len(MACHINES) + 1), machines=references, slots=4 * references,
        arguments=8 * width_of(draft.kernel.name) * references, **{codes: references},
    )  # fmt: skip


def _require_few(kernel: Kernel, what: str, count: int) -> None:
    if type(count) is not int or not 0 <= count <= ELEMENTS_MAX:
        raise LaunchRefused(
            f"kernels/cuda/{kernel.file}: {kernel.symbol} is planned for {what}={count!r}; "
            f"fix: an int of [0, {ELEMENTS_MAX}], in several launches if there are more"
        )


def _fire_references(
    kernel: str, words: Words, first: Places, machines: Codes, slots: Places, arguments: Numbers
) -> Codes:
    """Fire on each reference the event that its machine has for ``kernel``, in their order."""
    codes = np.full(len(slots), CallRefusal.BAD_ARGUMENT, np.uint8)
    for number, kind in enumerate(MACHINES):
        own = words[first[number] : first[number + 1]]
        mine = machines == number
        codes[mine] = CallRefusal.NO_SLOT
        chosen = np.flatnonzero(mine & (slots < len(own)))
        event = event_of(kind, kernel)
        codes[chosen] = (
            Refusal.ILLEGAL if event is None else _fire(kind, event, own, slots[chosen], arguments[:, chosen])
        )
    return codes


def _fire(kind: str, event: str, words: Words, slots: Places, arguments: Numbers) -> Codes:
    """Fire one event on slots that there are, in their order: a table takes each slot once, so by rounds."""
    touched, places = np.unique(slots, return_inverse=True)
    table: Any = KINDS[kind](words[touched])
    given = table.EVENTS[event].given
    codes = np.zeros(len(slots), np.uint8)
    for argument, row in zip(given, arguments, strict=False):
        codes[(row < 0) | (row > argument.high)] = CallRefusal.BAD_ARGUMENT
    left = np.flatnonzero(codes == 0)
    while left.size:
        _, earliest = np.unique(places[left], return_index=True)
        now = left[earliest]
        named = {
            argument.name: row[now].astype(np.bool_ if argument.kind is bool else np.int64)
            for argument, row in zip(given, arguments, strict=False)
        }
        codes[now] = table.fire(event, places[now], **named)
        left = np.delete(left, earliest)
    words[touched] = table.words
    return codes
