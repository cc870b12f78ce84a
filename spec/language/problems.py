"""Problems as values: code, place, what was found, what was expected, and a fix.

The table of codes, with what ``kvfsm explain`` prints, is ``codes.py``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A spot in a file; line and column count from 1."""

    file: str
    line: int
    column: int
    length: int = 1  # characters to underline


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a spec: ``text`` says what is wrong, ``fix`` what would be right ("" when nothing can be said)."""

    code: str  # a key of ``codes.CODES``, such as "E204"
    place: Place
    text: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class CodeInfo:
    """One kind of problem: a title, why it is one, and an example of what is wrong and what is right."""

    title: str
    explanation: str
    example: str  # YAML; a line that is wrong has "# wrong" at its end


class SpecError(Exception):
    """A spec that cannot be used; for callers who want an exception rather than a list."""

    def __init__(self, problems: Iterable[Problem], sources: Mapping[str, str] | None = None) -> None:
        self.problems = tuple(problems)
        super().__init__(render_all(self.problems, sources or {}))


class Problems:
    """A growing list of problems, and the texts that they point into.

    >>> problems = Problems()
    >>> problems.add("E112", Place("a.yaml", 1, 1, 5), "unknown key 'titel'", closest("titel", ["title", "about"]))
    >>> print(problems.found[0].fix)
    use one of: title, about (closest: title)
    """

    def __init__(self) -> None:
        self.found: list[Problem] = []
        self.sources: dict[str, str] = {}  # file as problems print it -> its text

    def add(self, code: str, place: Place, text: str, fix: str = "") -> None:
        """Note one problem; the same one twice is noted once."""
        problem = Problem(code, place, text, fix)
        if problem not in self.found:
            self.found.append(problem)

    def sorted(self) -> tuple[Problem, ...]:
        """All problems, by file, line and column."""
        return tuple(sorted(self.found, key=lambda problem: (problem.place, problem.code, problem.text)))

    def __len__(self) -> int:
        return len(self.found)

    def __iter__(self) -> Iterator[Problem]:
        return iter(self.found)


def closest(wrong: str, names: Iterable[str], what: str = "use one of") -> str:
    """A fix that lists the names that would have worked, the nearest one at the end.

    >>> closest("fill", ["capacity", "filled", "refs"], "use a field of 'block'")
    "use a field of 'block': capacity, filled, refs (closest: filled)"
    >>> closest("slots", [], "use a number or a bound")
    'use a number or a bound: there is none yet, so declare one'
    """
    known = tuple(dict.fromkeys(names))
    if not known:
        return f"{what}: there is none yet, so declare one"
    lowered = {name.lower(): name for name in reversed(known)}
    near = difflib.get_close_matches(wrong.lower(), lowered, n=1, cutoff=0.5)
    return f"{what}: {', '.join(known)}" + (f" (closest: {lowered[near[0]]})" if near else "")


def render(problem: Problem, source_line: str | None) -> str:
    """A problem as people read it: where, what, the line with the spot underlined, and how to fix it.

    >>> place = Place("spec/objects/block.yaml", 31, 11, 4)
    >>> problem = Problem("E204", place, "guard of 'seal' reads 'fill'", "use: filled")
    >>> print(render(problem, "    when: fill == capacity"))
    spec/objects/block.yaml:31:11: E204 guard of 'seal' reads 'fill'
      31 |     when: fill == capacity
         |           ^^^^
      fix: use: filled
    """
    place = problem.place
    lines = [f"{place.file}:{place.line}:{place.column}: {problem.code} {problem.text}"]
    if source_line is not None:
        shown = "".join(character if character.isprintable() else " " for character in source_line)
        length = max(1, min(place.length, len(shown) - place.column + 1))
        gutter = " " * len(str(place.line))
        lines.append(f"  {place.line} | {shown}".rstrip())
        lines.append(f"  {gutter} | {' ' * (place.column - 1)}{'^' * length}")
    if problem.fix:
        lines.append(f"  fix: {problem.fix}")
    return "\n".join(lines)


def render_all(problems: Iterable[Problem], sources: Mapping[str, str]) -> str:
    """All problems, a blank line between two; ``sources`` gives the text of each file."""
    return "\n\n".join(render(problem, line_of(problem.place, sources)) for problem in problems)


def line_of(place: Place, sources: Mapping[str, str]) -> str | None:
    """The line that ``place`` points into, or None when the text is not at hand."""
    lines = sources.get(place.file, "").splitlines()
    return lines[place.line - 1] if place.line <= len(lines) else None


def as_json(problem: Problem) -> dict[str, str | int]:
    """A problem as a JSON object; the field names are fixed for programs that read them."""
    place = problem.place
    return {
        "code": problem.code,
        "file": place.file,
        "line": place.line,
        "column": place.column,
        "message": problem.text,
        "fix": problem.fix,
    }
