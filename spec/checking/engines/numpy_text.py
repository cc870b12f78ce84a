"""The generated successor code of a system for NumPy, or a module like it (``xp``), as text.

Words are int64: a pattern with the highest bit set is a negative number, and a shift to the right is always masked.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from ...language.expressions import Expr
from ...targets.numpy import render
from ..folding import both, condition_of, equal, number
from ..layout import WORD_BITS, Layout
from .conditions import Conditions, Spelling, printed
from .groups import Group, Guarded, grouped


def spelling() -> Spelling:
    """How NumPy writes words."""
    return Spelling(
        literal=lambda bits: str(bits - (1 << WORD_BITS) if bits >> (WORD_BITS - 1) else bits),
        read=lambda text: text,
        bits=lambda text, is_truth: f"xp.where({text}, 1, 0)" if is_truth else f"({text})",
        render=lambda expr: render(expr, printed, "xp"),
    )


def module_text(layout: Layout) -> str:
    """Functions of words, int64 [n, words].

    ``expand(words, xp)`` gives for each command that can be taken somewhere: its number, the rows where it can
    (int64 [m]; None for all), and the words after it, one array int64 [m] for each word. ``claim_I(words, xp)`` says
    in which rows the claim of that number has all (``sometimes``: one) of its conditions, ``follows(words, xp)`` in
    which the derived cells have their values.
    """
    system = layout.system
    lines = ["def expand(words, xp):", *_columns(layout), "    found = []"]
    for group in grouped(system):
        lines += _group(layout, group)
    lines.append("    return found")
    for place, claim in enumerate(system.claims):
        lines += ["", "", f"def claim_{place}(words, xp):  # {claim.name}", *_predicate(layout, condition_of(claim))]
    derived = both(equal(system.cell(name).read(), value) for name, value in system.derived)
    lines += ["", "", "def follows(words, xp):", *_predicate(layout, derived)]
    return "\n".join(lines) + "\n"


def predicate(layout: Layout, expr: Expr) -> Callable[[Any, ModuleType], Any]:
    """A condition as a function of words, int64 [n, words], and of their array module; bool [n]."""
    names: dict[str, Any] = {}
    exec(compile("\n".join(["def holds(words, xp):", *_predicate(layout, expr)]), "<condition>", "exec"), names)
    function: Callable[[Any, ModuleType], Any] = names["holds"]
    return function


def _predicate(layout: Layout, expr: Expr) -> list[str]:
    test = Conditions(layout, spelling()).condition(expr)
    if isinstance(test, bool):
        return [f"    return xp.full(words.shape[0], {test})"]
    return [*_columns(layout), f"    return {test}"]


def _columns(layout: Layout) -> list[str]:
    return [f"    s{word} = words[:, {word}]" for word in range(layout.word_count)]


def _group(layout: Layout, group: Group) -> list[str]:
    if group.cell is None:
        ((_, commands),) = group.steps
        return [*(f"    t{word} = s{word}" for word in range(layout.word_count)), *_commands(layout, commands, 4, None)]
    lines = []
    for step, commands in group.steps:
        cell = layout.system.cell(group.cell)
        test = Conditions(layout, spelling()).condition(equal(cell.read(), number(step)))
        lines.append(f"    # {group.cell} == {cell.shown(step)}")
        lines.append(f"    i = xp.flatnonzero({_vector(test)})")
        lines.append("    if i.size:")
        lines += [f"        t{word} = s{word}[i]" for word in range(layout.word_count)]
        lines += _commands(layout, commands, 8, "i")
    return lines


def _commands(layout: Layout, commands: tuple[Guarded, ...], indent: int, rows: str | None) -> list[str]:
    every, some = Conditions(layout, spelling(), "t{}"), Conditions(layout, spelling(), "u{}")
    pad, lines = " " * indent, []
    for guarded in commands:
        command = layout.system.commands[guarded.number]
        test = every.condition(guarded.guard)
        if test is False:
            continue
        lines.append(f"{pad}# {command.label}")
        if test is True:
            lines.append(f"{pad}found.append(({guarded.number}, {rows}, ({', '.join(every.updated(command))},)))")
            continue
        lines.append(f"{pad}j = xp.flatnonzero({test})")
        lines.append(f"{pad}if j.size:")
        lines += [f"{pad}    u{word} = t{word}[j]" for word in range(layout.word_count)]
        taken = f"{rows}[j]" if rows else "j"
        lines.append(f"{pad}    found.append(({guarded.number}, {taken}, ({', '.join(some.updated(command))},)))")
    return lines


def _vector(test: str | bool) -> str:
    return f"xp.full(words.shape[0], {test})" if isinstance(test, bool) else test
