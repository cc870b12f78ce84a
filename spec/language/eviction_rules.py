"""Rules about eviction: the rule picks what the event takes, and orders it by something."""

from __future__ import annotations

from collections.abc import Sequence

from .bounds import type_of
from .coverage import paths, selects
from .expressions import BOOL, INT, Expr, Not
from .kept import KEPT
from .model import HitPolicy, Machine
from .problems import Problems, closest
from .scopes import STATE
from .solver import satisfy
from .trees import names_in


def candidates_are_evictable(machine: Machine, problems: Problems) -> None:
    """The candidates of the rule are exactly the states marked evictable."""
    marked = [state for state in machine.states if state.evictable]
    if machine.eviction is None:
        for state in marked:
            text = f"state '{state.name}' is evictable, but '{machine.name}' has no eviction rule"
            problems.add("E313", state.at, text, "add 'eviction:', or remove the mark")
        return
    candidates = machine.eviction.candidates
    for state in marked:
        if state.name not in candidates:
            text = f"state '{state.name}' is evictable, but the eviction rule does not name it"
            problems.add("E313", state.at, text, "add it to 'from' of the eviction rule, or remove the mark")
    for name in dict.fromkeys(candidates):
        if not machine.state(name).evictable:
            text = f"the eviction rule names state '{name}', which is not evictable"
            fix = f"mark '{name}' with 'evictable: true', or take it out of 'from'"
            problems.add("E313", machine.eviction.at, text, fix)


def eviction_takes_no_arguments(machine: Machine, problems: Problems) -> None:
    """The event of the rule has no arguments: nobody could give them."""
    if machine.eviction is None:
        return
    event = machine.event(machine.eviction.event)
    for argument in event.given:
        text = f"event '{event.name}' carries out eviction, but wants argument '{argument.name}'"
        problems.add("E314", argument.at, text, "an eviction event takes no arguments")


def eviction_is_possible(machine: Machine, problems: Problems) -> None:
    """In every candidate state, some word passes the rule's guard and is freed by its event."""
    eviction = machine.eviction
    if eviction is None:
        return
    event = machine.event(eviction.event)
    guard = () if eviction.when is None else (eviction.when,)
    free = {state.name for state in machine.states if state.counts_as == "free"}
    if not free:  # said by marks_agree
        return
    for name in dict.fromkeys(eviction.candidates):
        freeing = [
            path
            for path in paths(machine, event)
            if path.state == name and path.case is not None and path.case.refuse is None and path.case.to in free
        ]
        if not freeing:
            text = f"event '{event.name}' never frees a slot in state '{name}', which the eviction rule names"
            problems.add("E314", eviction.at, text, f"add a case {{from: {name}, to: {machine.states[0].name}}}")
        elif all(selects(machine, path, *guard).example is None for path in freeing):
            text = f"the eviction rule picks no slot in state '{name}' that '{event.name}' would free"
            problems.add("E314", eviction.at, text, "change the guard of the rule, or that of the event")


def picks_are_taken(machine: Machine, problems: Problems) -> None:
    """Whatever passes the rule's guard, its event does not refuse."""
    eviction = machine.eviction
    if eviction is None:
        return
    event = machine.event(eviction.event)
    guard = () if eviction.when is None else (eviction.when,)
    for path in paths(machine, event):
        if path.state not in eviction.candidates or path.refusal is None:
            continue
        if path.case is not None and selects(machine, path, *guard).example is not None:
            at = eviction.when.at if eviction.when is not None else eviction.at
            text = f"the eviction rule picks slots in '{path.state}' that '{event.name}' refuses as '{path.refusal}'"
            problems.add("E314", at, text, "let the guard of the rule leave them out")


def order_is_sensible(machine: Machine, problems: Problems) -> None:
    """Each key of the order has a type that its ``first`` fits, and tells slots apart."""
    eviction = machine.eviction
    if eviction is None:
        return
    for number, order in enumerate(eviction.order, start=1):
        wanted = INT if order.first in ("lowest", "highest") else BOOL
        found = type_of(order.by)
        if found != wanted:
            fix = (
                "write 'first: lowest' or 'first: highest'" if found == INT else "write 'first: true' or 'first: false'"
            )
            if found not in (INT, BOOL):
                fix = "compare it with a value, such as state == expired"
            problems.add("E313", order.at, f"key {number} of the eviction order cannot have '{order.first}' first", fix)
        elif not any(names_in(order.by)) or (found == BOOL and _constant(machine, order.by)):
            text = f"key {number} of the eviction order is the same for all candidates"
            problems.add("E313", order.at, text, "remove it")


