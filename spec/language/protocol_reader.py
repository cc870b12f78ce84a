"""Protocol files -> ``protocol``: shape, names, types and ranges, with every mistake of a file noted at once.

What needs a search (deadlocks, violated properties, models too large) is left to the checker.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

from .cases import expression_of
from .claims import equivalents_of, something_is_fair
from .expressions import BOOL, INT, Compare, Expr, Name, Not, Remote, Truth
from .faults import FAULT_KEYS, machine_fault
from .model import Argument, Assignment, Event, LeadsTo, Machine, Property, Vocabulary
from .narrowing import may_narrow, narrowed, narrowed_event
from .parser import Owner, Scope, Symbol
from .problems import Place, Problems, closest
from .protocol import (
    Branch,
    Fire,
    Instance,
    Local,
    Pick,
    Program,
    Protocol,
    ProtocolMutant,
    SizeBound,
    Step,
    range_of,
)
from .ranges import outside
from .scopes import symbol_of
from .source import Entry, Node, Scalar, entries_of, items_of, keys_of, number_of, one_or_more, read_yaml, text_of
from .trees import actors_in, walked

_WORD = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_SLOT = re.compile(r"([a-z][a-z0-9_]*)\[([a-z0-9_]+)\]")
_PLAIN = re.compile(r"u([1-8])")
_INVARIANT = re.compile(r"[ST][1-9][0-9]?")
_RESERVED = frozenset({"and", "or", "not", "implies", "in", "if", "else", "true", "false", "min", "max", "any", "at"})
_SIZE_MAX = 64  # slots, copies


def read_protocol(
    path: Path,
    shown: str,
    vocabulary: Vocabulary,
    machines: Sequence[Machine],
    problems: Problems,
    bounds: Mapping[str, int] | None = None,
    faults: Problems | None = None,
) -> Protocol | None:
    """One protocol; None when the file holds a mistake.

    Args:
        path: the file.
        shown: how problems name it.
        vocabulary: whose actors may be played.
        machines: those that instances may be of.
        problems: where mistakes are noted.
        bounds: values in place of the file's own, by name; a name that the file does not declare is a problem.
        faults: where mistakes in ``mutants:`` and ``equivalent:`` are noted, in place of ``problems``; the protocol
            lacks these.

    """
    before = len(problems)
    root = read_yaml(path, shown, problems)
    if root is None:
        return None
    aside = problems if faults is None else faults
    protocol = _Reader(shown, vocabulary, machines, problems, aside, bounds or {}).read(root, path.stem)
    return protocol if len(problems) == before else None


@dataclass(frozen=True, slots=True)
class _Type:
    """What a local or a choice holds: [0, ``high``] of a type."""

    type: str
    high: int


class _Reader:
    """Reads one file from top to bottom; what was read so far is what later parts may name."""

    def __init__(
        self,
        shown: str,
        vocabulary: Vocabulary,
        machines: Sequence[Machine],
        problems: Problems,
        faults: Problems,
        bounds: Mapping[str, int],
    ) -> None:
        self.shown = shown
        self.vocabulary = vocabulary
        self.machines = {machine.name: machine for machine in machines}
        self.problems = problems
        self.faults = faults
        self.overrides = dict(bounds)
        self.used: set[str] = set()  # bounds that something names
        self.instances: dict[str, Instance] = {}
        self.values: dict[str, dict[str, int]] = {}

    def read(self, root: Node, stem: str) -> Protocol | None:
        problems = self.problems
        keys = keys_of(
            root,
            "a protocol",
            problems,
            required=("protocol", "title", "about", "bounds", "machines", "actors"),
            optional=("deep", "always", "lemmas", "sometimes", "leads_to", "derived", "mutants", "equivalent"),
        )
        name = text_of(keys.get("protocol"), "the protocol's name", problems)
        if name is not None and name != stem:
            problems.add(
                "E417", keys["protocol"].at, f"protocol '{name}' stands in {stem}.yaml", f"write protocol: {stem}"
            )
        title = text_of(keys.get("title"), "the title", problems) or ""
        about = text_of(keys.get("about"), "the sentence of the protocol", problems) or ""
        # What rests on a part that holds mistakes is not read, lest one mistake give many messages.
        before = len(problems)
        self.bounds = self._bounds(keys.get("bounds"))
        deep = self._deep(keys.get("deep"), keys.get("bounds"))
        self._instances(keys.get("machines"))
        if len(problems) > before:
            return None
        heads = self._heads(keys.get("actors"))
        if len(problems) > before:
            return None
        programs = tuple(self._program(head, heads) for head in heads)
        scope = self._property_scope(heads)
        properties = tuple(
            item
            for key, kind in (("always", "always"), ("lemmas", "lemma"), ("sometimes", "sometimes"))
            for item in self._properties(keys.get(key), kind, scope)
        )
        leads_to = self._leads_to(keys.get("leads_to"), scope, programs)
        derived = self._derived(keys.get("derived"), properties) if len(problems) == before else ()
        mutants = self._mutants(keys.get("mutants"))
        if len(problems) == before:
            self._unused_bounds()
        return Protocol(
            name=name or stem,
            title=title,
            about=about,
            bounds=tuple(self.bounds.values()),
            deep=deep,
            instances=tuple(self.instances.values()),
            programs=programs,
            properties=properties,
            leads_to=leads_to,
            derived=derived,
            mutants=mutants,
            equivalent=equivalents_of(keys.get("equivalent"), self.faults),
            path=self.shown,
            at=root.at,
        )

    # Bounds and machines.

    def _bounds(self, node: Node | None) -> dict[str, SizeBound]:
        found: dict[str, SizeBound] = {}
        for entry in entries_of(node, "the bounds", self.problems):
            name = self._name(entry.key, "a bound", found)
            value = number_of(entry.value, f"bound '{entry.key.text}'", self.problems, 1, _SIZE_MAX)
            if name is None:
                continue
            found[name] = SizeBound(name, self.overrides.get(name, value or 1), entry.key.at)
            self.used.discard(name)
        for name in self.overrides:
            if name not in found:
                at = node.at if node is not None else Place(self.shown, 1, 1)
                self.problems.add("E401", at, f"there is no bound '{name}' to change", closest(name, found))
        return found

    def _deep(self, node: Node | None, bounds: Node | None) -> tuple[SizeBound, ...]:
        """Values for `kvfsm check --deep`, each greater than the one that the file gives the bound."""
        usual = {entry.key.text: entry.value for entry in entries_of(bounds, "the bounds", Problems())}
        found: dict[str, SizeBound] = {}
        for entry in entries_of(node, "the deep bounds", self.problems):
            name = self._name(entry.key, "a bound", found)
            if name is None:
                continue
            if name not in usual:
                text = f"there is no bound '{name}' to raise"
                self.problems.add("E401", entry.key.at, text, closest(name, usual, "raise one of"))
                continue
            least = number_of(usual[name], f"bound '{name}'", Problems(), 1, _SIZE_MAX) or 0
            value = number_of(entry.value, f"deep bound '{name}'", self.problems, least + 1, _SIZE_MAX)
            if value is not None:
                found[name] = SizeBound(name, value, entry.key.at)
        return tuple(found.values())

    def _unused_bounds(self) -> None:
        for bound in self.bounds.values():
            if bound.name not in self.used:
                self.problems.add("E402", bound.at, f"nothing uses bound '{bound.name}'", "remove it, or name it")

    def _size(self, node: Node | None, what: str, high: int = _SIZE_MAX) -> int | None:
        """A whole number, or the name of a bound."""
        if isinstance(node, Scalar) and _WORD.fullmatch(node.text) and not node.quoted:
            bound = self.bounds.get(node.text)
            if bound is None:
                text = f"{what} is '{node.text}', which is no bound"
                self.problems.add("E401", node.at, text, closest(node.text, self.bounds, "use a number or a bound"))
                return None
            self.used.add(bound.name)
            if not 1 <= bound.value <= high:
                self.problems.add("E116", node.at, f"{what} is {bound.value}", f"use a number from 1 to {high}")
                return None
            return bound.value
        return number_of(node, what, self.problems, 1, high)

    def _instances(self, node: Node | None) -> None:
        for entry in entries_of(node, "the machines", self.problems):
            name = self._name(entry.key, "an instance", {**self.bounds, **self.instances})
            what = f"instance '{entry.key.text}'"
            keys = keys_of(entry.value, what, self.problems, required=("machine", "slots"), optional=("narrow",))
            slots = self._size(keys.get("slots"), f"the slots of {what}")
            machine = self._machine(keys.get("machine"), what, self.problems)
            if machine is None:
                continue
            machine = narrowed(machine, self._narrow(keys.get("narrow"), machine))
            for field in machine.fields:
                if field.names:
                    self.values[f"{machine.name}.{field.name}"] = {
                        value: code for code, value in enumerate(field.names)
                    }
            self.values[f"{machine.name}.state"] = {state.name: state.code for state in machine.states}
            if name is not None:
                self.instances[name] = Instance(name, machine, slots or 1, entry.key.at)
        if node is not None and not entries_of(node, "the machines", Problems()):
            self.problems.add("E117", node.at, "a protocol needs machines", "give at least one")

    def _machine(self, node: Node | None, what: str, problems: Problems) -> Machine | None:
        word = text_of(node, f"the machine of {what}", problems)
        if node is None or word is None:
            return None
        if word not in self.machines:
            text = f"{what} is of '{word}', which is no machine"
            problems.add("E403", node.at, text, closest(word, self.machines, "use a machine"))
        return self.machines.get(word)

    def _narrow(self, node: Node | None, machine: Machine) -> dict[str, int]:
        widths: dict[str, int] = {}
        narrowable = {field.name: field for field in machine.fields if may_narrow(field)}
        for entry in entries_of(node, f"'narrow' of {machine.name}", self.problems):
            field = narrowable.get(entry.key.text)
            if field is None:
                text = f"'{machine.name}' has no field of numbers '{entry.key.text}' to narrow"
                self.problems.add("E404", entry.key.at, text, closest(entry.key.text, narrowable))
                continue
            bits = self._size(entry.value, f"the narrowed width of '{field.name}'")
            if bits is not None and bits > field.bits:
                text = f"'{field.name}' has {field.bits} bits and cannot be narrowed to {bits}"
                self.problems.add("E404", entry.value.at, text, f"use a number from 1 to {field.bits}")
            elif bits is not None:
                widths[field.name] = bits
        return widths

    def _symbols(self, machine: Machine) -> dict[str, Symbol]:
        """The machine's fields as names; named types carry the machine's name."""
        found = {}
        for field in machine.fields:
            symbol = symbol_of(field, machine.states)
            type_ = symbol.type if symbol.type in (INT, BOOL) else f"{machine.name}.{symbol.type}"
            found[field.name] = replace(symbol, type=type_)
        return found

    # Actors.

    def _heads(self, node: Node | None) -> tuple[_Head, ...]:
        """What all actors may know of each other: names, counts, locals and step names."""
        found: dict[str, _Head] = {}
        roles = [actor.name for actor in self.vocabulary.actors]
        for entry in entries_of(node, "the actors", self.problems):
            name = self._name(entry.key, "an actor", {**self.instances, **found, **self.bounds})
            what = f"actor '{entry.key.text}'"
            keys = keys_of(
                entry.value, what, self.problems, required=("count", "plays", "steps"), optional=("locals", "about")
            )
            count = self._size(keys.get("count"), f"the count of {what}")
            plays = one_or_more(keys.get("plays"), f"'plays' of {what}", self.problems)
            for role in plays:
                if role.text not in roles:
                    text = f"{what} plays '{role.text}', which is no actor of the vocabulary"
                    self.problems.add("E405", role.at, text, closest(role.text, roles, "use an actor"))
            locals_ = self._locals(keys.get("locals"), what)
            steps = entries_of(keys.get("steps"), f"the steps of {what}", self.problems)
            if "steps" in keys and not steps:
                self.problems.add("E117", keys["steps"].at, f"{what} needs steps", "give at least one")
            names: dict[str, int] = {}
            for step in steps:
                if self._name(step.key, "a step", names) is not None:
                    names[step.key.text] = len(names)
            self.values[f"{entry.key.text}.at"] = names
            if name is not None:
                parts = tuple(role.text for role in plays)
                found[name] = _Head(name, count or 1, parts, locals_, names, steps, entry.key.at)
        if node is not None and not entries_of(node, "the actors", Problems()):
            self.problems.add("E117", node.at, "a protocol needs actors", "give at least one")
        return tuple(found.values())

    def _locals(self, node: Node | None, what: str) -> tuple[Local, ...]:
        found: dict[str, Local] = {}
        for entry in entries_of(node, f"the locals of {what}", self.problems):
            name = self._name(entry.key, "a local", {**found, **self.instances})
            type_ = self._type(entry.value, f"local '{entry.key.text}' of {what}")
            if name is not None and type_ is not None:
                found[name] = Local(name, type_.type, type_.high, entry.key.at)
        return tuple(found.values())

    def _type(self, node: Node, what: str) -> _Type | None:
        """``slots`` (any bound), ``{like: window.generation}``, ``bool``, or ``u1`` to ``u8``."""
        if not isinstance(node, Scalar):
            keys = keys_of(node, f"the type of {what}", self.problems, required=("like",))
            return self._like(keys.get("like"), what)
        if node.text == "bool":
            return _Type(BOOL, 1)
        if plain := _PLAIN.fullmatch(node.text):
            return _Type(INT, (1 << int(plain[1])) - 1)
        bound = self.bounds.get(node.text)
        if bound is None:
            known = (*self.bounds, "bool", "u1", "u8", "{like: instance.field}")
            self.problems.add("E406", node.at, f"{what} has type '{node.text}'", closest(node.text, known))
            return None
        self.used.add(bound.name)
        return _Type(INT, bound.value - 1)

    def _like(self, node: Node | None, what: str) -> _Type | None:
        word = text_of(node, f"'like' of {what}", self.problems)
        if node is None or word is None:
            return None
        owner, _, field = word.partition(".")
        instance = self.instances.get(owner)
        symbols = self._symbols(instance.machine) if instance is not None else {}
        if field not in symbols:
            known = [f"{name}.{each.name}" for name, item in self.instances.items() for each in item.machine.fields]
            text = f"{what} is like '{word}', which is no field of an instance"
            self.problems.add("E406", node.at, text, closest(word, known))
            return None
        return _Type(symbols[field].type, symbols[field].high)

    def _program(self, head: _Head, heads: Collection[_Head]) -> Program:
        scope = self._step_scope(head, heads)
        steps = tuple(self._step(entry, code, head, scope) for code, entry in enumerate(head.steps))
        self._unreachable(head, steps)
        return Program(head.name, head.count, head.plays, head.locals, steps, head.at)

    def _step_scope(self, head: _Head, heads: Collection[_Head]) -> Scope:
        names = {local.name: Symbol("local", local.type, local.high) for local in head.locals}
        bounds = {local.name: local.high for local in head.locals if local.type == INT}
        others = {
            other.name: Owner(self._actor_symbols(other), None)
            for other in heads
            if other.count == 1 and other.name != head.name
        }
        return Scope(head.name, names, self.values, bounds, {**self._slot_owners(), **others})

    def _property_scope(self, heads: Collection[_Head]) -> Scope:
        actors = {head.name: Owner(self._actor_symbols(head), None) for head in heads}
        remotes = {**self._slot_owners(), **actors}
        copies = {head.name: head.count for head in heads}
        return Scope("the protocol", {}, self.values, {}, remotes, free_index=True, copies=copies)

    def _slot_owners(self) -> dict[str, Owner]:
        return {
            instance.name: Owner(self._symbols(instance.machine), instance.slots - 1)
            for instance in self.instances.values()
        }

    def _actor_symbols(self, head: _Head) -> dict[str, Symbol]:
        symbols = {local.name: Symbol("local", local.type, local.high) for local in head.locals}
        return {**symbols, "at": Symbol("local", f"{head.name}.at", max(len(head.names) - 1, 0))}

    # Steps.

    def _step(self, entry: Entry, code: int, head: _Head, scope: Scope) -> Step:
        what = f"step '{entry.key.text}' of '{head.name}'"
        keys = keys_of(
            entry.value,
            what,
            self.problems,
            optional=("about", "choose", "when", "otherwise", "do", "fire", "refused", "then"),
        )
        when = expression_of(keys.get("when"), scope, f"'when' of {what}", BOOL, self.problems)
        # A guard that could not be read says nothing of the values behind it, so that these are let pass.
        behind = Truth(False, keys["when"].at) if when is None and "when" in keys else when
        fire = tuple(
            fired
            for item in items_of(keys.get("fire"), f"'fire' of {what}", self.problems)
            if (fired := self._fire(item, behind, head, scope, what)) is not None
        )
        if "refused" in keys and "fire" not in keys:
            self.problems.add(
                "E414", keys["refused"].at, f"{what} has 'refused:' but fires nothing", "remove it, or fire an event"
            )
        if "otherwise" in keys and "when" not in keys:
            self.problems.add(
                "E414", keys["otherwise"].at, f"{what} has 'otherwise:' but no 'when:'", "remove it, or give a guard"
            )
        then = self._target(keys.get("then"), "then", what, head)
        choose = self._picks(keys.get("choose"), head, what)
        # A branch sees the locals as before the step, so a guard over chosen ones says nothing about it.
        known = behind if behind is not None and "choose" not in keys else None
        failed = Not(known, known.at) if known is not None and known is when else known
        return Step(
            name=entry.key.text,
            code=code,
            choose=choose,
            when=when,
            fire=fire,
            do=self._assignments(keys.get("do"), behind, head, scope, what),
            then=(code + 1) % len(head.steps) if then is None else then,
            refused=self._branch(keys.get("refused"), "refused", known, head, scope, what),
            otherwise=self._branch(keys.get("otherwise"), "otherwise", failed, head, scope, what),
            at=entry.key.at,
        )

    def _branch(
        self, node: Node | None, key: str, when: Expr | None, head: _Head, scope: Scope, what: str
    ) -> Branch | None:
        """``step``, or ``{then: step, do: {...}}``; ``when`` is what is known to hold where it is taken."""
        if node is None or isinstance(node, Scalar):
            then = self._target(node, key, what, head)
            return Branch(then, ()) if then is not None else None
        inside = f"'{key}' of {what}"
        keys = keys_of(node, inside, self.problems, required=("then", "do"))
        then = self._target(keys.get("then"), "then", inside, head)
        do = self._assignments(keys.get("do"), when, head, scope, inside)
        return Branch(then, do) if then is not None else None

    def _target(self, node: Node | None, key: str, what: str, head: _Head) -> int | None:
        word = text_of(node, f"'{key}' of {what}", self.problems)
        if node is None or word is None:
            return None
        if word not in head.names:
            text = f"'{key}' of {what} is '{word}', which is no step of '{head.name}'"
            self.problems.add("E410", node.at, text, closest(word, head.names, "use a step"))
        return head.names.get(word)

    def _picks(self, node: Node | None, head: _Head, what: str) -> tuple[Pick, ...]:
        found = []
        for entry in entries_of(node, f"'choose' of {what}", self.problems):
            local = self._local(entry.key, head, what, "chooses")
            type_ = self._type(entry.value, f"the choice of '{entry.key.text}' in {what}")
            if local is None or type_ is None:
                continue
            if type_.type != local.type or type_.high > local.high:
                text = f"{what} chooses '{local.name}' from a type that the local does not have"
                self.problems.add("E413", entry.value.at, text, f"declare '{local.name}' with the same type")
                continue
            found.append(Pick(local.name, type_.high, entry.key.at))
        return tuple(found)

    def _local(self, key: Scalar, head: _Head, what: str, verb: str) -> Local | None:
        locals_ = {local.name: local for local in head.locals}
        if key.text not in locals_:
            text = f"{what} {verb} '{key.text}', which is no local of '{head.name}'"
            self.problems.add("E409", key.at, text, closest(key.text, locals_, "use a local"))
        return locals_.get(key.text)

    def _assignments(
        self, node: Node | None, when: Expr | None, head: _Head, scope: Scope, what: str
    ) -> tuple[Assignment, ...]:
        found = []
        for entry in entries_of(node, f"'do' of {what}", self.problems):
            local = self._local(entry.key, head, what, "assigns")
            if local is None:
                continue
            label = f"the value of '{local.name}' in {what}"
            value = expression_of(entry.value, scope, label, local.type, self.problems)
            if value is None:
                continue
            self._fits(value, when, local.high, entry.value.at, label)
            found.append(Assignment(local.name, value, entry.key.at))
        return tuple(found)

    def _fits(self, value: Expr, when: Expr | None, high: int, at: Place, label: str) -> None:
        """Note a value that may lie outside [0, ``high``] while ``when`` holds."""
        found = outside(value, when, high)
        if found is None:
            return
        fix = "guard it with 'when:', or use min and max"
        if when is not None and found.example:
            names = " and ".join(f"{name} = {number}" for name, number in found.example.items())
            fix = f"what is known here allows {names}; guard it further, or use min and max"
        elif found.example is None:
            fix = "nothing here decides this with its guard: compare sums in it, or make its fields smaller ('narrow:')"
        self.problems.add("E412", at, f"{label} may be {found.value}, and 0 to {high} fits", fix)

    def _fire(self, node: Node, when: Expr | None, head: _Head, scope: Scope, what: str) -> Fire | None:
        keys = keys_of(node, f"a 'fire' of {what}", self.problems, required=("on", "event"), optional=("with",))
        target = self._target_slot(keys.get("on"), scope, what)
        word = text_of(keys.get("event"), f"the event of {what}", self.problems)
        if target is None or word is None:
            return None
        instance, slot = target
        events = {event.name: event for event in instance.machine.events}
        event = events.get(word)
        if event is None:
            text = f"{what} fires '{word}', which '{instance.machine.name}' does not have"
            self.problems.add("E407", keys["event"].at, text, closest(word, events, "use an event"))
            return None
        if head.plays and not set(head.plays) & set(event.by):
            text = f"{what} fires '{word}' as {_joined(head.plays)}, but only {_joined(event.by)} may"
            self.problems.add("E408", keys["event"].at, text, f"let an actor that plays {event.by[0]} do it")
        args = self._args(keys.get("with"), event, instance, when, scope, what, node.at)
        return Fire(instance.name, slot, word, args, node.at)

    def _target_slot(self, node: Node | None, scope: Scope, what: str) -> tuple[Instance, Expr] | None:
        word = text_of(node, f"'on' of {what}", self.problems)
        if node is None or word is None:
            return None
        match = _SLOT.fullmatch(word)
        if match is None or match[1] not in self.instances:
            fix = closest(word.partition("[")[0], self.instances, "write instance[slot], with an instance of")
            self.problems.add("E415", node.at, f"'on' of {what} is '{word}', which is no slot of an instance", fix)
            return None
        instance = self.instances[match[1]]
        assert isinstance(node, Scalar)
        inner = replace(node, text=match[2], raw=match[2], quoted=False, at=node.place(match.start(2), len(match[2])))
        slot = expression_of(inner, scope, f"the slot of {what}", INT, self.problems)
        if slot is None:
            return None
        wrong = outside(slot, None, instance.slots - 1)
        if wrong is not None:
            there = f"'{instance.name}' has slots 0 to {instance.slots - 1}"
            text = f"slot '{match[2]}' of {what} may be {wrong.value}, but {there}"
            self.problems.add("E415", node.at, text, "use a local of the instance's own number of slots")
            return None
        return instance, slot

    def _args(
        self,
        node: Node | None,
        event: Event,
        instance: Instance,
        when: Expr | None,
        scope: Scope,
        what: str,
        at: Place,
    ) -> tuple[tuple[str, Expr], ...]:
        given = {argument.name: argument for argument in event.given}
        symbols = self._symbols(instance.machine)
        found: dict[str, Expr] = {}
        seen: set[str] = set()
        for entry in entries_of(node, f"'with' of {what}", self.problems):
            name = entry.key.text
            seen.add(name)
            argument = given.get(name)
            if argument is None:
                fix = closest(name, given, "use an argument") if given else "leave it out"
                self.problems.add("E411", entry.key.at, f"event '{event.name}' has no argument '{name}'", fix)
                continue
            label = f"argument '{name}' of '{event.name}' in {what}"
            type_, high = _argument_type(argument, symbols)
            value = expression_of(entry.value, scope, label, type_, self.problems)
            if value is not None:
                self._fits(value, when, high, entry.value.at, label)
                found[name] = value
        missing = [name for name in given if name not in seen]
        if missing:
            text = f"{what} fires '{event.name}' without {_joined(missing)}"
            self.problems.add("E411", at, text, f"add with: {{{', '.join(f'{name}: ...' for name in missing)}}}")
        return tuple((name, found[name]) for name in given if name in found)

    def _unreachable(self, head: _Head, steps: tuple[Step, ...]) -> None:
        reached = {0} if steps else set()
        todo = list(reached)
        while todo:
            step = steps[todo.pop()]
            branches = [branch.then for branch in (step.refused, step.otherwise) if branch is not None]
            for target in (step.then, *branches):
                if target not in reached:
                    reached.add(target)
                    todo.append(target)
        for step in steps:
            if step.code not in reached:
                text = f"no step leads to step '{step.name}' of '{head.name}'"
                self.problems.add(
                    "E416", step.at, text, "lead to it with 'then:', 'refused:' or 'otherwise:', or remove it"
                )

    # Properties and mutants.

    def _properties(self, node: Node | None, kind: str, scope: Scope) -> tuple[Property, ...]:
        found: dict[str, Property] = {}
        for entry in entries_of(node, f"'{kind}'", self.problems):
            name = self._name(entry.key, "a property", found)
            what = f"property '{entry.key.text}'"
            keys = keys_of(entry.value, what, self.problems, required=("that",), optional=("says", "about"))
            that = expression_of(keys.get("that"), scope, what, BOOL, self.problems)
            says = self._says(keys.get("says"), what)
            about = text_of(keys.get("about"), f"the sentence of {what}", self.problems) or ""
            if name is not None and that is not None:
                found[name] = Property(name, kind, says, that, about, entry.key.at)
                self._says_something(that, entry.key.at, what)
        return tuple(found.values())

    def _says_something(self, that: Expr, at: Place, what: str) -> None:
        if not any(isinstance(part, Remote) for part in walked(that)):
            self.problems.add("E418", at, f"{what} reads no slot and no actor", "name an instance[i] or an actor")

    def _leads_to(self, node: Node | None, scope: Scope, programs: Sequence[Program]) -> tuple[LeadsTo, ...]:
        found: dict[str, LeadsTo] = {}
        steps = [f"{program.name}.{step.name}" for program in programs for step in program.steps]
        for entry in entries_of(node, "'leads_to'", self.problems):
            name = self._name(entry.key, "a property", found)
            what = f"property '{entry.key.text}'"
            keys = keys_of(
                entry.value, what, self.problems, required=("from", "to"), optional=("says", "fair", "strong", "about")
            )
            source = expression_of(keys.get("from"), scope, f"'from' of {what}", BOOL, self.problems)
            target = expression_of(keys.get("to"), scope, f"'to' of {what}", BOOL, self.problems)
            fair, strong = (self._fair(keys.get(key), key, what, steps) for key in ("fair", "strong"))
            something_is_fair(keys, entry.key.at, what, self.problems)
            says = self._says(keys.get("says"), what)
            about = text_of(keys.get("about"), f"the sentence of {what}", self.problems) or ""
            if name is not None and source is not None and target is not None:
                found[name] = LeadsTo(name, says, source, target, fair, strong, about, entry.key.at)
        return tuple(found.values())

    def _fair(self, node: Node | None, key: str, what: str, steps: Sequence[str]) -> tuple[str, ...]:
        words = one_or_more(node, f"'{key}' of {what}", self.problems)
        for word in words:
            if word.text not in steps:
                text = f"'{key}' of {what} names '{word.text}', which is no actor.step"
                self.problems.add("E410", word.at, text, closest(word.text, steps, "use a step"))
        return tuple(word.text for word in words)

    def _derived(self, node: Node | None, properties: Sequence[Property]) -> tuple[tuple[str, str], ...]:
        """The derived fields, each with the name of the ``always`` that says what it is equal to."""
        found: dict[str, str] = {}
        known = [f"{name}.{each.name}" for name, item in self.instances.items() for each in item.machine.fields]
        words = one_or_more(node, "'derived'", self.problems)
        derived = {word.text for word in words}
        for word in words:
            if word.text not in known:
                text = f"'derived' names '{word.text}', which is no field of an instance"
                self.problems.add("E420", word.at, text, closest(word.text, known))
                continue
            if word.text in found:
                self.problems.add("E209", word.at, f"'derived' names '{word.text}' twice", "remove one")
                continue
            claim = next((claim for claim in properties if _defines(claim, word.text, derived)), None)
            if claim is None:
                text = f"no 'always' says what '{word.text}' is equal to"
                name = word.text.replace(".", "[i].")
                fix = f"claim {name} == ..., of nothing derived, no index but i, and no actor outside of a count"
                self.problems.add("E421", word.at, text, fix)
                continue
            found[word.text] = claim.name
        return tuple(found.items())

    def _says(self, node: Node | None, what: str) -> str | None:
        says = text_of(node, f"'says' of {what}", self.problems)
        if node is not None and says is not None and not _INVARIANT.fullmatch(says):
            fix = "give the name of an invariant, such as S3 or T1"
            self.problems.add("E115", node.at, f"'says' of {what} is '{says}'", fix)
        return says

    def _mutants(self, node: Node | None) -> tuple[ProtocolMutant, ...]:
        found: dict[str, ProtocolMutant] = {}
        faults = self.faults
        for entry in entries_of(node, "the mutants", faults):
            name = self._name(entry.key, "a mutant", found, faults)
            what = f"mutant '{entry.key.text}'"
            keys = keys_of(entry.value, what, faults, required=("machine", "event"), optional=("about", *FAULT_KEYS))
            machine = self._machine(keys.get("machine"), what, faults)
            word = text_of(keys.get("event"), f"the event of {what}", faults)
            about = text_of(keys.get("about"), f"the sentence of {what}", faults) or ""
            if machine is None or word is None:
                continue
            events = {event.name: event for event in machine.events}
            users = [instance for instance in self.instances.values() if instance.machine.name == machine.name]
            if word not in events:
                text = f"{what} names '{word}', which '{machine.name}' does not have"
                faults.add("E407", keys["event"].at, text, closest(word, events, "use an event"))
                continue
            if not users:
                used = {instance.machine.name for instance in self.instances.values()}
                text = f"{what} is in '{machine.name}', which this protocol does not use"
                faults.add("E403", keys["machine"].at, text, closest(machine.name, used))
                continue
            faulty = machine_fault(keys, machine, events[word], self.vocabulary, faults, what, entry.key.at)
            if name is None or faulty is None:
                continue
            narrow = tuple((user.name, self._narrowed_event(machine, user, faulty)) for user in users)
            found[name] = ProtocolMutant(name, machine.name, word, about, narrow, entry.key.at)
        return tuple(found.values())

    def _narrowed_event(self, machine: Machine, user: Instance, faulty: Event) -> Event:
        """The faulty event with the field widths of one instance."""
        widths = {
            own.name: cut.bits
            for own, cut in zip(machine.fields, user.machine.fields, strict=True)
            if own.bits != cut.bits
        }
        return narrowed_event(machine, faulty, widths)

    def _name(self, key: Scalar, what: str, taken: Collection[str], problems: Problems | None = None) -> str | None:
        """The text of ``key`` when it may name something new, else None after noting why not."""
        problems = self.problems if problems is None else problems
        text = key.text
        if not _WORD.fullmatch(text) or text in _RESERVED:
            problems.add("E201", key.at, f"'{text}' cannot name {what}", "use lower_snake_case, and no operator")
            return None
        if text in taken:
            problems.add("E209", key.at, f"{what} is named '{text}', as something else is", "use another name")
            return None
        return text


@dataclass(frozen=True, slots=True)
class _Head:
    """An actor before its steps are read."""

    name: str
    count: int
    plays: tuple[str, ...]
    locals: tuple[Local, ...]
    names: Mapping[str, int]  # step name -> code
    steps: tuple[Entry, ...]
    at: Place


def _defines(claim: Property, field: str, derived: Set[str]) -> bool:
    """Whether a claim is ``field[i] == value`` in every slot, for a value that reads no derived field."""
    match claim:
        case Property(
            kind="always",
            that=Compare("==", Remote(owner=owner, index=Name(name=index, kind="index", high=high), field=name), value),
        ):
            reads = {f"{part.owner}.{part.field}" for part in walked(value) if isinstance(part, Remote)}
            alone = not actors_in(value) and dict(range_of(claim.that, frozenset()).indexes) == {index: high}
            return f"{owner}.{name}" == field and alone and not reads & derived
    return False


def _argument_type(argument: Argument, symbols: Mapping[str, Symbol]) -> tuple[str, int]:
    if argument.like is not None:
        return symbols[argument.like].type, symbols[argument.like].high
    return (BOOL, 1) if argument.is_bool else (INT, argument.max)


def _joined(words: Sequence[str]) -> str:
    return " and ".join(f"'{word}'" for word in words)
