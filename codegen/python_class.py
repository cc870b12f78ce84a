"""The generated class of one slot: a property a field, a method an event, and the cases as data."""

from __future__ import annotations

from ..spec.language.coverage import argument_max
from ..spec.language.expressions import Bound, Expr, Name, Value
from ..spec.language.model import Argument, Case, Event, Field, Machine
from ..spec.language.trees import walked
from ..spec.targets import python
from ..spec.targets.infix import Leaf, Names, plain
from .cases import Arm, certain, effect_text, guard_text, refusals_of, says, shape
from .layout import bracketed, comment, docstring, flowed, indented, joined, statement
from .names import class_name, constant, python_name

PROMISE = (
    "Each event returns None when it was applied, else why it was refused; a state that does not take it raises "
    "IllegalEvent, a value beyond its field FieldOverflow."
)
# What the base classes mean by these names; a field or an event of that name gets an underscore behind it.
RESERVED = frozenset(
    "word slot_id state_name takes machine fire property "  # of a slot, and what its class is written with
    "words on_event whole fields states count_by_state slot explain check_stands_for".split()  # of a table
)


def state_class(machine: Machine) -> str:
    """Name of the enum of states."""
    return f"{class_name(machine.name)}State"


def field_class(machine: Machine, field: str) -> str:
    """Name of the enum of a named field's values; the enum of states for ``state``."""
    return class_name(machine.name) + class_name(field)


def property_name(field: str) -> str:
    """What a field's property is called."""
    return python_name(field, RESERVED)


def method_name(machine: Machine, event: str) -> str:
    """What an event's method is called, in the class of one slot and in the table."""
    return python_name(event, RESERVED | {field.name for field in machine.fields})


def argument_type(machine: Machine, argument: Argument) -> str:
    """The Python type of one value of an argument."""
    if argument.is_bool:
        return "bool"
    if argument.like is not None and machine.field(argument.like).names:
        return field_class(machine, argument.like)
    return "int"


def argument_limit(machine: Machine, argument: Argument) -> str:
    """The greatest value of an argument as generated code writes it: by name where a field of numbers has it."""
    if argument.like is None or argument_type(machine, argument) != "int":
        return number(argument_max(machine, argument))
    return f"MAX_{constant(argument.like)}"


def argument_name(argument: str) -> str:
    """What an argument is called."""
    return python_name(argument, {"self", "slot", "slots"})


def named_code(machine: Machine, value: Value) -> str:
    """An enum member."""
    owner = state_class(machine) if value.type == "state" else field_class(machine, value.type)
    return f"{owner}.{constant(value.name)}"


def slot_names(machine: Machine, owner: str) -> Names:
    """How expressions read a slot that is called ``owner``."""

    def names(leaf: Leaf) -> str:
        match leaf:
            case Name(name=name, kind="field"):
                return f"{owner}.{property_name(name)}"
            case Name(name=name, kind="argument"):
                return argument_name(name)
            case Value():
                return named_code(machine, leaf)
            case Bound(field=field):
                return f"MAX_{constant(field)}"
        return plain(leaf)

    return names


def class_lines(machine: Machine) -> list[str]:
    """The class of one slot."""
    name = class_name(machine.name)
    lines = [
        f"class {name}(Slot):",
        *indented(docstring(f"One slot: {machine.title[:1].lower()}{machine.title[1:]}", more=[PROMISE])),
        "",
        "    __slots__ = ()",
        "",
        f'    MACHINE = "{machine.name}"',
        "    LAYOUT = LAYOUT",
        f"    STATES = {state_class(machine)}",
        "    REFUSALS = Refusal",
        "    EVENTS = EVENTS",
    ]
    for field in machine.fields:
        lines += ["", *indented(_property(machine, field))]
    for event in machine.events:
        lines += ["", *indented(_method(machine, event))]
    return lines


def event_lines(machine: Machine) -> list[str]:
    """``EVENTS``: methods and arguments as data."""
    lines = ["EVENTS = {"]
    for event in machine.events:
        items = [
            f'Given("{a.name}", {argument_type(machine, a)}, {argument_limit(machine, a)})' for a in event.given
        ]
        given = f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
        line = f'    "{event.name}": Event("{method_name(machine, event.name)}", {given}),'
        if len(line) > 120:
            head = f'    "{event.name}": Event("{method_name(machine, event.name)}", ('
            lines += [head, *(f"        {item}," for item in items), "    )),"]
        else:
            lines.append(line)
    return [*lines, "}"]


def case_lines(machine: Machine) -> list[str]:
    """``CASES``, and its hand-over to the class."""
    lines = ["CASES: tuple[Case, ...] = ("]
    for event in machine.events:
        for case in event.cases:
            lines += indented(_case(machine, event, case))
    return [*lines, ")", f"{class_name(machine.name)}.CASES = CASES"]


def _property(machine: Machine, field: Field) -> list[str]:
    mask = number((1 << field.bits) - 1)
    bits = f"self.word >> {field.shift} & {mask}" if field.shift else f"self.word & {mask}"
    if field.name == "state":
        kind, value = state_class(machine), f"{state_class(machine)}({bits})"
    elif field.is_bool:
        kind, value = "bool", f"bool({bits})"
    elif field.names:
        kind, value = field_class(machine, field.name), f"{field_class(machine, field.name)}({bits})"
    else:
        kind, value = "int", bits
    about = field.about or ("Where the slot is in its life" if field.name == "state" else f"The field ``{field.name}``")
    place = f"{about.rstrip('.')}: bits [{field.shift}, {field.shift + field.bits})."
    return ["@property", f"def {property_name(field.name)}(self) -> {kind}:", *indented(docstring(place, 8)),
            f"    return {value}"]


