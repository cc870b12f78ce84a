"""Vocabulary and machine files -> ``model``: shape, names and types, with every mistake of a file noted at once.

Whether what was read makes sense as a machine is ``rules.py``; faults that mutants ask for are built by ``faults.py``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from .cases import CaseReader, expression_of, state_of
from .claims import equivalents_of, something_is_fair
from .expressions import BOOL, Expr
from .faults import FAULT_KEYS, faulty_event
from .model import (
    Actor,
    Argument,
    Budget,
    Event,
    Eviction,
    Field,
    HitPolicy,
    LeadsTo,
    Machine,
    Meta,
    Mutant,
    Order,
    Property,
    RefusalWord,
    State,
    Vocabulary,
)
from .names import name_of
from .parser import Scope
from .problems import Place, Problems, closest
from .scopes import STATE, event_scope, eviction_scope, word_scope
from .source import (
    Entry,
    Mapping,
    Node,
    Scalar,
    choice_of,
    entries_of,
    items_of,
    keys_of,
    number_of,
    one_or_more,
    read_yaml,
    text_of,
    truth_of,
)

COUNTS_AS = ("free", "owned", "cached", "reclaimable", "loading", "expanding", "quarantined", "failed")
STRUCTURES = ("leaf_first", "flat")
LEAVES = ("tombstone", "disk_copy", "nothing")
BUDGETS = ("kind", "tenant")
FIRSTS = ("lowest", "highest", "true", "false")
META_TYPES = {"u8": 8, "u16": 16, "u32": 32, "u64": 64}
_ARGUMENT_BITS_MAX = 48
_INVARIANT = re.compile(r"[ST][1-9][0-9]?")


def read_vocabulary(path: Path, shown: str, problems: Problems) -> Vocabulary | None:
    """The words that all machines share; None when the file holds a mistake."""
    before = len(problems)
    root = read_yaml(path, shown, problems)
    keys = keys_of(root, "the vocabulary", problems, required=("actors", "refusals"))
    actors = tuple(
        Actor(name, about, entry.key.at) for name, about, entry in _words(keys.get("actors"), "an actor", problems)
    )
    refusals = tuple(
        RefusalWord(name, code, about, entry.key.at)
        for code, (name, about, entry) in enumerate(_words(keys.get("refusals"), "a refusal", problems), start=1)
    )
    if refusals and refusals[0].name != "illegal":
        problems.add(
            "E321",
            refusals[0].at,
            f"the first refusal is '{refusals[0].name}', but code 1 means that the state does not take the event",
            "put 'illegal' first",
        )
    return Vocabulary(actors, refusals) if len(problems) == before and root is not None else None


def read_machine(
    path: Path,
    shown: str,
    vocabulary: Vocabulary | None,
    problems: Problems,
    faults: Problems | None = None,
    *,
    of_object: bool = True,
) -> Machine | None:
    """One machine; None when the file holds a mistake.

    Args:
        path: the file.
        shown: how problems name it.
        vocabulary: whose actors and refusals may be used; without one they are not looked up.
        problems: where mistakes are noted.
        faults: where those in ``mutants:`` and ``equivalent:`` are, in place of ``problems``; the machine lacks these.
        of_object: whether prefix hits ask it, so that it must say how; others may not.

    """
    before = len(problems)
    root = read_yaml(path, shown, problems)
    if root is None:
        return None
    reader = _Machine(shown, vocabulary, problems, problems if faults is None else faults, of_object)
    machine = reader.read(root, path.stem)
    return machine if len(problems) == before else None


def _words(node: Node | None, what: str, problems: Problems) -> list[tuple[str, str, Entry]]:
    found = []
    for entry in entries_of(node, f"{what.split()[1]}s", problems):
        name = name_of(entry.key, what, problems)
        about = text_of(entry.value, f"the sentence of '{entry.key.text}'", problems)
        if name is not None and about is not None:
            found.append((name, about, entry))
    return found


def _bits(count: int) -> str:
    return f"{count} bit" if count == 1 else f"{count} bits"


class _Machine:
    """Reads one file from top to bottom; what was read so far is what later parts may name."""

    def __init__(
        self, shown: str, vocabulary: Vocabulary | None, problems: Problems, faults: Problems, of_object: bool
    ) -> None:
        self.shown = shown
        self.vocabulary = vocabulary
        self.problems = problems
        self.faults = faults
        self.of_object = of_object

    def read(self, root: Node, stem: str) -> Machine | None:
        problems = self.problems
        keys = keys_of(
            root,
            "a machine",
            problems,
            required=("machine", "title", "about", *(["hit"] if self.of_object else []), "word", "states", "events"),
            optional=("meta", "eviction", "always", "sometimes", "leads_to", "mutants", "equivalent"),
        )
        name = self._machine_name(keys.get("machine"), stem)
        title = text_of(keys.get("title"), "the title", problems) or ""
        about = text_of(keys.get("about"), "the sentence about the machine", problems) or ""
        hit = choice_of(keys.get("hit"), "the hit policy", problems, [policy.value for policy in HitPolicy])
        if hit is None and self.of_object:
            name = None
        self.taken: dict[str, Place] = {}
        self.broken: set[str] = set()  # names of fields, meta fields and events whose declaration is wrong
        self.states = self._states(keys.get("states"))
        self.fields = self._fields(keys.get("word"))
        self.meta = self._meta(keys.get("meta"))
        if not self.fields or not self.states or self.fields[0].name != STATE:
            return None
        only_eviction = "a meta field; only the eviction rule reads those, so put what guards read into the word"
        self.scope = replace(
            word_scope(name or stem, self.fields, self.states),
            broken=frozenset(self.broken),
            elsewhere={field.name: f"'{field.name}' is {only_eviction}" for field in self.meta},
        )
        self.events = self._events(keys.get("events"))
        eviction = self._eviction(keys.get("eviction"))
        properties = (
            *self._properties(keys.get("always"), "always"),
            *self._properties(keys.get("sometimes"), "sometimes"),
        )
        leads_to = self._leads_to(keys.get("leads_to"))
        mutants = self._mutants(keys.get("mutants"))
        if name is None:
            return None
        return Machine(
            name=name,
            title=title,
            about=about,
            hit=None if hit is None else HitPolicy(hit),
            fields=self.fields,
            meta=self.meta,
            states=self.states,
            events=self.events,
            eviction=eviction,
            properties=properties,
            leads_to=leads_to,
            mutants=mutants,
            equivalent=equivalents_of(keys.get("equivalent"), self.faults),
            path=self.shown,
            at=keys["machine"].at,
        )

    def _machine_name(self, node: Node | None, stem: str) -> str | None:
        if not isinstance(node, Scalar):
            text_of(node, "the machine's name", self.problems)
            return None
        name = name_of(node, "a machine", self.problems)
        if name is not None and name != stem:
            self.problems.add(
                "E320",
                node.at,
                f"machine '{name}' stands in a file named '{stem}.yaml'",
                f"rename the file to {name}.yaml",
            )
        return name

    def _new_name(self, key: Scalar, what: str) -> str | None:
        """A name that nothing else in the machine has; generated code and expressions could not tell them apart."""
        name = name_of(key, what, self.problems)
        if name is None:
            return None
        if name in self.taken:
            line = self.taken[name].line
            self.problems.add(
                "E209", key.at, f"'{name}' is already the name of something in line {line}", "use another name"
            )
            return None
        self.taken[name] = key.at
        return name

    # Word, meta, states.

    def _fields(self, node: Node | None) -> tuple[Field, ...]:
        fields: list[Field] = []
        shift = 0
        for entry in entries_of(node, "the word", self.problems):
            name = self._new_name(entry.key, "a field")
            field = self._field(name or entry.key.text, entry, shift)
            if field is None or name is None:
                self.broken.add(entry.key.text)
                continue
            shift += field.bits
            fields.append(field)
        if shift > 64:
            last = next(field for field in fields if field.shift + field.bits > 64)
            self.problems.add(
                "E301",
                last.at,
                f"the word takes {shift} bits, and '{last.name}' is the first field past 64",
                f"make fields narrower by {shift - 64} bits in all, or move what no guard reads to 'meta:'",
            )
        if fields and fields[0].name != STATE:
            self.problems.add(
                "E302", fields[0].at, f"the word starts with '{fields[0].name}'", "put 'state' first, in the low bits"
            )
        elif fields and len(self.states) > 1 << fields[0].bits:
            needed = (len(self.states) - 1).bit_length()
            self.problems.add(
                "E302",
                fields[0].at,
                f"{_bits(fields[0].bits)} cannot tell {len(self.states)} states apart",
                f"give it {_bits(needed)}",
            )
        return tuple(fields)

    def _field(self, name: str, entry: Entry, shift: int) -> Field | None:
        what = f"field '{name}'"
        node = entry.value
        if isinstance(node, Scalar) and node.text == "bool" and name != STATE:
            return Field(name, 1, shift, "", (), True, entry.key.at)
        if isinstance(node, Scalar):
            bits = number_of(node, f"the width of {what}", self.problems, 1, 64)
            return Field(name, bits, shift, "", (), False, entry.key.at) if bits is not None else None
        if isinstance(node, Mapping) and node.get("bool") is not None and name != STATE:
            return self._bool_field(name, node, entry, shift)
        keys = keys_of(node, what, self.problems, required=("bits",), optional=("names", "bool", "about"))
        bits = number_of(keys.get("bits"), f"the width of {what}", self.problems, 1, 64)
        about = text_of(keys.get("about"), f"the sentence of {what}", self.problems) or ""
        names: list[str] = []
        for item in one_or_more(keys.get("names"), f"the values of {what}", self.problems):
            value = name_of(item, "a value", self.problems)
            if value in names:
                self.problems.add("E209", item.at, f"{what} has the value '{value}' twice", "remove one")
            elif value is not None:
                names.append(value)
        if bits is not None and len(names) > 1 << bits:
            self.problems.add(
                "E116",
                keys["bits"].at,
                f"{_bits(bits)} cannot tell the {len(names)} values of {what} apart",
                f"give it {_bits((len(names) - 1).bit_length())}",
            )
        if names and name == STATE:
            self.problems.add(
                "E112", keys["names"].at, "the values of 'state' are the states", "name them under 'states:'"
            )
        return Field(name, bits, shift, about, tuple(names), False, entry.key.at) if bits is not None else None

    def _bool_field(self, name: str, node: Mapping, entry: Entry, shift: int) -> Field | None:
        """``{bool: true, about: ...}``, or with ``bits: 1``: the long form of ``bool``."""
        what = f"field '{name}'"
        keys = keys_of(node, what, self.problems, required=("bool",), optional=("bits", "about"))
        number_of(keys.get("bits"), f"the width of {what}, a truth value,", self.problems, 1, 1)
        about = text_of(keys.get("about"), f"the sentence of {what}", self.problems) or ""
        if truth_of(keys["bool"], f"'bool' of {what}", self.problems) is False:
            self.problems.add("E115", keys["bool"].at, f"'bool' of {what} is false", "leave 'bool' out")
        return Field(name, 1, shift, about, (), True, entry.key.at)

    def _meta(self, node: Node | None) -> tuple[Meta, ...]:
        found = []
        for entry in entries_of(node, "meta", self.problems):
            name = self._new_name(entry.key, "a meta field")
            what = f"meta field '{entry.key.text}'"
            keys = (
                {"type": entry.value}
                if isinstance(entry.value, Scalar)
                else keys_of(entry.value, what, self.problems, required=("type",), optional=("about",))
            )
            type_ = choice_of(keys.get("type"), f"the type of {what}", self.problems, tuple(META_TYPES))
            about = text_of(keys.get("about"), f"the sentence of {what}", self.problems) or ""
            if name is not None and type_ in META_TYPES:
                found.append(Meta(name, META_TYPES[type_], about, entry.key.at))
            else:
                self.broken.add(entry.key.text)
        return tuple(found)

    def _states(self, node: Node | None) -> tuple[State, ...]:
        found: list[State] = []
        entries = entries_of(node, "the states", self.problems)
        if node is not None and not entries:
            self.problems.add("E117", node.at, "a machine needs states", "give at least the initial one")
        for entry in entries:
            name = self._new_name(entry.key, "a state")
            what = f"state '{entry.key.text}'"
            marks = ("initial", "readable", "exclusive", "evictable")
            keys = keys_of(entry.value, what, self.problems, required=("counts_as", "about"), optional=marks)
            set_ = {mark: truth_of(keys.get(mark), f"'{mark}' of {what}", self.problems) or False for mark in marks}
            counts_as = choice_of(keys.get("counts_as"), f"'counts_as' of {what}", self.problems, COUNTS_AS)
            about = text_of(keys.get("about"), f"the sentence of {what}", self.problems) or ""
            if name is not None or entry.key.text not in self.taken:
                found.append(
                    State(
                        name=entry.key.text,
                        code=len(found),
                        about=about,
                        initial=set_["initial"],
                        readable=set_["readable"],
                        exclusive=set_["exclusive"],
                        evictable=set_["evictable"],
                        counts_as=counts_as or "free",
                        at=entry.key.at,
                    )
                )
        return tuple(found)

    # Events.

    def _events(self, node: Node | None) -> tuple[Event, ...]:
        found = []
        entries = entries_of(node, "the events", self.problems)
        if node is not None and not entries:
            self.problems.add("E117", node.at, "a machine needs events", "give at least one")
        for entry in entries:
            name = self._new_name(entry.key, "an event")
            what = f"event '{entry.key.text}'"
            keys = keys_of(
                entry.value, what, self.problems, required=("by", "about", "cases"), optional=("given", "kernel")
            )
            by = self._known_words(
                keys.get("by"),
                f"the actor of {what}",
                "E212",
                [actor.name for actor in self.vocabulary.actors] if self.vocabulary else None,
                "no actor of the vocabulary",
            )
            about = text_of(keys.get("about"), f"the sentence of {what}", self.problems) or ""
            given, broken = self._given(keys.get("given"), entry.key.text)
            kernel = keys.get("kernel")
            kernel_name = name_of(kernel, "a kernel", self.problems) if isinstance(kernel, Scalar) else None
            if kernel is not None and not isinstance(kernel, Scalar):
                text_of(kernel, f"the kernel of {what}", self.problems)
            cases = self._case_reader(entry.key.text, given, self.problems, broken).cases(keys.get("cases"))
            found.append(Event(name or entry.key.text, by, about, given, kernel_name, cases, entry.key.at))
        return tuple(found)

    def _given(self, node: Node | None, event: str) -> tuple[tuple[Argument, ...], frozenset[str]]:
        """The arguments of an event, and the names of those that are wrong."""
        found: list[Argument] = []
        broken: set[str] = set()
        for entry in entries_of(node, f"the arguments of '{event}'", self.problems):
            name = name_of(entry.key, "an argument", self.problems)
            if name is not None and name in self.taken:
                line = self.taken[name].line
                self.problems.add(
                    "E209",
                    entry.key.at,
                    f"argument '{name}' of '{event}' has the name of something in line {line}",
                    "use another name",
                )
                name = None
            type_ = text_of(entry.value, f"the type of argument '{entry.key.text}'", self.problems)
            argument = self._argument(name, type_, entry) if name is not None and type_ is not None else None
            if argument is not None:
                found.append(argument)
            elif entry.key.text not in self.taken:
                broken.add(entry.key.text)
        return tuple(found), frozenset(broken)

    def _argument(self, name: str, type_: str, entry: Entry) -> Argument | None:
        if type_ == "bool":
            return Argument(name, 1, None, True, entry.key.at)
        plain = re.fullmatch(r"u([1-9][0-9]*)", type_)
        if plain and int(plain[1]) <= _ARGUMENT_BITS_MAX:
            return Argument(name, int(plain[1]), None, False, entry.key.at)
        if type_ in self.broken:
            return None
        field = next((field for field in self.fields if field.name == type_), None)
        if field is not None:
            return Argument(name, field.bits, field.name, field.is_bool, entry.key.at)
        known = (*(field.name for field in self.fields), "bool", "u8", "u16")
        self.problems.add(
            "E215",
            entry.value.at,
            f"argument '{name}' has type '{type_}', which is no field and no type",
            closest(type_, known, f"use a field, bool, or u1 to u{_ARGUMENT_BITS_MAX}"),
        )
        return None

    def _case_reader(
        self, event: str, given: tuple[Argument, ...], problems: Problems, broken: frozenset[str] = frozenset()
    ) -> CaseReader:
        states = tuple(state.name for state in self.states)
        refusals = tuple(word.name for word in self.vocabulary.refusals) if self.vocabulary else None
        scope = event_scope(self.scope, given)
        scope = replace(scope, broken=scope.broken | broken)
        return CaseReader(event, scope, states, refusals, problems)

    def _known_words(
        self, node: Node | None, what: str, code: str, known: Sequence[str] | None, which: str
    ) -> tuple[str, ...]:
        found = []
        for word in one_or_more(node, what, self.problems):
            if known is None or word.text in known:
                found.append(word.text)
            else:
                self.problems.add(
                    code, word.at, f"{what} is '{word.text}', which is {which}", closest(word.text, known)
                )
        return tuple(found)

    # Eviction, properties, mutants.

    def _eviction(self, node: Node | None) -> Eviction | None:
        if node is None:
            return None
        keys = keys_of(
            node,
            "the eviction rule",
            self.problems,
            required=("event", "from", "structure", "order", "leaves"),
            optional=("when", "cascade", "budget"),
        )
        scope = eviction_scope(self.scope, self.meta)
        event = self._event(keys.get("event"), "the eviction rule", self.problems)
        words = one_or_more(keys.get("from"), "'from' of the eviction rule", self.problems)
        states = [state.name for state in self.states]
        candidates = [
            word.text for word in words if state_of(word, states, "the eviction rule", self.problems) is not None
        ]
        when = self._expression(keys.get("when"), scope, "the guard of the eviction rule", BOOL)
        structure = choice_of(keys.get("structure"), "'structure' of the eviction rule", self.problems, STRUCTURES)
        leaves = choice_of(keys.get("leaves"), "'leaves' of the eviction rule", self.problems, LEAVES)
        order = self._order(keys.get("order"), scope)
        cascade = one_or_more(keys.get("cascade"), "'cascade' of the eviction rule", self.problems)
        budget = self._budget(keys.get("budget"))
        if event is None or structure is None or leaves is None:
            return None
        others = tuple(word.text for word in cascade)
        return Eviction(
            event.name, tuple(candidates), when, structure, order, leaves, others, budget, node.at,
            {name: value.at for name, value in keys.items()},
        )  # fmt: skip

    def _budget(self, node: Node | None) -> Budget | None:
        if node is None:
            return None
        keys = keys_of(node, "the budget of the eviction rule", self.problems, optional=BUDGETS)
        shares = {
            name: number_of(keys.get(name), f"'{name}' of the budget, in percent,", self.problems, 1, 100)
            for name in BUDGETS
        }
        return Budget(shares["kind"], shares["tenant"], node.at)

    def _order(self, node: Node | None, scope: Scope) -> tuple[Order, ...]:
        found = []
        for number, item in enumerate(items_of(node, "'order' of the eviction rule", self.problems), start=1):
            what = f"key {number} of the eviction order"
            keys = keys_of(item, what, self.problems, required=("by", "first"))
            by = self._expression(keys.get("by"), scope, what, None)
            first = choice_of(keys.get("first"), f"'first' of {what}", self.problems, FIRSTS)
            if by is not None and first is not None:
                found.append(Order(by, first, item.at))
        return tuple(found)

    def _expression(self, node: Node | None, scope: Scope, what: str, expected: str | None) -> Expr | None:
        return expression_of(node, scope, what, expected, self.problems)

    def _event(self, node: Node | None, what: str, problems: Problems) -> Event | None:
        word = text_of(node, f"the event of {what}", problems)
        if node is None or word is None:
            return None
        events = {event.name: event for event in self.events}
        if word not in events:
            text = f"{what} names '{word}', which is no event"
            problems.add("E211", node.at, text, closest(word, events, "use an event"))
        return events.get(word)

    def _says(self, node: Node | None, what: str) -> str | None:
        says = text_of(node, f"'says' of {what}", self.problems)
        if node is not None and says is not None and not _INVARIANT.fullmatch(says):
            self.problems.add(
                "E115", node.at, f"'says' of {what} is '{says}'", "give the name of an invariant, such as S3 or T1"
            )
        return says

    def _properties(self, node: Node | None, kind: str) -> tuple[Property, ...]:
        found = []
        for entry in entries_of(node, f"'{kind}'", self.problems):
            name = name_of(entry.key, "a property", self.problems)
            what = f"property '{entry.key.text}'"
            keys = keys_of(entry.value, what, self.problems, required=("that",), optional=("says", "about"))
            that = self._expression(keys.get("that"), self.scope, what, BOOL)
            says = self._says(keys.get("says"), what)
            about = text_of(keys.get("about"), f"the sentence of {what}", self.problems) or ""
            if name is not None and that is not None:
                found.append(Property(name, kind, says, that, about, entry.key.at))
        return tuple(found)

    def _leads_to(self, node: Node | None) -> tuple[LeadsTo, ...]:
        found = []
        events = [event.name for event in self.events]
        for entry in entries_of(node, "'leads_to'", self.problems):
            name = name_of(entry.key, "a property", self.problems)
            what = f"property '{entry.key.text}'"
            keys = keys_of(
                entry.value, what, self.problems, required=("from", "to"), optional=("says", "fair", "strong", "about")
            )
            source = self._expression(keys.get("from"), self.scope, f"'from' of {what}", BOOL)
            target = self._expression(keys.get("to"), self.scope, f"'to' of {what}", BOOL)
            fair, strong = (
                self._known_words(keys.get(key), f"a fair event of {what}", "E211", events, "no event")
                for key in ("fair", "strong")
            )
            something_is_fair(keys, entry.key.at, what, self.problems)
            says = self._says(keys.get("says"), what)
            about = text_of(keys.get("about"), f"the sentence of {what}", self.problems) or ""
            if name is not None and source is not None and target is not None:
                found.append(LeadsTo(name, says, source, target, fair, strong, about, entry.key.at))
        return tuple(found)

    def _mutants(self, node: Node | None) -> tuple[Mutant, ...]:
        found = []
        faults = self.faults
        for entry in entries_of(node, "the mutants", faults):
            name = name_of(entry.key, "a mutant", faults)
            what = f"mutant '{entry.key.text}'"
            keys = keys_of(entry.value, what, faults, required=("event",), optional=("about", *FAULT_KEYS))
            event = self._event(keys.get("event"), what, faults)
            about = text_of(keys.get("about"), f"the sentence of {what}", faults) or ""
            if event is None or not event.cases:
                continue
            reader = self._case_reader(event.name, event.given, faults)
            faulty = faulty_event(keys, event, reader, what, entry.key.at)
            if name is not None and faulty is not None:
                found.append(Mutant(name, event.name, about, faulty, entry.key.at))
        return tuple(found)
