"""Texts to start from: the README of a spec of one's own, and a machine with a short life, sound as it stands."""

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
  structure: leaf_first
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


_README = """\
# A spec of your own

A copy of the spec that kvfsm is made from, to edit. `kvfsm gen` turns it into Python classes, CUDA headers, diagrams
and tests; `kvfsm check` tries every interleaving of its protocols, and tells how a claim breaks.

    vocabulary.yaml       who acts, and why an event is refused: words shared by all machines
    objects/              one machine per kind of cache object
    safeguards/           machines of what is kept besides objects: captured graphs, the memory under them
    protocols/            how actors use the machines, step by step, with the window between check and use left open
    protocols/machines/   machines that only protocols use: nothing is generated from them
    models/               layer groups, ratios, windows and page layouts of the models that are served
    *.schema.json         JSON Schemas for editors; each file names its own in its first line

After each change: `kvfsm lint --spec DIR`, then `kvfsm check PROTOCOL --spec DIR`. This page is the language; what it
says of `language/` stands in the package `kvfsm.spec`.

"""
_LANGUAGE = "## A machine\n"  # where the page of the language begins to be about any spec


def readme_text(shipped: str) -> str:
    """The README of a copy: what is in it, and the language, from the shipped spec's own README."""
    _, heading, language = shipped.partition(_LANGUAGE)
    assert heading, f"the README of the spec has no heading {_LANGUAGE!r}"
    return _README + heading + language


def machine_text(name: str) -> str:
    """The YAML of a machine of that name (lower_snake_case)."""
    return _MACHINE.substitute(name=name, title=name.replace("_", " ").capitalize())
