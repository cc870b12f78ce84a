"""Problem codes E4xx: protocols."""

from __future__ import annotations

from collections.abc import Mapping

from .problems import CodeInfo

PROTOCOL_CODES: Mapping[str, CodeInfo] = {
    "E401": CodeInfo(
        "an unknown bound",
        "Sizes are numbers, or names declared under 'bounds:', which `kvfsm check --bound` may change.",
        "bounds: {slots: 2}\nmachines: {window: {machine: swa_window, slots: slot}}    # wrong: slots",
    ),
    "E402": CodeInfo(
        "a bound that nothing uses",
        "Changing it would change nothing; it is a leftover, or something should have used it.",
        "bounds: {slots: 2, readers: 2}    # wrong when nothing says readers",
    ),
    "E403": CodeInfo(
        "an unknown machine",
        "Instances are of machines in objects/ or protocols/machines/, and a mutant is of a machine that its "
        "protocol uses.",
        "window: {machine: swa_windw, slots: 2}     # wrong\nwindow: {machine: swa_window, slots: 2}    # right",
    ),
    "E404": CodeInfo(
        "a field that cannot be narrowed so",
        "Narrowing makes fields of numbers smaller for checking, never wider; states and named values "
        "stay as they are.",
        "narrow: {pins: 40}    # wrong: pins has 12 bits",
    ),
    "E405": CodeInfo(
        "an unknown role",
        "Actors play actors of vocabulary.yaml.",
        "plays: reeder    # wrong\nplays: reader    # right",
    ),
    "E406": CodeInfo(
        "an unknown type of a local",
        "A local is a slot number (a bound), a field's type ({like: instance.field}), bool, or u1 to u8.",
        "locals: {seen: {like: window.generaton}}    # wrong",
    ),
    "E407": CodeInfo(
        "an unknown event",
        "Actors fire events of the machine that stands in the slot.",
        "fire: [{on: 'window[slot]', event: pinn}]    # wrong",
    ),
    "E408": CodeInfo(
        "an event of another actor",
        "An event is fired by the actors that its machine names under 'by:'.",
        "reader: fire: [{on: 'window[slot]', event: evict}]    # wrong: evictor's",
    ),
    "E409": CodeInfo(
        "an unknown local",
        "Steps choose and assign the actor's own locals.",
        "do: {slto: 1}    # wrong\ndo: {slot: 1}    # right",
    ),
    "E410": CodeInfo(
        "an unknown step",
        "'then:', 'refused:' and 'fair:' name steps; fairness names them as actor.step.",
        "then: mtach    # wrong\nthen: match    # right",
    ),
    "E411": CodeInfo(
        "arguments that do not fit the event",
        "'with:' gives every argument of the event, and no other.",
        "fire: [{on: 'window[slot]', event: unpin}]    # wrong: no expected",
    ),
    "E412": CodeInfo(
        "a value that may not fit",
        "What is assigned or handed over must be proved to fit, given the step's own guard.",
        "do: {tries: tries + 1}                        # wrong\n"
        "when: tries < 3\n"
        "do: {tries: tries + 1}                        # right for u2",
    ),
    "E413": CodeInfo(
        "a choice from another type",
        "'choose:' takes any value of the local's own type.",
        "locals: {slot: slots}\nchoose: {slot: bool}    # wrong",
    ),
    "E414": CodeInfo(
        "a refusal that cannot happen",
        "'refused:' says where a refused event leads; this step fires none.",
        "use: {refused: match}    # wrong",
    ),
    "E415": CodeInfo(
        "not a slot of an instance",
        "'on:' is instance[slot], where the slot is a number or a local within the instance's slots.",
        "on: window         # wrong\non: window[slot]    # right",
    ),
    "E416": CodeInfo(
        "a step that nothing leads to",
        "Steps follow one another in order unless 'then:' or 'refused:' leads elsewhere.",
        "match: {then: match}\nuse: {}    # wrong: never reached",
    ),
    "E417": CodeInfo(
        "a file that is named otherwise",
        "A protocol stands in a file of its own name.",
        "protocol: read    # wrong in evict.yaml",
    ),
    "E418": CodeInfo(
        "a property of nothing",
        "A property of a protocol speaks of slots and actors.",
        "always: {fine: {that: true}}    # wrong",
    ),
    "E419": CodeInfo(
        "a machine of protocols that is named as an object",
        "Protocols name the machines of objects/ and of protocols/machines/ alike, so that no two may have one name.",
        "machine: swa_window    # wrong in protocols/machines/swa_window.yaml",
    ),
    "E420": CodeInfo(
        "an unknown derived field",
        "'derived:' lists fields of instances, as instance.field.",
        "derived: [block.pinz]    # wrong\nderived: [block.pins]    # right",
    ),
    "E421": CodeInfo(
        "a derived field that nothing defines",
        "A derived field is a function of the rest: an 'always' says what it is equal to in every slot. The field "
        "stands on the left, with an index of its own; the right side reads no derived field, and names no other index "
        "and no actor outside of a count.",
        "derived: [block.pins]\n"
        'always: {leases: {that: "block[i].pins <= 2"}}    # wrong\n'
        'always: {leases: {that: "block[i].pins == count(reader, reader.slot == i)"}}    # right',
    ),
    "E422": CodeInfo(
        "a protocol too large to explore",
        "`kvfsm check` looks at every state, and ended at its bound of memory or states before it had. What it had not "
        "decided by then is unknown, which is no pass. States grow fast with every slot, copy and bit.",
        "bounds: {slots: 9, readers: 9}    # wrong\nbounds: {slots: 2, readers: 2}    # right",
    ),
    "E423": CodeInfo(
        "an equivalent fault that is a fault",
        "'equivalent:' lists small faults that no property can notice because they are none. `kvfsm check --mutants` "
        "makes each; one that it does not know, or that a property does notice, must not stand there.",
        'equivalent: {"reader.use: guard dropped": "..."}    # wrong where the step has no guard',
    ),
}
