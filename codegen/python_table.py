"""The generated table of slots: one pure vectorised function an event, and the class whose methods check and call it.

An event's cases are printed from last to first: what decides without a guard is looked up by state, and each guard then
overrides what comes after it.
"""

from __future__ import annotations

from ..spec.language.bounds import INT64_MAX
from ..spec.language.digest import machine_digest
from ..spec.language.expressions import Arithmetic, Bound, Expr, Logic, Name, Number, Value
from ..spec.language.interpreter import evaluate
from ..spec.language.model import Assignment, Case, Event, Eviction, Machine
from ..spec.targets import numpy, text
from ..spec.targets.infix import Leaf, Names, plain
from ..spec.targets.lowering import reads_no_name
from .cases import fields_read, says
from .layout import WIDTH, bracketed, comment, docstring, indented, statement
from .names import class_name, constant, python_name
from .python_class import (
    argument_limit,
    method_name,
    method_notes,
    number,
    state_class,
)

# Names that a generated function uses for itself; a field or an argument of that name gets an underscore behind it.
LOCAL_NAMES = frozenset({"words", "after", "state", "case", "codes", "np", "slots", "self", "table", "meta"})


def local_name(word: str) -> str:
    """What a field or an argument is called inside a vectorised function."""
    return word if word == "state" else python_name(word, LOCAL_NAMES)


def argument_locals(machine: Machine, event: Event) -> dict[str, str]:
    """What the arguments of an event are called; never like a field, which stands beside them."""
    fields = {field.name for field in machine.fields}
    return {argument.name: python_name(argument.name, LOCAL_NAMES | fields) for argument in event.given}


def code_name(value: Value) -> str:
    """The plain int of a named value."""
    return f"_{constant(value.name)}" if value.type == "state" else f"_{constant(value.type)}_{constant(value.name)}"


def code_lines(machine: Machine) -> list[str]:
    """The codes as plain ints."""
    lines = ["# The same codes as plain ints: NumPy is several times slower with members of an enum."]
    for field in machine.fields:
        names = (
            [f"_{constant(state.name)}" for state in machine.states]
            if field.name == "state"
            else [f"_{constant(field.name)}_{constant(name)}" for name in field.names]
        )
        if names:
            comma = "," if len(names) == 1 else ""
            lines += bracketed("(", names, f") = range({len(names)})") if len(", ".join(names)) > 95 else [
                f"{', '.join(names)}{comma} = range({len(names)})"]
    return lines


def _names(machine: Machine, arguments: dict[str, str]) -> Names:
    def names(leaf: Leaf) -> str:
        match leaf:
            case Name(name=name, kind="field"):
                return local_name(name)
            case Name(name=name, kind="argument"):
                return arguments[name]
            case Name(name=name, kind="meta"):
                # As signed numbers: differences of unsigned ones wrap, and mixed ones become floats.
                return f'meta["{name}"][slots].astype(np.int64)'
            case Value():
                return code_name(leaf)
            case Bound(field=field):
                return f"MAX_{constant(field)}"
        return plain(leaf)

    return names


