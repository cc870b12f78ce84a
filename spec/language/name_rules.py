"""Rules about names that generated code spells anew: what is apart in the spec stays apart in each target.

``names.py`` rejects single words; here two names meet, such as state ``pins_mask`` and the mask of field ``pins``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .model import Machine, Vocabulary
from .problems import Place, Problems

Spelled = tuple[str, str, Place]  # what generated code calls it, what it is in the spec, where

# Classes that generated modules import, and types and functions of the base header.
_PYTHON_CLASSES = (
    "Bits Case ClassVar Codes Event Eviction Flag Flags Given Index IntEnum Layout Mapping Meta Number Numbers "
    "OrderKey Refusal Shares Slot Table Words"
).split()
_CUDA_NAMES = "kv_u8 kv_u16 kv_u32 kv_u64 kv_i64 kv_get kv_put kv_refusal".split()
_NOWHERE = Place("", 0, 0)


def names_stay_apart(machine: Machine, problems: Problems) -> None:
    """No two names of one machine become the same in a target."""
    _note(_python_names(machine), problems)
    _note(_cuda_names(machine), problems)


def machines_stay_apart(machines: Sequence[Machine], problems: Problems) -> None:
    """No two machines become the same class, and no machine a class or a header's name that is there already."""
    classes: list[Spelled] = [(name, "a class that generated modules import", _NOWHERE) for name in _PYTHON_CLASSES]
    headers: list[Spelled] = [(name, "a name of the base header", _NOWHERE) for name in _CUDA_NAMES]
    for machine in machines:
        what = f"machine '{machine.name}'"
        name = _class(machine.name)
        classes += [(name, what, machine.at), (f"{name}Table", f"the table of {what}", machine.at)]
        headers.append((f"kv_{machine.name}", what, machine.at))
    for machine in machines:
        headers += [
            (f"kv_{machine.name}_{event.name}", f"event '{event.name}' of machine '{machine.name}'", event.at)
            for event in machine.events
        ]
    _note(classes, problems)
    _note(headers, problems)


def refusals_stay_apart(vocabulary: Vocabulary, problems: Problems) -> None:
    """No two refusals become the same constant, and none is called as the code of success."""
    spelled: list[Spelled] = [("kApplied", "the code of an event that was applied", _NOWHERE)]
    spelled += [(_k(word.name), f"refusal '{word.name}'", word.at) for word in vocabulary.refusals]
    _note(spelled, problems)


def _python_names(machine: Machine) -> Iterator[Spelled]:
    """Classes and constants of a machine's module."""
    name = _class(machine.name)
    for generated in _PYTHON_CLASSES:
        yield generated, "a class that generated modules import", _NOWHERE
    yield f"{name}State", "the class of states", _NOWHERE
    yield f"{name}Table", "the class of many slots", _NOWHERE
    for state in machine.states:
        yield f"_{state.name.upper()}", f"state '{state.name}'", state.at
    for field in machine.fields:
        for value in field.names:
            yield f"_{field.name}_{value}".upper(), f"value '{value}' of field '{field.name}'", field.at
    for field in machine.fields:
        if field.names:
            yield name + _class(field.name), f"the values of field '{field.name}'", field.at
    for event in machine.events:
        for table in ("else", "codes"):
            yield f"_{event.name}_{table}".upper(), f"a table of event '{event.name}'", event.at
        yield f"_{event.name}", f"event '{event.name}'", event.at
    for case in (case for event in machine.events for case in event.cases if case.refuse is None):
        cleared = [*(["state"] if case.to is not None else []), *(item.field for item in case.do)]
        for count in range(1, len(cleared) + 1):
            constant = f"_all_but_{'_'.join(cleared[:count])}".upper()
            yield constant, "a mask that clears fields", _NOWHERE
    if machine.eviction is not None:
        yield "_eviction_guard", "the guard of the eviction rule", machine.eviction.at
        for number, order in enumerate(machine.eviction.order, start=1):
            yield f"_eviction_key_{number}", f"key {number} of the eviction order", order.at


def _cuda_names(machine: Machine) -> Iterator[Spelled]:
    """Enumerators and types of a machine's namespace."""
    yield "kWordBits", "the bits of the word", _NOWHERE
    yield "State", "the type of states", _NOWHERE
    yield "Layout", "the type of the word's layout", _NOWHERE
    for field in machine.fields:
        for part in ("shift", "bits", "mask", "max"):
            yield _k(field.name, part), f"the {part} of field '{field.name}'", field.at
    for state in machine.states:
        yield _k(state.name), f"state '{state.name}'", state.at
    for field in machine.fields:
        if field.names:
            yield _class(field.name), f"the values of field '{field.name}'", field.at
        for value in field.names:
            yield _k(field.name, value), f"value '{value}' of field '{field.name}'", field.at


def _note(spelled: Iterator[Spelled] | Sequence[Spelled], problems: Problems) -> None:
    """One problem for each name that is met again; it is placed at the later one that stands in the spec."""
    first: dict[str, tuple[str, Place]] = {}
    for name, what, at in spelled:
        if name not in first:
            first[name] = (what, at)
            continue
        other, other_at = first[name]
        if other == what or (at is _NOWHERE and other_at is _NOWHERE):
            continue
        if at is _NOWHERE:
            at, other, what = other_at, what, other
        problems.add("E217", at, f"{what} and {other} both become '{name}' in generated code", "use another name")


def _class(word: str) -> str:
    return "".join(part.capitalize() for part in word.split("_"))


def _k(*words: str) -> str:
    return "k" + "".join(map(_class, words))
