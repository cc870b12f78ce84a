"""The generated successor code of a system for the C engine, as the text of its "system.h"; see ``engine.c``.

Expressions are without branches: both sides of ``and``, ``or`` are computed, for which processors are quicker than for
guessing wrong. Divisors are therefore held at 1 or more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ...language.expressions import Expr
from ...targets.c import C
from ...targets.infix import Operator
from ...targets.lowering import (
    simplified,
    with_positive_divisors,
    without_extremes,
    without_implies,
    without_membership,
)
from ..exploration import Request
from ..folding import both, condition_of, equal
from ..layout import Layout
from .conditions import ALL, Conditions, Spelling, printed
from .dense import Part
from .derivation import unproven
from .groups import Group, Guarded, grouped

BATCH = 256  # states expanded at once; their places in a batch are bytes
BRANCHLESS = replace(C, true="1", false="0", operators={**C.operators, "or": Operator("|", 3), "and": Operator("&", 5)})


def spelling() -> Spelling:
    """How C writes words."""
    return Spelling(
        literal=lambda bits: f"UINT64_C({bits:#x})",
        read=lambda text: f"((int64_t){text})",
        bits=lambda text, _: f"((uint64_t)({text}))",
        render=_render,
    )


def _render(expr: Expr) -> str:
    plainer = with_positive_divisors(without_membership(simplified(without_implies(expr))))
    return BRANCHLESS.render(without_extremes(plainer), printed)


def header_text(request: Request, derived_bits: int, index: Sequence[Part], wide: bool) -> str:
    """What ``engine.c`` needs to know of a system.

    Args:
        request: what is asked of it.
        derived_bits: lowest bits that a perfect index leaves out.
        index: what a perfect index is made of.
        wide: whether numbers of states need more than 32 bits.

    """
    layout, symmetry = request.layout, request.symmetry
    system = layout.system
    groups = grouped(system)
    moves = Conditions(layout, spelling())
    sizes = {
        "WORDS": layout.word_count,
        "COMMANDS": len(system.commands),
        "CLAIMS": len(system.claims),
        "BATCH": BATCH,
        "AFTER_MAX": BATCH * sum(max(len(commands) for _, commands in group.steps) for group in groups),
        "DERIVED_BITS": derived_bits,
        "CHECKED": int(derived_bits > 0 and (symmetry is not None or bool(unproven(system)))),
        "HASH_FACTOR": f"UINT64_C({request.factor & ALL:#x})",
        "ALL_MOVE": int(all(map(moves.moves, system.commands))),
        "SYMMETRIC": int(symmetry is not None),
    }
    lines = [f"#define {name} {value}" for name, value in sizes.items()]
    lines += [f"typedef uint{64 if wide else 32}_t number;", ""]
    if symmetry is not None:
        lines += [symmetry.c_text(), ""]
    lines += [*_place_of(index), "", *_expand(layout, groups), "", *_follows(layout), "", *_claims(layout)]
    return "\n".join(lines) + "\n"


def _place_of(index: Sequence[Part]) -> list[str]:
    tables, terms, stride = [], [], 1
    for place, part in enumerate(index):
        field = f"(s >> {part.shift} & UINT64_C({part.mask:#x}))"
        if part.numbers is None:
            terms.append(f"{field} * UINT64_C({stride})")
        else:
            numbers = ", ".join(f"UINT64_C({number * stride})" for number in part.numbers)
            tables.append(f"static const uint64_t part_{place}[] = {{{numbers}}};")
            terms.append(f"part_{place}[{field}]")
        stride *= part.count
    return [
        "// The place of a state of one word in a perfect index.",
        *tables,
        "static inline uint64_t place_of(const uint64_t s) {",
        f"    return {' + '.join(terms)};",
        "}",
    ]


def _expand(layout: Layout, groups: Iterable[Group]) -> list[str]:
    lines = [
        "// All successors of `count` states: the states, which of the batch each comes from, and how many.",
        "static inline int expand(const uint64_t *restrict rows, const int count, uint64_t *restrict after,",
        "                         uint16_t *restrict origin, uint64_t *restrict taken) {",
        "    int n = 0, was;",
    ]
    for group in groups:
        lines += _group(layout, group)
    return [*lines, "    return n;", "}"]


def _group(layout: Layout, group: Group) -> list[str]:
    if group.cell is None:
        ((_, commands),) = group.steps
        return [line for guarded in commands for line in _command(layout, guarded, "count", "")]
    spot, cell = layout.place(group.cell), layout.system.cell(group.cell)
    steps = spot.mask + 1
    lines = [
        f"    {{   // by {group.cell}",
        f"        uint8_t at[{steps}][BATCH];",
        f"        int in[{steps}] = {{0}};",
        "        for (int i = 0; i < count; i++) {",
        f"            const int step = (int)(rows[i * WORDS + {spot.word}] >> {spot.shift} & {spot.mask});",
        "            at[step][in[step]++] = (uint8_t)i;",
        "        }",
    ]
    for step, commands in group.steps:
        if step >= steps:
            continue
        lines.append(f"        // {cell.shown(step)}")
        for guarded in commands:
            lines += ["    " + line for line in _command(layout, guarded, f"in[{step}]", f"at[{step}]")]
    return [*lines, "    }"]


def _command(layout: Layout, guarded: Guarded, count: str, rows: str) -> list[str]:
    conditions, command = Conditions(layout, spelling()), layout.system.commands[guarded.number]
    test = conditions.condition(guarded.guard)
    if test is False:
        return []
    row = f"const int i = {rows}[j]; " if rows else ""
    variable = "j" if rows else "i"
    words = [f"s{word} = rows[i * WORDS + {word}]" for word in range(layout.word_count)]
    after = [f"after[n * WORDS + {word}] = {text};" for word, text in enumerate(conditions.updated(command))]
    return [
        "    was = n;",
        f"    for (int {variable} = 0; {variable} < {count}; {variable}++) {{   // {command.label}",
        f"        {row}const uint64_t {', '.join(words)};",
        f"        {' '.join(after)}",
        "        origin[n] = (uint16_t)i;",
        f"        n += {1 if test is True else test};",
        "    }",
        f"    taken[{guarded.number}] += (uint64_t)(n - was);",
    ]


def _follows(layout: Layout) -> list[str]:
    system = layout.system
    derived = both(equal(system.cell(name).read(), value) for name, value in system.derived)
    return [
        "// Whether every derived cell has its value.",
        "static inline int follows(const uint64_t *s) {",
        f"    return {_predicate(layout, derived)};",
        "}",
    ]


def _claims(layout: Layout) -> list[str]:
    firsts, quiet = [], []
    for place, claim in enumerate(layout.system.claims):
        test = _predicate(layout, condition_of(claim))
        if claim.kind == "deadlock":
            quiet.append(f"        case {place}: return !({test});  // {claim.name}")
        else:
            decides = f"({test})" if claim.kind == "sometimes" else f"!({test})"
            firsts.append(f"        case {place}: {{ FIRST_WHERE(rows, from, to, {decides}) }}  // {claim.name}")
    return [
        "// The first state in [from, to) that decides a claim about every state, or NONE.",
        "static uint64_t first_claim(int claim, const uint64_t *rows, uint64_t from, uint64_t to) {",
        "    switch (claim) {",
        *firsts,
        "    }",
        "    return NONE;",
        "}",
        "",
        "// Whether a state that no command leaves breaks a claim about these.",
        "static int quiet_claim(int claim, const uint64_t *s) {",
        "    switch (claim) {",
        *quiet,
        "    }",
        "    return 0;",
        "}",
    ]


def _predicate(layout: Layout, expr: Expr) -> str:
    """A condition of the row ``s``."""
    test = Conditions(layout, spelling(), "s[{}]").condition(expr)
    return str(int(test)) if isinstance(test, bool) else test
