"""The reference, as Markdown that GitHub shows: ``diagrams/<machine>.md`` and an index with all pictures.

One page says everything that the spec says about a machine: word, states, events with their cases in order, eviction,
properties, deliberate faults, and where all of it is found in code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..spec.language.load import Spec
from ..spec.language.model import Case, Event, Field, HitPolicy, Machine, Mutant
from ..spec.language.protocol import Protocol
from ..spec.targets.text import render
from .emit_python import SHIPPED, Home
from .layout import header, source_of
from .names import class_name
from .picture import eviction_rule, marks

_HIT = {
    HitPolicy.ALL_PAGES: "a prefix hit needs every block from the start",
    HitPolicy.TRAILING_PAGES: "a prefix hit needs only what the next query reads, at exactly its length",
    HitPolicy.BY_KIND: "a prefix hit asks as the kind that the object holds does",
}

_MEASURED = (
    "",
    "## Five queues beside one line",
    "",
    "Not from the spec, but from runs: a request trace goes through scheduler, queues, admission and manager on",
    "virtual time, by the five queues and by one line for all, with a steady disk and with one that stalls. The page",
    "behind the picture has all numbers, those included where one line does better.",
    "",
    "[![Five queues beside one line](queues.svg)](queues.md)",
    "",
    "```bash",
    "kvfsm replay tests/data/mooncake_slice.jsonl --model deepseek_v4_flash --memory 40e9 --compare "
    "-o diagrams/queues.svg",
    "```",
)
"""What `kvfsm replay --compare` draws into this repository."""


def emit(spec: Spec, home: Home = SHIPPED) -> dict[str, str]:
    """Path -> Markdown: a page for each machine, and the index."""
    pages = {f"diagrams/{machine.name}.md": page(machine, spec) for machine in spec.generated}
    return {"diagrams/README.md": index(spec, measured=home is SHIPPED)} | pages


def index(spec: Spec, *, measured: bool) -> str:
    """All pictures on one page, each with what it shows; ``measured``: also what the runtime was seen to do."""
    lines = [
        f"<!-- {header('spec/')} -->",
        "# What the spec says, in pictures",
        "",
        "Each machine is the life of one slot of one kind of cache object; its page says every case of every event.",
        "Each protocol is what actors do with such slots, with the window between check and use marked.",
        "",
        "| machine | holds | hit policy | states | events |",
        "|---|---|---|---:|---:|",
    ]
    for machine in spec.machines:
        name = f"[{machine.name}]({machine.name}.md)"
        counts = f"{len(machine.states)} | {len(machine.events)}"
        assert machine.hit is not None  # an object has one
        lines.append(f"| {name} | {_cell(machine.title)} | `{machine.hit.value}` | {counts} |")
    if spec.safeguards:
        lines += ["", "What guards them, and no prefix asks for:", ""]
        lines += ["| machine | is the life of | states | events |", "|---|---|---:|---:|"]
    for machine in spec.safeguards:
        counts = f"{len(machine.states)} | {len(machine.events)}"
        lines.append(f"| [{machine.name}]({machine.name}.md) | {_cell(machine.title)} | {counts} |")
    lines += [
        "",
        "How to read a machine's picture: a double outline is a state that a lease may cover; dashed, one owner",
    ]
    lines += [
        "at work; bold, kept but not read anew; square corners, a failure or doubt. The table under it says why events"
    ]
    lines += ["are refused. The same diagrams as text: `.mmd` (Mermaid), `.dot` (Graphviz)."]
    if measured:
        lines += _MEASURED
    for machine in spec.generated:
        lines += ["", f"## {machine.title}", "", *_paragraph(machine.about), ""]
        lines.append(f"[![{machine.title}]({machine.name}.svg)]({machine.name}.md)")
    for protocol in spec.protocols:
        lines += ["", f"## Protocol `{protocol.name}`: {protocol.title}", "", *_paragraph(protocol.about), ""]
        lines.append(f"![{protocol.title}](protocols/{protocol.name}.svg)")
        lines += ["", *_claims(protocol)]
    return "\n".join([*lines, ""])


def page(machine: Machine, spec: Spec) -> str:
    """The reference of one machine."""
    lines = [
        f"<!-- {header(source_of(machine))} -->",
        f"# {machine.title}",
        "",
        f"Machine `{machine.name}`.{_hit(machine)}",
        "",
        *_paragraph(machine.about),
        "",
        f"![States of {machine.name}]({machine.name}.svg)",
        "",
        f"The same as text: [{machine.name}.mmd]({machine.name}.mmd), [{machine.name}.dot]({machine.name}.dot). "
        "All machines: [README](README.md).",
        "",
        "## Word",
        "",
        *_word(machine),
        "",
        "## States",
        "",
        "| code | state | marks | counts as | |",
        "|---:|---|---|---|---|",
        *(
            f"| {state.code} | `{state.name}` | {', '.join(marks(state))} | {state.counts_as} | {_cell(state.about)} |"
            for state in machine.states
        ),
        "",
        "## Which state takes what",
        "",
        "A name: the state that the event leads to. `stays`: applied in place. `no`: always refused, with a reason",
        "of its own. Empty: refused as `illegal`. A star: a guard may refuse, or lead elsewhere; the cases say when.",
        "",
        *_matrix(machine),
        "",
        "## Events",
    ]
    reasons = {word.name: word.about for word in spec.vocabulary.refusals}
    for event in machine.events:
        lines += ["", *_event(event)]
    if machine.eviction is not None:
        who, order = eviction_rule(machine.eviction)
        lines += ["", "## Eviction", "", f"- Who: {_text(who)}.", f"- Order: {_text(order)}."]
    lines += ["", *_properties(machine)]
    if machine.mutants:
        lines += ["", *_mutants(machine)]
    lines += ["", "## Refusals", "", "| reason | says |", "|---|---|"]
    lines += [f"| `{word}` | {_cell(reasons[word])} |" for word in _refusal_words(machine, spec)]
    lines += ["", "## In code", "", *_places(machine, spec)]
    return "\n".join([*lines, ""])


def _hit(machine: Machine) -> str:
    """How a prefix hit asks an object; none asks a safeguard."""
    return "" if machine.hit is None else f" Hit policy `{machine.hit.value}`: {_HIT[machine.hit]}."


def _word(machine: Machine) -> Iterable[str]:
    yield f"One 64-bit word a slot; {machine.bits} bits are in use."
    yield ""
    yield "| bits | field | width | values | |"
    yield "|---|---|---:|---|---|"
    for field in machine.fields:
        span = f"{field.shift}" if field.bits == 1 else f"{field.shift} .. {field.shift + field.bits - 1}"
        yield f"| {span} | `{field.name}` | {field.bits} | {_values(field)} | {_cell(field.about)} |"
    if machine.meta:
        yield ""
        yield "Beside the word, one array each:"
        yield ""
        yield "| array | type | |"
        yield "|---|---|---|"
        for meta in machine.meta:
            yield f"| `{meta.name}` | u{meta.bits} | {_cell(meta.about)} |"


def _values(field: Field) -> str:
    if field.name == "state":
        return "see below"
    if field.names:
        return ", ".join(f"{code} `{name}`" for code, name in enumerate(field.names))
    return "false, true" if field.is_bool else f"0 .. {field.max}"


def _matrix(machine: Machine) -> Iterable[str]:
    yield "| event | " + " | ".join(state.name for state in machine.states) + " |"
    yield "|---|" + "---|" * len(machine.states)
    for event in machine.events:
        listed = set(event.listed())
        cells = [_answer(event, state.name) if state.name in listed else "" for state in machine.states]
        yield f"| [{event.name}](#{event.name}) | {' | '.join(cells)} |"


def _answer(event: Event, state: str) -> str:
    """What a state does with an event, in a word; cases from any state that everybody has are left out."""
    cases = [case for case in event.cases_from(state) if not (case.any_state and case.refuse is not None)]
    applied = dict.fromkeys(
        "stays" if case.to in (None, state) else f"→ {case.to}" for case in cases if not case.refuse
    )
    if not applied:
        return "no"
    return " / ".join(applied) + ("\\*" if len(cases) > 1 else "")


def _event(event: Event) -> Iterable[str]:
    yield f"### {event.name}"
    yield ""
    given = ", ".join(
        f"`{arg.name}` ({arg.like or ('bool' if arg.is_bool else f'u{arg.bits}')})" for arg in event.given
    )
    kernel = f" Kernel: `{event.kernel}`." if event.kernel else ""
    yield f"By {', '.join(event.by)}.{f' Given {given}.' if given else ''}{kernel}"
    yield ""
    yield from _paragraph(event.about)
    yield ""
    yield "| case | from | when | outcome |"
    yield "|---:|---|---|---|"
    for case in event.cases:
        when = f"`{_code(render(case.when))}`" if case.when is not None else ""
        yield f"| {case.number} | {_from(case)} | {when} | {_outcome(case)} |"


def _from(case: Case) -> str:
    return "any" if case.any_state else ", ".join(f"`{name}`" for name in case.sources)


def _outcome(case: Case) -> str:
    if case.refuse is not None:
        return f"refused: **{case.refuse}**"
    parts = [f"→ `{case.to}`"] if case.to is not None else []
    parts += [f"`{item.field} = {_code(render(item.value))}`" for item in case.do]
    return "; ".join(parts) or "applied, nothing changes"


def _properties(machine: Machine) -> Iterable[str]:
    yield "## Properties"
    yield ""
    yield "| property | kind | invariant | says |"
    yield "|---|---|---|---|"
    for item in machine.properties:
        yield f"| `{item.name}` | {item.kind} | {item.says or ''} | `{_code(render(item.that))}`{_note(item.about)} |"
    for claim in machine.leads_to:
        kept = [f"{_words(claim.fair)} {'are' if len(claim.fair) > 1 else 'is'} not starved"] if claim.fair else []
        kept += [f"{_words(claim.strong)} can't be possible again and again and not be taken"] if claim.strong else []
        fair = f", while {' and '.join(kept)}" if kept else ""
        says = f"`{_code(render(claim.source))}` leads to `{_code(render(claim.target))}`{fair}{_note(claim.about)}"
        yield f"| `{claim.name}` | leads_to | {claim.says or ''} | {says} |"


def _mutants(machine: Machine) -> Iterable[str]:
    yield "## Deliberate faults"
    yield ""
    yield "Each of these is a mistake that the properties must catch."
    yield ""
    yield "| fault | event | what is wrong |"
    yield "|---|---|---|"
    for mutant in machine.mutants:
        fault = "; ".join(_fault(machine.event(mutant.event), mutant))
        yield f"| `{mutant.name}` | [{mutant.event}](#{mutant.event}) | {fault}{_note(mutant.about)} |"


def _fault(event: Event, mutant: Mutant) -> Iterable[str]:
    """How the faulty event differs from the right one, case by case; a dropped case moves the later ones up."""
    faulty = list(mutant.faulty.cases)
    for case in event.cases:
        if faulty and _same(case, faulty[0]):
            faulty.pop(0)
        elif len(faulty) < len(event.cases) - case.number + 1:
            yield f"case {case.number} is missing"
        else:
            yield f"case {case.number}: {_change(case, faulty.pop(0))}"


def _same(case: Case, other: Case) -> bool:
    left = (case.sources, case.when, case.to, case.do, case.refuse)
    return left == (other.sources, other.when, other.to, other.do, other.refuse)


def _change(case: Case, faulty: Case) -> str:
    parts = []
    if case.when != faulty.when:
        parts.append(f"`{_code(render(faulty.when))}`" if faulty.when is not None else "no guard")
    if (case.to, case.do, case.refuse) != (faulty.to, faulty.do, faulty.refuse):
        parts.append(_outcome(faulty))
    return ", ".join(parts)


def _refusal_words(machine: Machine, spec: Spec) -> list[str]:
    used = {case.refuse for event in machine.events for case in event.cases} | {"illegal"}
    return [word.name for word in spec.vocabulary.refusals if word.name in used]


def _places(machine: Machine, spec: Spec) -> Iterable[str]:
    name, kind = machine.name, class_name(machine.name)
    yield "| what | where |"
    yield "|---|---|"
    yield f"| the spec | `{source_of(machine)}` |"
    yield f"| `{kind}` (one slot), `{kind}Table` (arrays), `{kind}State` | `runtime/generated/{name}.py` |"
    if machine in spec.machines:
        yield f"| word layout and transitions on the device | `kernels/generated/{name}.cuh` |"
    yield f"| tests of the class against the interpreter | `tests/generated/test_{name}.py` |"


def _claims(protocol: Protocol) -> Iterable[str]:
    """The properties of a protocol as a table."""
    yield "| property | kind | invariant | says |"
    yield "|---|---|---|---|"
    for item in protocol.properties:
        yield f"| `{item.name}` | {item.kind} | {item.says or ''} | `{_code(render(item.that))}`{_note(item.about)} |"
    for claim in protocol.leads_to:
        says = f"`{_code(render(claim.source))}` leads to `{_code(render(claim.target))}`{_note(claim.about)}"
        yield f"| `{claim.name}` | leads_to | {claim.says or ''} | {says} |"


def _words(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _note(about: str) -> str:
    return f" ({_cell(about)})" if about else ""


def _paragraph(text: str) -> list[str]:
    return [_text(" ".join(text.split()))]


def _cell(text: str) -> str:
    """Prose inside a table."""
    return _text(" ".join(text.split())).replace("|", "\\|")


def _text(text: str) -> str:
    """Prose in which no mark means anything to Markdown or to HTML."""
    return "".join(
        {"<": "&lt;", ">": "&gt;", "&": "&amp;"}.get(mark, f"\\{mark}" if mark in "*_`[]" else mark) for mark in text
    )


def _code(text: str) -> str:
    """An expression between backticks, in a table."""
    return text.replace("|", "\\|")
