"""CUDA of all machines together: transition functions by number, for kernels that learn machine and event at run time.

A part of ``emit_cuda``, whose headers it stands on. Numbers are places in the spec: machines in its order, events in
that of their machine. ``kernels/words.py`` takes the same numbers from the classes of the runtime.
"""

from __future__ import annotations

from ..spec.language.coverage import argument_max
from ..spec.language.load import Spec
from ..spec.language.model import Event, Machine, State
from .layout import WIDTH, comment, flowed, header, indented, paragraph, text_of
from .names import c_name, k_name

WORD_KERNELS = ("validate_pin", "unpin", "revalidate")
"""Kernels that look at words and nothing else; events say with ``kernel:`` which of them fires them."""

RULES = (
    "Argument k of an event, counted from 0 in the order of the spec, lies at arguments[k * stride]; truth values are "
    "0 or 1. An argument that its field can't hold is refused as kv_call::kBadArgument, a number that no machine or "
    "event has as kv_refusal::kIllegal. Else each function does what the transition function does."
)
LENT = "const kv_i64* arguments, kv_u64 stride, kv_u64* next"
PASSED = "arguments, stride, next"


def events_header(spec: Spec) -> str:
    """The header that stands on those of all machines."""
    machines = spec.machines
    lines = [
        f"// {header(f'{spec.root.name}/objects')}",
        "#ifndef KVFSM_EVENTS_CUH",
        "#define KVFSM_EVENTS_CUH",
        "",
        *comment(RULES, mark="//"),
        "namespace kv_events {",
        "",
        "enum Machine : kv_u8 {",
        *(f"  {k_name(machine.name)} = {code}," for code, machine in enumerate(machines)),
        f"  kMachineCount = {len(machines)},",
        "};",
        "",
        "__device__ __forceinline__ bool beyond(kv_i64 value, kv_u64 max) { return (kv_u64)value > max; }",
    ]
    for machine in machines:
        lines += ["", *_machine(machine)]
    lines += ["", *_fire(machines)]
    for kernel in WORD_KERNELS:
        lines += ["", *_kernel(machines, kernel)]
    lines += ["", *_pins_bits(machines), "", *_generation(machines), "", *_read(spec)]
    return text_of([*lines, "", "}  // namespace kv_events", "", "#endif  // KVFSM_EVENTS_CUH"])


def _function(about: str, result: str, name: str, parameters: str) -> list[str]:
    head = f"__device__ __forceinline__ {result} {name}("
    line = f"{head}{parameters}) {{"
    return [*comment(about, mark="//"), *([line] if len(line) <= WIDTH else [head, f"    {parameters}) {{"])]


def _by_machine(machines: tuple[Machine, ...], answers: list[str | None], otherwise: list[str]) -> list[str]:
    """A switch over machines; those without an answer do as numbers of no machine."""
    pairs = zip(machines, answers, strict=True)
    cases = []
    for machine, answer in pairs:
        if answer is not None:
            cases += [f"  case {k_name(machine.name)}:", f"    return {answer};"]
    return [*indented(["switch (machine) {", *cases, "  default:", *indented(otherwise, 4), "}"], 2), "}"]


def _machine(machine: Machine) -> list[str]:
    space = c_name(machine.name)
    lines = [f"namespace {space} {{", "", "enum Event : kv_u8 {"]
    lines += [f"  {k_name(event.name)} = {code}," for code, event in enumerate(machine.events)]
    lines += ["};", ""]
    for event in machine.events:
        lines += [*_event(machine, event), ""]
    lines += _function("Any event of this machine.", "kv_u8", "fire", f"kv_u32 event, kv_u64 word, {LENT}")
    cases = [f"  case {k_name(event.name)}: return {c_name(event.name)}(word, {PASSED});" for event in machine.events]
    lines += indented(
        ["switch (event) {", *cases, "  default:", "    *next = word;", "    return kv_refusal::kIllegal;", "}"], 2
    )
    return [*lines, "}", "", f"}}  // namespace {space}"]


def _event(machine: Machine, event: Event) -> list[str]:
    places = ["arguments[0]", "arguments[stride]", *(f"arguments[{k} * stride]" for k in range(2, len(event.given)))]
    given = list(zip(event.given, places, strict=False))
    lent = LENT
    if not event.given:
        lent = lent.replace("arguments", "/*arguments*/")
    if len(event.given) < 2:
        lent = lent.replace("stride", "/*stride*/")
    takes = ", ".join(argument.name for argument in event.given)
    about = f"Arguments: {takes}." if takes else "No arguments."
    lines = _function(about, "kv_u8", c_name(event.name), f"kv_u64 word, {lent}")
    if given:
        checks = " || ".join(f"beyond({place}, 0x{argument_max(machine, argument):X})" for argument, place in given)
        refuse = f"if ({checks}) return kv_call::kBadArgument;"
        wrapped = [*paragraph(f"if ({checks}) {{", 2, "", "    "), "  return kv_call::kBadArgument;", "}"]
        body = ["*next = word;", *([refuse] if len(refuse) <= WIDTH - 2 else wrapped)]
    else:
        body = []
    passed = [f"{place} != 0" if argument.is_bool else place for argument, place in given]
    call = flowed(f"return kv_{machine.name}_{event.name}(", ["word", *passed, "next"], ");", 2)
    return [*lines, *indented([*body, *call], 2), "}"]


