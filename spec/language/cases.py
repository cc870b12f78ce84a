"""Reads the cases of one event: ``from``, ``when``, ``to``, ``do``, ``refuse``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .expressions import BOOL, Expr
from .model import Assignment, Case
from .parser import Scope, parse_expression
from .problems import Problems, closest
from .scopes import STATE
from .source import Node, Scalar, entries_of, items_of, keys_of, one_or_more, text_of


def expression_of(node: Node | None, scope: Scope, what: str, expected: str | None, problems: Problems) -> Expr | None:
    """The expression in a node, or None: there is no node, or it holds a mistake that is noted."""
    text_of(node, what, problems)
    return parse_expression(node, scope, problems, what, expected) if isinstance(node, Scalar) else None


def state_of(node: Node | None, states: Sequence[str], what: str, problems: Problems) -> str | None:
    """One of ``states``."""
    word = text_of(node, f"the state of {what}", problems)
    if node is None or word is None or word in states:
        return word
    fix = "'any' stands alone, and only behind 'from:'" if word == "any" else closest(word, states, "use a state")
    problems.add("E210", node.at, f"{what} names '{word}', which is no state", fix)
    return None


@dataclass(frozen=True, slots=True)
class CaseReader:
    """What the cases of one event may name. Without ``refusals``, they are not looked up."""

    event: str
    scope: Scope  # word and arguments
    states: tuple[str, ...]
    refusals: tuple[str, ...] | None
    problems: Problems

    def cases(self, node: Node | None) -> tuple[Case, ...]:
        """The cases of the event, numbered from 1; what could not be read of them is noted."""
        items = items_of(node, f"the cases of '{self.event}'", self.problems)
        if node is not None and not items:
            self.problems.add("E117", node.at, f"event '{self.event}' needs cases", "give at least one")
        return tuple(self._case(item, number) for number, item in enumerate(items, start=1))

    def _case(self, node: Node, number: int) -> Case:
        what = f"case {number} of '{self.event}'"
        keys = keys_of(node, what, self.problems, required=("from",), optional=("when", "to", "do", "refuse"))
        any_state, sources = self._sources(keys.get("from"), what)
        when = self.guard(keys.get("when"))
        to = self.target(keys.get("to"), what)
        do = self.assignments(keys.get("do"), what)
        refuse = self._refusal(keys.get("refuse"), what)
        if "refuse" in keys and ("to" in keys or "do" in keys):
            extra = "to" if "to" in keys else "do"
            self.problems.add(
                "E309",
                keys[extra].at,
                f"{what} refuses and also has '{extra}:'",
                "remove one: a refusal changes nothing",
            )
        return Case(number, sources, any_state, when, to, do, refuse, node.at)

    def _sources(self, node: Node | None, what: str) -> tuple[bool, tuple[str, ...]]:
        if isinstance(node, Scalar) and node.text == "any":
            return True, self.states
        words = one_or_more(node, f"'from' of {what}", self.problems)
        found = [name for word in words if (name := self.target(word, what)) is not None]
        for word in words:
            if [other.text for other in words].count(word.text) > 1:
                self.problems.add("E209", word.at, f"{what} names state '{word.text}' twice", "remove one")
                break
        return False, tuple(dict.fromkeys(found))

    def guard(self, node: Node | None) -> Expr | None:
        """What follows ``when:``."""
        return expression_of(node, self.scope, f"the guard of '{self.event}'", BOOL, self.problems)

    def target(self, node: Node | None, what: str) -> str | None:
        """What follows ``to:``."""
        return state_of(node, self.states, what, self.problems)

    def assignments(self, node: Node | None, what: str) -> tuple[Assignment, ...]:
        """What follows ``do:``."""
        found = []
        names = [name for name, symbol in self.scope.names.items() if symbol.kind == "field" and name != STATE]
        for entry in entries_of(node, f"'do' of {what}", self.problems):
            name = entry.key.text
            if name == STATE:
                self.problems.add(
                    "E214", entry.key.at, f"{what} assigns the state", "write 'to: ' and the state instead"
                )
                continue
            if name in self.scope.broken:
                continue
            if name not in names:
                text = f"{what} assigns '{name}', which is no field of the word"
                self.problems.add("E214", entry.key.at, text, closest(name, names, "use a field"))
                continue
            value = expression_of(
                entry.value, self.scope, f"the value of '{name}' in {what}", self.scope.names[name].type, self.problems
            )
            if value is not None:
                found.append(Assignment(name, value, entry.key.at))
        return tuple(found)

    def _refusal(self, node: Node | None, what: str) -> str | None:
        word = text_of(node, f"the refusal of {what}", self.problems)
        if node is None or word is None or self.refusals is None:
            return word
        if word in self.refusals:
            return word
        text = f"{what} refuses as '{word}', which the vocabulary does not have"
        self.problems.add(
            "E213", node.at, text, closest(word, self.refusals, "use a refusal, or add it at the vocabulary's end")
        )
        return None
