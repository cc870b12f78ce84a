"""CUDA of a spec: refusal codes, one header a machine with its word and transitions, and those of all by number.

The headers stand on ``kernels/cuda/kvfsm_base.cuh`` and include nothing. Layout constants are enumerators rather than
variables: a header may hold many that one kernel does not use, and compilers warn of unused variables only.
"""

from __future__ import annotations

from ..spec.language.expressions import Bound, Name, Value
from ..spec.language.load import Spec
from ..spec.language.model import Case, Event, Machine, Vocabulary
from ..spec.targets import cuda
from ..spec.targets.infix import Leaf, Names, plain
from .cases import Arm, certain, fields_read, names_read, refusals_of, says, shape
from .cuda_events import events_header
from .layout import WIDTH, comment, header, indented, paragraph, source_of, text_of
from .names import c_name, class_name, k_name

FOLDER = "kernels/generated"
PROMISE = (
    "Each function sets `*next` to the word after the event and returns kv_refusal::kApplied, or returns why the event "
    "is refused and leaves the word as it was. Arguments must lie in the range of their field."
)
FUNCTION_NAMES = frozenset({"word", "next"})  # parameters of every transition function


def emit(spec: Spec) -> dict[str, str]:
    """The headers, in the order in which a translation unit takes them."""
    texts = {f"{FOLDER}/refusal.cuh": refusal_header(spec.vocabulary, f"{spec.root.name}/vocabulary.yaml")}
    for machine in spec.machines:
        texts[f"{FOLDER}/{machine.name}.cuh"] = machine_header(machine)
    texts[f"{FOLDER}/events.cuh"] = events_header(spec)
    return texts


def refusal_header(vocabulary: Vocabulary, source: str) -> str:
    """Why events are refused."""
    lines = [
        *_opening("refusal", source),
        "// Why an event was refused; kApplied means that it was not.",
        "namespace kv_refusal {",
        "enum Code : kv_u8 {",
        "  kApplied = 0,",
    ]
    for word in vocabulary.refusals:
        lines.append(f"  {k_name(word.name)} = {word.code},  // {word.about}")
    return _text([*lines, "};", "}  // namespace kv_refusal", *_closing("refusal")])


def machine_header(machine: Machine) -> str:
    """One machine: states, named values, layout, transition functions."""
    space = f"kv_{machine.name}"
    lines = [
        *_opening(machine.name, source_of(machine)),
        *comment(f"{machine.title}. {machine.about}", mark="//"),
        f"namespace {space} {{",
        "",
        "enum State : kv_u8 {",
    ]
    lines += [f"  {k_name(state.name)} = {state.code},{_remark(state.about)}" for state in machine.states]
    lines += ["};", ""]
    for field in machine.fields:
        if field.names:
            lines += [f"enum {class_name(field.name)} : kv_u8 {{"]
            lines += [f"  {k_name(field.name, name)} = {code}," for code, name in enumerate(field.names)]
            lines += ["};", ""]
    lines += ["// The word, from the low bit up: where each field starts, its bits at the low end, its greatest value.",
              "enum Layout : kv_u64 {"]
    for field in machine.fields:
        high = len(machine.states) - 1 if field.name == "state" else field.max
        name = field.name
        lines.append(f"  {k_name(name, 'shift')} = {field.shift}, {k_name(name, 'bits')} = {field.bits}, "
                     f"{k_name(name, 'mask')} = 0x{(1 << field.bits) - 1:X}, {k_name(name, 'max')} = 0x{high:X},")
    lines += [f"  kWordBits = {machine.bits},", "};", ""]
    lines += _layout_checks(machine)
    lines += ["", f"}}  // namespace {space}", ""]
    lines += comment(PROMISE, mark="//")
    for event in machine.events:
        lines += ["", *_function(machine, event)]
    return _text([*lines, *_closing(machine.name)])


def _text(lines: list[str]) -> str:
    """The header; a comment that ends in a backslash would swallow the next line."""
    return text_of(f"{line}." if line.rstrip().endswith("\\") else line for line in lines)


def _opening(name: str, source: str) -> list[str]:
    guard = f"KVFSM_{name.upper()}_CUH"
    return [f"// {header(source)}", f"#ifndef {guard}", f"#define {guard}", ""]


def _closing(name: str) -> list[str]:
    return ["", f"#endif  // KVFSM_{name.upper()}_CUH"]


def _remark(about: str) -> str:
    return f"  // {about}" if about else ""


def _layout_checks(machine: Machine) -> list[str]:
    lines = []
    for low, high in zip(machine.fields, machine.fields[1:], strict=False):
        lines.append(f"static_assert({k_name(high.name, 'shift')} == {k_name(low.name, 'shift')} + "
                     f"{k_name(low.name, 'bits')}, \"'{high.name}' starts where '{low.name}' ends\");")
    last = machine.fields[-1].name
    lines.append(f"static_assert({k_name(last, 'shift')} + {k_name(last, 'bits')} == kWordBits && kWordBits <= 64, "
                 '"the fields make up the word");')
    lines += [f"static_assert({k_name(field.name, 'max')} <= {k_name(field.name, 'mask')}, "
              f"\"every value of '{field.name}' fits\");"
              for field in machine.fields if field.names or field.name == "state"]
    return lines


