"""What the generated tests drive: one machine as a class, a table, and a ``transitions`` machine, side by side.

For tests only: this module needs Hypothesis and ``transitions``, and nothing else of the runtime imports it. An
*oracle* says what should happen; the tests of the shipped machines hand in the spec's interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, cast

import numpy as np
import numpy.typing as npt
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize

from .machine import LibraryModel, Slot, library_machine
from .table import Codes, Table

APPLIED = "applied"
# The same runs every time: what a seed would find belongs into a row.
REPEATABLE = settings(derandomize=True, database=None, deadline=None, max_examples=60, stateful_step_count=40)
Arguments = Mapping[str, int]
# word, event, arguments -> the word afterwards, and "applied" or a refusal
Oracle = Callable[[int, str, Arguments], tuple[int, str]]


@dataclass(frozen=True, slots=True)
class Row:
    """One firing: on ``word``, which is in ``state``, case ``case`` of ``event`` decides.

    ``case`` is None where the state does not take the event. ``says`` is "applied" or the refusal; ``after`` is the
    word afterwards, None if it stays as it was.
    """

    event: str
    state: str
    case: int | None
    word: int
    arguments: Arguments = field(default_factory=dict)
    says: str = APPLIED
    after: int | None = None


@dataclass(frozen=True, slots=True)
class Near:
    """An argument by its distance from the slot's field of the same kind: 0 is what a caller in the know passes."""

    field: str
    distance: int

    def value(self, slot: Slot, high: int) -> int:
        """The argument for ``slot``, in [0, ``high``]."""
        return min(max(slot.LAYOUT.unpack(slot.word)[self.field] + self.distance, 0), high)


def near(name: str) -> st.SearchStrategy[Near | int]:
    """Arguments like a field: mostly its value, else one beside it, or any."""
    return st.one_of(st.builds(Near, st.just(name), st.sampled_from((0, 0, 0, 1, -1))), st.integers(0, (1 << 48) - 1))


def up_to(high: int) -> st.SearchStrategy[Near | int]:
    """Numbers from 0 to ``high``, small ones and the greatest more often."""
    return st.one_of(st.integers(0, min(high, 3)), st.just(high), st.integers(0, high))


def words_of(table: type[Table]) -> st.SearchStrategy[int]:
    """Any legal word, reachable or not, its fields often at an end of their range."""
    fields = table.LAYOUT.fields
    ends = [st.sampled_from((0, min(1, f.high), f.high)) for f in fields]
    values = st.tuples(*(st.one_of(end, st.integers(0, f.high)) for end, f in zip(ends, fields, strict=True)))
    return values.map(lambda drawn: sum(value << f.shift for f, value in zip(fields, drawn, strict=True)))


def scalar_outcome(slot: Slot, event: str, arguments: Arguments) -> tuple[int, str]:
    """What the class of one slot does."""
    says = slot.fire(event, **_typed(slot, event, arguments)) or APPLIED
    return slot.word, says


def table_outcome(table: Table, event: str, slots: Sequence[int], arguments: Mapping[str, Sequence[int]]) -> Codes:
    """What the table does."""
    kinds = {given.name: np.bool_ if given.kind is bool else np.int64 for given in table.EVENTS[event].given}
    arrays: dict[str, npt.ArrayLike] = {name: np.array(values, kinds[name]) for name, values in arguments.items()}
    return table.fire(event, slots, **arrays)


def check_rows(table_class: type[Table], rows: Sequence[Row]) -> None:
    """Assert that class, table and ``transitions`` machine do what every row says."""
    model = cast(LibraryModel, library_machine(table_class.SLOT()).model)
    for row in rows:
        want = (row.word if row.after is None else row.after, row.says)
        slot = table_class.SLOT(row.word)
        told = f"{table_class.MACHINE}: {row.event} {dict(row.arguments)} on {slot!r}"
        assert slot.state_name() == row.state, told
        assert scalar_outcome(slot, row.event, row.arguments) == want, f"class, {told}"
        model.put(row.word)
        says = model.fire(row.event, _typed(slot, row.event, row.arguments))
        assert (model.word, says or APPLIED) == want, f"transitions, {told}"
    for event in dict.fromkeys(row.event for row in rows):
        _check_together(table_class, [row for row in rows if row.event == event])


def _check_together(table_class: type[Table], rows: Sequence[Row]) -> None:
    """All rows of one event as one call."""
    table = table_class(np.array([row.word for row in rows], np.uint64))
    names = rows[0].arguments
    arguments = {name: [row.arguments[name] for row in rows] for name in names}
    codes = table_outcome(table, rows[0].event, range(len(rows)), arguments)
    for row, code, word in zip(rows, codes, table.words, strict=True):
        want = (row.word if row.after is None else row.after, row.says)
        got = (int(word), table_class.REFUSALS(int(code)).name.lower())
        assert got == want, f"table, {table_class.MACHINE}: {row.event} {dict(row.arguments)} on {row.word:#x}"


def check_coverage(table_class: type[Table], rows: Sequence[Row]) -> None:
    """Assert that rows fire every event in every state, take every case, and meet every refusal of it."""
    states = [state.name.lower() for state in table_class.STATES]
    events = dict.fromkeys(case.event for case in table_class.CASES)
    assert {(row.event, row.state) for row in rows} == {(event, state) for event in events for state in states}
    cases = {(case.event, case.number): case.refusal or APPLIED for case in table_class.CASES}
    assert {(row.event, row.case): row.says for row in rows if row.case is not None} == cases


class SideBySide(RuleBasedStateMachine):
    """Class, table and ``transitions`` machine on the same events, each step compared with ``oracle``.

    Subclasses are generated: a rule an event. A run starts from any legal word, so that states which take long to reach
    are met; the slots beside ours in the table must never change.
    """

    TABLE: ClassVar[type[Table]]
    oracle: Oracle | None = None

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        """From any word, and two more as neighbours."""
        words = [data.draw(words_of(self.TABLE)) for _ in range(3)]
        self.slot = self.TABLE.SLOT(words[1])
        self.table = self.TABLE(np.array(words, np.uint64))
        self.model = cast(LibraryModel, library_machine(self.slot).model)
        self.neighbours = (words[0], words[2])

    def fire(self, event: str, **given: Near | int) -> None:
        """Fire one event everywhere and compare."""
        high = {given.name: given.high for given in self.TABLE.EVENTS[event].given}
        arguments = {name: value.value(self.slot, high[name]) if isinstance(value, Near) else min(value, high[name])
                     for name, value in given.items()}
        word = self.slot.word
        want = scalar_outcome(self.slot, event, arguments)
        if self.oracle is not None:
            assert self.oracle(word, event, arguments) == want
        says = self.model.fire(event, _typed(self.slot, event, arguments)) or APPLIED
        assert (self.model.word, says) == want
        (code,) = table_outcome(self.table, event, [1], {name: [value] for name, value in arguments.items()})
        assert (int(self.table.words[1]), self.TABLE.REFUSALS(int(code)).name.lower()) == want
        assert (int(self.table.words[0]), int(self.table.words[2])) == self.neighbours


def _typed(slot: Slot, event: str, arguments: Arguments) -> dict[str, int]:
    return {given.name: given.kind(arguments[given.name]) for given in slot.EVENTS[event].given}
