"""What breaks at a greater size is not proved for any: protocols that hold as written, and not with greater bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvfsm.spec.checking import grounding
from kvfsm.spec.checking.explore import explore
from kvfsm.spec.checking.grounding import ground
from kvfsm.spec.checking.proof import Proof, prove
from kvfsm.spec.checking.sizes import Reread, growths_of, sizes_of

from .written import required, reread

HEAD = """protocol: small
title: t
about: a
"""

TAKES = """
bounds: {slots: 2}
machines:
  block: {machine: block, slots: slots, narrow: {pins: 2, epoch: 2}}
actors:
  allocator:
    count: 1
    plays: allocator
    locals: {slot: slots}
    steps:
      take:
        choose: {slot: slots}
        fire: [{on: "block[slot]", event: take}]
"""

COPIES_WITH_NUMBERS = """
bounds: {slots: 2, readers: 2}
machines:
  block: {machine: block, slots: slots, narrow: {pins: 2, epoch: 2}}
actors:
  allocator:
    count: readers
    plays: allocator
    locals: {slot: slots, number: readers}
    steps:
      take:
        choose: {slot: slots, number: readers}
        fire: [{on: "block[slot]", event: take}]
"""

PINS = """
bounds: {slots: 2, readers: 2}
machines:
  block: {machine: block, slots: slots, narrow: {pins: 2, epoch: 1}}
actors:
  reader:
    count: readers
    plays: reader
    locals: {slot: slots}
    steps:
      match:
        choose: {slot: slots}
GUARD
      pin:
        when: "block[slot].state == uncompressed"
        fire: [{on: "block[slot]", event: pin, with: {expected: "block[slot].epoch"}}]
      done:
        fire: [{on: "block[slot]", event: unpin}]
        do: {slot: 0}
  allocator:
    count: 1
    plays: allocator
    locals: {slot: slots}
    steps:
      take:
        choose: {slot: slots}
GUARD
        fire: [{on: "block[slot]", event: take}]
        do: {slot: 0}
"""

SLOTS_AND_COPIES = """
bounds: {many: 1, locks: 1}
machines:
  pad:  {machine: poll, slots: many}
  lock: {machine: entry, slots: locks}
actors:
  reader:
    count: many
    plays: [writer, evictor]
    locals: {s: locks}
    steps:
      one:
        when: "lock[s].state == joined"
        fire: [{on: "lock[s]", event: split}]
        otherwise: two
      two:
        fire: [{on: "lock[s]", event: merge}]
        refused: one
"""

WIDER = """
bounds: {slots: 1, readers: 1}
machines:
  block: {machine: block, slots: slots, narrow: {pins: readers, epoch: 1}}
actors:
  reader:
    count: readers
    plays: reader
    locals: {slot: slots}
    steps:
      match:
        choose: {slot: slots}
      pin:
        when: "block[slot].state == uncompressed"
        fire: [{on: "block[slot]", event: pin, with: {expected: "block[slot].epoch"}}]
      done:
        fire: [{on: "block[slot]", event: unpin}]
        do: {slot: 0}
  allocator:
    count: 1
    plays: allocator
    locals: {slot: slots}
    steps:
      take:
        choose: {slot: slots}
        fire: [{on: "block[slot]", event: take}]
        do: {slot: 0}
"""

BRANCHES = """
bounds: {slots: 2}
machines:
  block: {machine: block, slots: slots, narrow: {pins: 2, epoch: 2}}
actors:
  allocator:
    count: 1
    plays: allocator
    locals: {slot: slots, late: bool}
    steps:
      take:
        choose: {slot: slots}
        fire: [{on: "block[slot]", event: take}]
      again:
        fire: [{on: "block[slot]", event: take}]
        refused: {then: over, do: {late: slot == 6}}
      over: {do: {slot: 0}}
