"""What is proved holds for any number of slots and copies; what is not shows what stands in its way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from kvfsm.spec.checking.explore import explore
from kvfsm.spec.checking.grounding import ground
from kvfsm.spec.checking.proof import Proof, prove
from kvfsm.spec.checking.sizes import deciding_size
from kvfsm.spec.language.expressions import INT, Compare, Count, Name, Number, Remote
from kvfsm.spec.language.load import resized
from kvfsm.spec.language.model import Property
from kvfsm.spec.language.protocol import Protocol

from .shipped import mutated, spec

Claim = Callable[[Protocol], Property]


def resized_or_not(name: str, bounds: Mapping[str, int]) -> Protocol | None:
    return resized(spec(), name, bounds)[0]


def read(name: str, bounds: Mapping[str, int]) -> Protocol:
    protocol = resized_or_not(name, bounds)
    assert protocol is not None
    return protocol


def proved(name: str, **more: Claim) -> dict[str, Proof]:
    """Proofs of a shipped protocol with some properties in place of, or beside, its own."""

    def reread(bounds: Mapping[str, int]) -> Protocol | None:
        protocol = resized_or_not(name, bounds)
        if protocol is None:
            return None
        kept = tuple(item for item in protocol.properties if item.name not in more)
        return replace(protocol, properties=(*kept, *(claim(protocol) for claim in more.values())))

    protocol = reread({})
    assert protocol is not None
    return prove(protocol, reread)


def pins_at_most(most: int, name: str, kind: str) -> Claim:
    """``block[i].pins <= most``."""

    def claim(protocol: Protocol) -> Property:
        at = protocol.at
        slot = Name("i", "index", INT, protocol.instance("block").slots - 1, at)
        that = Compare("<=", Remote("block", slot, "pins", INT, 3, at), Number(most, at), at)
        return replace(protocol.properties[0], name=name, kind=kind, that=that)

    return claim


def at_match_at_most_two(protocol: Protocol) -> Property:
    """``count(reader, reader.at == match) <= 2``, true at first of two readers and of no more."""
    at = protocol.at
    waits = Compare("==", Remote("reader", None, "at", "reader.at", 3, at), Number(0, at), at)
    return replace(
        protocol.properties[0], name="few", that=Compare("<=", Count("reader", waits, 2, at), Number(2, at), at)
    )


def counted_by_blocks(protocol: Protocol) -> Property:
    """``count(reader, block[reader.slot].pins <= 3) >= 0``, which counts by what the readers do not hold."""
    at = protocol.at
    slot = Remote("reader", None, "slot", INT, 1, at)
    few = Compare("<=", Remote("block", slot, "pins", INT, 3, at), Number(3, at), at)
    that = Compare(">=", Count("reader", few, 2, at), Number(0, at), at)
    return replace(protocol.properties[0], name="counted", that=that)


def first_block_only(protocol: Protocol) -> Property:
    """``reader.slot == 0``, true where there is one block."""
    at = protocol.at
    that = Compare("==", Remote("reader", None, "slot", INT, 1, at), Number(0, at), at)
    return replace(protocol.properties[0], name="first", that=that)


def never_at_first(protocol: Protocol) -> Property:
    """``reader.at != match``."""
    at = protocol.at
    that = Compare("!=", Remote("reader", None, "at", "reader.at", 3, at), Number(0, at), at)
    return replace(protocol.properties[0], name="moving", that=that)


def test_the_reference_model_is_proved_for_any_number_of_blocks_and_readers() -> None:
    found = proved("toctou")
    assert {name: proof.proved for name, proof in found.items()} == {
        "lease_holds": True,
        "pins_count_readers": True,
        "pin_holds": True,
    }
    assert found["lease_holds"].sizes == ("slots", "readers")


def test_without_its_lemma_the_claim_is_true_and_not_inductive() -> None:
    obstacle = proved("toctou", pin_holds=pins_at_most(3, "pin_holds", "lemma"))["lease_holds"].obstacle
    assert obstacle is not None and obstacle.command is not None
    assert (obstacle.command.actor, obstacle.command.step) == ("reader", "read")
    assert obstacle.before["reader[0].at"] == 2, "it reads a block that it does not lease, which never comes to pass"


def test_a_false_lemma_is_shown_with_the_step_that_breaks_it_and_proves_nothing() -> None:
    found = proved("toctou", pin_holds=pins_at_most(0, "pin_holds", "lemma"))
    assert not found["pin_holds"].proved and not found["lease_holds"].proved
    obstacle = found["pin_holds"].obstacle
    assert obstacle is not None and obstacle.command is not None
    assert (obstacle.command.actor, obstacle.command.step) == ("reader", "pin")
    state = [obstacle.before[cell] for cell in ("reader[0].at", "reader[0].slot")]
    assert state[0] == 1 and "block" not in obstacle.binding


def test_what_holds_for_two_readers_only_is_explored_and_not_proved() -> None:
    """A claim about sizes: with two readers a block has at most two leases, with three it has three."""
    two = pins_at_most(2, "at_most_two", "always")
    protocol = spec().protocol("toctou")
    small = replace(protocol, properties=(*protocol.properties, two(protocol)))
    assert explore(ground(small), engine="numpy").verdicts()["at_most_two"] == "holds"
    assert not proved("toctou", at_most_two=two)["at_most_two"].proved


def test_what_holds_at_first_of_two_readers_only_is_not_proved() -> None:
    obstacle = proved("toctou", few=at_match_at_most_two)["few"].obstacle
    assert obstacle is not None and obstacle.at_first


def test_what_holds_of_one_block_only_is_not_proved() -> None:
    one = read("toctou", {"slots": 1})
    small = replace(one, properties=(*one.properties, first_block_only(one)))
    assert explore(ground(small), engine="numpy").verdicts()["first"] == "holds"
    assert not proved("toctou", first=first_block_only)["first"].proved


def test_a_count_by_what_the_copies_do_not_hold_is_not_proved() -> None:
    obstacle = proved("toctou", counted=counted_by_blocks)["counted"].obstacle
    assert obstacle is not None and obstacle.why is not None and not obstacle.at_first


def test_a_counterexample_is_a_state_of_the_claims_and_no_cell_of_it_can_be_less() -> None:
    obstacle = proved("toctou", pin_holds=pins_at_most(3, "pin_holds", "lemma"))["lease_holds"].obstacle
    assert obstacle is not None
    assert all(f"{cell} = " in " ".join(obstacle.told) for cell, value in obstacle.before.items() if value)
    assert sum(value > 0 for value in obstacle.before.values()) == len(obstacle.told) < 8


def test_a_claim_that_is_false_at_first_is_said_to_be() -> None:
    obstacle = proved("toctou", moving=never_at_first)["moving"].obstacle
    assert obstacle is not None and obstacle.at_first


@pytest.mark.parametrize("mutant", ["unchecked_pin", "evict_ignores_pins", "compress_ignores_pins"])
def test_a_fault_takes_the_proof_away(mutant: str) -> None:
    """Negative control: what a fault breaks is not proved of it."""

    def faulty(bounds: Mapping[str, int]) -> Protocol:
        return mutated(read("toctou", bounds), mutant)

    assert not prove(faulty({}), faulty)["lease_holds"].proved


def test_the_size_that_decides_has_room_for_every_slot_that_is_named() -> None:
    """Two readers and the compressor name a slot each, the claim one, and one is chosen beside; others keep none."""
    protocol = spec().protocol("toctou")
    assert deciding_size(protocol, lambda bounds: read("toctou", bounds)) == {"slots": 5, "readers": 2}


SLOW = ("catch_up", "evict", "fill", "pack", "publish", "read", "stream")  # many slots, and each size of them is tried


def protocols() -> list[object]:
    names = [item.name for item in spec().protocols]
    return [pytest.param(name, marks=[pytest.mark.long] if name in SLOW else []) for name in names]


@pytest.mark.parametrize("name", protocols())
def test_every_claim_and_every_lemma_that_is_shipped_is_proved(name: str) -> None:
    found = proved(name)
    assert [each for each, proof in found.items() if not proof.proved] == []
    wanted = {item.name for item in spec().protocol(name).properties if item.kind in ("always", "lemma")}
    assert wanted <= set(found)


EXPLORED_WITH_LEMMAS = ("agree", "bring", "fill", "generate", "publish", "queue", "reset", "rounds", "store", "toctou")


@pytest.mark.parametrize("name", EXPLORED_WITH_LEMMAS)
def test_lemmas_hold_in_every_state_that_is_explored(name: str) -> None:
    protocol = spec().protocol(name)
    kinds = tuple(replace(item, kind="always") if item.kind == "lemma" else item for item in protocol.properties)
    found = explore(ground(replace(protocol, properties=kinds)), engine="auto")
    assert found.complete and not found.violations


def test_more_of_a_bound_that_the_file_cannot_be_read_with_is_not_spoken_of() -> None:
    """Ranks look at the boundaries 1 and 2 only: with more windows the file would not be one."""
    found = proved("agree")
    assert found["same_boundary"].proved and found["same_boundary"].sizes == ()
