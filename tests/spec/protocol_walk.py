"""A small exhaustive walk over a protocol: plain breadth-first search on tuples, for tests of the shipped protocols.

It follows the text of ``kvfsm.spec.language.protocol`` word by word and is made to be short, not fast.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from kvfsm.spec.language.expressions import (
    Arithmetic,
    Bound,
    Choice,
    Compare,
    Count,
    Expr,
    Extreme,
    Logic,
    Member,
    Name,
    Not,
    Number,
    Remote,
    Truth,
    Value,
)
from kvfsm.spec.language.interpreter import step as fire_event
from kvfsm.spec.language.model import Assignment, Event, LeadsTo, Machine, Property
from kvfsm.spec.language.narrowing import with_event
from kvfsm.spec.language.protocol import Branch, Program, Protocol, Step, range_of

State = tuple[int, ...]  # words of all slots, then for each copy of each actor its step and its locals
Read = Callable[[State], int]


class TooManyStates(Exception):
    """The protocol is larger than the walk was allowed to go."""


@dataclass
class Walk:
    """What was found: every state reached, with the step that first led to it."""

    states: int = 0
    transitions: int = 0
    violated: dict[str, State] = field(default_factory=dict)
    reached: set[str] = field(default_factory=set)
    ends: list[State] = field(default_factory=list)  # states in which nobody can move
    stuck: dict[str, State] = field(default_factory=dict)  # leads_to: a source from which no goal can be reached
    parents: dict[State, tuple[State, str] | None] = field(default_factory=dict)

    def story(self, state: State) -> list[str]:
        """The steps that lead to a state."""
        steps: list[str] = []
        parent = self.parents[state]
        while parent is not None:
            steps.append(parent[1])
            parent = self.parents[parent[0]]
        return steps[::-1]


class Model:
    """A protocol, perhaps with faulty events, laid out for walking."""

    def __init__(self, protocol: Protocol, faulty: Mapping[str, Event] | None = None) -> None:
        self.protocol = protocol
        self.machines: dict[str, Machine] = {}
        self.first_slot: dict[str, int] = {}
        size = 0
        for instance in protocol.instances:
            machine = instance.machine
            if faulty and instance.name in faulty:
                machine = with_event(machine, faulty[instance.name])
            self.machines[instance.name] = machine
            self.first_slot[instance.name] = size
            size += instance.slots
        self.first: dict[tuple[str, int], int] = {}
        for program in protocol.programs:
            for copy in range(program.count):
                self.first[program.name, copy] = size
                size += 1 + len(program.locals)
        self.size = size
        self.fields = {
            (name, each.name): (each.shift, (1 << each.bits) - 1)
            for name, machine in self.machines.items()
            for each in machine.fields
        }
        self.locals = {
            (program.name, name): number
            for program in protocol.programs
            for number, name in enumerate(["at", *(local.name for local in program.locals)])
        }
        self.fired = lru_cache(maxsize=None)(self._fired)
        self.moves = [
            (program, copy, [self._compile(program, copy, step) for step in program.steps])
            for program in protocol.programs
            for copy in range(program.count)
        ]

    def _fired(self, instance: str, word: int, event: str, args: tuple[tuple[str, int], ...]) -> int | None:
        outcome = fire_event(self.machines[instance], word, event, dict(args))
        return outcome.word if outcome.refusal is None else None

    def initial(self) -> State:
        """All zero."""
        return (0,) * self.size

    def successors(self, state: State) -> Iterator[tuple[State, str]]:
        """Every state that one step of one copy leads to, and the step's name."""
        for program, copy, steps in self.moves:
            code = state[self.first[program.name, copy]]
            for after in steps[code](state):
                yield after, f"{program.name}{copy}.{program.steps[code].name}"

    def _compile(self, program: Program, copy: int, step: Step) -> Callable[[State], Iterator[State]]:
        binding: dict[str, int] = {name: 0 for name in (other.name for other in self.protocol.programs)}
        binding[program.name] = copy
        own = self.first[program.name, copy]
        places = {local.name: own + 1 + number for number, local in enumerate(program.locals)}

        def read(expr: Expr) -> Read:
            return self.read(expr, binding, program.name)

        picks = [(places[pick.local], range(pick.high + 1)) for pick in step.choose]
        when = read(step.when) if step.when is not None else None
        fires = [
            (
                fire.instance,
                self.first_slot[fire.instance],
                read(fire.slot),
                fire.event,
                [(n, read(e)) for n, e in fire.args],
            )
            for fire in step.fire
        ]

        def assignments(items: Iterable[Assignment]) -> list[tuple[int, Read]]:
            return [(places[item.field], read(item.value)) for item in items]

        def branched(branch: Branch | None) -> Callable[[State], State] | None:
            if branch is None:
                return None
            assigns = [*assignments(branch.do), (own, lambda state: branch.then)]

            def take(state: State) -> State:
                now = list(state)
                for place, value in assigns:
                    now[place] = int(value(state))
                return tuple(now)

            return take

        do = assignments(step.do)
        take_refused, take_otherwise = branched(step.refused), branched(step.otherwise)

        def move(state: State) -> Iterator[State]:
            seen: set[State] = set()
            fits = False
            for values in itertools.product(*(options for _, options in picks)):
                now = list(state)
                for (place, _), value in zip(picks, values, strict=True):
                    now[place] = value
                before = tuple(now)
                if when is not None and not when(before):
                    continue
                fits = True
                refused = False
                calls = [
                    (i, base + slot(before), e, tuple((n, arg(before)) for n, arg in args))
                    for i, base, slot, e, args in fires
                ]
                assigned = [(place, value(before)) for place, value in do]
                for instance, place, event, args in calls:
                    word = self.fired(instance, now[place], event, args)
                    if word is None:
                        refused = True
                        break
                    now[place] = word
                if refused:
                    if take_refused is None:
                        continue
                    after = take_refused(state)
                else:
                    for place, value in assigned:
                        now[place] = value
                    now[own] = step.then
                    after = tuple(now)
                if after not in seen:
                    seen.add(after)
                    yield after
            if not fits and take_otherwise is not None:
                yield take_otherwise(state)

        return move

    def read(self, expr: Expr, binding: Mapping[str, int], owner: str | None) -> Read:
        """A function that evaluates an expression; ``binding`` gives copies and unbound indexes."""

        def sub(inner: Expr) -> Read:
            return self.read(inner, binding, owner)

        match expr:
            case Number(value=value) | Bound(value=value) | Value(code=value):
                return lambda state: value
            case Truth(value=truth):
                return lambda state: int(truth)
            case Name(name=name, kind="index"):
                fixed = binding[name]
                return lambda state: fixed
            case Name(name=name):
                assert owner is not None
                place = self.first[owner, binding[owner]] + self.locals[owner, name]
                return lambda state: state[place]
            case Remote(owner=who, index=None, field=name):
                place = self.first[who, binding[who]] + self.locals[who, name]
                return lambda state: state[place]
            case Remote(owner=who, index=index, field=name):
                assert index is not None
                slot, base = sub(index), self.first_slot[who]
                shift, mask = self.fields[who, name]
                return lambda state: state[base + slot(state)] >> shift & mask
            case Not(operand=operand):
                inside = sub(operand)
                return lambda state: not inside(state)
            case Logic(op=op, operands=operands):
                parts = [sub(operand) for operand in operands]
                if op == "and":
                    return lambda state: all(part(state) for part in parts)
                if op == "or":
                    return lambda state: any(part(state) for part in parts)
                return lambda state: not parts[0](state) or parts[1](state)
            case Compare(op=op, left=left, right=right) | Arithmetic(op=op, left=left, right=right):
                one, two, act = sub(left), sub(right), _OPERATIONS[op]
                return lambda state: act(one(state), two(state))
            case Member(item=item, options=options, negated=negated):
                chosen, listed = sub(item), [sub(option) for option in options]
                return lambda state: (chosen(state) in [option(state) for option in listed]) != negated
            case Extreme(op=op, operands=operands):
                parts, pick = [sub(operand) for operand in operands], min if op == "min" else max
                return lambda state: pick(part(state) for part in parts)
            case Count(actor=actor, condition=condition, high=copies):
                each = [self.read(condition, {**binding, actor: copy}, owner) for copy in range(copies)]
                return lambda state: sum(bool(holds(state)) for holds in each)
            case Choice(condition=condition, then=then, otherwise=otherwise):
                test, yes, no = sub(condition), sub(then), sub(otherwise)
                return lambda state: yes(state) if test(state) else no(state)

    def instances_of(self, *exprs: Expr) -> list[tuple[Read, ...]]:
        """The expressions for every choice of the copies and slots that they name, the same choice in all of them."""
        actors = {program.name: program.count for program in self.protocol.programs}
        options: dict[str, int] = {}
        for expr in exprs:
            found = range_of(expr, frozenset(actors))
            options.update({actor: actors[actor] for actor in found.actors})
            for index, high in found.indexes:
                options[index] = min(high + 1, options.get(index, high + 1))
        choices = itertools.product(*(range(count) for count in options.values()))
        bindings = [dict(zip(options, values, strict=True)) for values in choices]
        return [tuple(self.read(expr, binding, None) for expr in exprs) for binding in bindings]


