"""YAML as nodes that know their place, and the few questions that readers ask them.

Only the plain part of YAML is taken: mappings with names as keys, lists, text, decimal whole numbers, ``true`` and
``false``. What YAML 1.1 would silently turn into something else (``no``, ``010``, ``1:30``, an empty value), anchors,
aliases, tags, merge keys and includes are problems with a place and a fix. Nothing here raises for a bad file: each
question returns None (or an empty result) and notes a problem in the ``Problems`` that it is given.

How readers use it::

    root = load_yaml("spec/objects/page.yaml", text, problems)
    keys = keys_of(root, "a machine", problems, required=("machine", "states"), optional=("about",))
    title = text_of(keys["machine"], "the machine's name", problems) if "machine" in keys else None
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from .problems import Place, Problems, closest

_NESTING_MAX = 32  # levels; the deepest shipped file has 8
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_TRUTHS_OF_YAML = {"y", "n", "yes", "no", "on", "off", "true", "false"}
_NULLS_OF_YAML = {"", "~", "null"}
_DISGUISED_NUMBER = re.compile(
    r"[-+]?(0[0-9_]+|0[xX][0-9a-fA-F_]+|0[oO][0-7]+|0b[01_]+|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?"
    r"|[0-9][0-9_]*|[0-9][0-9_]*\.[0-9_]*([eE][-+]?[0-9]+)?|\.[0-9][0-9_]*([eE][-+]?[0-9]+)?"
    r"|[0-9][0-9_]*[eE][-+]?[0-9]+|\.(inf|Inf|INF|nan|NaN|NAN))"
)
_INCLUDES = ("include", "includes", "import", "imports", "extends")
_DATE = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt ].*)?")


@dataclass(frozen=True, slots=True)
class Scalar:
    """One word, number or sentence, as text; ``raw`` is what stands in the file, quotes and all."""

    text: str
    quoted: bool  # also true of block text after | or >
    raw: str
    at: Place

    def place(self, offset: int, length: int = 1) -> Place:
        """Where characters [offset, offset + length) of ``text`` stand in the file.

        Text that is folded over lines is followed line by line; a string with escapes is pointed at as a whole.
        """
        if "\\" in self.raw and self.raw.startswith('"'):
            return self.at
        skip = 0
        if self.raw[:1] in "|>" and self.quoted:
            skip = self.raw.find("\n") + 1
        elif self.quoted:
            skip = 1
        index = _raw_index(self.text, self.raw, offset, skip)
        before = self.raw[:index]
        lines = before.count("\n")
        column = self.at.column + index if lines == 0 else index - before.rfind("\n")
        return Place(self.at.file, self.at.line + lines, column, max(1, length))


@dataclass(frozen=True, slots=True)
class List:
    """Nodes in a row."""

    items: tuple[Node, ...]
    at: Place


@dataclass(frozen=True, slots=True)
class Entry:
    """One ``key: value`` of a mapping."""

    key: Scalar
    value: Node


@dataclass(frozen=True, slots=True)
class Mapping:
    """Entries in the order written; no key stands twice."""

    entries: tuple[Entry, ...]
    at: Place

    def get(self, name: str) -> Node | None:
        """The value of ``name``, or None."""
        return next((entry.value for entry in self.entries if entry.key.text == name), None)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)


@dataclass(frozen=True, slots=True)
class Lost:
    """A bad value that has been noted; every question about it gives nothing, and notes nothing more."""

    at: Place


Node = Scalar | List | Mapping | Lost


def read_yaml(path: Path, shown: str, problems: Problems) -> Node | None:
    """Read a file; ``shown`` is how problems name it. None when there is nothing to go on with."""
    place = Place(shown, 1, 1)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        text = f"cannot read the file: {error.strerror or error}"
        problems.add("E111", place, text, "put a file there that this user may read")
        return None
    except UnicodeDecodeError as error:
        problems.add("E111", place, f"byte {error.start} is not UTF-8", "save the file as UTF-8")
        return None
    return load_yaml(shown, text, problems)


def load_yaml(shown: str, text: str, problems: Problems) -> Node | None:
    """The one document in ``text``, or None when it cannot be read at all. ``shown`` is how problems name the file.

    >>> problems = Problems()
    >>> load_yaml("a.yaml", "bits: 010", problems) is None, [problem.code for problem in problems]
    (False, ['E108'])
    """
    problems.sources[shown] = text
    return _Composer(shown, text, problems).document()


def keys_of(
    node: Node | None,
    what: str,
    problems: Problems,
    required: Sequence[str] = (),
    optional: Sequence[str] = (),
) -> dict[str, Node]:
    """The values of a mapping with known keys; unknown and missing keys, or no mapping at all, are noted.

    ``what`` names the thing with its article, such as "a case of 'pin'". Only known keys are returned.
    """
    if node is None or isinstance(node, Lost):
        return {}
    if not isinstance(node, Mapping):
        known = ", ".join((*required, *optional))
        problems.add("E114", node.at, f"{what} must be a mapping, but this is {_kind(node)}", f"give keys: {known}")
        return {}
    found: dict[str, Node] = {}
    for entry in node:
        name = entry.key.text
        if name in required or name in optional:
            found[name] = entry.value
        else:
            problems.add(
                "E112", entry.key.at, f"{what} has no key '{name}'", closest(name, (*required, *optional), "use one of")
            )
    for name in required:
        if name not in found:
            problems.add("E113", node.at, f"{what} lacks the key '{name}'", f"add '{name}:'")
    return found


def entries_of(node: Node | None, what: str, problems: Problems) -> tuple[Entry, ...]:
    """The entries of a mapping with free names as keys, such as the states of a machine; () for anything else."""
    if node is None or isinstance(node, Lost):
        return ()
    if not isinstance(node, Mapping):
        fix = "write 'name: ...', one a line"
        problems.add("E114", node.at, f"{what} must be a mapping from names, but this is {_kind(node)}", fix)
        return ()
    return node.entries


def items_of(node: Node | None, what: str, problems: Problems) -> tuple[Node, ...]:
    """The nodes of a list; () for anything else."""
    if node is None or isinstance(node, Lost):
        return ()
    if not isinstance(node, List):
        problems.add("E114", node.at, f"{what} must be a list, but this is {_kind(node)}", "write [ ... ]")
        return ()
    return node.items


def one_or_more(node: Node | None, what: str, problems: Problems) -> tuple[Scalar, ...]:
    """The words of ``a`` or ``[a, b]``; what is no word is noted and left out."""
    if node is None:
        return ()
    if isinstance(node, Scalar):
        return (node,)
    words = []
    for item in items_of(node, what, problems):
        if isinstance(item, Scalar):
            words.append(item)
        elif not isinstance(item, Lost):
            problems.add("E114", item.at, f"{what} must be words, but this is {_kind(item)}", "write a word")
    if isinstance(node, List) and not node.items:
        problems.add("E117", node.at, f"{what} may not be empty", "name at least one")
    return tuple(words)


def text_of(node: Node | None, what: str, problems: Problems) -> str | None:
    """A word or a sentence, on one line: it becomes a comment in several languages."""
    if node is None or isinstance(node, Lost):
        return None
    if isinstance(node, Scalar):
        text = " ".join(node.text.split())
        control = next((character for character in text if not character.isprintable()), None)
        if control is None:
            return text
        problem = f"{what} holds the control character U+{ord(control):04X}"
        problems.add("E101", node.at, problem, "remove it")
        return None
    problems.add("E114", node.at, f"{what} must be text, but this is {_kind(node)}", "write a word or a sentence")
    return None


def number_of(node: Node | None, what: str, problems: Problems, low: int, high: int) -> int | None:
    """A decimal whole number within [low, high]."""
    if node is None or isinstance(node, Lost):
        return None
    if not isinstance(node, Scalar) or node.quoted or not _INTEGER.fullmatch(node.text):
        quoted = isinstance(node, Scalar) and node.quoted and _INTEGER.fullmatch(node.text)
        fix = "leave the quotes out" if quoted else "write decimal digits"
        problems.add("E114", node.at, f"{what} must be a whole number, but this is {_kind(node)}", fix)
        return None
    if len(node.text.lstrip("-0")) > len(str(high)) or not low <= (value := int(node.text)) <= high:
        problems.add("E116", node.at, f"{what} is {node.text}", f"use a number from {low} to {high}")
        return None
    return value


def truth_of(node: Node | None, what: str, problems: Problems) -> bool | None:
    """``true`` or ``false``."""
    if node is None or isinstance(node, Lost):
        return None
    if isinstance(node, Scalar) and not node.quoted and node.text in ("true", "false"):
        return node.text == "true"
    problems.add("E114", node.at, f"{what} must be true or false, but this is {_kind(node)}", "write true or false")
    return None


def choice_of(node: Node | None, what: str, problems: Problems, choices: Sequence[str]) -> str | None:
    """One of a closed list of words."""
    word = text_of(node, what, problems)
    if node is None or word is None or word in choices:
        return word
    problems.add("E115", node.at, f"{what} may not be '{word}'", closest(word, choices))
    return None


def _kind(node: Node) -> str:
    match node:
        case Lost():
            return "a bad value"
        case Mapping():
            return "a mapping"
        case List():
            return "a list"
        case Scalar(text=text, quoted=False) if text in ("true", "false"):
            return f"the truth value {text}"
        case Scalar(text=text, quoted=False) if _INTEGER.fullmatch(text):
            return f"the number {text}"
        case Scalar(text=text):
            return f"the text '{text if len(text) <= 40 else text[:37] + '...'}'"


def _raw_index(text: str, raw: str, offset: int, skip: int) -> int:
    """Index into ``raw`` of character ``offset`` of ``text``; both hold the same characters but for blanks."""
    index = skip
    for position, character in enumerate(text):
        if character.isspace():
            if position == offset:
                return index
            continue
        while index < len(raw) and raw[index] != character:
            index += 1
        if position == offset:
            return index
        index += 1
    return min(index, max(len(raw) - 1, 0))


class _TooDeepError(Exception):
    """Collections nest more than ``_NESTING_MAX`` levels deep; the argument is the event that starts the last."""


def _events(text: str) -> list[yaml.Event]:
    """The parsing events of a text. PyYAML's C parser is five times as fast, its Python parser explains errors better.

    Both give the same events with the same places; a test compares them.
    """
    fast = getattr(yaml, "CSafeLoader", None)
    if fast is not None:
        try:
            return _shallow(text, fast)
        except yaml.YAMLError:
            pass  # once more, for the message
    return _shallow(text, yaml.SafeLoader)


def _shallow(text: str, loader: Any) -> list[yaml.Event]:
    """All events, unless collections nest too deeply: parsers take quadratic time over those."""
    events: list[yaml.Event] = []
    depth = 0
    for event in yaml.parse(text, Loader=loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _NESTING_MAX:
            raise _TooDeepError(event)
        events.append(event)
    return events


class _Composer:
    """Turns PyYAML's parsing events into nodes. Composing ourselves means that no alias is ever followed."""

    def __init__(self, shown: str, text: str, problems: Problems) -> None:
        self.shown = shown
        self.text = text
        self.problems = problems
        self.open_anchors: list[str | None] = []  # of the collections around the current event

    def document(self) -> Node | None:
        try:
            self.events = _events(self.text)
        except yaml.MarkedYAMLError as error:
            self._syntax(error)
            return None
        except _TooDeepError as error:
            at = self._at(error.args[0])
            self.problems.add("E118", at, f"nested more than {_NESTING_MAX} levels deep", "flatten it")
            return None
        except yaml.reader.ReaderError as error:
            line = self.text.count("\n", 0, error.position) + 1
            column = error.position - (self.text.rfind("\n", 0, error.position) + 1) + 1
            at = Place(self.shown, line, column)
            self.problems.add("E101", at, f"character U+{error.character:04X} may not stand in YAML", "remove it")
            return None
        starts = [event for event in self.events if isinstance(event, yaml.DocumentStartEvent)]
        if not starts:
            self.problems.add("E110", Place(self.shown, 1, 1), "the file is empty", "write it, or remove it")
            return None
        if len(starts) > 1:
            self.problems.add("E110", self._at(starts[1]), "a second document starts here", "keep one document a file")
        self.next = self.events.index(starts[0]) + 1
        return self._node(0)

    def _node(self, depth: int) -> Node:
        event = self.events[self.next]
        self.next += 1
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        assert isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)
        self._no_anchor_no_tag(event)
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event)
        self.open_anchors.append(event.anchor)
        node = self._mapping(event, depth) if isinstance(event, yaml.MappingStartEvent) else self._list(event, depth)
        self.open_anchors.pop()
        return node

    def _no_anchor_no_tag(self, event: yaml.ScalarEvent | yaml.CollectionStartEvent) -> None:
        if event.anchor is not None:
            at = self._at(event, len(event.anchor) + 1)
            self.problems.add("E104", at, f"anchor '&{event.anchor}': the spec language has no anchors", "remove it")
        if event.tag is not None and event.tag != "!":
            at = self._at(event)
            self.problems.add("E109", at, f"tag '{event.tag}': the spec language has no tags", "remove it")

    def _mapping(self, start: yaml.MappingStartEvent, depth: int) -> Mapping:
        entries: list[Entry] = []
        first: dict[str, Place] = {}
        while not isinstance(self.events[self.next], yaml.MappingEndEvent):
            key = self._key(depth)
            if key is not None and start.flow_style and self._ends_in_comma(key):
                continue
            value = self._node(depth + 1)
            if key is None:
                continue
            if key.text in first:
                place = first[key.text]
                self.problems.add(
                    "E103", key.at, f"key '{key.text}' stands twice; the first is in line {place.line}", "remove one"
                )
                continue
            first[key.text] = key.at
            entries.append(Entry(key, value))
        return Mapping(tuple(entries), self._span(start))

    def _ends_in_comma(self, key: Scalar) -> bool:
        """In ``{about: this, and that}`` YAML reads "and that" as a key without a value; say so where it happens."""
        event = self.events[self.next]
        if " " not in key.text or not isinstance(event, yaml.ScalarEvent) or event.value or event.style:
            return False
        self.next += 1
        self.problems.add(
            "E107",
            key.at,
            f"a comma ends the text before '{key.text}'",
            "put the whole text in quotes, or leave the comma out",
        )
        return True

    def _key(self, depth: int) -> Scalar | None:
        event = self.events[self.next]
        if not isinstance(event, yaml.ScalarEvent):
            if not isinstance(event, yaml.AliasEvent):
                self.problems.add("E119", self._at(event), "a key must be a plain word", "name the key")
            self._node(depth + 1)
            return None
        self.next += 1
        self._no_anchor_no_tag(event)
        raw = self._raw(event)
        key = Scalar(event.value, bool(event.style), raw, self._at(event, len(raw)))
        if key.text == "<<":
            self.problems.add("E105", key.at, "merge key '<<': the spec language has no merging", "write the keys out")
            return None
        if key.text == "$ref" or (depth == 0 and key.text in _INCLUDES):
            self.problems.add(
                "E105",
                key.at,
                f"'{key.text}': the spec language has no includes, so that no cycle of files can arise",
                "write the content out in this file",
            )
            return None
        return key

    def _list(self, start: yaml.CollectionStartEvent, depth: int) -> List:
        items: list[Node] = []
        while not isinstance(self.events[self.next], yaml.SequenceEndEvent):
            items.append(self._node(depth + 1))
        return List(tuple(items), self._span(start))

    def _scalar(self, event: yaml.ScalarEvent) -> Scalar | Lost:
        raw = self._raw(event)
        text = event.value.rstrip("\n") if event.style in ("|", ">") else event.value
        node = Scalar(text, bool(event.style), raw, self._at(event, len(raw.split("\n")[0])))
        if node.quoted:
            return node
        if text.lower() in _NULLS_OF_YAML:
            found = f"'{text}' is YAML's empty value" if text else "there is no value here"
            self.problems.add("E107", node.at, found, "give a value, or remove the key")
            return Lost(node.at)
        if text.lower() in _TRUTHS_OF_YAML and text not in ("true", "false"):
            truth = "true" if text.lower() in ("y", "yes", "on", "true") else "false"
            self.problems.add(
                "E106",
                node.at,
                f"'{text}' is a truth value to some readers of YAML and a word to others",
                f"write {truth}, or another word",
            )
            return Lost(node.at)
        if _DATE.fullmatch(text) or (_DISGUISED_NUMBER.fullmatch(text) and not _INTEGER.fullmatch(text)):
            self.problems.add(
                "E108",
                node.at,
                f"'{text}' may be read as another number, or as none",
                "write a whole number in plain decimal digits, or put text in quotes",
            )
            return Lost(node.at)
        return node

    def _alias(self, event: yaml.AliasEvent) -> Lost:
        at = self._at(event, len(event.anchor or "") + 1)
        if event.anchor in self.open_anchors:
            text = f"alias '*{event.anchor}' stands inside what it names: a cycle"
        else:
            text = f"alias '*{event.anchor}': the spec language has no aliases"
        self.problems.add("E104", at, text, "write the content out")
        return Lost(at)

    def _syntax(self, error: yaml.MarkedYAMLError) -> None:
        mark = error.problem_mark or error.context_mark
        at = Place(self.shown, mark.line + 1, mark.column + 1) if mark else Place(self.shown, 1, 1)
        what = error.problem or "the file is not YAML"
        if "\\t" in what or (mark is not None and self.text[mark.index : mark.index + 1] == "\t"):
            self.problems.add("E102", at, "a tab stands where only spaces may", "indent with spaces")
            return
        while_ = f" {error.context}" if error.context else ""
        hint = "put the text in quotes if it holds ': ', '#', or starts with a special character"
        self.problems.add("E101", at, f"YAML cannot be read{while_}: {what}", hint)

    def _span(self, start: yaml.CollectionStartEvent) -> Place:
        """The place of a collection whose end comes next; ``{...}`` on one line is underlined as a whole."""
        begin, end = start.start_mark, self.events[self.next].end_mark
        self.next += 1
        assert begin is not None and end is not None
        one_line = start.flow_style and end.line == begin.line
        return self._at(start, end.column - begin.column if one_line else 1)

    def _raw(self, event: yaml.ScalarEvent) -> str:
        begin, end = event.start_mark, event.end_mark
        assert begin is not None and end is not None
        return self.text[begin.index : end.index]

    def _at(self, event: yaml.Event, length: int = 1) -> Place:
        mark = event.start_mark
        assert mark is not None
        return Place(self.shown, mark.line + 1, mark.column + 1, max(1, length))
