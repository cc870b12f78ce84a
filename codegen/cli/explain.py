"""Explain one word of kvfsm.

  kvfsm explain E204             a problem code that lint prints
  kvfsm explain swa_window       a machine
  kvfsm explain swa_window.pin   an event of a machine, case by case
  kvfsm explain pin              the same event of every machine that has it
  kvfsm explain swa_window.pins  a field of its word
  kvfsm explain resident         a state
  kvfsm explain stale            a refusal, and which events refuse with it
  kvfsm explain S3               a property, what it demands, and where it is claimed
  kvfsm explain publish          a protocol
  kvfsm explain tiny_llama       a model profile
  kvfsm explain HIT_PENDING      an answer of the manager, or (POOL_FULL) its reason
  kvfsm explain TRUNCATED        a verdict of a store
  kvfsm explain lease            a word of the runtime
  kvfsm explain Poisoned         an error of the runtime

With --spec DIR the words are those of your own spec. A word that nobody knows is answered with the nearest ones.
"""

from __future__ import annotations

import argparse
import difflib
import inspect
import sys
from collections.abc import Callable, Iterator

from ...spec.language.codes import CODES
from ...spec.language.load import Spec
from ...spec.language.model import Event, Field, LeadsTo, Machine, Property, State
from ...spec.language.problems import render_all
from ...spec.language.profile import ProfileSpec
from ...spec.language.protocol import Protocol
from ...spec.language.trees import names_in
from ...spec.targets import text
from ..cases import effect_text, guard_text
from ..layout import joined, paragraph
from .glossary import ANSWERS, PROPERTIES, TERMS
from .lint import add_spec, loaded_spec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's options."""
    parser.add_argument("word", metavar="WORD", help="what to explain")
    add_spec(parser)


def run(args: argparse.Namespace) -> int:
    """Print what the word means: 0 known, 1 the spec is wrong, 2 nobody knows the word."""
    word: str = args.word
    if word.upper() in CODES:
        print("\n".join(code_lines(word.upper())))
        return 0
    loaded = loaded_spec(args.spec)
    if loaded is None:
        return 2
    if loaded.spec is None:
        print(render_all(loaded.problems, loaded.sources), file=sys.stderr)
        return 1
    parts = list(explanations(loaded.spec, word))
    if parts:
        print("\n\n".join("\n".join(part) for part in parts))
        return 0
    known = sorted(known_words(loaded.spec) | set(CODES) | set(PROPERTIES) | set(ANSWERS) | set(TERMS))
    near = difflib.get_close_matches(word, known, n=5, cutoff=0.5)
    hint = f"closest: {', '.join(near)}" if near else "`kvfsm explain --help` lists the kinds of word"
    print(f"kvfsm explain: nothing is called '{word}'; {hint}", file=sys.stderr)
    return 2


def known_words(spec: Spec) -> set[str]:
    """Every word that ``explanations`` knows."""
    words = {word.name for word in spec.vocabulary.refusals} | {actor.name for actor in spec.vocabulary.actors}
    for machine in spec.all_machines:
        words |= {machine.name} | {state.name for state in machine.states}
        words |= {name for event in machine.events for name in (event.name, f"{machine.name}.{event.name}")}
        claims: list[Property | LeadsTo] = [*machine.properties, *machine.leads_to]
        words |= {name for claim in claims for name in (claim.name, claim.says) if name}
        words |= {name for field in machine.fields for name in (field.name, f"{machine.name}.{field.name}")}
    words |= {protocol.name for protocol in spec.protocols} | {profile.name for profile in spec.profiles}
    return words


