"""The expression language: text -> typed expression, or problems with their place.

Two passes. The first turns tokens into a tree by precedence (lowest first: ``if else``, ``implies``, ``or``, ``and``,
``not``, comparisons and ``in``, ``+ -``, ``* // %``). The second resolves names against a ``Scope`` and checks types
and bounds; a state or another named value is only known beside its own field. Nothing is ever handed to ``eval``.

The only errors are problems; a bad expression gives None.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .bounds import INT64_MAX, INT64_MIN, interval, type_of
from .expressions import (
    BOOL,
    INT,
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
from .problems import Place, Problems, closest
from .source import Scalar
from .trees import actors_in


@dataclass(frozen=True, slots=True)
class Symbol:
    """What a name stands for; its values are [0, ``high``], 0 and 1 for truth values, codes for named values."""

    kind: str  # as in ``expressions.Name``
    type: str  # INT, BOOL, or a named type
    high: int


@dataclass(frozen=True, slots=True)
class Owner:
    """What may stand before the dot of a remote name: an indexed set of slots, or an actor without index."""

    fields: Mapping[str, Symbol]
    index_high: int | None  # greatest index of ``owner[index].field``; None when there is no index


@dataclass(frozen=True, slots=True)
class Scope:
    """The names that an expression may use.

    ``owner`` says in messages whose names these are. ``values`` maps a named type to its values and their codes; a type
    is any string, so that a protocol can tell ``window.state`` from ``kv.state``. ``bounds`` maps a name that
    ``max(name)`` takes to its greatest value. With ``free_index``, an unknown name between brackets is a new index,
    which may then be read everywhere in the expression. ``copies`` maps the actors that ``count(actor, ...)`` takes to
    how many there are; empty where nothing may be counted.
    """

    owner: str
    names: Mapping[str, Symbol]
    values: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    bounds: Mapping[str, int] = field(default_factory=dict)
    remotes: Mapping[str, Owner] = field(default_factory=dict)
    free_index: bool = False
    copies: Mapping[str, int] = field(default_factory=dict)
    elsewhere: Mapping[str, str] = field(default_factory=dict)  # names that only others may read -> the fix to suggest
    broken: frozenset[str] = frozenset()  # names whose declaration is wrong, which has been noted; they give no problem


def parse_expression(
    source: Scalar, scope: Scope, problems: Problems, what: str, expected: str | None = None
) -> Expr | None:
    """Parse, resolve and type one expression.

    Args:
        source: the node that holds the text; problems point into it.
        scope: the names that it may use.
        problems: where mistakes are noted.
        what: what the expression is, for messages, such as "the guard of 'seal'".
        expected: the type that it must have; None takes any.

    Returns:
        The expression, or None: it is wrong, or reads a broken name; at least one problem has been noted.

    >>> from .source import load_yaml
    >>> problems = Problems()
    >>> node = load_yaml("a.yaml", "fill + 1 == max(fil)", problems)
    >>> scope = Scope("block", {"fill": Symbol("field", INT, 255)}, bounds={"fill": 255})
    >>> parse_expression(node, scope, problems, "the guard of 'seal'") is None
    True
    >>> print(problems.found[0].text)
    the guard of 'seal' reads 'fil', which 'block' does not have

    """
    before = len(problems)
    raw = _Parser(source, problems, what).parse()
    if raw is None:
        return None
    expr = _Resolver(source, scope, problems, what).whole(raw, expected)
    return expr if len(problems) == before else None


# First pass: tokens and tree.


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str  # number | word | sign | end
    text: str
    start: int


@dataclass(frozen=True, slots=True)
class _Raw:
    """One node before names are resolved; [start, stop) are offsets into the text."""

    kind: str  # number | word | remote | call | not | logic | compare | member | arithmetic | choice | list
    text: str  # the number, word, operator or function
    parts: tuple[_Raw, ...]
    start: int
    stop: int
    field: str = ""  # of a remote


_TOKEN = re.compile(r"\s*(?:(?P<number>[0-9]\w*)|(?P<word>[A-Za-z_]\w*)|(?P<sign>//|==|!=|<=|>=|&&|\|\||\*\*|[^\w\s]))")
_KEYWORDS = frozenset({"and", "or", "not", "implies", "in", "if", "else", "true", "false"})
_MEANT = {
    "&&": "and",
    "||": "or",
    "!": "not",
    "=": "==",
    "/": "//",
    "&": "and",
    "|": "or",
    "True": "true",
    "False": "false",
}
_COMPARISONS = frozenset({"==", "!=", "<", "<=", ">", ">="})
_NESTING_MAX = 50


class _Stop(Exception):
    """The rest of this text cannot be read; the problem has been noted."""


class _Parser:
    """Pratt parser; each method reads one level of precedence and returns what it read."""

    def __init__(self, source: Scalar, problems: Problems, what: str) -> None:
        self.source = source
        self.problems = problems
        self.what = what
        self.depth = 0

    def parse(self) -> _Raw | None:
        try:
            self.tokens = self._tokens()
            self.next = 0
            tree = self._choice()
            if self._now.kind != "end":
                self._refuse(self._now, f"{self.what} should end before '{self._now.text}'", "put an operator between")
            return tree
        except _Stop:
            return None

    def _tokens(self) -> list[_Token]:
        tokens: list[_Token] = []
        text, position = self.source.text, 0
        while match := _TOKEN.match(text, position):
            kind = match.lastgroup or "sign"
            token = _Token(kind, match[kind], match.start(kind))
            if kind == "number" and not re.fullmatch(r"0|[1-9][0-9]*", token.text):
                self._refuse(token, f"'{token.text}' is not a number", "write a whole number in decimal digits")
            tokens.append(token)
            position = match.end()
        tokens.append(_Token("end", "the end", len(text.rstrip())))
        return tokens

    @property
    def _now(self) -> _Token:
        return self.tokens[self.next]

    def _take(self) -> _Token:
        token = self._now
        self.next += 1
        return token

    def _takes(self, *texts: str) -> bool:
        if self._now.kind != "end" and self._now.text in texts:
            self.next += 1
            return True
        return False

    def _expect(self, text: str, after: str) -> _Token:
        if self._now.kind == "end" or self._now.text != text:
            found = f"{self.what} has {self._shown(self._now)} where '{text}' should {after}"
            self._refuse(self._now, found, f"put '{text}' there")
        return self._take()

    def _choice(self) -> _Raw:
        self._deeper()
        then = self._implies()
        if self._takes("if"):
            condition = self._implies()
            self._expect("else", "follow 'if'")
            otherwise = self._choice()
            for part in (then, condition):
                if part.kind == "logic" and part.text == "implies" and not self._in_parentheses(part):
                    self._refuse_at(part, f"{self.what} mixes 'implies' and 'if'", "use parentheses")
            then = _Raw("choice", "if", (then, condition, otherwise), then.start, otherwise.stop)
        self.depth -= 1
        return then

    def _deeper(self) -> None:
        self.depth += 1
        if self.depth > _NESTING_MAX:
            self._refuse(self._now, f"{self.what} is nested too deeply", "say it with fewer operators")

    def _in_parentheses(self, part: _Raw) -> bool:
        return self.source.text[part.start] == "("

    def _implies(self) -> _Raw:
        left = self._or()
        if self._takes("implies"):
            right = self._or()
            if self._now.text == "implies" and self._now.kind == "word":
                self._refuse(self._now, f"{self.what} chains 'implies'", "use parentheses")
            left = _Raw("logic", "implies", (left, right), left.start, right.stop)
        return left

    def _or(self) -> _Raw:
        return self._joined("or", self._and)

    def _and(self) -> _Raw:
        return self._joined("and", self._not)

    def _joined(self, word: str, below: Callable[[], _Raw]) -> _Raw:
        parts = [below()]
        while self._takes(word):
            parts.append(below())
        if len(parts) == 1:
            return parts[0]
        return _Raw("logic", word, tuple(parts), parts[0].start, parts[-1].stop)

    def _not(self) -> _Raw:
        if self._now.text == "not":
            token = self._take()
            self._deeper()
            operand = self._not()
            self.depth -= 1
            return _Raw("not", "not", (operand,), token.start, operand.stop)
        return self._comparison()

    def _comparison(self) -> _Raw:
        left = self._sum()
        token = self._now
        if token.kind == "end":
            return left
        if token.text in _COMPARISONS:
            self._take()
            right = self._sum()
            if self._now.text in _COMPARISONS:
                self._refuse(self._now, f"{self.what} chains comparisons", "join two comparisons with 'and'")
            return _Raw("compare", token.text, (left, right), left.start, right.stop)
        negated = token.text == "not"
        if negated:
            self._take()
            if self._now.text != "in":
                self._refuse(self._now, f"{self.what} has {self._shown(self._now)} where 'in' should follow 'not'")
        if self._takes("in"):
            self._expect("[", "follow 'in'")
            options = [self._sum()]
            while self._takes(","):
                options.append(self._sum())
            close = self._expect("]", "end the list")
            text = "not in" if negated else "in"
            return _Raw("member", text, (left, *options), left.start, close.start + 1)
        return left

    def _sum(self) -> _Raw:
        return self._arithmetic(("+", "-"), lambda: self._arithmetic(("*", "//", "%"), self._primary))

    def _arithmetic(self, signs: tuple[str, ...], below: Callable[[], _Raw]) -> _Raw:
        left = below()
        before = self.depth
        while self._now.kind == "sign" and self._now.text in signs:
            self._deeper()  # a chain nests to the left
            sign = self._take().text
            right = below()
            left = _Raw("arithmetic", sign, (left, right), left.start, right.stop)
        self.depth = before
        return left

    def _primary(self) -> _Raw:
        token = self._take()
        stop = token.start + len(token.text)
        if token.kind == "number":
            return _Raw("number", token.text, (), token.start, stop)
        if token.text == "(":
            inside = self._choice()
            close = self._expect(")", "close the parenthesis")
            return _Raw(inside.kind, inside.text, inside.parts, token.start, close.start + 1, inside.field)
        if token.kind == "word" and token.text not in _KEYWORDS - {"true", "false"}:
            if token.text not in ("true", "false"):
                return self._name(token)
            return _Raw("truth", token.text, (), token.start, stop)
        if token.text == "-":
            self._refuse(token, f"{self.what} has '-' without a left side", "write 0 - x")
        fix = "give a number, a name, or an expression in parentheses"
        return self._refuse(token, f"{self.what} has {self._shown(token)} where a value should stand", fix)

    def _name(self, token: _Token) -> _Raw:
        stop = token.start + len(token.text)
        if self._takes("("):
            parts = [self._choice()]
            while self._takes(","):
                parts.append(self._choice())
            close = self._expect(")", "close the parenthesis")
            return _Raw("call", token.text, tuple(parts), token.start, close.start + 1)
        if self._takes("["):
            index = self._sum()
            self._expect("]", "close the index")
            self._expect(".", "follow the index")
            return self._remote(token, (index,))
        if self._takes("."):
            return self._remote(token, ())
        return _Raw("word", token.text, (), token.start, stop)

    def _remote(self, owner: _Token, index: tuple[_Raw, ...]) -> _Raw:
        if self._now.kind != "word":
            self._refuse(self._now, f"{self.what} has {self._shown(self._now)} where a name should follow '.'")
        name = self._take()
        return _Raw("remote", owner.text, index, owner.start, name.start + len(name.text), name.text)

    def _shown(self, token: _Token) -> str:
        return token.text if token.kind == "end" else f"'{token.text}'"

    def _refuse(self, token: _Token, text: str, fix: str = "") -> _Raw:
        meant = _MEANT.get(token.text)
        if meant is not None:
            fix = f"did you mean '{meant}'?"
        length = 1 if token.kind == "end" else len(token.text)
        self.problems.add("E203", self.source.place(token.start, length), text, fix)
        raise _Stop

    def _refuse_at(self, part: _Raw, text: str, fix: str) -> None:
        self.problems.add("E203", self.source.place(part.start, part.stop - part.start), text, fix)
        raise _Stop


# Second pass: names, types, bounds.


class _Resolver:
    def __init__(self, source: Scalar, scope: Scope, problems: Problems, what: str) -> None:
        self.source = source
        self.scope = scope
        self.problems = problems
        self.what = what
        self.indexes: Mapping[str, int] = {}

    def whole(self, raw: _Raw, expected: str | None) -> Expr | None:
        """``resolve`` for all that one text says."""
        if self.scope.free_index:
            self.indexes = self._new_indexes(raw)
        return self.resolve(raw, expected)

    def _new_indexes(self, raw: _Raw) -> dict[str, int]:
        """The names between brackets that stand for an index, and the greatest slot that all they index have."""
        found: dict[str, int] = {}
        for part in raw.parts:
            for name, high in self._new_indexes(part).items():
                found[name] = min(high, found.get(name, high))
        owner = self.scope.remotes.get(raw.text) if raw.kind == "remote" else None
        if owner is not None and owner.index_high is not None and raw.parts and raw.parts[0].kind == "word":
            name = raw.parts[0].text
            if name not in self.scope.names:
                found[name] = min(owner.index_high, found.get(name, owner.index_high))
        return found

    def resolve(self, raw: _Raw, expected: str | None) -> Expr | None:
        """The typed expression, of type ``expected`` where one is given; None after noting why there is none."""
        expr = self._typed(raw, expected)
        if expr is None or expected is None:
            return expr
        found = type_of(expr)
        if found == expected:
            return expr
        text = f"{self.what} needs {_article(expected)} here, but {self._quote(raw)} is {_article(found)}"
        return self._problem("E205", raw, text, self._type_fix(raw, found, expected))

    def _typed(self, raw: _Raw, expected: str | None) -> Expr | None:
        at = self._at(raw)
        match raw.kind:
            case "number":
                if len(raw.text.lstrip("0")) > len(str(INT64_MAX)) or (value := int(raw.text)) > INT64_MAX:
                    return self._problem(
                        "E206", raw, f"{raw.text} is more than 64 signed bits hold", "use a smaller number"
                    )
                return Number(value, at)
            case "truth":
                return Truth(raw.text == "true", at)
            case "word":
                return self._word(raw, expected, at)
            case "remote":
                return self._remote(raw, at)
            case "call":
                return self._call(raw, at)
            case "not":
                operand = self.resolve(raw.parts[0], BOOL)
                return Not(operand, at) if operand is not None else None
            case "logic":
                operands = self._all(raw.parts, BOOL)
                return Logic(raw.text, operands, at) if operands is not None else None
            case "compare":
                return self._compare(raw, at)
            case "member":
                return self._member(raw, at)
            case "arithmetic":
                return self._arithmetic(raw, at)
            case _:
                return self._choice(raw, expected, at)

    def _all(self, parts: tuple[_Raw, ...], expected: str) -> tuple[Expr, ...] | None:
        resolved = [self.resolve(part, expected) for part in parts]
        complete = tuple(expr for expr in resolved if expr is not None)
        return complete if len(complete) == len(parts) else None

    def _word(self, raw: _Raw, expected: str | None, at: Place) -> Expr | None:
        if raw.text in self.scope.broken:
            return None
        codes = self.scope.values.get(expected or "", {})
        if raw.text in codes:
            return Value(raw.text, codes[raw.text], expected or "", at)
        symbol = self.scope.names.get(raw.text)
        if symbol is not None:
            return Name(raw.text, symbol.kind, symbol.type, symbol.high, at)
        if raw.text in self.indexes:
            return Name(raw.text, "index", INT, self.indexes[raw.text], at)
        if raw.text in ("True", "False"):
            return self._problem("E203", raw, f"{self.what} has '{raw.text}'", f"did you mean '{_MEANT[raw.text]}'?")
        if raw.text in self.scope.remotes:
            fields = ", ".join(f".{name}" for name in self.scope.remotes[raw.text].fields)
            return self._problem(
                "E207",
                raw,
                f"{self.what} uses '{raw.text}' without saying what of it",
                f"follow it with one of: {fields}",
            )
        homes = [type_ for type_, values in self.scope.values.items() if raw.text in values]
        if homes and codes:
            fix = closest(raw.text, codes, f"use a value of '{expected}'")
            return self._problem(
                "E205", raw, f"{self.what}: '{raw.text}' is a value of '{homes[0]}', not of '{expected}'", fix
            )
        if homes:
            return self._problem(
                "E205",
                raw,
                f"{self.what} uses '{raw.text}', a value of '{homes[0]}', away from it",
                f"write {homes[0]} == {raw.text}",
            )
        if codes:
            fix = closest(raw.text, (*codes, *self.scope.names), f"use a value of '{expected}' or a name")
            return self._problem("E204", raw, f"{self.what} reads '{raw.text}', which is no value of '{expected}'", fix)
        fix = closest(raw.text, (*self.scope.names, *self.indexes), f"use a name of '{self.scope.owner}'")
        fix = self.scope.elsewhere.get(raw.text, fix)
        return self._problem(
            "E204", raw, f"{self.what} reads '{raw.text}', which '{self.scope.owner}' does not have", fix
        )

    def _remote(self, raw: _Raw, at: Place) -> Expr | None:
        owner = self.scope.remotes.get(raw.text)
        if owner is None:
            alone = "leave the owner out: an expression of a machine reads its own slot only"
            fix = closest(raw.text, self.scope.remotes) if self.scope.remotes else alone
            return self._problem(
                "E207", raw, f"{self.what} reads '{raw.text}', which '{self.scope.owner}' does not have", fix
            )
        index: Expr | None = None
        if owner.index_high is not None:
            if not raw.parts:
                return self._problem(
                    "E207", raw, f"'{raw.text}' has several slots", f"write {raw.text}[slot].{raw.field}"
                )
            index = self._index(raw.parts[0], owner.index_high)
            if index is None:
                return None
        elif raw.parts:
            return self._problem("E207", raw, f"'{raw.text}' takes no index", f"write {raw.text}.{raw.field}")
        symbol = owner.fields.get(raw.field)
        if symbol is None:
            fix = closest(raw.field, owner.fields)
            return self._problem("E204", raw, f"{self.what} reads '{raw.field}', which '{raw.text}' does not have", fix)
        return Remote(raw.text, index, raw.field, symbol.type, symbol.high, at)

    def _index(self, raw: _Raw, high: int) -> Expr | None:
        if self.scope.free_index and raw.kind == "word" and raw.text not in self.scope.names:
            return Name(raw.text, "index", INT, high, self._at(raw))
        index = self.resolve(raw, INT)
        if index is None:
            return None
        low, top = interval(index)
        if low < 0 or top > high:
            return self._problem(
                "E206", raw, f"index {self._quote(raw)} may be {low} to {top}, but slots are 0 to {high}", ""
            )
        return index

    def _call(self, raw: _Raw, at: Place) -> Expr | None:
        if raw.text == "count":
            return self._count(raw, at)
        if raw.text not in ("min", "max"):
            known = ("min", "max", "count") if self.scope.copies else ("min", "max")
            return self._problem(
                "E208", raw, f"{self.what} calls '{raw.text}', which is no function", closest(raw.text, known)
            )
        if len(raw.parts) > 1:
            operands = self._all(raw.parts, INT)
            return Extreme(raw.text, operands, at) if operands is not None else None
        part = raw.parts[0]
        if part.kind == "word" and part.text in self.scope.broken:
            return None
        name = part.text if part.kind == "word" else self.source.text[part.start : part.stop]
        if raw.text == "max" and name in self.scope.bounds:
            return Bound(name, self.scope.bounds[name], at)
        if raw.text == "max" and part.kind == "word" and name not in self.scope.names:
            fix = closest(name, self.scope.bounds, f"use a field of '{self.scope.owner}'")
            return self._problem(
                "E204", part, f"{self.what} reads '{name}', which '{self.scope.owner}' does not have", fix
            )
        if raw.text == "max" and part.kind == "remote":
            remote = self._remote(part, at)
            if not isinstance(remote, Remote):
                return None
            if remote.type == INT:
                return Bound(name, remote.high, at)
            text = f"max of one operand takes a field of numbers, and '{name}' is of type {remote.type}"
            return self._problem("E208", raw, text, "give two operands, or a field of numbers")
        if raw.text == "min":
            return self._problem("E208", raw, "min of one operand", "the least value of every field is 0")
        fix = closest(name, self.scope.bounds, "give two operands, or a field of numbers")
        return self._problem("E208", raw, f"max of one operand takes a field of numbers, and '{name}' is none", fix)

    def _count(self, raw: _Raw, at: Place) -> Expr | None:
        copies = self.scope.copies
        if not copies:
            text = f"{self.what} counts actors, which only a property of a protocol may"
            return self._problem("E218", raw, text, "count in 'always:', 'sometimes:' or 'leads_to:' of a protocol")
        who = raw.parts[0]
        if who.kind != "word" or len(raw.parts) != 2:
            fix = "write count(actor, condition)"
            return self._problem("E218", raw, f"{self.what} counts {self._quote(raw)}", fix)
        if who.text not in copies:
            text = f"{self.what} counts '{who.text}', which is no actor of the protocol"
            return self._problem("E207", who, text, closest(who.text, copies, "use an actor"))
        condition = self.resolve(raw.parts[1], BOOL)
        if condition is None:
            return None
        if who.text not in actors_in(condition):
            text = f"{self.what} counts the copies of '{who.text}' by a condition that reads none of them"
            return self._problem("E218", raw.parts[1], text, f"read {who.text}.at or a local of '{who.text}'")
        return Count(who.text, condition, copies[who.text], at)

    def _compare(self, raw: _Raw, at: Place) -> Expr | None:
        pair = self._numbers(raw) if raw.text not in ("==", "!=") else self._pair(raw.parts[0], raw.parts[1], None)
        if pair is None:
            return None
        left, right = pair
        if type_of(left) != type_of(right):
            return self._clash(raw, raw.parts[0], left, raw.parts[1], right)
        return Compare(raw.text, left, right, at)

    def _numbers(self, raw: _Raw) -> tuple[Expr, Expr] | None:
        """Both sides of ``<`` and its like; states and other named values have no order."""
        for part in raw.parts:
            symbol = self.scope.names.get(part.text) if part.kind == "word" else None
            if symbol is not None and symbol.type in self.scope.values:
                fix = f"list those that are meant, such as {part.text} in [{', '.join(self.scope.values[symbol.type])}]"
                self._problem("E205", raw, f"{self.what} orders values of '{symbol.type}', which have no order", fix)
                return None
        return self._pair(raw.parts[0], raw.parts[1], INT)

    def _pair(self, first: _Raw, second: _Raw, expected: str | None) -> tuple[Expr, Expr] | None:
        """Both sides of an operator that wants equal types; a named value takes its meaning from the other side."""
        if expected is None and self._is_value(first) and not self._is_value(second):
            turned = self._pair(second, first, None)
            return (turned[1], turned[0]) if turned is not None else None
        left = self.resolve(first, expected)
        if left is None and self._is_value(second):
            return None  # what the value belongs to is not known, and that has been noted
        named = type_of(left) if left is not None and type_of(left) in self.scope.values else None
        right = self.resolve(second, expected) if named is None else self._typed(second, named)
        return (left, right) if left is not None and right is not None else None

    def _is_value(self, raw: _Raw) -> bool:
        return raw.kind == "word" and raw.text not in self.scope.names and raw.text not in self.indexes

    def _clash(self, raw: _Raw, first: _Raw, left: Expr, second: _Raw, right: Expr) -> Expr | None:
        one, other = _article(type_of(left)), _article(type_of(right))
        text = f"{self._quote(first)} is {one}, but {self._quote(second)} is {other}"
        named = [type_of(side) for side in (left, right) if type_of(side) in self.scope.values]
        fix = (
            f"compare '{named[0]}' with one of: {', '.join(self.scope.values[named[0]])}"
            if named
            else "compare like with like"
        )
        return self._problem("E205", raw, f"{self.what} compares unlike things: {text}", fix)

    def _member(self, raw: _Raw, at: Place) -> Expr | None:
        item = self.resolve(raw.parts[0], None)
        if item is None:
            return None
        wanted = type_of(item)
        if wanted == BOOL:
            return self._problem(
                "E205", raw.parts[0], f"{self.what} looks for a truth value in a list", "write the condition itself"
            )
        options = self._all(raw.parts[1:], wanted)
        return Member(item, options, raw.text == "not in", at) if options is not None else None

    def _arithmetic(self, raw: _Raw, at: Place) -> Expr | None:
        operands = self._all(raw.parts, INT)
        if operands is None:
            return None
        left, right = operands
        if raw.text in ("//", "%"):
            low = interval(right)[0]
            if low <= 0:
                return self._problem(
                    "E206",
                    raw.parts[1],
                    f"divisor {self._quote(raw.parts[1])} may be {low}",
                    f"write max({self._quote(raw.parts[1])[1:-1]}, 1)",
                )
            low = interval(left)[0]
            if low < 0:
                return self._problem(
                    "E206",
                    raw.parts[0],
                    f"dividend {self._quote(raw.parts[0])} may be {low}",
                    "divide only what is never negative, such as max(x, 0)",
                )
        expr = Arithmetic(raw.text, left, right, at)
        low, high = interval(expr)
        if low < INT64_MIN or high > INT64_MAX:
            return self._problem(
                "E206",
                raw,
                f"{self._quote(raw)} may be {low if low < INT64_MIN else high}, more than 64 signed bits hold",
                "use smaller numbers",
            )
        return expr

    def _choice(self, raw: _Raw, expected: str | None, at: Place) -> Expr | None:
        condition = self.resolve(raw.parts[1], BOOL)
        if expected is not None:
            then, otherwise = self.resolve(raw.parts[0], expected), self.resolve(raw.parts[2], expected)
        else:
            pair = self._pair(raw.parts[0], raw.parts[2], None)
            then, otherwise = pair if pair is not None else (None, None)
        if condition is None or then is None or otherwise is None:
            return None
        if type_of(then) != type_of(otherwise):
            return self._clash(raw, raw.parts[0], then, raw.parts[2], otherwise)
        return Choice(condition, then, otherwise, at)

    def _type_fix(self, raw: _Raw, found: str, expected: str) -> str:
        if expected == INT and found == BOOL:
            return f"write 1 if {self._quote(raw)[1:-1]} else 0"
        if expected == BOOL and found == INT:
            return f"compare it, such as {self._quote(raw)[1:-1]} > 0"
        if expected in self.scope.values:
            return closest(raw.text, self.scope.values[expected], f"use a value of '{expected}'")
        if expected == BOOL and found in self.scope.values:
            return f"compare it, such as {self._quote(raw)[1:-1]} == {next(iter(self.scope.values[found]))}"
        return f"use {_article(expected)} in its place"

    def _quote(self, raw: _Raw) -> str:
        return f"'{self.source.text[raw.start : raw.stop]}'"

    def _at(self, raw: _Raw) -> Place:
        return self.source.place(raw.start, raw.stop - raw.start)

    def _problem(self, code: str, raw: _Raw, text: str, fix: str) -> Expr | None:
        """Note a problem; None, as what the expression comes to."""
        self.problems.add(code, self._at(raw), text, fix)
        return None


def _article(type_: str) -> str:
    if type_ == INT:
        return "a number"
    if type_ == BOOL:
        return "a truth value"
    return f"a value of '{type_}'"
