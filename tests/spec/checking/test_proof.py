"""What is proved holds for any number of slots and copies; what is not shows what stands in its way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

import pytest

from kvfsm.spec.checking.explore import explore
from kvfsm.spec.checking.grounding import ground
from kvfsm.spec.checking.proof import Proof, deciding_size, prove
from kvfsm.spec.language.expressions import INT, Compare, Name, Number, Remote
from kvfsm.spec.language.load import Spec, load_spec, resized
from kvfsm.spec.language.model import Property
from kvfsm.spec.language.narrowing import with_event
from kvfsm.spec.language.protocol import Protocol

Claim = Callable[[Protocol], Property]


@cache
def spec() -> Spec:
    return load_spec().required()


def read(name: str, bounds: Mapping[str, int]) -> Protocol:
    protocol, problems = resized(spec(), name, bounds)
    assert protocol is not None, list(problems)
    return protocol


def proved(name: str, **more: Claim) -> dict[str, Proof]:
    """Proofs of a shipped protocol with some properties in place of, or beside, its own."""

    def reread(bounds: Mapping[str, int]) -> Protocol:
        protocol = read(name, bounds)
        kept = tuple(item for item in protocol.properties if item.name not in more)
        return replace(protocol, properties=(*kept, *(claim(protocol) for claim in more.values())))

    return prove(reread({}), reread)


def pins_at_most(most: int, name: str, kind: str) -> Claim:
    """``block[i].pins <= most``."""

    def claim(protocol: Protocol) -> Property:
        at = protocol.at
        slot = Name("i", "index", INT, protocol.instance("block").slots - 1, at)
        that = Compare("<=", Remote("block", slot, "pins", INT, 3, at), Number(most, at), at)
        return replace(protocol.properties[0], name=name, kind=kind, that=that)

    return claim


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


def test_a_claim_that_is_false_at_first_is_said_to_be() -> None:
    obstacle = proved("toctou", moving=never_at_first)["moving"].obstacle
    assert obstacle is not None and obstacle.at_first


@pytest.mark.parametrize("mutant", ["unchecked_pin", "evict_ignores_pins", "compress_ignores_pins"])
def test_a_fault_takes_the_proof_away(mutant: str) -> None:
    """Negative control: what a fault breaks is not proved of it."""

    def faulty(bounds: Mapping[str, int]) -> Protocol:
        protocol = read("toctou", bounds)
        events = dict(next(item for item in protocol.mutants if item.name == mutant).faulty)
        instances = tuple(
            replace(item, machine=with_event(item.machine, events[item.name])) for item in protocol.instances
        )
        return replace(protocol, instances=instances)

    assert not prove(faulty({}), faulty)["lease_holds"].proved


def test_the_size_that_decides_has_room_for_every_slot_that_is_named() -> None:
    """Two readers and the compressor name a slot each, the claim one, and one is chosen beside; others keep none."""
    protocol = spec().protocol("toctou")
    assert deciding_size(protocol, lambda bounds: read("toctou", bounds)) == {"slots": 5, "readers": 2}


@pytest.mark.parametrize("protocol", [item.name for item in load_spec().required().protocols])
def test_what_is_proved_is_never_found_violated(protocol: str) -> None:
    found = {name for name, proof in proved(protocol).items() if proof.proved}
    assert found, "what machines claim of every slot is inductive"
    violated = explore(ground(spec().protocol(protocol)), engine="numpy").violations
    assert not found & set(violated)
