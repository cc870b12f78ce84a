"""Words are packed and unpacked as the spec lays them out."""

from __future__ import annotations

import pytest

from kvfsm.runtime.errors import FieldOverflow
from kvfsm.runtime.generated import KINDS
from kvfsm.spec.language.load import load_spec
from kvfsm.spec.language.word import pack, unpack

SPEC = load_spec().required()


@pytest.mark.parametrize("machine", SPEC.machines, ids=lambda machine: machine.name)
def test_every_field_lies_where_the_spec_says(machine) -> None:  # type: ignore[no-untyped-def]
    layout = KINDS[machine.name].LAYOUT
    for field in machine.fields:
        high = len(machine.states) - 1 if field.name == "state" else field.max
        assert layout.pack(**{field.name: high}) == pack(machine, {field.name: high})
        with pytest.raises(FieldOverflow, match=f"'{field.name}' holds"):
            layout.pack(**{field.name: high + 1})
    every = {field.name: 1 for field in machine.fields}
    assert layout.unpack(layout.pack(**every)) == unpack(machine, pack(machine, every)) == every


def test_a_field_that_is_not_there_is_answered_with_those_that_are() -> None:
    with pytest.raises(KeyError, match="'swa_window' has no field 'pin'; it has: state, pins, holds"):
        KINDS["swa_window"].LAYOUT.field("pin")