def explanations(spec: Spec, word: str) -> Iterator[list[str]]:
    """Everything that goes by a word, as blocks of lines."""
    owner, dot, name = word.partition(".")
    for machine in spec.all_machines:
        if word == machine.name:
            yield machine_lines(machine)
            if machine in spec.protocol_machines:
                yield [f"only protocols use it; written in {machine.path}"]
        if dot and owner != machine.name:
            continue
        asked = name if dot else word
        yield from (event_lines(machine, event) for event in machine.events if event.name == asked)
        yield from (state_lines(machine, state) for state in machine.states if state.name == asked)
        yield from (field_lines(machine, field) for field in machine.fields if field.name == asked)
    yield from (protocol_lines(spec, protocol) for protocol in spec.protocols if protocol.name == word)
    yield from (profile_lines(profile) for profile in spec.profiles if profile.name == word)
    if word in TERMS:
        yield [f"{word}, in the runtime", *paragraph(TERMS[word], 2, "  ")]
    if word in ANSWERS:
        yield [f"answer {word}", *paragraph(ANSWERS[word], 2, "  ")]
    from ...runtime.answers import Reason

    if word in Reason.__members__:
        yield [f"reason {word}, of an answer or of the error Refused", *paragraph(Reason[word].reason, 2, "  ")]
    from ...runtime.stores.store import Verdict

    if word in Verdict.__members__:
        yield [f"verdict {word} of a store, of one object", *paragraph(Verdict[word].reason, 2, "  ")]
    from ...runtime import errors

    error = getattr(errors, word, None)
    if isinstance(error, type) and issubclass(error, errors.KvfsmError):
        yield [f"error {word}", *paragraph(inspect.cleandoc(error.__doc__ or ""), 2, "  ")]
    for refusal in spec.vocabulary.refusals:
        if word in (refusal.name, refusal.name.upper()):
            where = [
                f"  {machine.name}.{event.name} in {'any state' if case.any_state else ', '.join(case.sources)}"
                + (f" when {guard_text(case)}" if case.when is not None else "")
                for machine in spec.all_machines
                for event in machine.events
                for case in event.cases
                if case.refuse == refusal.name
            ]
            yield [f"refusal '{refusal.name}' (code {refusal.code}): {refusal.about}", *where]
    for actor in spec.vocabulary.actors:
        if actor.name == word:
            events = [f"{machine.name}.{event.name}" for machine in spec.all_machines for event in machine.events
                      if word in event.by]
            yield [f"actor '{word}': {actor.about}", *_wrapped("fires: ", events)]
    claims = list(property_lines(spec, lambda name, says: word in (name, says)))
    about = paragraph(PROPERTIES[word], 2, "  ") if word in PROPERTIES else []
    if about and not claims:
        claims = ["  this spec claims it nowhere"]
    if claims:
        yield [f"property {word}", *about, *claims]


def code_lines(code: str) -> list[str]:
    """A problem code."""
    info = CODES[code]
    lines = [f"{code}: {info.title}", "", *paragraph(info.explanation)]
    return [*lines, "", "For example:", *(f"  {line}" for line in info.example.splitlines())] if info.example else lines


def machine_lines(machine: Machine) -> list[str]:
    """A machine: what it is, its word, states, events, and eviction rule."""
    lines = [f"machine '{machine.name}': {machine.title}", *paragraph(machine.about, 2, "  ")]
    lines += ["", "  word, from the low bit up:"]
    width = max(len(field.name) for field in machine.fields)
    for field in machine.fields:
        names = f" ({', '.join(field.names)})" if field.names else ""
        about = f"  {field.about}" if field.about else ""
        lines.append(f"    {field.name:{width}}  bits [{field.shift}, {field.shift + field.bits}){names}{about}")
    lines += ["", "  states:"]
    width = max(len(state.name) for state in machine.states)
    lines += [f"    {state.name:{width}}  {state.about}" for state in machine.states]
    lines += ["", *_wrapped("events: ", [event.name for event in machine.events])]
    if machine.eviction is not None:
        order = ", then ".join(f"{text.render(key.by)} ({key.first} first)" for key in machine.eviction.order)
        lines.append(f"  eviction: {', '.join(machine.eviction.candidates)}; {order}; leaves {machine.eviction.leaves}")
        if machine.eviction.cascade:
            lines.append(f"    with it go {', '.join(machine.eviction.cascade)}")
        if machine.eviction.budget is not None:
            shares = {"kind": machine.eviction.budget.kind, "tenant": machine.eviction.budget.tenant}
            lines += [f"    at most {share}% of the slots a {whose}" for whose, share in shares.items() if share]
    return lines


