"""Protocol -> ``System``: every copy, slot and choice spelled out, and events carried out on paper.

Each step of each copy becomes commands that exclude one another, one for each way it can go: for each choice, each slot
that its locals may name, and each case by which its events are taken, and one where they are refused. What no run can
reach is then left out by ``pruning.py``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from ..language.bounds import interval
from ..language.expressions import (
    BOOL,
    INT,
    Arithmetic,
    Choice,
    Compare,
    Count,
    Expr,
    Extreme,
    Member,
    Name,
    Number,
    Remote,
    Truth,
)
from ..language.interpreter import evaluate
from ..language.model import Assignment, Event, Machine
from ..language.protocol import Branch, Instance, Program, Protocol, Step, range_of, slots_in
from ..language.trees import names_in, rewritten, walked
from .folding import FALSE, TRUE, both, conjuncts, either, equal, folded, negation, number
from .pruning import without_unreachable
from .system import NOWHERE, Cell, Claim, Command, Fired, Promise, System

HOLDS = ("pins", "holds")  # counters of those who use a slot
AT_WORK = ("loading", "expanding", "quarantined")  # what a state counts as while somebody still has to finish
OTHERS = "others:"  # cells whose names begin so count copies that are not there; no field is called that
AT_FIRST = ":at_first"  # and of this name, copies that fulfil the condition before they have moved
_OTHERS_MAX = 1 << 40  # more than any number that a claim compares them with


def ground(protocol: Protocol, for_proof: bool = False) -> System:
    """The system that a protocol describes.

    Args:
        protocol: what to lay flat; a fault is made by handing a changed protocol (``with_faulty``).
        for_proof: with the lemmas, and every ``count`` also counts copies that are not there, any number of them, which
            do not move: a cell "others:actor:n" each, that no command updates. ``AT_FIRST`` ends its name where a copy
            fulfils the condition from the first state on; elsewhere it is 0 there.

    Returns:
        The system; cells that are 0 in every state are left out, and so are commands that can never be taken.

    """
    system = _Grounding(protocol, for_proof).system()
    return without_unreachable(system, {cell.name for cell in system.cells if cell.field.startswith(OTHERS)})


@dataclass(frozen=True, slots=True)
class _Way:
    """One way through the events of a step: what must hold, and what the cells hold after it."""

    guard: tuple[Expr, ...]
    after: Mapping[str, Expr]  # cell -> value, of the cells that were written
    fired: tuple[Fired, ...]
    refused: bool


class _Grounding:
    def __init__(self, protocol: Protocol, for_proof: bool = False) -> None:
        self.protocol = protocol
        self.others: dict[Count, int] | None = {} if for_proof else None  # what claims count, numbered
        self.cells = {cell.name: cell for cell in _cells(protocol)}
        self.counts = {program.name: program.count for program in protocol.programs}
        self.misfits: list[Expr] = []  # when a value does not fit its field; only a mutant's can fail to

    def system(self) -> System:
        protocol = self.protocol
        commands = tuple(
            command
            for program in protocol.programs
            for copy in range(program.count)
            for step in program.steps
            for command in self._step(program, copy, step)
        )
        claims = [*self._claims(), self._deadlock()]
        if self.misfits:
            fits = tuple(map(negation, self.misfits))
            claims.append(Claim("values_fit", "always", None, fits, ("",) * len(fits), protocol.at))
        return System(
            name=protocol.name,
            bounds=tuple((bound.name, bound.value) for bound in protocol.bounds),
            cells=tuple(self.cells.values()),
            commands=commands,
            claims=tuple(claims),
            promises=tuple(self._promises(commands)),
            derived=tuple(self._derived()),
        )

    # Reading.

    def read(self, expr: Expr, binding: Mapping[str, int], own: Mapping[str, Expr] | None = None) -> Expr:
        """An expression of the protocol over cells.

        Args:
            expr: it.
            binding: the copy that each actor's name stands for, and the slot that each free index does.
            own: for an expression in a step, the values of the actor's own locals.

        """

        def rule(part: Expr) -> Expr:
            match part:
                case Name(name=name, kind="index"):
                    return number(binding[name])
                case Name(name=name, kind="local"):
                    assert own is not None, name
                    return own[name]
                case Remote(owner=owner, index=None, field=field):
                    return self.cells[f"{owner}[{binding.get(owner, 0)}].{field}"].read()
                case Remote(owner=owner, index=index, field=field):
                    assert index is not None
                    return self._at(owner, index, field)
            return part

        return folded(rewritten(self._counted(expr, binding), rule))

    def _at(self, instance: str, index: Expr, field: str) -> Expr:
        """A field of the slot that an expression names: a chain of choices unless the number is known."""
        slots = self.protocol.instance(instance).slots
        fields = [self.cells[f"{instance}[{slot}].{field}"].read() for slot in range(slots)]
        index = folded(index)
        if isinstance(index, Number):
            return fields[index.value]
        found: Expr = fields[-1]
        for slot in reversed(range(slots - 1)):
            found = Choice(equal(index, number(slot)), fields[slot], found, NOWHERE)
        return found

    def _counted(self, expr: Expr, binding: Mapping[str, int]) -> Expr:
        """``count(actor, condition)`` as a sum over the copies, written over cells already."""
        if not any(isinstance(part, Count) for part in walked(expr)):
            return expr

        def rule(part: Expr) -> Expr:
            if not isinstance(part, Count):
                return part
            total: Expr = number(0)
            for copy in range(self.counts[part.actor]):
                holds = self.read(part.condition, {**binding, part.actor: copy})
                one = Choice(holds, number(1), number(0), NOWHERE)
                total = one if total == number(0) else _plus(total, one)
            return total if self.others is None else _plus(total, self._others(part, expr, binding))

        return rewritten(expr, rule)  # the rule leaves conditions alone until it meets their Count

    def _others(self, counted: Count, claim: Expr, binding: Mapping[str, int]) -> Name:
        """How many copies that are not there fulfil a condition, for each slot that it asks about."""
        assert self.others is not None
        indexes = tuple(dict.fromkeys(name.name for name in names_in(counted.condition) if name.kind == "index"))
        pools = {
            part.index.name: part.owner
            for part in walked(claim)
            if isinstance(part, Remote) and isinstance(part.index, Name) and part.index.kind == "index"
        }
        owner, slot = (pools.get(indexes[0], OTHERS), binding[indexes[0]]) if indexes else (OTHERS, 0)
        more = "".join(f":{binding[index]}" for index in indexes[1:])
        what = replace(counted, at=NOWHERE)
        condition = self.read(counted.condition, {**binding, counted.actor: 0})
        early = evaluate(condition, {name.name: 0 for name in names_in(condition)})
        which = f"{self.others.setdefault(what, len(self.others))}{more}"
        field = f"{OTHERS}{counted.actor}:{which}{AT_FIRST if early else ''}"
        cell = Cell(f"{owner}[{slot}].{field}", owner, slot, field, INT, _OTHERS_MAX, (), True)
        self.cells[cell.name] = cell
        return cell.read()

    # Steps.

    def _step(self, program: Program, copy: int, step: Step) -> Iterator[Command]:
        here = self.cells[f"{program.name}[{copy}].at"]
        at = equal(here.read(), number(step.code))
        for own, split in self._slots_told_apart(program, copy, step):
            base = (at, *split)
            choices = list(itertools.product(*(range(pick.high + 1) for pick in step.choose)))
            for values in choices:
                chosen = dict(zip((pick.local for pick in step.choose), values, strict=True))
                yield from self._ways(program, copy, step, base, own, chosen)
            if step.otherwise is not None and step.when is not None:
                fits = [
                    self.read(step.when, {program.name: copy}, {**own, **self._literals(program, dict(pairs))})
                    for pairs in (zip((pick.local for pick in step.choose), values, strict=True) for values in choices)
                ]
                guard = (*base, *conjuncts(negation(either(fits))))
                updates = self._branch(program, copy, step.otherwise, own, guard)
                yield from self._command(program, copy, step, {}, "otherwise", (), guard, updates)

    def _slots_told_apart(
        self, program: Program, copy: int, step: Step
    ) -> Iterator[tuple[dict[str, Expr], tuple[Expr, ...]]]:
        """The values of the locals, with each local that names a slot in this step fixed in turn, and what fixes it."""
        own: dict[str, Expr] = {
            local.name: self.cells[f"{program.name}[{copy}].{local.name}"].read() for local in program.locals
        }
        chosen = {pick.local for pick in step.choose}
        indexes = [name for name in _indexes(step) if name in own and name not in chosen]
        ranges = [range(next(local.high for local in program.locals if local.name == name) + 1) for name in indexes]
        for values in itertools.product(*ranges):
            fixed = {name: number(value) for name, value in zip(indexes, values, strict=True)}
            yield {**own, **fixed}, tuple(equal(own[name], value) for name, value in fixed.items())

    def _literals(self, program: Program, values: Mapping[str, int]) -> dict[str, Expr]:
        types = {local.name: local.type for local in program.locals}
        return {
            name: Truth(bool(value), NOWHERE) if types[name] == BOOL else number(value)
            for name, value in values.items()
        }

    def _ways(
        self,
        program: Program,
        copy: int,
        step: Step,
        base: tuple[Expr, ...],
        own: Mapping[str, Expr],
        chosen: Mapping[str, int],
    ) -> Iterator[Command]:
        picked = self._literals(program, chosen)
        now = {**own, **picked}
        who = {program.name: copy}
        when = TRUE if step.when is None else self.read(step.when, who, now)
        guard = (*base, *conjuncts(when))
        calls = []
        for fire in step.fire:
            slot = self.read(fire.slot, who, now)
            assert isinstance(slot, Number), "slots were told apart"
            calls.append((fire.instance, slot.value, fire.event, {n: self.read(e, who, now) for n, e in fire.args}))
        for way in self._fired(guard, calls):
            if way.refused:
                if step.refused is not None:
                    updates = self._branch(program, copy, step.refused, own, way.guard)
                    yield from self._command(program, copy, step, chosen, "refused", way.fired, way.guard, updates)
                continue
            updates = {f"{program.name}[{copy}].{name}": value for name, value in picked.items()}
            updates |= self._assigned(program, copy, step.do, now, way.guard)
            updates[f"{program.name}[{copy}].at"] = number(step.then)
            yield from self._command(
                program, copy, step, chosen, "applied", way.fired, way.guard, {**way.after, **updates}
            )

    def _branch(
        self, program: Program, copy: int, branch: Branch, own: Mapping[str, Expr], guard: tuple[Expr, ...]
    ) -> dict[str, Expr]:
        updates = self._assigned(program, copy, branch.do, own, guard)
        updates[f"{program.name}[{copy}].at"] = number(branch.then)
        return updates

    def _assigned(
        self,
        program: Program,
        copy: int,
        do: Iterable[Assignment],
        own: Mapping[str, Expr],
        guard: tuple[Expr, ...],
    ) -> dict[str, Expr]:
        updates = {}
        for item in do:
            name = f"{program.name}[{copy}].{item.field}"
            value = self.read(item.value, {program.name: copy}, own)
            updates[name] = self._fitting(value, self.cells[name].high, guard)
        return updates

    def _command(
        self,
        program: Program,
        copy: int,
        step: Step,
        chosen: Mapping[str, int],
        outcome: str,
        fired: tuple[Fired, ...],
        guard: tuple[Expr, ...],
        updates: Mapping[str, Expr],
    ) -> Iterator[Command]:
        parts = conjuncts(both(guard))
        if FALSE in parts:
            return
        kept = tuple((name, value) for name, value in updates.items() if value != self.cells[name].read())
        yield Command(program.name, copy, step.name, tuple(chosen.items()), outcome, fired, parts, kept)

    # Events.

    def _fired(self, guard: tuple[Expr, ...], calls: list[tuple[str, int, str, dict[str, Expr]]]) -> Iterator[_Way]:
        """Every way through the events: each taken by one of its cases, or one of them refused."""
        ways = [_Way(guard, {}, (), False)]
        for instance, slot, name, args in calls:
            machine = self.protocol.instance(instance).machine
            following = []
            for way in ways:
                words = {
                    field.name: way.after.get(cell.name, cell.read())
                    for field in machine.fields
                    for cell in [self.cells[f"{instance}[{slot}].{field.name}"]]
                }
                taken = list(_cases_taken(machine, machine.event(name), {**words, **args}))
                for case, fits, do in taken:
                    condition = (*way.guard, *conjuncts(fits))
                    after = dict(way.after)
                    for field, value in do.items():
                        after[f"{instance}[{slot}].{field}"] = self._fitting(value, machine.field(field).max, condition)
                    fired = (*way.fired, Fired(instance, slot, name, case))
                    following.append(_Way(condition, after, fired, False))
                no = negation(either(fits for _, fits, _ in taken))
                if no != FALSE:
                    fired = (*way.fired, Fired(instance, slot, name, None))
                    yield _Way((*way.guard, *conjuncts(no)), {}, fired, True)
            ways = following
        yield from ways

    def _fitting(self, value: Expr, high: int, guard: tuple[Expr, ...]) -> Expr:
        """The value, kept within [0, ``high``]; that it has to be is noted, since it must never come to pass."""
        low, top = interval(value)
        if low >= 0 and top <= high:
            return value
        if not _fits(value, guard, high):
            outside = either((_less(value, number(0)), _less(number(high), value)))
            self.misfits.append(both((*guard, outside)))
            return Extreme("min", (Extreme("max", (value, number(0)), NOWHERE), number(high)), NOWHERE)
        return value

    # Properties.

    def _claims(self) -> Iterator[Claim]:
        for instance in self.protocol.instances:
            for item in instance.machine.properties:
                if item.kind == "always":
                    exprs = tuple(self._of_slot(item.that, instance, slot) for slot in range(instance.slots))
                    where = tuple(f"{instance.name}[{slot}]" for slot in range(instance.slots))
                    yield Claim(f"{instance.name}.{item.name}", "always", item.says, exprs, where, item.at)
        for item in self.protocol.properties:
            if item.kind == "lemma" and self.others is None:
                continue
            kind = "sometimes" if item.kind == "sometimes" else "always"
            spelled = self._spelled_out(item.that)
            exprs = tuple(expr for (expr,), _ in spelled)
            yield Claim(item.name, kind, item.says, exprs, tuple(where for _, where in spelled), item.at)

    def _of_slot(self, expr: Expr, instance: Instance, slot: int) -> Expr:
        """A machine's expression about its own slot."""

        def rule(part: Expr) -> Expr:
            return self.cells[f"{instance.name}[{slot}].{part.name}"].read() if isinstance(part, Name) else part

        return folded(rewritten(expr, rule))

    def _spelled_out(self, *exprs: Expr) -> list[tuple[tuple[Expr, ...], str]]:
        """Expressions for every choice of the copies and slots that they name, with the choice as text."""
        options: dict[str, int] = {}
        for expr in exprs:
            found = range_of(expr, frozenset(self.counts))
            options.update({actor: self.counts[actor] for actor in found.actors})
            for index, high in found.indexes:
                options[index] = min(high + 1, options.get(index, high + 1))
        spelled = []
        for values in itertools.product(*(range(count) for count in options.values())):
            binding = dict(zip(options, values, strict=True))
            where = ", ".join(f"{name}={value}" for name, value in binding.items())
            spelled.append((tuple(self.read(expr, binding) for expr in exprs), where))
        return spelled

    def _deadlock(self) -> Claim:
        """Where nobody can move any more, nothing is in use and nothing is under way."""
        exprs, where = [], []
        for instance in self.protocol.instances:
            machine = instance.machine
            busy = [state.code for state in machine.states if state.counts_as in AT_WORK]
            for slot in range(instance.slots):
                cells = {field.name: self.cells[f"{instance.name}[{slot}].{field.name}"] for field in machine.fields}
                idle = [equal(cells[name].read(), number(0)) for name in HOLDS if name in cells]
                idle += [negation(equal(cells["state"].read(), number(code))) for code in busy]
                exprs.append(folded(both(idle)))
                where.append(f"{instance.name}[{slot}]")
        return Claim("deadlock", "deadlock", "T3", tuple(exprs), tuple(where), self.protocol.at)

    def _promises(self, commands: tuple[Command, ...]) -> Iterator[Promise]:
        for item in self.protocol.leads_to:
            spelled = self._spelled_out(item.source, item.target)
            pairs = tuple((source, target) for (source, target), _ in spelled)
            fair, strong = (_commands_of(steps, commands) for steps in (item.fair, item.strong))
            yield Promise(item.name, item.says, pairs, tuple(where for _, where in spelled), fair, strong, item.at)

    def _derived(self) -> Iterator[tuple[str, Expr]]:
        for name, claim in self.protocol.derived:
            instance, field = name.split(".")
            for slot in range(self.protocol.instance(instance).slots):
                yield f"{instance}[{slot}].{field}", self._value_of(claim, instance, slot)

    def _value_of(self, claim: str, instance: str, slot: int) -> Expr:
        that = next(item.that for item in self.protocol.properties if item.name == claim)
        assert isinstance(that, Compare) and isinstance(that.left, Remote) and isinstance(that.left.index, Name)
        return self.read(that.right, {that.left.index.name: slot})


