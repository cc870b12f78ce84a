"""Machine code of compiled kernels, and what is looked for in it."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .compiling import disassembler

_FUNCTION = re.compile(r"\.text\.kv_(\w+):")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(?P<operation>[A-Z][\w.]*)")

_LABEL = re.compile(r"(\.L_x_\d+):")
_BRANCH = re.compile(r"\bBRA[\w.]* (?:!?U?P\w+, )?`\((\.L_x_\d+)\)")

Code = Sequence[str]
"""Operations of a kernel in the order of their addresses, such as ``LDG.E.128``, without operands."""

Fault = Callable[[Code], "str | None"]
"""What is wrong with a kernel's code, or None."""


def disassembled(cubin: bytes) -> dict[str, Code]:
    """Code of each kernel of a module, by its name."""
    found: dict[str, list[str]] = {}
    own: list[str] = []
    for line in _listing(cubin):
        if named := _FUNCTION.match(line.strip()):
            own = found.setdefault(named[1], [])
        elif instruction := _INSTRUCTION.search(line):
            own.append(instruction["operation"])
    return {name: tuple(code) for name, code in found.items()}


def loops(cubin: bytes, name: str) -> list[Code]:
    """What each loop of a kernel does in one turn: from the target of a backward branch to the branch."""
    found: list[Code] = []
    own: list[str] = []
    labels: dict[str, int] = {}
    is_own = False
    for line in _listing(cubin):
        if named := _FUNCTION.match(line.strip()):
            is_own = named[1] == name
        elif is_own and (label := _LABEL.match(line.strip())):
            labels[label[1]] = len(own)
        elif is_own and (instruction := _INSTRUCTION.search(line)):
            own.append(instruction["operation"])
            if (branch := _BRANCH.search(line)) and branch[1] in labels:
                found.append(tuple(own[labels[branch[1]] :]))
    return found


def _listing(cubin: bytes) -> list[str]:
    program = disassembler()
    assert program is not None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "module.cubin"
        path.write_bytes(cubin)
        command = [str(program), "-c", str(path)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


@dataclass(frozen=True, slots=True)
class Has:
    """Some operation matches all of these patterns."""

    patterns: tuple[str, ...]

    def __call__(self, code: Code) -> str | None:
        """Which pattern nothing matches."""
        missing = [pattern for pattern in self.patterns if not any(re.fullmatch(pattern, one) for one in code)]
        return f"no {' and no '.join(missing)}" if missing else None


@dataclass(frozen=True, slots=True)
class Lacks:
    """No operation matches the pattern."""

    pattern: str

    def __call__(self, code: Code) -> str | None:
        """Which operations do."""
        found = sorted({one for one in code if re.fullmatch(self.pattern, one)})
        return f"has {', '.join(found)}" if found else None


@dataclass(frozen=True, slots=True)
class Surrounded:
    """Operations that match have one of ``before`` among the few before them, and of ``after`` among those after them.

    ``every`` one that matches, or at least one: plain relaxed accesses may look as the ordered one does.
    """

    pattern: str
    before: str | None = None
    after: str | None = None
    every: bool = True
    within: int = 12

    def __call__(self, code: Code) -> str | None:
        """Where one is missing."""
        places = [place for place, one in enumerate(code) if re.fullmatch(self.pattern, one)]
        if not places:
            return f"no {self.pattern}"
        told = [self._around(code, place) for place in places]
        wrong = [one for one in told if one is not None]
        return wrong[0] if wrong and (self.every or len(wrong) == len(told)) else None

    def _around(self, code: Code, place: int) -> str | None:
        ahead, behind = code[max(0, place - self.within) : place], code[place + 1 : place + 1 + self.within]
        for wanted, there, where in ((self.before, ahead, "before"), (self.after, behind, "after")):
            if wanted is not None and not any(re.fullmatch(wanted, one) for one in there):
                return f"no {wanted} {where} {code[place]}"
        return None


@dataclass(frozen=True, slots=True)
class Ordered:
    """The last operation that matches ``first`` comes before the last one that matches ``then``; both are there."""

    first: str
    then: str

    def __call__(self, code: Code) -> str | None:
        """What comes too late, or is missing."""
        places = []
        for pattern in (self.first, self.then):
            matching = [place for place, one in enumerate(code) if re.fullmatch(pattern, one)]
            if not matching:
                return f"no {pattern}"
            places.append(matching[-1])
        return None if places[0] < places[1] else f"{self.then} comes before {self.first}"
