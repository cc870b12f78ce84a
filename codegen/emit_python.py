"""Python of a spec: the refusals, one module a machine, and the list of all kinds."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..spec.language.load import Spec
from ..spec.language.model import Machine, Vocabulary
from . import python_class, python_table
from .layout import bracketed, docstring, header, in_docstring, indented, paragraph, source_of, text_of
from .names import class_name, constant


@dataclass(frozen=True, slots=True)
class Home:
    """Where generated modules live, and how they reach kvfsm's base classes."""

    folder: str = "runtime/generated"  # of the output
    base: str = ".."  # what stands before ``machine``, ``table`` and ``words`` in imports
    tests: str = "tests/generated"  # where the tests of the modules live
    package: str = "kvfsm.runtime.generated"  # the modules, as tests import them


IMPORTS = {
    "machine": ("Case", "Event", "Given", "Slot", "always", "check_number"),
    "table": ("Codes", "Eviction", "Flag", "Flags", "Index", "Meta", "Number", "Numbers", "OrderKey", "Shares", "Table",
              "Words", "by_state"),
    "words": ("Bits", "WordLayout"),
}


SHIPPED = Home()


def emit(spec: Spec, home: Home = SHIPPED) -> dict[str, str]:
    """The modules of the runtime."""
    texts = {f"{home.folder}/refusal.py": refusal_module(spec.vocabulary, f"{spec.root.name}/vocabulary.yaml")}
    for machine in spec.generated:
        texts[f"{home.folder}/{machine.name}.py"] = machine_module(machine, home.base)
    texts[f"{home.folder}/__init__.py"] = kinds_module(spec, home.base)
    return texts


def refusal_module(vocabulary: Vocabulary, source: str) -> str:
    """Why events are refused."""
    lines = [
        f'"""{header(source)}"""',
        "",
        "from __future__ import annotations",
        "",
        "from enum import IntEnum",
        "",
        "",
        "class Refusal(IntEnum):",
        '    """Why an event was refused, as tables, kernels and traces record it; 0 means that it was applied."""',
        "",
        "    APPLIED = 0",
        *(f"    {constant(word.name)} = {word.code}" for word in vocabulary.refusals),
        "",
        "    @property",
        "    def reason(self) -> str:",
        '        """The refusal in words."""',
        "        return REASONS[self]",
        "",
        "",
        "REASONS = (",
        '    "the event was applied",',
        *(f"    {quoted(word.about)}," for word in vocabulary.refusals),
        ")",
    ]
    return text_of(lines)


def quoted(text: str) -> str:
    """A Python literal in double quotes."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def kinds_module(spec: Spec, base: str) -> str:
    """``__init__``: every machine's classes, and the tables of objects by name."""
    named = {machine.name: class_name(machine.name) for machine in spec.generated}
    classes = {module: [name, f"{name}Table"] for module, name in named.items()}
    names = [name for both in classes.values() for name in both]
    imports = [
        line
        for module, both in sorted({**classes, "refusal": ["Refusal"]}.items())
        for line in from_imports(".", {module: both})
    ]
    lines = [
        f'"""{header(spec.root.name + "/")}"""',
        "",
        "from __future__ import annotations",
        "",
        *from_imports(base, {"table": ["Table"]}),
        *imports,
        "",
        "# Table classes of objects by the name of their machine, in the order of the spec.",
        "KINDS: dict[str, type[Table]] = {",
        *(f'    "{machine.name}": {class_name(machine.name)}Table,' for machine in spec.machines),
        "}",
        "",
        "__all__ = [",
        *(f'    "{name}",' for name in sorted(["KINDS", "Refusal", *names], key=exported_order)),
        "]",
    ]
    if base != "..":
        lines = split_sections(lines, base)
    return text_of(lines)


def exported_order(name: str) -> tuple[int, list[tuple[int, str]]]:
    """Order of ``__all__``: constants, then classes, as linters sort them."""
    return (0 if name.isupper() else 1), [(0, name)]