def event_lines(machine: Machine, event: Event) -> list[str]:
    """An event, case by case."""
    given = ", ".join(argument.name for argument in event.given)
    lines = [f"event {machine.name}.{event.name}({given}), by {joined(event.by)}", *paragraph(event.about, 2, "  ")]
    if event.kernel is not None:
        lines.append(f"  carried out by the kernel '{event.kernel}'")
    lines.append("  the first case that fits decides:")
    for case in event.cases:
        sources = "any state" if case.any_state else ", ".join(case.sources)
        when = f" when {guard_text(case)}" if case.when is not None else ""
        if case.refuse is not None:
            then = f"refused as {case.refuse}"
        else:
            then = "; ".join(filter(None, (f"to {case.to}" if case.to else "stays", effect_text(case))))
        lines.append(f"    {case.number}. {sources}{when}: {then}")
    others = [state.name for state in machine.states if state.name not in event.listed()]
    if others:
        lines += _wrapped("illegal in: ", others)
    return lines


def field_lines(machine: Machine, field: Field) -> list[str]:
    """A field of the word: where it lies, who reads it and who changes it."""
    read = [event.name for event in machine.events
            if any(case.when is not None and field.name in {name.name for name in names_in(case.when)}
                   for case in event.cases)]
    changed = [event.name for event in machine.events
               if any(assignment.field == field.name for case in event.cases for assignment in case.do)]
    names = f", {' or '.join(field.names)}" if field.names else ""
    lines = [f"field '{field.name}' of {machine.name}: bits [{field.shift}, {field.shift + field.bits}){names}"]
    lines += paragraph(field.about, 2, "  ") if field.about else []
    return [*lines, *_wrapped("guards that read it: ", read), *_wrapped("changed by: ", changed)]


def protocol_lines(spec: Spec, protocol: Protocol) -> list[str]:
    """A protocol: what happens, on which slots, and the steps of each actor."""
    lines = [f"protocol '{protocol.name}': {protocol.title}", *paragraph(protocol.about, 2, "  ")]
    lines += [f"  {one.name}: {one.slots} slot{'s' if one.slots > 1 else ''} of {one.machine.name}"
              for one in protocol.instances]
    for program in protocol.programs:
        lines += _wrapped(f"{program.name}: ", [step.name for step in program.steps])
    picture = spec.root.resolve().parent / "diagrams" / "protocols" / f"{protocol.name}.svg"
    drawn = f"drawn in diagrams/protocols/{protocol.name}.svg" if picture.is_file() else "`kvfsm draw` draws it"
    return [*lines, f"  {drawn}; written in {protocol.path}"]


def profile_lines(profile: ProfileSpec) -> list[str]:
    """A model profile: its granule, and which layers keep which object."""
    lines = [f"model profile '{profile.name}': {profile.title}", *paragraph(f"source: {profile.source}", 2, "  ")]
    lines.append(f"  granule {profile.granule} tokens, {profile.layer_count} layers")
    return lines + [f"  {group.name}: {group.object} in {len(group.layers)} layers, a row for {group.ratio} "
                    f"token{'s' if group.ratio > 1 else ''}" for group in profile.groups]


def state_lines(machine: Machine, state: State) -> list[str]:
    """A state: its marks and what it takes."""
    marks = [mark for mark in ("initial", "readable", "exclusive", "evictable") if getattr(state, mark)]
    takes = [event.name for event in machine.events if state.name in event.listed()]
    comes = [f"{event.name} ({', '.join(case.sources)})" for event in machine.events for case in event.cases
             if case.to == state.name]
    return [
        f"state '{state.name}' of {machine.name}: {state.about}",
        f"  {', '.join([*marks, f'counts as {state.counts_as}'])}",
        *_wrapped("takes: ", takes),
        *_wrapped("reached by: ", comes),
    ]


def property_lines(spec: Spec, wanted: Callable[[str, str | None], bool]) -> Iterator[str]:
    """The claims that ``wanted`` asks for."""
    for machine in spec.all_machines:
        for claim in machine.properties:
            if wanted(claim.name, claim.says):
                yield f"  {machine.name}.{claim.name}: {claim.kind} {text.render(claim.that)}"
        for promise in machine.leads_to:
            if wanted(promise.name, promise.says):
                yield f"  {machine.name}.{promise.name}: {text.promise_text(promise)}"
    for protocol in spec.protocols:
        for claim in protocol.properties:
            if wanted(claim.name, claim.says):
                yield f"  protocol {protocol.name}.{claim.name}: {claim.kind} {text.render(claim.that)}"


def _wrapped(head: str, words: list[str]) -> list[str]:
    return paragraph(head + (", ".join(words) or "nothing"), 2, "  ", "    ")