def _method(machine: Machine, event: Event) -> list[str]:
    parameters = [f"{argument_name(a.name)}: {argument_type(machine, a)}" for a in event.given]
    given = ["self", *(["*"] if parameters else []), *parameters]
    lines = bracketed(f"def {method_name(machine, event.name)}(", given, ") -> Refusal | None:", 4)
    lines += indented(docstring(event.about, 8, [method_notes(machine, event)]))
    for argument in event.given:
        if argument_type(machine, argument) == "int":
            name = argument_name(argument.name)
            lines.append(f'    check_number("{argument.name}", {name}, {argument_limit(machine, argument)})')
    form = shape(machine, event)
    for case in form.first:
        lines += indented(_case_body(machine, event, case, case.sources, 8))
    if not form.arms:
        if not certain(form.first):
            lines.append(f'    raise self._illegal("{event.name}")')
        return lines
    lines.append(f"    match self.{property_name('state')}:")
    for arm in form.arms:
        lines += indented(_arm(machine, event, arm), 8)
    covered = {state for arm in form.arms for state in arm.states}
    if covered != {state.name for state in machine.states}:
        lines.append("        case _:")
        for case in form.rest:
            lines += indented(_case_body(machine, event, case, case.sources, 16), 12)
        if not certain(form.rest):
            lines.append(f'            raise self._illegal("{event.name}")')
    return lines


def method_notes(machine: Machine, event: Event) -> str:
    """Who fires an event, from which states, and how it refuses."""
    actors = joined(event.by)
    notes = f"Fired by: {actors}. Taken in: {', '.join(event.listed())}."
    refused = refusals_of(event)
    return notes + (f" Refused as: {', '.join(refused)}." if refused else "")


def _arm(machine: Machine, event: Event, arm: Arm) -> list[str]:
    members = [f"{state_class(machine)}.{constant(state)}" for state in arm.states]
    one_line = f"case {' | '.join(members)}:"
    lines = [one_line] if len(one_line) <= 108 else [
        "case (", *(f"    {'| ' if i else ''}{member}" for i, member in enumerate(members)), "):"]
    for case in arm.cases:
        lines += indented(_case_body(machine, event, case, arm.states, 16))
    if not certain(arm.cases):
        lines.append(f'    raise self._illegal("{event.name}")')
    return lines


def _case_body(machine: Machine, event: Event, case: Case, states: tuple[str, ...], indent: int) -> list[str]:
    """One case: its guard, if it has one, then what it does."""
    guarded = case.when is not None
    body = _outcome(machine, event, case, states, indent + (4 if guarded else 0))
    if case.when is None:
        return body
    condition = python.render(case.when, slot_names(machine, "self"))
    return [*statement("if ", condition, ":", indent), *indented(body)]


def _outcome(machine: Machine, event: Event, case: Case, states: tuple[str, ...], indent: int) -> list[str]:
    if case.refuse is not None:
        return [f"return Refusal.{constant(case.refuse)}"]
    lines = comment(says(event, case, states), indent)
    sets = [f"state={state_class(machine)}.{constant(case.to)}"] if case.to is not None else []
    for assignment in case.do:
        sets.append(f"{assignment.field}={python.render(assignment.value, slot_names(machine, 'self'))}")
    if sets:
        lines += bracketed("self._set(", sets, ")", indent)
    return [*lines, "return None"]


def _case(machine: Machine, event: Event, case: Case) -> list[str]:
    names = slot_names(machine, "slot")
    parameters = ", ".join(["slot", *(argument_name(argument.name) for argument in event.given)])

    def function(body: str) -> str:
        return f"lambda {parameters}: {body}"

    when = case.when
    states = ", ".join(f'"{state}"' for state in case.sources)
    items = [
        f'"{event.name}"',
        str(case.number),
        "ALL" if case.any_state else f"({states},)" if len(case.sources) == 1 else f"({states})",
        f'"{guard_text(case)}"',
        "always" if when is None else function(python.render(when, names)),
    ]
    if case.to is not None:
        items.append(f'to="{case.to}"')
    if case.do:
        sets = ", ".join(f'"{a.field}": {python.render(a.value, names)}' for a in case.do)
        items += [f'do="{effect_text(case)}"', f"effect={function(f'{{{sets}}}')}"]
    if case.refuse is not None:
        items.append(f'refusal="{case.refuse}"')
    if case.any_state and when is not None:
        items.append("lists=False")
    return flowed("Case(", items, "),", 4)


def uses_bound(machine: Machine) -> tuple[str, ...]:
    """Fields whose greatest value guards, effects or arguments mention, in the order of the word."""
    found: set[str] = set()
    expressions: list[Expr | None] = []
    for event in machine.events:
        found |= {given.like for given in event.given if given.like and argument_type(machine, given) == "int"}
        expressions += [case.when for case in event.cases]
        expressions += [assignment.value for case in event.cases for assignment in case.do]
    if machine.eviction is not None:
        expressions += [machine.eviction.when, *(order.by for order in machine.eviction.order)]
    for expression in expressions:
        if expression is not None:
            found |= {part.field for part in walked(expression) if isinstance(part, Bound)}
    return tuple(field.name for field in machine.fields if field.name in found)


def number(value: int) -> str:
    """A number as a person writes it: masks and greatest values in hexadecimal."""
    return str(value) if value < 10 else f"0x{value:X}"