"""

MANY_ONLY = TAKES.replace("        fire", "        when: max(slot) > 6\n        fire")
PLAIN = PINS.replace("GUARD\n", "")
GUARDED = PINS.replace("GUARD", "        when: slot != 6")
COUNTED = "block[i].pins == count(reader, reader.at == done and reader.slot == i) and block[j].pins >= 0"

BREAKS_LATER = {  # what is said, the protocol, the claims beside it, and the size that breaks it
    "a_local_and_a_number": ("allocator.slot != 9", TAKES, (), {"slots": 10}),
    "a_local_among_numbers": ("allocator.slot in [0, 1, 2, 3, 4, 5]", TAKES, (), {"slots": 7}),
    "two_locals_in_order": ("block[i].epoch <= 0 or block[j].epoch <= 0 or i < j + 6", TAKES, (), {"slots": 7}),
    "a_number_of_a_copy": ("allocator.number <= 1", COPIES_WITH_NUMBERS, (), {"readers": 3}),
    "an_index_and_a_number": ("block[i].pins <= 0 or i < 7", PLAIN, (), {"slots": 8}),
    "a_guard_and_a_number": (
        "reader.at == pin implies reader.slot < 6 or reader.slot > 7", GUARDED, (), {"slots": 8}
    ),
    "a_greatest_number": ("block[i].state == free", MANY_ONLY, (), {"slots": 8}),
    "a_branch_and_a_number": ("not allocator.late", BRANCHES, (), {"slots": 7}),
    "a_bound_of_slots_and_copies": (
        "reader.at == two implies lock[reader.s].state == divided", SLOTS_AND_COPIES, (), {"many": 2}
    ),
    "a_bound_of_a_width": ("block[i].pins <= 1", WIDER, (), {"readers": 2}),
    "two_slots_and_a_count": ("block[i].pins <= block[j].pins + 2", PLAIN, (COUNTED,), {"readers": 3}),
}  # fmt: skip


def said(what: str) -> str:
    """One of these protocols, as a file says it."""
    that, body, beside, _ = BREAKS_LATER[what]
    claims = [f'  claim{number}: {{that: "{each}"}}' for number, each in enumerate((that, *beside))]
    return "\n".join((HEAD + body.lstrip("\n") + "always:", *claims, ""))


def claimed_too_much(read: Reread, proof: Proof, bounds: dict[str, int]) -> bool:
    """Whether the proof speaks of sizes that were raised to break the claim."""
    return proof.proved and set(bounds) <= set(proof.sizes)


@pytest.mark.parametrize("what", BREAKS_LATER)
def test_what_breaks_at_a_greater_size_is_not_proved_for_any(what: str, tmp_path: Path) -> None:
    read = reread(tmp_path, said(what))
    bounds = BREAKS_LATER[what][-1]
    small, large = (explore(ground(required(read, **each)), engine="numpy") for each in ({}, bounds))
    assert (small.verdicts()["claim0"], large.verdicts()["claim0"]) == ("holds", "violated")
    found = prove(required(read), read)
    assert not claimed_too_much(read, found["claim0"], bounds)
    assert all(found[f"claim{number}"].proved for number in range(1, len(found)))


def test_a_claim_that_does_more_with_numbers_says_so_and_leaves_the_bound_to_others(tmp_path: Path) -> None:
    unlike = "i < j + 9 or block[i].epoch + block[j].epoch >= 0"
    text = said("a_local_and_a_number").replace("allocator.slot != 9", unlike)
    read = reread(tmp_path, text + '  same: {that: "block[i].pins == 0"}\n')
    found = prove(required(read), read)
    obstacle = found["claim0"].obstacle
    assert not found["claim0"].proved and obstacle is not None and obstacle.why is not None
    assert "a number that 'slots' bounds" in obstacle.why
    assert found["same"].proved and found["same"].sizes == ("slots",)


def test_numbers_that_are_written_down_are_distinguished_slots(tmp_path: Path) -> None:
    """As many others are tried as without them: here one that the local names and one that the step chooses."""
    sizes = []
    for that in ("== allocator.slot", "!= 9"):
        read = reread(tmp_path, said("a_local_and_a_number").replace("!= 9", that))
        sizes.append(sizes_of(growths_of(required(read), read))[-1]["slots"])
    assert sizes[1] == sizes[0] + 10


def test_copies_that_are_not_there_are_counted_for_each_slot_that_is_asked_about(tmp_path: Path) -> None:
    read = reread(tmp_path, said("two_slots_and_a_count"))
    system = ground(required(read), for_proof=True)
    others = [cell.name for cell in system.cells if cell.field.startswith(grounding.OTHERS)]
    assert others == ["block[0].others:reader:0", "block[1].others:reader:0"]
