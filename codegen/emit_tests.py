"""Tests of a spec's generated runtime: rows that reach every case of every event, and a Hypothesis machine.

The rows are firings that the spec's interpreter has decided; what drives them is ``runtime/conformance.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..spec.language.coverage import Sample, all_samples, argument_max
from ..spec.language.interpreter import step
from ..spec.language.load import Spec
from ..spec.language.model import Argument, Event, Machine
from .emit_python import SHIPPED, Home
from .layout import bracketed, flowed, header, source_of, text_of
from .names import class_name, python_name
from .python_class import number


def emit(spec: Spec, home: Home = SHIPPED) -> dict[str, str]:
    """One test module a machine."""
    return {f"{home.tests}/test_{machine.name}.py": test_module(machine, home) for machine in spec.generated}


def test_module(machine: Machine, home: Home) -> str:
    """The tests of one machine."""
    name = class_name(machine.name)
    shipped = home is SHIPPED
    used = ["REPEATABLE", "Row", "SideBySide", "check_coverage", "check_rows"]
    rules = [line for event in machine.events for line in ["", *_rule(machine, event)]]
    used += [helper for helper in ("near", "up_to") if any(f"{helper}(" in line for line in rules)]
    used += ["Near"] if any(": Near" in line for line in rules) else []
    lines = [
        f'"""{header(source_of(machine))}"""',
        "",
        "from __future__ import annotations",
        "",
        *(["from collections.abc import Mapping", ""] if shipped else []),
        "import pytest",
        *(["from hypothesis import strategies as st"] if any("st." in line for line in rules) else []),
        "from hypothesis.stateful import rule",
        "",
        *_imports(machine, home, used),
        "",
        "# event, state, case that decides, word, arguments, what it says, word afterwards where it changes",
        "ROWS = (",
    ]
    samples = tuple(kept_samples(machine))
    for event in machine.events:
        lines.append(f"    # {event.name}")
        lines += [f"    {line}" for sample in samples if sample.event == event.name for line in _row(sample)]
    lines += [
        ")",
        "",
        "",
        '@pytest.mark.parametrize("event", dict.fromkeys(row.event for row in ROWS))',
        "def test_every_case_does_what_the_spec_says(event: str) -> None:",
        f"    check_rows({name}Table, [row for row in ROWS if row.event == event])",
        "",
        "",
        "def test_rows_cover_every_case_and_refusal() -> None:",
        f"    check_coverage({name}Table, ROWS)",
        "",
        "",
        "def test_a_missing_case_is_noticed() -> None:",
        "    with pytest.raises(AssertionError):",
        f"        check_coverage({name}Table, [row for row in ROWS if row.event != ROWS[0].event or row.case is None])",
        "",
        "",
        "def test_a_wrong_word_is_noticed() -> None:",
        '    row = next(row for row in ROWS if row.says == "applied")',
        "    wrong = Row(row.event, row.state, row.case, row.word, row.arguments, row.says, row.word ^ 1 << 4)",
        '    with pytest.raises(AssertionError, match="class, "):',
        f"        check_rows({name}Table, [wrong])",
        "",
        "",
        *(_oracle(machine) if shipped else []),
        f"class {name}SideBySide(SideBySide):",
        f'    """Random events on one slot of ``{machine.name}``, every implementation side by side."""',
        "",
        f"    TABLE = {name}Table",
        *(["    oracle = staticmethod(spec_says)"] if shipped else []),
        *rules,
        "",
        "",
        f"{name}SideBySide.TestCase.settings = REPEATABLE",
        f"test_{machine.name}_side_by_side = {name}SideBySide.TestCase",
    ]
    return text_of(lines)


def _imports(machine: Machine, home: Home, used: list[str]) -> list[str]:
    name = f"{class_name(machine.name)}Table"
    own = f"from {home.package}.{machine.name} import {name}"
    helpers = flowed("from kvfsm.runtime.conformance import ", sorted(used, key=_order), "", 0)
    interpreter = [
        "from kvfsm.spec.language.interpreter import step",
        "from kvfsm.spec.language.load import load_spec",
    ]
    if home is SHIPPED:
        return [*helpers, own, *interpreter]
    return [*helpers, "", own]


def _order(name: str) -> tuple[int, str]:
    """Order of imported names, as linters sort them: constants, classes, functions."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


def kept_samples(machine: Machine) -> Iterator[Sample]:
    """The constructed firings; of those that any state refuses, one a state."""
    plain = {(event.name, case.number) for event in machine.events for case in event.cases if case.any_state}
    seen = set()
    for sample in all_samples(machine):
        key = (sample.event, sample.state, sample.case)
        repeated = sample.case is None or (sample.event, sample.case) in plain
        if not (repeated and key in seen):
            yield sample
        if sample.outcome.refusal is None and key not in seen:
            yield from turned(machine, sample)
        seen.add(key)


def turned(machine: Machine, sample: Sample) -> Iterator[Sample]:
    """The same firing with one argument at its other end, where the same case still decides.

    The argument then differs from the field that it is written to, so that a forgotten assignment shows.
    """
    for argument in machine.event(sample.event).given:
        other = 0 if sample.args[argument.name] else argument_max(machine, argument)
        args = {**sample.args, argument.name: other}
        outcome = step(machine, sample.word, sample.event, args)
        if outcome.case == sample.case:
            yield replace(sample, args=args, outcome=outcome)


def _row(sample: Sample) -> list[str]:
    arguments = ", ".join(f'"{name}": {value}' for name, value in sample.args.items())
    items = [f'"{sample.event}"', f'"{sample.state}"', str(sample.case), f"0x{sample.word:X}", f"{{{arguments}}}"]
    if sample.outcome.refusal is not None:
        items.append(f'"{sample.outcome.refusal}"')
    elif sample.outcome.word != sample.word:
        items += ['"applied"', f"0x{sample.outcome.word:X}"]
    return flowed("Row(", items, "),", 4)


def _oracle(machine: Machine) -> list[str]:
    return [
        f'SPEC = load_spec().required().machine("{machine.name}")',
        "",
        "",
        "def spec_says(word: int, event: str, arguments: Mapping[str, int]) -> tuple[int, str]:",
        "    outcome = step(SPEC, word, event, arguments)",
        '    return outcome.word, outcome.refusal or "applied"',
        "",
        "",
    ]


def _rule(machine: Machine, event: Event) -> list[str]:
    names = {argument.name: python_name(argument.name, {"self", "event"}) for argument in event.given}
    strategies = [f"{names[a.name]}={_strategy(machine, a)}" for a in event.given]
    parameters = [f"{names[a.name]}: Near | int" for a in event.given]
    passed = [f"{a.name}={names[a.name]}" for a in event.given]
    lines = [
        *(flowed("@rule(", strategies, ")", 4) if strategies else ["@rule()"]),
        *bracketed(f"def {_rule_name(event.name)}(", ["self", *parameters], ") -> None:", 4),
        *bracketed("    self.fire(", [f'"{event.name}"', *passed], ")", 4),
    ]
    return [f"    {line}" for line in lines]


def _rule_name(event: str) -> str:
    return f"fire_{event}"


def _strategy(machine: Machine, argument: Argument) -> str:
    if argument.is_bool:
        return "st.booleans()"
    if argument.like is not None:
        return f'near("{argument.like}")'
    return f"up_to({number(argument_max(machine, argument))})"