def rule_rests_on_what_is_kept(machine: Machine, problems: Problems) -> None:
    """Every meta field that guard, order or budget reads is one that the runtime keeps, and wide enough for it."""
    eviction = machine.eviction
    if eviction is None or machine.hit is None:
        return
    kept, meta = KEPT[machine.hit], {field.name: field for field in machine.meta}
    keys = enumerate(eviction.order, start=1)
    read = [(order.by, f"key {number} of the eviction order", order.at) for number, order in keys]
    if eviction.when is not None:
        read.append((eviction.when, "the guard of the eviction rule", eviction.when.at))
    for expression, what, at in read:
        for name in dict.fromkeys(name.name for name in names_in(expression)):
            if name in meta and name not in kept:
                text = f"{what} reads '{name}', which nobody keeps"
                problems.add("E323", at, text, f"the runtime keeps {', '.join(kept)}")
    for name, field in meta.items():
        if name in kept and field.bits < kept[name][0]:
            text = f"meta field '{name}' has {field.bits} bits, and the runtime keeps {kept[name][0]} in it"
            problems.add("E323", field.at, text, f"make it u{kept[name][0]}")
    if eviction.budget is None:
        return
    if eviction.budget.tenant is not None and "tenant" in kept and "tenant" not in meta:
        text = "the budget is for each tenant, and the machine doesn't say whose a slot is"
        problems.add("E323", eviction.budget.at, text, "add to 'meta:'  tenant: u32")


def rule_fits_the_hit_policy(machine: Machine, problems: Problems) -> None:
    """Pages go from the end of a chain, stored ones too, all else anywhere; only pools have budgets and cascades."""
    eviction = machine.eviction
    if eviction is None or machine.hit is None:
        return
    wanted = "flat" if machine.hit is HitPolicy.TRAILING_PAGES else "leaf_first"
    if eviction.structure != wanted:
        text = f"the structure is '{eviction.structure}', and the kind is asked for {machine.hit.value}"
        problems.add("E313", eviction.keys["structure"], text, f"write 'structure: {wanted}'")
    if machine.hit is not HitPolicy.ALL_PAGES and eviction.cascade:
        text = "something goes with these slots, but nothing hangs on them"
        fix = "only pages that a hit asks for from the first on may have 'cascade:'"
        problems.add("E313", eviction.keys["cascade"], text, fix)
    if machine.hit is HitPolicy.BY_KIND:
        if eviction.budget is not None:
            problems.add("E313", eviction.budget.at, "a store has no pool to share", "leave 'budget:' out")
        if eviction.leaves != "nothing":
            text = f"what a store evicts leaves nothing, and not '{eviction.leaves}'"
            problems.add("E313", eviction.keys["leaves"], text, "write 'leaves: nothing'")


def cascades_name_kinds(machines: Sequence[Machine], problems: Problems) -> None:
    """What goes with a slot is of another kind that has slots in fast memory."""
    kinds = [machine.name for machine in machines if machine.hit not in (None, HitPolicy.BY_KIND)]
    for machine in machines:
        for name in machine.eviction.cascade if machine.eviction is not None else ():
            if name not in kinds or name == machine.name:
                assert machine.eviction is not None
                text = f"'{name}' goes with '{machine.name}', and is no other kind with slots in memory"
                others = [kind for kind in kinds if kind != machine.name]
                problems.add("E313", machine.eviction.at, text, closest(name, others, "name such a kind"))


def _constant(machine: Machine, condition: Expr) -> bool:
    """Whether a condition has the same value for every candidate."""
    assert machine.eviction is not None
    codes = [machine.state(name).code for name in machine.eviction.candidates]
    holds = any(satisfy((condition,), {STATE: code}).example is not None for code in codes)
    fails = any(satisfy((Not(condition, condition.at),), {STATE: code}).example is not None for code in codes)
    return not (holds and fails)
