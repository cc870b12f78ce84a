"""What is proved of random protocols holds at every greater size that can be explored; and a fault of the prover shows.

A protocol has a pool of blocks, those who take them, and perhaps readers. Guards and claims do with the numbers of
slots whatever the language allows, so that many are about the file's own sizes only.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from kvfsm.spec.checking import grounding, sizes
from kvfsm.spec.checking.exploration import VIOLATED
from kvfsm.spec.checking.explore import explore
from kvfsm.spec.checking.grounding import ground
from kvfsm.spec.checking.limits import Limits
from kvfsm.spec.checking.proof import prove
from kvfsm.spec.language.expressions import Count, Expr, Name

from .written import required, reread

STATES_MAX = 1_000  # a size that has more is seen in part


def random_protocol(seed: int) -> str:
    """One with four claims: of takers alone, with great numbers, or with readers, and small ones."""
    return with_takers(seed) if seed % 2 else with_readers(seed)


def with_takers(seed: int) -> str:
    pick = random.Random(seed)
    copies = pick.choice(("takers", "slots"))
    number = pick.choice(("slots", copies, "u1"))
    bounds = "{slots: 2}" if copies == "slots" else "{slots: 2, takers: 2}"
    guards = ("", "", "slot != {0}", "slot not in [0, {0}]", "max(slot) < 6", "slot != number", "slot < number + {0}")
    guard = pick.choice(guards).format(pick.choice((1, 6)))
    claims = (
        "taker.slot != {0}", "taker.slot <= {0}", "taker.number <= {0}",
        "taker.slot in [0, 1, 2, 3, 4, 5]", "block[i].pins == 0",
        "i < {0} or block[i].epoch == 0", "i <= j + {0} or block[i].epoch + block[j].epoch < 2",
        "block[1].pins == 0",
        "count(taker, taker.slot == {0}) <= 2", "taker.slot != {0} or block[i].pins == 0", "not taker.late",
    )  # fmt: skip
    return "".join(
        (
            f"protocol: random{seed}\ntitle: t\nabout: a\nbounds: {bounds}\n",
            "machines:\n  block: {machine: block, slots: slots, narrow: {pins: 1, epoch: 1}}\nactors:\n",
            f"  taker:\n    count: {copies}\n    plays: allocator\n",
            f"    locals: {{slot: slots, number: {number}, late: bool}}\n    steps:\n",
            f"      take:\n        choose: {{slot: slots, number: {number}}}\n",
            f'        when: "{guard}"\n' if guard else "",
            '        fire: [{on: "block[slot]", event: take}]\n',
            f'      again:\n        fire: [{{on: "block[slot]", event: take}}]\n'
            f'        refused: {{then: take, do: {{late: "slot == {pick.choice((1, 6))}"}}}}\n',
            "always:\n",
            *(f'  claim{n}: {{that: "{pick.choice(claims).format(pick.choice((1, 6)))}"}}\n' for n in range(4)),
        )
    )


def with_readers(seed: int) -> str:
    pick = random.Random(seed)
    copies = pick.choice(("readers", "readers", "slots", "2"))
    more = f", readers: {pick.choice((1, 2))}" if copies == "readers" else ""
    bounds = f"{{slots: {pick.choice((1, 2))}{more}}}"

    def when(*parts: str) -> str:
        guards = ("slot != {0}", "slot > {0}", "slot in [0, {0}]", "block[slot].epoch == 0", "block[slot].pins <= {0}")
        extra = [pick.choice(guards).format(pick.choice((0, 1)))] if pick.random() < 0.3 else []
        return f'        when: "{" and ".join((*parts, *extra))}"\n' if (*parts, *extra) else ""

    counted = "block[i].pins == count(reader, reader.at == done and reader.slot == i)"
    claims = (
        counted, f"{counted} and block[j].pins >= 0", f"{counted} and block[j].pins >= 0",
        "block[i].pins <= block[j].pins + {0}",
        "block[i].pins <= {0}", "block[0].pins <= {0}", "count(reader, reader.at == done) <= {0}", "reader.slot <= {0}",
        "reader.at == done implies block[reader.slot].pins > 0",
        "reader.at == done implies block[reader.slot].state != free",
        "block[i].pins <= count(reader, reader.at == done)", "reader.at == pin implies block[reader.slot].pins <= {0}",
    )  # fmt: skip
    return "".join(
        (
            f"protocol: random{seed}\ntitle: t\nabout: a\nbounds: {bounds}\n",
            "machines:\n  block: {machine: block, slots: slots, narrow: {pins: 2, epoch: 1}}\n",
            f"actors:\n  reader:\n    count: {copies}\n    plays: reader\n    locals: {{slot: slots}}\n    steps:\n",
            f"      match:\n        choose: {{slot: slots}}\n{when()}",
            f"      pin:\n{when('block[slot].state == uncompressed')}",
            '        fire: [{on: "block[slot]", event: pin, with: {expected: "block[slot].epoch"}}]\n',
            pick.choice(("", "        refused: match\n")),
            '      done:\n        fire: [{on: "block[slot]", event: unpin}]\n        do: {slot: 0}\n',
            "  taker:\n    count: 1\n    plays: allocator\n    locals: {slot: slots}\n    steps:\n",
            f"      take:\n        choose: {{slot: slots}}\n{when()}",
            '        fire: [{on: "block[slot]", event: take}]\n        do: {slot: 0}\n',
            "always:\n",
            *(f'  claim{n}: {{that: "{pick.choice(claims).format(pick.choice((1, 2, 3)))}"}}\n' for n in range(4)),
        )
    )


def greater(bounds: tuple[str, ...]) -> Iterator[dict[str, int]]:
    """Sizes of up to 3 slots, and 8 where there are takers alone, and of up to 3 copies."""
    slots = (1, 2, 3) if "readers" in bounds else (1, 2, 3, 8)
    values = {"slots": slots, "readers": (1, 2, 3), "takers": (1, 3)}
    for chosen in itertools.product(*(values[name] for name in bounds)):
        yield dict(zip(bounds, chosen, strict=True))


def broken(folder: Path, seed: int) -> tuple[int, list[tuple[str, dict[str, int]]]]:
    """How many claims of a random protocol are proved for any number of something, and those that break at a size."""
    read = reread(folder, random_protocol(seed))
    proved = {proof.name: proof for proof in prove(required(read), read).values() if proof.proved and proof.sizes}
    wrong = []
    if proved:
        for bounds in greater(next(iter(proved.values())).sizes):
            larger = read(bounds)
            if larger is not None:
                found = explore(ground(larger), engine="numpy", limits=Limits(states=STATES_MAX))
                wrong += [(name, bounds) for name, verdict in found.verdicts().items()
                          if name in proved and verdict == VIOLATED]  # fmt: skip
    return len(proved), wrong


@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 60), marks=pytest.mark.long)], ids=["few", "many"])
def test_what_is_proved_of_random_protocols_holds_at_greater_sizes(seeds: Sequence[int], tmp_path: Path) -> None:
    found = {seed: broken(tmp_path, seed) for seed in seeds}
    assert {seed: wrong for seed, (_, wrong) in found.items() if wrong} == {}
    assert sum(proved for proved, _ in found.values()) > len(seeds), "and something is proved"


# Negative controls: each undoes one part of what keeps proofs to what is alike.


def numbers_are_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sizes._Uses, "_compared", lambda *_: iter(()))


def one_number_of_others(patch: pytest.MonkeyPatch) -> None:
    """Copies that are not there are as many at each slot."""
    keyed = grounding._Grounding._others

    def shared(self: grounding._Grounding, counted: Count, claim: Expr, binding: Mapping[str, int]) -> Name:
        return keyed(self, counted, claim, dict.fromkeys(binding, 0))

    patch.setattr(grounding._Grounding, "_others", shared)


@pytest.mark.parametrize(("undo", "seed"), [(numbers_are_ignored, 5), (one_number_of_others, 14)])
def test_a_prover_without_one_of_its_safeguards_proves_what_breaks(
    undo: Callable[[pytest.MonkeyPatch], None], seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undo(monkeypatch)
    assert broken(tmp_path, seed)[1]