def from_imports(base: str, wanted: dict[str, list[str]]) -> list[str]:
    """Import lines for some names of the base modules."""
    dot = "" if base.endswith(".") else "."  # ".." and "." already end in one
    lines: list[str] = []
    for module, names in sorted(wanted.items()):
        if names:
            one = f"from {base}{dot}{module} import {', '.join(names)}"
            lines += [one] if len(one) <= 120 else [
                f"from {base}{dot}{module} import (", *(f"    {name}," for name in names), ")"]
    return lines


def split_sections(lines: list[str], base: str) -> list[str]:
    """A blank line between absolute and relative imports."""
    first = next(i for i, line in enumerate(lines) if line.startswith("from ."))
    return [*lines[:first], "", *lines[first:]]


def machine_module(machine: Machine, base: str) -> str:
    """One machine: its enums, the class of one slot, the vectorised events, the class of many."""
    body = _body(machine)
    used = set(re.findall(r"\w+", "\n".join(body)))
    head = [
        f'"""{header(source_of(machine))}',
        "",
        *paragraph(in_docstring(f"{machine.title}. {machine.about}")),
        '"""',
        "",
        "from __future__ import annotations",
        "",
        *(["from collections.abc import Mapping"] if "Mapping" in used else []),
        "from enum import IntEnum",
        *(["from typing import ClassVar"] if "ClassVar" in used else []),
        "",
        "import numpy as np",
        "import numpy.typing as npt",
        "",
        *from_imports(base, {module: [name for name in names if name in used] for module, names in IMPORTS.items()}),
        *([] if base == ".." else [""]),
        "from .refusal import Refusal",
        "",
    ]
    return text_of([*head, *body])


def _body(machine: Machine) -> list[str]:
    lines = [""]
    lines += _enum(python_class.state_class(machine), f"States of ``{machine.name}``", [
        (state.name, state.about) for state in machine.states])
    for field in machine.fields:
        if field.names:
            about = field.about or f"Values of ``{field.name}``"
            lines += ["", "", *_enum(python_class.field_class(machine, field.name), about, [
                (name, "") for name in field.names])]
    lines += ["", ""]
    lines += ["LAYOUT = WordLayout(", f'    "{machine.name}",', "    ("]
    for field in machine.fields:
        high = python_class.number(len(machine.states) - 1 if field.name == "state" else field.max)
        lines.append(f'        Bits("{field.name}", {field.shift}, {field.bits}, {high}),')
    lines += ["    ),", ")"]
    for name in python_class.uses_bound(machine):
        lines.append(f"MAX_{constant(name)} = {python_class.number(machine.field(name).max)}")
    names = [f'"{state.name}"' for state in machine.states]
    states = bracketed("ALL = (", names, ")" if len(names) > 1 else ",)")
    if any(case.any_state for event in machine.events for case in event.cases):
        lines += states
    lines += [*python_class.event_lines(machine), "", "", *python_class.class_lines(machine), "", ""]
    lines += [*python_class.case_lines(machine), ""]
    lines += ["", *python_table.code_lines(machine), *python_table.keep_lines(machine), ""]
    for event in machine.events:
        lines += [*python_table.function_lines(machine, event), "", ""]
    if machine.eviction is not None:
        lines += [*python_table.eviction_lines(machine, machine.eviction), "", ""]
    lines += python_table.table_lines(machine)
    return lines


def _enum(name: str, about: str, members: list[tuple[str, str]]) -> list[str]:
    lines = [f"class {name}(IntEnum):", *indented(docstring(about, 4)), ""]
    for code, (member, says) in enumerate(members):
        line = f"    {constant(member)} = {code}"
        if says and len(line) + len(says) + 4 <= 120:
            line += f"  # {says}"
        elif says:
            lines += indented(paragraph(says, 4, "# "))
        lines.append(line)
    return lines