def function_lines(machine: Machine, event: Event) -> list[str]:
    """The tables and the pure function of one event."""
    applying = [case for case in event.cases if case.refuse is None]
    by_number = len(applying) > 1
    arguments = argument_locals(machine, event)
    names = _names(machine, arguments)
    guards = [case.when for case in event.cases]
    values = [assignment.value for case in applying for assignment in case.do if not _increment(assignment)]
    read = fields_read(*guards, *values)
    decided = "case" if by_number else "codes"
    flat = {a.name for a in event.given if a.is_bool}

    parameters = ["words: Words"] + [
        f"{arguments[a.name]}: {'Flag' if a.name in flat else 'Number'}" for a in event.given]
    lines = [*_tables(machine, event, by_number), "", ""]
    lines += bracketed(f"def _{event.name}(", parameters, ") -> tuple[Words, Codes]:")
    body = docstring(f"The event ``{event.name}`` on many words: the words after it, and the code of each")
    body += _unpacked(machine, {"state"} | read)
    tests = _state_tests(machine, event)
    body += [line for name, sources in dict(tests.values()).items() for line in statement(
        f"{name} = ", _state_test(sources), "", 4)]
    body.append(f"{decided} = _{constant(event.name)}_ELSE[state]")
    for case in reversed(event.cases):
        if case.when is None:
            continue
        outcome = str(case.number) if by_number else _code(case)
        guard = Logic("and", (_test(case, tests), case.when), case.at) if case.number in tests else case.when
        body += statement(f"{decided}[", numpy.render(guard, names), f"] = {outcome}", 4)
    if by_number:
        body.append(f"codes = _{constant(event.name)}_CODES[case]")
    changed = [case for case in applying if case.to is not None or case.do]
    if not by_number:
        result = ["return words, codes"]
        for case in applying:
            body += comment(says(event, case), 4)
            if changed:
                result = _returned(["codes == 0", _effect(machine, case, names), "words"])
        lines += indented([*body, *result])
        return lines
    for case in applying:
        body += comment(says(event, case), 4)
        effect = _effect(machine, case, names)
        if effect != "words":
            start = "words" if case is changed[0] else "after"
            body += bracketed("after = np.where(", [f"case == {case.number}", effect, start], ")", 4)
    lines += indented([*body, f"return {'after' if changed else 'words'}, codes"])
    return lines


def _returned(choice: list[str]) -> list[str]:
    """The words after the only case that applies: condition, words where it holds, words elsewhere."""
    line = f"return np.where({', '.join(choice)}), codes"
    if len(line) <= WIDTH - 4:
        return [line]
    return [*bracketed("after = np.where(", choice, ")", 4), "return after, codes"]


def _code(case: Case) -> str:
    return f"Refusal.{constant(case.refuse or 'applied')}"


def _tables(machine: Machine, event: Event, by_number: bool) -> list[str]:
    """What decides in each state when no guard fits, by state code; and the code of each case."""
    decided: dict[str, Case] = {}
    for state in machine.states:
        for case in event.cases:
            if state.name in case.sources and case.when is None:
                decided.setdefault(state.name, case)
    size = 1 << machine.field("state").bits
    illegal = "0" if by_number else "Refusal.ILLEGAL"
    items = [f"_{constant(state)}: {case.number if by_number else _code(case)}" for state, case in decided.items()]
    name = constant(event.name)
    lines = bracketed(f"_{name}_ELSE = by_state({{", items, f"}}, {illegal}, {size})")
    if by_number:
        codes = ["Refusal.ILLEGAL", *(_code(case) for case in event.cases)]
        lines += bracketed(f"_{name}_CODES = np.array([", codes, "], np.uint8)")
    return lines


def _unpacked(machine: Machine, read: set[str]) -> list[str]:
    lines = []
    for field in machine.fields:
        if field.name in read:
            mask = number((1 << field.bits) - 1)
            bits = f"words >> {field.shift} & {mask}" if field.shift else f"words & {mask}"
            lines.append(f"{local_name(field.name)} = " + (f"({bits}) != 0" if field.is_bool else bits))
    return lines


def _state_tests(machine: Machine, event: Event) -> dict[int, tuple[str, tuple[str, ...]]]:
    """The local variable, and its states, that the guard of a case is combined with, by number of the case.

    A guard that is asked in every state needs none; one below a case that always fits is not asked in its states.
    """
    taken = {field.name for field in machine.fields} | set(argument_locals(machine, event).values())
    names: dict[tuple[str, ...], str] = {}
    tests: dict[int, tuple[str, tuple[str, ...]]] = {}
    closed: set[str] = set()
    for case in event.cases:
        if case.when is None:
            closed |= set(case.sources)
            continue
        sources = tuple(source for source in case.sources if source not in closed)
        if not case.any_state or len(sources) < len(case.sources):
            short = f"is_{'_or_'.join(sources)}"
            name = python_name(short if len(short) <= 40 else f"fits_{case.number}", taken)
            tests[case.number] = (names.setdefault(sources, name), sources)
    return tests


