"""What the demo found, as data, as JSON and as a page for people.

A request that claims exactness must agree with its cold reference to the last bit; one that doesn't must say so and
show its error. Anything else is a fault, named in `ModelReport.faults`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .demo_prompts import Request

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from .demo_runs import Comparison

OBJECTS = {
    "compressed_kv": "KV",
    "uncompressed_tail": "tail",
    "swa_window": "window",
    "indexer_state": "indexer",
    "ondisk_prefix": "disk",
}
"""The five objects and the head of each one's column."""

ROUNDS_IN_FULL = 2
"""Rounds shown request by request; the others take a line each."""

_MARKS = {
    "UNASKED": "dim",
    "HIT": "green",
    "PENDING": "cyan",
    "PACKED": "cyan",
    "REPLAY": "yellow",
    "MISS": "red",
    "ABSENT": "dim",
}


_LEGEND = (
    ("HIT", "the object is in memory and may be read"),
    ("PENDING, HIT_PENDING", "it is on disk, and was loaded and verified before it was read"),
    ("MISS GRANULE", "only whole blocks short of the last token are reused, and the prompt has none"),
    ("ABSENT, UNASKED", "this model keeps no such object; nobody had to ask the disk"),
    ("bit-identical", "restored cache, logits and final cache equal those of a cold run to the last bit"),
    ("approximate", "greatest error, beside the greatest logit; random weights say nothing of a trained model"),
    ("validated", "how many reads each layer of the check let through to the next"),
)
"""The words of the tables and what they mean; `kvfsm explain HIT_PENDING` says more."""


@dataclass(frozen=True, slots=True)
class Served:
    """One request of one round. ``reused + recomputed == tokens``; ``replayed`` ones were reused and run again.

    ``first`` is the answer before anything was loaded or expanded, ``objects`` what each of the five said then.
    """

    request: Request
    first: str
    reason: str
    objects: Mapping[str, str]
    reused: int
    replayed: int
    exact: bool
    comparison: Comparison

    @property
    def tokens(self) -> int:
        """Length of the prompt."""
        return len(self.request.tokens)

    @property
    def recomputed(self) -> int:
        """Tokens of the prompt that were computed."""
        return self.tokens - self.reused


@dataclass(frozen=True, slots=True)
class Round:
    """All requests under one setting.

    ``expected`` are the tokens that each should reuse; ``error_max`` bounds the logits of an approximate round.
    """

    name: str
    about: str
    served: tuple[Served, ...]
    expected: tuple[int, ...]
    error_max: float = 0.0

    @property
    def exact(self) -> bool:
        """Whether every request claims exactness."""
        return all(served.exact for served in self.served)

    def faults(self) -> list[str]:
        """What is wrong, a sentence each; none when all is well."""
        found = []
        for served, expected in zip(self.served, self.expected, strict=True):
            where = f"{self.name}, {served.request.name}"
            if served.exact and not served.comparison.identical:
                found.append(f"{where}: not bit-identical: {served.comparison.difference}")
            if not served.exact and not served.comparison.logits_error <= self.error_max:
                found.append(
                    f"{where}: logits are off by {served.comparison.logits_error:.3g}, more than {self.error_max:g}"
                )
            if served.reused != expected:
                found.append(
                    f"{where}: reused {served.reused} tokens instead of {expected} ({served.first} {served.reason})"
                )
        return found


@dataclass(frozen=True, slots=True)
class ModelReport:
    """One model's rounds, and facts beside them."""

    model: str
    shape: str
    rounds: tuple[Round, ...]
    facts: tuple[tuple[str, str], ...] = ()
    extra_faults: tuple[str, ...] = ()

    def faults(self) -> list[str]:
        """What is wrong in any round."""
        return [fault for round_ in self.rounds for fault in round_.faults()] + list(self.extra_faults)

    @property
    def bit_identical(self) -> bool:
        """Whether there is at least one exact reuse, and every one agrees with its reference to the last bit."""
        exact = [served for round_ in self.rounds for served in round_.served if served.exact and served.reused]
        return bool(exact) and not self.faults()


def as_json(spec: Mapping[str, Any], reports: Sequence[ModelReport], seconds: float) -> dict[str, Any]:
    """All of it as plain data; the fields that programs rely on are ``ok`` and those of ``models`` and ``requests``."""
    return {
        "ok": bool(spec["ok"]) and all(report.bit_identical for report in reports),
        "spec": dict(spec),
        "seconds": round(seconds, 3),
        "models": [
            {
                "model": report.model,
                "bit_identical": report.bit_identical,
                "faults": report.faults(),
                "facts": dict(report.facts),
                "requests": [_request_json(round_, served) for round_ in report.rounds for served in round_.served],
            }
            for report in reports
        ],
    }