def _function(machine: Machine, event: Event) -> list[str]:
    names = _names(machine, event)
    refused = refusals_of(event)
    note = f"{event.about} By: {', '.join(event.by)}." + (f" Refused as: {', '.join(refused)}." if refused else "")
    heard = names_read(*(c.when for c in event.cases), *(a.value for c in event.cases for a in c.do))
    given = []
    for argument in event.given:
        name = _argument(machine, argument.name)  # a comment where nothing reads it: compilers warn of such parameters
        kind = "bool" if argument.is_bool else "kv_i64"
        given.append(f"{kind} {name}" if argument.name in heard else f"{kind} /*{name}*/")
    parameters = ["kv_u64 word", *given, "kv_u64* next"]
    head = f"__device__ __forceinline__ kv_u8 kv_{machine.name}_{event.name}("
    line = f"{head}{', '.join(parameters)}) {{"
    lines = comment(note, mark="//")
    lines += [line] if len(line) <= WIDTH else [head, *(
        f"    {parameter}{',' if i < len(parameters) - 1 else ') {'}" for i, parameter in enumerate(parameters))]
    applying = [case for case in event.cases if case.refuse is None]
    read = fields_read(*(c.when for c in event.cases), *(a.value for c in applying for a in c.do))
    body = [f"using namespace kv_{machine.name};"]
    form = shape(machine, event)
    if form.arms or "state" in read:
        body.append("const kv_i64 state = kv_get(word, kStateShift, kStateMask);")
    for field in machine.fields:
        if field.name in read and field.name != "state":
            value = f"kv_get(word, {k_name(field.name, 'shift')}, {k_name(field.name, 'mask')})"
            kind = "bool" if field.is_bool else "kv_i64"
            body.append(f"const {kind} {_field(field.name)} = {value}{' != 0' if field.is_bool else ''};")
    body.append("*next = word;")
    for case in form.first:
        body += _case(machine, event, case, case.sources, names, 2)
    if form.arms:
        body.append("switch (state) {")
        for arm in form.arms:
            body += indented(_arm(machine, event, arm, names), 2)
        body.append("  default:")
        for case in form.rest:
            body += indented(_case(machine, event, case, case.sources, names, 6), 4)
        if not certain(form.rest):
            body.append("    return kv_refusal::kIllegal;")
        body.append("}")
    elif not certain(form.first):
        body.append("return kv_refusal::kIllegal;")
    return [*lines, *indented(body, 2), "}"]


def _field(name: str) -> str:
    return c_name(name, FUNCTION_NAMES)


def _argument(machine: Machine, name: str) -> str:
    return c_name(name, FUNCTION_NAMES | {"state"} | {field.name for field in machine.fields})


def _names(machine: Machine, event: Event) -> Names:
    def names(leaf: Leaf) -> str:
        match leaf:
            case Name(name="state", kind="field"):
                return "state"
            case Name(name=name, kind="field"):
                return _field(name)
            case Name(name=name, kind="argument"):
                return _argument(machine, name)
            case Value(name=name, type="state"):
                return k_name(name)
            case Value(name=name, type=field):
                return k_name(field, name)
            case Bound(field=field):
                return f"(kv_i64){k_name(field, 'max')}"
        return plain(leaf)

    return names


def _arm(machine: Machine, event: Event, arm: Arm, names: Names) -> list[str]:
    lines = [f"case {k_name(state)}:" for state in arm.states]
    for case in arm.cases:
        lines += indented(_case(machine, event, case, arm.states, names, 6), 2)
    if not certain(arm.cases):
        lines.append("  return kv_refusal::kIllegal;")
    return lines


def _case(machine: Machine, event: Event, case: Case, states: tuple[str, ...], names: Names, indent: int) -> list[str]:
    guard = "" if case.when is None else cuda.render(case.when, names)
    if case.refuse is not None:
        body = [f"return kv_refusal::{k_name(case.refuse)};"]
    else:
        body = [*comment(says(event, case, states), indent + 2, "//"), *_effect(machine, case, names),
                "return kv_refusal::kApplied;"]
    if case.when is None:
        return body
    if len(body) == 1 and len(f"if ({guard}) {body[0]}") <= WIDTH - indent:
        return [f"if ({guard}) {body[0]}"]
    opening = f"if ({guard}) {{"
    wrapped = [opening] if len(opening) <= WIDTH - indent else paragraph(opening, indent, "", "    ")
    return [*wrapped, *indented(body, 2), "}"]


def _effect(machine: Machine, case: Case, names: Names) -> list[str]:
    sets = []
    if case.to is not None:
        sets.append(("state", k_name(case.to)))
    sets += [(assignment.field, cuda.render(assignment.value, names)) for assignment in case.do]
    return [
        f"*next = kv_put(*next, {k_name(field, 'shift')}, {k_name(field, 'mask')}, {value});" for field, value in sets
    ]