def _test(case: Case, tests: dict[int, tuple[str, tuple[str, ...]]]) -> Name:
    return Name(tests[case.number][0], "local", "bool", 1, case.at)


def _state_test(sources: tuple[str, ...]) -> str:
    parts = [f"(state == _{constant(source)})" for source in sources]
    return parts[0][1:-1] if len(parts) == 1 else " | ".join(parts)


def _increment(assignment: Assignment) -> bool:
    """Whether an assignment adds a literal to its own field: then the word itself can be added to."""
    match assignment.value:
        case Arithmetic("+" | "-", Name(name=name, kind="field"), Number()):
            return name == assignment.field
    return False


def _effect(machine: Machine, case: Case, names: Names) -> str:
    """The word after a case. Fields that only grow by a literal are added to in place; no carry can leave them."""
    cleared = ["state"] if case.to is not None else []
    parts = []
    if case.to is not None and machine.state(case.to).code != 0:
        parts.append(f"_{constant(case.to)}")
    added = []
    for assignment in case.do:
        shift = machine.field(assignment.field).shift
        if _increment(assignment):
            assert isinstance(assignment.value, Arithmetic) and isinstance(assignment.value.right, Number)
            step = _signed(assignment.value.right.value, shift)
            added.append(f" {assignment.value.op} ({step} << {shift})")
            continue
        cleared.append(assignment.field)
        if not _is_zero(assignment.value):
            value = numpy.render(assignment.value, names)
            simple = isinstance(assignment.value, Name | Value | Number | Bound | Arithmetic)
            always = evaluate(assignment.value, {}) if reads_no_name(assignment.value) else None
            if always is not None and (always << shift > INT64_MAX or not isinstance(assignment.value, Value | Bound)):
                value, simple = str(_signed(always, shift)), True
            shifted = value if simple else f"({value})"
            flags = machine.field(assignment.field).is_bool and always is None
            whole = f"{shifted}.astype(np.int64)" if flags else shifted
            parts.append(f"({whole} << {shift})")
    kept = "words"
    if cleared:
        kept = f"words & {keep_name(tuple(cleared))}"
    result = " | ".join([kept, *parts])
    if added and " " in result:
        result = f"({result})"
    return result + "".join(added)


def _signed(value: int, shift: int) -> int:
    """The number that gives the same bits when it is moved left within a signed 64-bit word."""
    return value - (1 << 64 - shift) if value << shift > INT64_MAX else value


def _is_zero(value: Expr) -> bool:
    return reads_no_name(value) and evaluate(value, {}) == 0


def keep_name(cleared: tuple[str, ...]) -> str:
    """The constant that clears some fields."""
    return f"_ALL_BUT_{'_'.join(map(constant, cleared))}"


def keep_lines(machine: Machine) -> list[str]:
    """The constants that clear the fields which effects set."""
    found: dict[tuple[str, ...], None] = {}
    for event in machine.events:
        for case in event.cases:
            cleared = tuple((["state"] if case.to is not None else []) + [
                assignment.field for assignment in case.do if not _increment(assignment)])
            if case.refuse is None and cleared:
                found[cleared] = None
    return [line for cleared in found for line in bracketed(
        f"{keep_name(cleared)} = LAYOUT.all_but(", [f'"{field}"' for field in cleared], ")")]


def table_lines(machine: Machine) -> list[str]:
    """The class of many slots."""
    name = class_name(machine.name)
    meta = [f'"{meta.name}": np.uint{meta.bits}' for meta in machine.meta]
    kernels = [f'"{event.name}": "{event.kernel}"' for event in machine.events if event.kernel is not None]
    lines = [
        f"class {name}Table(Table):",
        *indented(docstring(f"Many slots: {machine.title[:1].lower()}{machine.title[1:]}", 4, [machine.about])),
        "",
        f'    MACHINE = "{machine.name}"',
        f'    DIGEST = "{machine_digest(machine)}"',
        "    LAYOUT = LAYOUT",
        f"    STATES = {state_class(machine)}",
        "    REFUSALS = Refusal",
        "    EVENTS = EVENTS",
        "    CASES = CASES",
        f"    SLOT = {name}",
        *indented(bracketed("META: ClassVar[Mapping[str, npt.DTypeLike]] = {", meta, "}", 4)),
        *indented(bracketed("KERNELS: ClassVar[Mapping[str, str]] = {", kernels, "}", 4)),
        f"    EVICTION = {'EVICTION' if machine.eviction is not None else 'None'}",
    ]
    for event in machine.events:
        lines += ["", *indented(_method(machine, event))]
    return lines