_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
}


def walk(
    protocol: Protocol, faulty: Mapping[str, Event] | None = None, limit: int = 60_000, stop: bool = False
) -> Walk:
    """Visit every reachable state.

    Args:
        protocol: what to walk.
        faulty: instance name -> event in place of the machine's own.
        limit: most states; beyond it TooManyStates is raised.
        stop: whether to stop at the first violated ``always``.

    """
    model = Model(protocol, faulty)
    machine_claims = [
        (f"{instance.name}.{item.name}", _at_each(model, instance.name, instance.slots, item))
        for instance in protocol.instances
        for item in instance.machine.properties
        if item.kind == "always"
    ]
    always = [(p.name, model.instances_of(p.that)) for p in protocol.properties if p.kind == "always"]
    claims = [*machine_claims, *((name, [read for (read,) in reads]) for name, reads in always)]
    hopes = {p.name: [r for (r,) in model.instances_of(p.that)] for p in protocol.properties if p.kind == "sometimes"}
    found = Walk()
    start = model.initial()
    found.parents[start] = None
    level = [start]
    backwards: dict[State, list[State]] = {}
    while level:
        following = []
        for state in level:
            for name, reads in claims:
                if name not in found.violated and not all(read(state) for read in reads):
                    found.violated[name] = state
            if stop and found.violated:
                return found
            for name in [name for name, reads in hopes.items() if any(read(state) for read in reads)]:
                found.reached.add(name)
                del hopes[name]
            moved = False
            for after, label in model.successors(state):
                moved = moved or after != state
                found.transitions += 1
                if protocol.leads_to and not stop:
                    backwards.setdefault(after, []).append(state)
                if after not in found.parents:
                    found.parents[after] = (state, label)
                    following.append(after)
            if not moved:
                found.ends.append(state)
            if len(found.parents) > limit:
                raise TooManyStates(f"{protocol.name} has more than {limit} states")
        level = following
    found.states = len(found.parents)
    if not stop:
        for item in protocol.leads_to:
            _check_progress(model, item, found, backwards)
    return found