def _commands_of(steps: Collection[str], commands: Iterable[Command]) -> tuple[tuple[int, ...], ...]:
    """For each of some steps ("actor.step") of each copy, the numbers of its commands."""
    found: dict[tuple[str, int], list[int]] = {}
    for index, command in enumerate(commands):
        name = f"{command.actor}.{command.step}"
        if name in steps:
            found.setdefault((name, command.copy), []).append(index)
    return tuple(tuple(numbers) for numbers in found.values())


def _cells(protocol: Protocol) -> Iterator[Cell]:
    for instance in protocol.instances:
        machine = instance.machine
        for slot in range(instance.slots):
            for field in machine.fields:
                name = f"{instance.name}[{slot}].{field.name}"
                if field.name == "state":
                    states = tuple(state.name for state in machine.states)
                    type_, high, names = f"{machine.name}.state", len(states) - 1, states
                elif field.names:
                    type_, high, names = f"{machine.name}.{field.name}", field.max, field.names
                else:
                    type_, high, names = BOOL if field.is_bool else INT, field.max, ()
                yield Cell(name, instance.name, slot, field.name, type_, high, names, True)
    values = {
        f"{instance.machine.name}.{field.name}": field.names
        for instance in protocol.instances
        for field in instance.machine.fields
    }
    values |= {
        f"{instance.machine.name}.state": tuple(state.name for state in instance.machine.states)
        for instance in protocol.instances
    }
    for program in protocol.programs:
        for copy in range(program.count):
            steps = tuple(step.name for step in program.steps)
            at = f"{program.name}.at"
            yield Cell(f"{program.name}[{copy}].at", program.name, copy, "at", at, len(steps) - 1, steps, False)
            for local in program.locals:
                name = f"{program.name}[{copy}].{local.name}"
                names = values.get(local.type, ())
                yield Cell(name, program.name, copy, local.name, local.type, local.high, names, False)


