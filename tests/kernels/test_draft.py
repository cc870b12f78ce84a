"""Drafts: what doesn't fit together is refused at its argument, and what fits becomes the plan."""

from __future__ import annotations

import pytest

from kvfsm.kernels.draft import Draft
from kvfsm.kernels.launch import LaunchRefused, Pointer, Value

from .test_launch import COPY, VALUES

GIVEN: dict[str, Value] = dict(zip((argument.name for argument in COPY.arguments), VALUES, strict=True))


def test_a_plan_has_the_values_in_the_order_of_the_arguments() -> None:
    plan = Draft(COPY, **dict(reversed(GIVEN.items()))).plan((2, 1, 1))
    assert (plan.kernel, plan.grid, plan.values) == (COPY, (2, 1, 1), VALUES)


def test_each_value_must_fit_its_argument() -> None:
    with pytest.raises(LaunchRefused, match=r"argument 3 'rows' .* is -1; fix: pass an int"):
        Draft(COPY, **GIVEN | {"rows": -1})


def test_names_are_those_of_the_arguments() -> None:
    with pytest.raises(LaunchRefused, match="kv_copy has too many or lacks columns, rows; fix: pass source, target, "):
        Draft(COPY, columns=3, **{name: value for name, value in GIVEN.items() if name != "rows"})


def test_too_little_memory_is_refused_where_it_stands() -> None:
    draft = Draft(COPY, **GIVEN)
    draft.require_bytes(source=64, target=64, order=1 << 40)  # there is no order
    with pytest.raises(LaunchRefused) as refused:
        draft.require_bytes(target=65)
    assert str(refused.value) == (
        "kernels/cuda/copies.cu: kv_copy: argument 1 'target' (u8*) is memory at 0x200 of 64 bytes; fix: the "
        "plan needs 65 bytes there"
    )


def test_numbers_are_refused_where_they_stand() -> None:
    draft = Draft(COPY, **GIVEN)
    draft.require_least(4, "rows")
    draft.require_multiple(2, "rows")
    with pytest.raises(LaunchRefused, match=r"argument 4 'shift' \(i64\) is -1; fix: pass at least 0"):
        draft.require_least(0, "rows", "shift")
    with pytest.raises(LaunchRefused, match=r"argument 3 'rows' \(u32\) is 4; fix: use a multiple of 16"):
        draft.require_multiple(16, "rows")


def test_empty_memory_needs_no_address() -> None:
    draft = Draft(COPY, **GIVEN | {"source": Pointer(0, 0)})
    draft.require_bytes(source=0)
    with pytest.raises(LaunchRefused, match=r"'source' .* the plan needs 1 bytes there"):
        draft.require_bytes(source=1)