def _at_each(model: Model, instance: str, slots: int, item: Property) -> list[Read]:
    """A machine's own property, at every slot of an instance."""

    def at(slot: int) -> Read:
        return model.read(_remote(item.that, instance, slot), {}, None)

    return [at(slot) for slot in range(slots)]


def _remote(expr: Expr, instance: str, slot: int) -> Expr:
    """A machine's expression about its own slot, as one about ``instance[slot]``."""

    def sub(inner: Expr) -> Expr:
        return _remote(inner, instance, slot)

    match expr:
        case Name(name=name, type=type_, high=high, at=at):
            return Remote(instance, Number(slot, at), name, type_, high, at)
        case Not(operand=operand, at=at):
            return Not(sub(operand), at)
        case Logic(op=op, operands=operands, at=at):
            return Logic(op, tuple(map(sub, operands)), at)
        case Extreme(op=op, operands=operands, at=at):
            return Extreme(op, tuple(map(sub, operands)), at)
        case Compare(op=op, left=left, right=right, at=at):
            return Compare(op, sub(left), sub(right), at)
        case Arithmetic(op=op, left=left, right=right, at=at):
            return Arithmetic(op, sub(left), sub(right), at)
        case Member(item=item, options=options, negated=negated, at=at):
            return Member(sub(item), tuple(map(sub, options)), negated, at)
        case Choice(condition=condition, then=then, otherwise=otherwise, at=at):
            return Choice(sub(condition), sub(then), sub(otherwise), at)
        case _:
            return expr


def _check_progress(model: Model, item: LeadsTo, found: Walk, backwards: Mapping[State, list[State]]) -> None:
    """Note a source state from which no goal state can be reached at all (fairness is left to the checker)."""
    for source, target in model.instances_of(item.source, item.target):
        todo = [state for state in found.parents if target(state)]
        good = set(todo)
        while todo:
            for state in backwards.get(todo.pop(), ()):
                if state not in good:
                    good.add(state)
                    todo.append(state)
        bad = next((state for state in found.parents if source(state) and state not in good), None)
        if bad is not None:
            found.stuck.setdefault(item.name, bad)


def shown(protocol: Protocol, state: State) -> str:
    """A state as text, for failures."""
    model = Model(protocol)
    lines = []
    for instance in protocol.instances:
        for slot in range(instance.slots):
            word = state[model.first_slot[instance.name] + slot]
            values = {each.name: word >> each.shift & ((1 << each.bits) - 1) for each in instance.machine.fields}
            name = instance.machine.states[values.pop("state")].name
            rest = " ".join(f"{key}={value}" for key, value in values.items() if value)
            lines.append(f"{instance.name}[{slot}] {name} {rest}")
    for program in protocol.programs:
        for copy in range(program.count):
            at = model.first[program.name, copy]
            rest = " ".join(f"{local.name}={state[at + 1 + n]}" for n, local in enumerate(program.locals))
            lines.append(f"{program.name}{copy} at {program.steps[state[at]].name} {rest}")
    return "\n".join(lines)