def _method(machine: Machine, event: Event) -> list[str]:
    arguments = {argument.name: python_name(argument.name, {"self", "slots"}) for argument in event.given}
    index = python_name("index", arguments)
    given = ["self", "slots: npt.ArrayLike", *(["*"] if arguments else []),
             *(f"{name}: npt.ArrayLike" for name in arguments.values())]
    lines = bracketed(f"def {method_name(machine, event.name)}(", given, ") -> Codes:", 4)
    lines += indented(docstring(event.about, 8, [method_notes(machine, event)]))
    lines.append(f"    {index} = self._index(slots)")
    passed = []
    for argument in event.given:
        name = arguments[argument.name]
        passed.append(
            f'self._flag("{argument.name}", {name}, {index})' if argument.is_bool else
            f'self._number("{argument.name}", {name}, {argument_limit(machine, argument)}, {index})')
    lines += indented(bracketed("return self._apply(", [f'"{event.name}"', f"_{event.name}", index, *passed], ")", 8))
    return lines


def _quoted(name: str) -> str:
    return f'"{name}"'


def eviction_lines(machine: Machine, eviction: Eviction) -> list[str]:
    """The eviction rule as data, and its guard and keys as functions."""
    names = _names(machine, {})
    lines: list[str] = []

    def function(name: str, kind: str, says: str, expression: Expr | None) -> None:
        nonlocal lines
        lines += [f"def {name}(table: Table, meta: Meta, slots: Index) -> {kind}:", *indented(docstring(says))]
        for field in machine.fields:
            if field.name in fields_read(expression):
                value = f'table.fields("{field.name}", slots)'
                lines.append(f"    {local_name(field.name)} = {value}{' != 0' if field.is_bool else ''}")
        value = numpy.render(expression, names) if expression is not None else "np.ones(len(slots), np.bool_)"
        if isinstance(expression, Name) and expression.kind == "meta":
            value = f'meta["{expression.name}"][slots]'
        lines += [*indented(statement("return ", f"np.asarray({value})", "", 4)), "", ""]

    says = "Every candidate may go" if eviction.when is None else f"May go: ``{text.render(eviction.when)}``"
    function("_eviction_guard", "Flags", says, eviction.when)
    keys = []
    for place, order in enumerate(eviction.order, start=1):
        kind = "Flags" if order.first in ("true", "false") else "Numbers"
        function(f"_eviction_key_{place}", kind, f"Key {place} of the order: ``{text.render(order.by)}``", order.by)
        keys.append(f'OrderKey("{text.render(order.by)}", _eviction_key_{place}, "{order.first}")')
    candidates = ", ".join(f"_{constant(state)}" for state in eviction.candidates)
    items = [
        f'event="{eviction.event}"',
        f"candidates=({candidates}{',' if len(eviction.candidates) == 1 else ''})",
        "guard=_eviction_guard",
        f'structure="{eviction.structure}"',
        f"order=({', '.join(keys)}{',' if len(keys) == 1 else ''})",
        f'leaves="{eviction.leaves}"',
        *([f"cascade=({', '.join(map(_quoted, eviction.cascade))},)"] if eviction.cascade else []),
    ]
    if eviction.budget is not None:
        items.append(f"budget=Shares(kind={eviction.budget.kind}, tenant={eviction.budget.tenant})")
    lines.append("EVICTION = Eviction(")
    for item in items:
        if item.startswith("order=") and len(item) > WIDTH - 6:
            lines += ["    order=(", *(f"        {key}," for key in keys), "    ),"]
        else:
            lines.append(f"    {item},")
    return [*lines, ")"]
