"""Rules about properties: each can fail and can hold, and a free slot is provably nobody's."""

from __future__ import annotations

from .expressions import Compare, Expr, Not, Number
from .interpreter import evaluate
from .model import Machine
from .problems import Problems
from .scopes import STATE, field_name
from .solver import satisfy

PINS = "pins"  # the field that counts leases


def properties_say_something(machine: Machine, problems: Problems) -> None:
    """An ``always`` can fail on some word, a ``sometimes`` holds on some word that the ``always`` allow."""
    always = tuple(claim.that for claim in machine.properties if claim.kind == "always")
    for claim in machine.properties:
        if _never(Not(claim.that, claim.that.at)):
            text = f"property '{claim.name}' holds for every word there can be, so it says nothing"
            problems.add("E315", claim.that.at, text, "claim something that could fail")
        elif _never(claim.that):
            problems.add("E315", claim.that.at, f"property '{claim.name}' holds for no word at all", "correct it")
        elif claim.kind == "sometimes" and _never(claim.that, *always):
            text = f"property '{claim.name}' contradicts what '{machine.name}' claims to hold always"
            problems.add("E315", claim.that.at, text, "correct one of them")


def always_holds_at_first(machine: Machine, problems: Problems) -> None:
    """A fresh slot, a word of zeros, keeps every ``always``."""
    zeros = {field.name: 0 for field in machine.fields}
    for claim in machine.properties:
        if claim.kind == "always" and not evaluate(claim.that, zeros):
            text = f"property '{claim.name}' does not hold for a fresh slot, whose word is 0"
            problems.add("E316", claim.that.at, text, f"allow for state '{machine.states[0].name}' with all fields 0")


def free_states_have_no_pins(machine: Machine, problems: Problems) -> None:
    """S2: the ``always`` of a machine that counts pins say that there are none where a state counts as free."""
    if PINS not in [field.name for field in machine.fields]:
        return
    always = tuple(claim.that for claim in machine.properties if claim.kind == "always")
    pins = field_name(machine, PINS)
    pinned = Compare(">", pins, Number(0, pins.at), pins.at)
    for state in machine.states:
        if state.counts_as == "free" and satisfy((*always, pinned), {STATE: state.code}).example is not None:
            problems.add(
                "E322",
                state.at,
                f"no property says that a slot in state '{state.name}', which counts as free, has no pins (S2)",
                f"add to 'always:' {{says: S2, that: state == {state.name} implies {PINS} == 0}}",
            )


def leads_to_can_matter(machine: Machine, problems: Problems) -> None:
    """A ``leads_to`` starts from something that can be and is not yet what it leads to."""
    for claim in machine.leads_to:
        if _never(claim.source):
            problems.add("E315", claim.source.at, f"'from' of '{claim.name}' holds for no word at all", "correct it")
        elif _never(claim.target):
            problems.add("E315", claim.target.at, f"'to' of '{claim.name}' holds for no word at all", "correct it")
        elif _never(claim.source, Not(claim.target, claim.target.at)):
            text = f"'to' of '{claim.name}' holds whenever 'from' does, so it says nothing"
            problems.add("E315", claim.target.at, text, "lead to something else")


def _never(*conditions: Expr) -> bool:
    """Whether it is certain that no word makes all conditions true."""
    answer = satisfy(conditions)
    return answer.example is None and answer.proved
