"""The text of a machine to start from: a short life with a lease, sound as it stands, for ``kvfsm init --machine``."""

from __future__ import annotations

from string import Template

_MACHINE = Template("""\
machine: $name
title: $title
about: >-
  Say here what one slot holds, and when it may be read.
hit: all_pages          # all_pages | trailing_pages | by_kind; see README.md

word:                   # one 64-bit word a slot, fields from the low bit up
  state: 3
  pins: 12
  generation: 20        # grows each time the slot is taken anew

meta:
  last_use: {type: u64, about: clock of the last release}

states:
  free:     {initial: true, counts_as: free, about: nobody's; the generation tells old handles apart}
  filling:  {exclusive: true, counts_as: owned, about: one writer; not matchable}
  resident: {readable: true, evictable: true, counts_as: cached, about: sealed bytes}

events:
  take:
    by: allocator
    about: Take a free slot for a new owner.
    cases:
      - {from: free, when: generation == max(generation), refuse: retired}
      - {from: free, to: filling, do: {generation: generation + 1}}
  seal:
    by: writer
    about: Everything is written; from now on it never changes.
    given: {expected: generation}
    cases:
      - {from: any, when: expected != generation, refuse: stale}
      - {from: filling, to: resident}
  abandon:
    by: writer
    about: Give up a slot that was never published.
    given: {expected: generation}
    cases:
      - {from: any, when: expected != generation, refuse: stale}
      - {from: filling, to: free}
  pin:
    by: reader
    about: Take one lease.
    given: {expected: generation}
    cases:
      - {from: any, when: expected != generation, refuse: stale}
      - {from: filling, refuse: busy}
      - {from: resident, when: pins == max(pins), refuse: too_many_readers}
      - {from: resident, do: {pins: pins + 1}}
  unpin:
    by: reader
    about: Give one lease back.
    given: {expected: generation}
    cases:
      - {from: any, when: expected != generation, refuse: stale}
      - {from: resident, when: pins == 0, refuse: not_pinned}
      - {from: resident, do: {pins: pins - 1}}
  evict:
    by: evictor
    about: Reclaim a slot that nobody holds.
    cases:
      - {from: resident, when: pins > 0, refuse: pinned}
      - {from: resident, to: free}

eviction:
  event: evict
  from: [resident]
  when: pins == 0
  structure: flat
  order:
    - {by: last_use, first: lowest}
  leaves: nothing

always:
  lease_protects: {says: S3, that: pins > 0 implies state == resident}

sometimes:
  shared: {that: pins > 1}

mutants:
  pin_ignores_generation: {event: pin, drop_case: 1}
  evict_ignores_leases:   {event: evict, drop_case: 1}
""")


def machine_text(name: str) -> str:
    """The YAML of a machine of that name (lower_snake_case)."""
    return _MACHINE.substitute(name=name, title=name.replace("_", " ").capitalize())
