"""Whether a machine that was read makes sense. One function per rule, in the ``*_rules`` modules; this lists them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .event_rules import (
    assignments_fit,
    cases_are_complete,
    cases_can_fit,
    free_slots_are_taken_anew,
    mutants_are_sound,
    stale_handles_are_refused,
)
from .eviction_rules import (
    candidates_are_evictable,
    cascades_name_kinds,
    eviction_is_possible,
    eviction_takes_no_arguments,
    order_is_sensible,
    picks_are_taken,
    rule_fits_the_hit_policy,
    rule_rests_on_what_is_kept,
)
from .model import Machine, Vocabulary
from .name_rules import machines_stay_apart, names_stay_apart, refusals_stay_apart
from .problems import Problems
from .property_rules import (
    always_holds_at_first,
    free_states_have_no_pins,
    leads_to_can_matter,
    properties_say_something,
)
from .state_rules import (
    first_state_is_initial,
    marks_agree,
    memory_comes_back,
    states_are_reachable,
)

Rule = Callable[[Machine, Problems], None]

# What keeps words other than those of objects safe is for their protocols to claim.
OF_OBJECTS: frozenset[Rule] = frozenset({free_states_have_no_pins})
# And no code is generated from a machine that only protocols use.
OF_GENERATED: frozenset[Rule] = OF_OBJECTS | {names_stay_apart}

RULES: tuple[Rule, ...] = (
    names_stay_apart,
    first_state_is_initial,
    marks_agree,
    states_are_reachable,
    memory_comes_back,
    cases_are_complete,
    cases_can_fit,
    assignments_fit,
    free_slots_are_taken_anew,
    stale_handles_are_refused,
    mutants_are_sound,
    candidates_are_evictable,
    eviction_takes_no_arguments,
    eviction_is_possible,
    picks_are_taken,
    order_is_sensible,
    rule_rests_on_what_is_kept,
    rule_fits_the_hit_policy,
    properties_say_something,
    always_holds_at_first,
    free_states_have_no_pins,
    leads_to_can_matter,
)


def check_machine(machine: Machine, problems: Problems, faults: Problems | None = None) -> None:
    """Note every rule that a machine breaks; what its mutants break is noted in ``faults``, if they are given."""
    _check(machine, frozenset(), problems, faults)


def check_safeguard(
    machine: Machine, objects: Sequence[Machine], problems: Problems, faults: Problems | None = None
) -> None:
    """Note every rule that a machine of ``safeguards/`` breaks, and a name that an object has already."""
    _check(machine, OF_OBJECTS, problems, faults)
    _stands_apart(machine, objects, problems)


def check_protocol_machine(
    machine: Machine, generated: Sequence[Machine], problems: Problems, faults: Problems | None = None
) -> None:
    """Note every rule that a machine of ``protocols/machines/`` breaks, and a name that another has already."""
    _check(machine, OF_GENERATED, problems, faults)
    _stands_apart(machine, generated, problems)


def _check(machine: Machine, left_out: frozenset[Rule], problems: Problems, faults: Problems | None) -> None:
    for rule in RULES:
        if rule not in left_out:
            rule(machine, faults if faults is not None and rule is mutants_are_sound else problems)


def _stands_apart(machine: Machine, others: Sequence[Machine], problems: Problems) -> None:
    for other in others:
        if other.name == machine.name:
            text = f"machine '{machine.name}' is named as the one in {other.path}"
            problems.add("E419", machine.at, text, "use another name, for the file as well")


def check_vocabulary(
    vocabulary: Vocabulary,
    generated: Sequence[Machine],
    protocol_machines: Sequence[Machine],
    problems: Problems,
    unused: Problems | None = None,
) -> None:
    """Note names of several files that meet in generated code; in ``unused``, if given, words that no machine uses."""
    unused = problems if unused is None else unused
    machines = (*generated, *protocol_machines)
    refusals_stay_apart(vocabulary, problems)
    machines_stay_apart(generated, problems)
    cascades_name_kinds(generated, problems)
    actors = {actor for machine in machines for event in machine.events for actor in event.by}
    refusals = {case.refuse for machine in machines for event in machine.events for case in event.cases}
    for actor in vocabulary.actors:
        if actor.name not in actors:
            unused.add("E311", actor.at, f"no event is fired by actor '{actor.name}'", "use the word, or remove it")
    for word in vocabulary.refusals[1:]:
        if word.name not in refusals:
            unused.add("E311", word.at, f"no case refuses as '{word.name}'", "use the word, or remove it")