def _indexes(step: Step) -> list[str]:
    """The locals that name a slot somewhere in a step, each once."""
    exprs = [fire.slot for fire in step.fire]
    exprs += [index for expr in step.exprs() for _, index in slots_in(expr)]
    return list(dict.fromkeys(name.name for expr in exprs for name in names_in(expr) if name.kind == "local"))


def _cases_taken(
    machine: Machine, event: Event, names: Mapping[str, Expr]
) -> Iterator[tuple[int, Expr, dict[str, Expr]]]:
    """For each case that applies: its number, when it is the one that decides, and the fields it assigns."""

    def read(expr: Expr) -> Expr:
        return folded(rewritten(expr, lambda part: names[part.name] if isinstance(part, Name) else part))

    codes = {state.name: state.code for state in machine.states}
    earlier: list[tuple[frozenset[str], Expr]] = []
    for case in event.cases:
        sources = frozenset(case.sources)
        when = TRUE if case.when is None else read(case.when)
        if case.refuse is None:
            left = sources - frozenset().union(*(there for there, guard in earlier if guard == TRUE))
            parts = [_in_states(names["state"], left, codes), when]
            for there, guard in earlier:
                both_ways = left & there
                if guard != TRUE and both_ways:
                    elsewhere = FALSE if both_ways == left else negation(_in_states(names["state"], both_ways, codes))
                    parts.append(either((elsewhere, negation(guard))))
            fits = both(parts)
            if fits != FALSE:
                do = {item.field: read(item.value) for item in case.do}
                if case.to is not None:
                    do["state"] = number(codes[case.to])
                yield case.number, fits, do
        earlier.append((sources, when))


def _in_states(state: Expr, names: Iterable[str], codes: Mapping[str, int]) -> Expr:
    options = tuple(number(code) for code in sorted(codes[name] for name in names))
    return folded(Member(state, options, False, NOWHERE)) if options else FALSE


def _plus(left: Expr, right: Expr) -> Expr:
    return Arithmetic("+", left, right, NOWHERE)


def _less(left: Expr, right: Expr) -> Expr:
    return folded(Compare("<", left, right, NOWHERE))


def _fits(value: Expr, guard: tuple[Expr, ...], high: int) -> bool:
    """Whether the value is sure to lie in [0, ``high``] where the guard holds, by trying all values of its cells."""
    cells = {name.name: name.high for name in names_in(value)}
    if math.prod(top + 1 for top in cells.values()) > 1 << 14:
        return False
    read = frozenset(cells)
    relevant = [part for part in guard if frozenset(name.name for name in names_in(part)) <= read]
    for values in itertools.product(*(range(top + 1) for top in cells.values())):
        given = dict(zip(cells, values, strict=True))
        if all(evaluate(part, given) for part in relevant) and not 0 <= evaluate(value, given) <= high:
            return False
    return True
