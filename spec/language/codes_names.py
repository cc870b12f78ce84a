"""Problem codes E2xx: names, types and expressions."""

from __future__ import annotations

from collections.abc import Mapping

from .problems import CodeInfo

NAMES_CODES: Mapping[str, CodeInfo] = {
    "E201": CodeInfo(
        "not a name",
        "Names become members, functions and constants in several languages, so they are lower_snake_case and short.",
        "Filling: {...}    # wrong\nfilling: {...}    # right",
    ),
    "E202": CodeInfo(
        "a reserved word",
        "The word is a keyword of Python, C or the expression language, or a member that generated "
        "classes have already.",
        "free:\nnew:      # wrong: a keyword of C++\nfresh:    # right",
    ),
    "E203": CodeInfo(
        "an expression that cannot be read",
        "Expressions are a small subset of Python's: numbers, names, + - * // %, comparisons, and, or, "
        "not, implies, in, x if c else y, min, max.",
        "when: pins > 0 && ok     # wrong\nwhen: pins > 0 and ok    # right",
    ),
    "E204": CodeInfo(
        "an unknown name in an expression",
        "An expression reads the fields of its own machine's word and the arguments of its own event. "
        "Eviction may read meta fields too, protocols read slots and actors.",
        "when: fill == capacity      # wrong\nwhen: filled == capacity    # right",
    ),
    "E205": CodeInfo(
        "types that do not fit",
        "Numbers, truth values, states and the named values of each field are different types. A state "
        "or a named value is only known beside its own field.",
        "when: state == 2           # wrong\nwhen: state == resident    # right",
    ),
    "E206": CodeInfo(
        "a number out of bounds",
        "Arithmetic is that of signed 64-bit numbers and may not leave them; a divisor must be known to "
        "be positive, a dividend and an index not negative. This is proved from the ranges of the names.",
        "when: rows // span > 2            # wrong: span may be 0\nwhen: rows // max(span, 1) > 2    # right",
    ),
    "E207": CodeInfo(
        "a name of another slot or actor that is not there",
        "window[slot].pins and reader.at belong to protocols, which declare the instances and actors. A "
        "machine reads its own slot only.",
        "when: window[0].pins > 0    # wrong in a machine\nwhen: pins > 0              # right",
    ),
    "E208": CodeInfo(
        "an unknown function",
        "There are min(a, b), max(a, b), and max(field), the greatest value of a field of numbers; and in "
        "properties of protocols count(actor, condition).",
        "when: abs(pins) > 1    # wrong",
    ),
    "E209": CodeInfo(
        "a name that is taken",
        "Fields, meta fields, states, events and arguments of a machine have different names: they "
        "become members of one class.",
        "states: {pins: {...}}    # wrong: pins is a field",
    ),
    "E210": CodeInfo(
        "an unknown state",
        "The machine has no state of that name.",
        "to: residnet    # wrong\nto: resident    # right",
    ),
    "E211": CodeInfo(
        "an unknown event",
        "The machine has no event of that name.",
        "event: evcit    # wrong\nevent: evict    # right",
    ),
    "E212": CodeInfo(
        "an unknown actor",
        "Actors are the words of vocabulary.yaml, shared by all machines.",
        "by: raeder    # wrong\nby: reader    # right",
    ),
    "E213": CodeInfo(
        "an unknown refusal",
        "Refusals are the words of vocabulary.yaml. Their codes travel in tables and recorded traces, so "
        "new words go to the end.",
        "refuse: to_many_readers     # wrong\nrefuse: too_many_readers    # right",
    ),
    "E214": CodeInfo(
        "an assignment to what is no field",
        "Cases assign fields of the word. The state is changed by 'to:', meta fields are written by the runtime.",
        "do: {state: resident}    # wrong\nto: resident             # right",
    ),
    "E215": CodeInfo(
        "an unknown type of argument",
        "An argument takes the values of a field, or is bool, or a number of u1 to u48.",
        "given: {at: int}         # wrong\ngiven: {at: boundary}    # right",
    ),
    "E216": CodeInfo(
        "a mutant that cannot be built",
        "A mutant is one deliberate fault in one event: a case or a conjunct dropped, an assignment "
        "forgotten, or a case replaced. Cases and conjuncts count from 1.",
        "mutants:\n  unchecked: {event: pin, drop_case: 9}    # wrong: pin has fewer cases",
    ),
    "E217": CodeInfo(
        "names that meet in generated code",
        "Names are spelled anew in each target, such as kPinsMask for the mask of field 'pins' in CUDA. Two that "
        "differ in the spec may become one there, or the name of something that every generated file has.",
        "states: {pins_mask: {...}}    # wrong beside a field 'pins'\nstates: {masked: {...}}       # right",
    ),
    "E218": CodeInfo(
        "a count that counts nothing",
        "count(actor, condition) says how many copies of an actor fulfil a condition that reads the actor. Only the "
        "properties of a protocol may ask: a machine has no actors, and a step does not see all copies.",
        "that: kv[i].pins == count(reader, kv[i].pins > 0)    # wrong: reads no reader\n"
        "that: kv[i].pins == count(reader, reader.slot == i)    # right",
    ),
}