def _request_json(round_: Round, served: Served) -> dict[str, Any]:
    return {
        "round": round_.name,
        "request": served.request.name,
        "tokens": served.tokens,
        "reused": served.reused,
        "recomputed": served.recomputed,
        "replayed": served.replayed,
        "answer": served.first,
        "reason": served.reason,
        "exact": served.exact,
        "bit_identical": served.comparison.identical,
        "difference": served.comparison.difference,
        "logits_error": served.comparison.logits_error,
        "logits_size": served.comparison.logits_size,
        "rows_error": served.comparison.rows_error,
        "cache_sha256": served.comparison.cache_sha256,
        "reference_sha256": served.comparison.reference_sha256,
        "objects": dict(served.objects),
    }


def print_spec(console: Console, spec: Mapping[str, Any]) -> None:
    """The first lines: is the spec sound, and is what was generated from it current."""
    mark = "[green]✓[/]" if spec["ok"] else "[red]✗[/]"
    console.print(f"{mark} {spec['text']}")


def print_model(console: Console, report: ModelReport) -> None:
    """One model: the first rounds request by request, the others in a line each, and the verdict."""
    from rich.table import Table
    from rich.text import Text

    console.print()
    console.print(Text.assemble((report.model, "bold"), "  ", (report.shape, "dim")))
    for round_ in report.rounds[:ROUNDS_IN_FULL]:
        console.print(Text.assemble((round_.name, "bold"), (f", {round_.about}", "dim")))
        console.print(_requests_table(round_))
    rest = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for style in ("bold", "dim", None, None):
        rest.add_column(style=style, no_wrap=True)
    for round_ in report.rounds[ROUNDS_IN_FULL:]:
        reused, tokens = sum(s.reused for s in round_.served), sum(s.tokens for s in round_.served)
        rest.add_row(round_.name, round_.about, f"reused {reused} of {tokens}", _round_outcome(round_))
    console.print(rest)
    for name, text in report.facts:
        console.print(Text.assemble((f"{name}: ", "dim"), text))
    for fault in report.faults():
        console.print(Text.assemble(("✗ ", "red"), fault))
    verdict = ("✓ bit-identical", "green") if report.bit_identical else ("✗ not bit-identical", "bold red")
    console.print(Text.assemble(verdict, f", {report.model}"))


def _requests_table(round_: Round) -> Table:
    """A line for each request; the columns of all tables are equally wide."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("request", no_wrap=True, min_width=13)
    for head in ("tokens", "reused", "computed"):
        table.add_column(head, justify="right", no_wrap=True)
    for head in OBJECTS.values():
        table.add_column(head, no_wrap=True, min_width=7)
    table.add_column("answer", no_wrap=True, min_width=12)
    table.add_column("against a cold run", no_wrap=True)
    for served in round_.served:
        table.add_row(
            served.request.name,
            str(served.tokens),
            str(served.reused),
            str(served.recomputed),
            *(_verdict(served.objects.get(kind, "ABSENT")) for kind in OBJECTS),
            f"{served.first} {served.reason}".strip(),
            _outcome(served),
        )
    return table


def print_legend(console: Console) -> None:
    """What the words of the tables mean, once."""
    console.print()
    console.print("how to read it", style="bold")
    for words, meaning in _LEGEND:
        console.print(f"  {words:{max(len(words) for words, _ in _LEGEND)}}  [dim]{meaning}[/]")


def print_end(console: Console, spec_ok: bool, reports: Sequence[ModelReport], seconds: float) -> None:
    """The last line."""
    wrong = [report.model for report in reports if not report.bit_identical]
    exact = sum(served.exact and served.reused > 0 for report in reports for r in report.rounds for served in r.served)
    count = f"{len(reports)} model{'s' if len(reports) > 1 else ''}"
    console.print()
    if not spec_ok:
        console.print("[red]✗[/] the spec, or what was generated from it, is not in order: see the first lines")
    if wrong:
        console.print(f"[red]✗[/] not bit-identical: {', '.join(wrong)}, of {count}; {seconds:.0f} s")
    else:
        console.print(f"[green]✓[/] {count}: {exact} warm reads, each bit-identical to its cold run; {seconds:.0f} s")


def _verdict(word: str) -> str:
    style = _MARKS.get(word, "")
    return f"[{style}]{word}[/]" if style else word


def _outcome(served: Served) -> str:
    if not served.reused and served.comparison.identical:
        return "[dim]computed cold[/]"
    if served.exact:
        return "[green]bit-identical[/]" if served.comparison.identical else f"[red]{served.comparison.difference}[/]"
    return f"[yellow]approximate[/], logits ±{served.comparison.logits_error:.1e}"


def _round_outcome(round_: Round) -> str:
    if round_.faults():
        return "[red]✗ see below[/]"
    if round_.exact:
        return "[green]bit-identical[/]"
    warm = [served.comparison for served in round_.served if not served.exact]
    logits = max(comparison.logits_error for comparison in warm)
    size = max(comparison.logits_size for comparison in warm)
    rows = max(comparison.rows_error for comparison in warm)
    return f"[yellow]approximate[/]: logits ±{logits:.1e} of {size:.1f}, rows ±{rows:.1e}"
