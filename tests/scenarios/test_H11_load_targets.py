"""H-11: the target of a loaded block is the request's block of the same index, never one counted from the end.

With one fresh block at the end of the list, taking the last blocks as targets is off by one, and every reader gets
bytes of the block before.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvfsm.runtime.chunks import plan_load
from kvfsm.runtime.matching import Matcher

BLOCK, KV = 32, "compressed_kv"


def scenario(bench: Any, open_store: Any, tokens: int, computed: int, external: int) -> None:
    profile = bench.profile(BLOCK, bench.group("full", KV, BLOCK, BLOCK))
    store, prompt = open_store(profile), bench.tokens(tokens)
    known = (computed + external) // BLOCK
    writer = bench.manager(profile, 16, store=store)
    for place in range(known):
        bench.put(writer, writer.keys(prompt), place, place + 1, tag=place + 1)
    manager = bench.manager(profile, 16, store=store, writes="none")
    keys = manager.keys(prompt)
    for place in range(computed // BLOCK):
        bench.put(manager, keys, place, place + 1, tag=place + 1)

    answer = manager.match(keys)
    assert (answer.now, answer.length) == (computed, computed + external)
    places = answer.plan.wanted[KV].tolist()
    # sign of the defect: the last blocks of the list, [D, E] or [F]
    assert places == list(range(computed // BLOCK, known))
    assert places == list(plan_load(computed, computed + external, BLOCK).blocks)
    ticket = manager.load_begin(answer.plan)
    targets = ticket.slots(KV).tolist()
    assert bench.read_in(manager, ticket, KV) == []
    ticket.land(KV)
    ticket.done()

    row = manager.requests.admit(tokens, lease=manager.acquire(manager.match(keys)))
    table = manager.requests.table(KV, [row])[0].tolist()
    assert len(table) == -(-tokens // BLOCK) and [table[place] for place in places] == targets
    rows = manager.read(KV, "rows", 0, manager.requests.table(KV, [row])[0])
    for place in range(known):
        assert (rows[place] == place + 1).all()  # each block has the bytes of its own index
    bench.audited(manager)


def test_H11_the_earliest_missing_stretch_is_loaded(bench: Any, open_store: Any) -> None:
    scenario(bench, open_store, tokens=65, computed=0, external=64)  # [C, D, E]: C and D


def test_H11_a_stretch_in_the_middle_is_loaded(bench: Any, open_store: Any) -> None:
    scenario(bench, open_store, tokens=97, computed=32, external=32)  # [C, D, E, F]: D


def test_H11_control_targets_from_the_end_are_noticed(
    bench: Any, open_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Matcher._plan

    def from_the_end(self: Matcher, *arguments: Any) -> Any:
        made = plan(self, *arguments)
        return made and replace(made, wanted={kind: places + 1 for kind, places in made.wanted.items()})

    monkeypatch.setattr(Matcher, "_plan", from_the_end)
    with pytest.raises(AssertionError, match=r"\[1, 2\] == \[0, 1\]"):
        scenario(bench, open_store, tokens=65, computed=0, external=64)