def _fire(machines: tuple[Machine, ...]) -> list[str]:
    lines = _function(
        "Any event of any machine.", "kv_u8", "fire", f"kv_u32 machine, kv_u32 event, kv_u64 word, {LENT}"
    )
    answers: list[str | None] = [f"{c_name(machine.name)}::fire(event, word, {PASSED})" for machine in machines]
    return lines + _by_machine(machines, answers, ["*next = word;", "return kv_refusal::kIllegal;"])


def _kernel(machines: tuple[Machine, ...], kernel: str) -> list[str]:
    events = [_event_of(machine, kernel) for machine in machines]
    named = ", ".join(f"{m.name}.{e.name}" for m, e in zip(machines, events, strict=True) if e is not None)
    about = f"The event that a machine has for the kernel '{kernel}': {named or 'none has one'}."
    has = any(event is not None for event in events)
    lent = LENT if has else LENT.replace("arguments", "/*arguments*/").replace("stride", "/*stride*/")
    lines = _function(about, "kv_u8", f"on_{kernel}", f"kv_u32 machine, kv_u64 word, {lent}")
    answers = [
        None if event is None else f"{c_name(machine.name)}::{c_name(event.name)}(word, {PASSED})"
        for machine, event in zip(machines, events, strict=True)
    ]
    return lines + _by_machine(machines, answers, ["*next = word;", "return kv_refusal::kIllegal;"])


def _event_of(machine: Machine, kernel: str) -> Event | None:
    """The first event of the machine that names the kernel."""
    return next((event for event in machine.events if event.kernel == kernel), None)


def _has(machine: Machine, field: str) -> bool:
    return any(each.name == field for each in machine.fields)


def _pins_bits(machines: tuple[Machine, ...]) -> list[str]:
    about = "The bits of a word that count its pins, the lowest of which is one pin; none in a machine without pins."
    lines = _function(about, "kv_u64", "pins_bits", "kv_u32 machine")
    answers = [
        f"(kv_u64)kv_{machine.name}::kPinsMask << kv_{machine.name}::kPinsShift" if _has(machine, "pins") else None
        for machine in machines
    ]
    return lines + _by_machine(machines, answers, ["return 0;"])


def _generation(machines: tuple[Machine, ...]) -> list[str]:
    answers = [
        f"kv_get(word, kv_{machine.name}::kGenerationShift, kv_{machine.name}::kGenerationMask)"
        if _has(machine, "generation")
        else None
        for machine in machines
    ]
    word = "word" if any(answers) else "/*word*/"
    about = "The generation in a word; 0 in a machine without."
    lines = _function(about, "kv_i64", "generation_of", f"kv_u32 machine, kv_u64 {word}")
    return lines + _by_machine(machines, answers, ["return 0;"])


def _read(spec: Spec) -> list[str]:
    moved_on = "kStale" if any(word.name == "stale" for word in spec.vocabulary.refusals) else "kIllegal"
    about = (
        "Why a launch may not read the bytes of a slot that it knows in generation `expected`. kApplied where the "
        "state is readable, or where it still has pins that may be given back. Any other state answers as it answers "
        "a pin."
    )
    cases = []
    for machine in spec.machines:
        space = f"kv_{machine.name}"
        cases += [
            f"    case {k_name(machine.name)}:",
            f"      switch (kv_get(word, {space}::kStateShift, {space}::kStateMask)) {{",
        ]
        for state in machine.states:
            if (answer := _read_answer(machine, state)) is not None:
                cases.append(f"        case {space}::{k_name(state.name)}: return {answer};")
        cases += ["        default: return kv_refusal::kIllegal;", "      }"]
    pinned = (
        ["  const bool pinned = (word & pins_bits(machine)) != 0;"] if any("pinned" in case for case in cases) else []
    )
    return [
        *_function(about, "kv_u8", "read", "kv_u32 machine, kv_u64 word, kv_i64 expected"),
        f"  if (expected != generation_of(machine, word)) return kv_refusal::{moved_on};",
        *pinned,
        "  switch (machine) {",
        *cases,
        "    default:",
        "      return kv_refusal::kIllegal;",
        "  }",
        "}",
    ]


def _read_answer(machine: Machine, state: State) -> str | None:
    """What ``read`` returns for a state; None where it is illegal."""
    if state.readable:
        return "kv_refusal::kApplied"
    pin, unpin = _event_of(machine, "validate_pin"), _event_of(machine, "unpin")
    # Cases with a guard ask for more than the state; the first without one is what the state always answers.
    refusal = None if pin is None else next((c.refuse for c in pin.cases_from(state.name) if c.when is None), None)
    if unpin is not None and any(case.refuse is None for case in unpin.cases_from(state.name)):
        return f"pinned ? kv_refusal::kApplied : kv_refusal::{k_name(refusal or 'illegal')}"
    return None if refusal is None else f"kv_refusal::{k_name(refusal)}"
