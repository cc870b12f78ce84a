"""The five queues beside one line for all: the same trace, manager, pools, limits and service times, on virtual time.

Two scenarios: a disk that gives what it should, and one that gives nothing for a while. Behind the manager is a store
in memory, which keeps all that was published; reading it costs the disk's time. What is compared is what those who
asked see: how long they wait for their first step and their first token, and how much is done in a second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ...runtime.stores.memory import MemoryStore
from .replay_report import mapping
from .replay_service import Costs, Stall
from .replay_setting import Setting, serve
from .replay_tally import Tally, Waits

STALL_MS = 10_000.0
"""Length of the stall where none is given; it lies in the middle of the requests' coming."""

LINES = ("five queues", "one line")


@dataclass(frozen=True, slots=True)
class Result:
    """One run of the trace, times in milliseconds.

    Attributes:
        scenario: its name.
        line: one of ``LINES``.
        requests: that came; each has ``finished``, was ``rejected``, or was given up (``cancelled``).
        seconds: from the first one's coming to the last one's end, of virtual time.
        requests_per_second: that finished.
        tokens_per_second: of prompts and answers of finished requests, reused ones included.
        hit_rate: reused tokens of all tokens of prompts.
        store_tokens: reused tokens that lay in the store.
        preempted: how often one that ran went back to wait.
        wait: from a request's coming to its first step.
        resident: that of requests which waited for no bytes in any run of the scenario.
        loading: that of all others.
        first_token: from a request's coming until its prompt was computed.
        ordered: all waits, ascending; ``ordered_resident`` those of ``resident``.
        violations: by their text, how often.
        complete: whether the run went to its end.
    """

    scenario: str
    line: str
    requests: int
    finished: int
    rejected: int
    cancelled: int
    seconds: float
    requests_per_second: float
    tokens_per_second: float
    hit_rate: float
    store_tokens: int
    preempted: int
    wait: Waits
    resident: Waits
    loading: Waits
    first_token: Waits
    ordered: tuple[float, ...]
    ordered_resident: tuple[float, ...]
    violations: Mapping[str, int]
    complete: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """All runs, scenario by scenario, each in the order of ``LINES``; and one by five queues without any store.

    The latter is what the command does when nothing is to be compared; None where it was not come to.
    """

    setting: Setting
    scenarios: Mapping[str, Costs]
    results: tuple[Result, ...]
    plain: Result | None

    @property
    def complete(self) -> bool:
        """Whether all runs went to their ends."""
        runs = self._runs()
        return len(runs) == len(self.scenarios) * len(LINES) + 1 and all(one.complete for one in runs)

    @property
    def violations(self) -> bool:
        """Whether any run broke anything."""
        return any(one.violations for one in self._runs())

    def _runs(self) -> tuple[Result, ...]:
        return self.results if self.plain is None else (*self.results, self.plain)

    def of(self, scenario: str) -> tuple[Result, Result]:
        """Its results: the five queues', the line's."""
        five, line = (one for one in self.results if one.scenario == scenario)
        return five, line


def compare(
    setting: Setting,
    stopped: Callable[[], bool] = lambda: False,
    tell: Callable[[Tally], None] = lambda _: None,
) -> Comparison:
    """Run all of it; where ``stopped`` says so, what has been run so far is returned."""
    scenarios = scenarios_of(setting)
    results: list[Result] = []
    for name, costs in scenarios.items():
        tallies: list[Tally] = []
        for line in LINES:
            if stopped():
                break
            rules = replace(setting.rules, costs=costs, single_line=line != LINES[0])
            tallies.append(serve(replace(setting, rules=rules), store=MemoryStore(), stopped=stopped, tell=tell))
        resident = _resident_everywhere(tallies)
        results += [_result(name, line, tally, resident) for line, tally in zip(LINES, tallies, strict=False)]
    plain = None
    if not stopped():
        tally = serve(setting, stopped=stopped, tell=tell)
        plain = _result("no store", LINES[0], tally, _resident_everywhere([tally]))
    return Comparison(setting, scenarios, tuple(results), plain)


def scenarios_of(setting: Setting) -> dict[str, Costs]:
    """The same machine with a disk that never stalls, and with one that does."""
    costs, asked = setting.rules.costs, setting.trace.requests
    stalls = costs.stalls
    if not stalls:
        middle = (asked[0].at + asked[-1].at) / 2
        stalls = (Stall(middle - STALL_MS / 2, middle + STALL_MS / 2),)
    return {"steady disk": replace(costs, stalls=()), "stalled disk": replace(costs, stalls=stalls)}


def _resident_everywhere(tallies: list[Tally]) -> set[int]:
    """Requests that began in every run and waited for no bytes in any: whoever is first in line makes no difference."""
    sets = [{one.asked.number for one in tally.courses if one.begun is not None and one.resident} for tally in tallies]
    return set.intersection(*sets) if sets else set()


def _result(scenario: str, line: str, tally: Tally, resident: set[int]) -> Result:
    begun = [one for one in tally.courses if one.begun is not None]
    waits = sorted(one.wait for one in begun)
    of_resident = sorted(one.wait for one in begun if one.asked.number in resident)
    tokens = sum(one.asked.prompt + one.asked.answer for one in tally.courses if one.outcome == "finished")
    seconds = tally.virtual_seconds
    return Result(
        scenario=scenario,
        line=line,
        requests=len(tally.courses),
        finished=tally.ended,
        rejected=len(tally.rejected),
        cancelled=tally.cancelled,
        seconds=round(seconds, 3),
        requests_per_second=round(tally.ended / seconds, 3) if seconds else 0.0,
        tokens_per_second=round(tokens / seconds, 1) if seconds else 0.0,
        hit_rate=round(tally.reused_tokens / tally.prompt_tokens, 6) if tally.prompt_tokens else 0.0,
        store_tokens=tally.tiers["store"],
        preempted=tally.preempted,
        wait=Waits.of(waits),
        resident=Waits.of(of_resident),
        loading=Waits.of(one.wait for one in begun if one.asked.number not in resident),
        first_token=tally.first_tokens(),
        ordered=tuple(waits),
        ordered_resident=tuple(of_resident),
        violations=dict(tally.violations),
        complete=tally.complete,
    )


# ---- what people and programs see ---------------------------------------------------------------------------------

ROWS: tuple[tuple[str, Callable[[Result], float], str, bool], ...] = (
    ("requests a second", lambda one: one.requests_per_second, "{:,.2f}", True),
    ("tokens a second", lambda one: one.tokens_per_second, "{:,.0f}", True),
    ("wait, mean, ms", lambda one: one.wait.mean, "{:,.0f}", False),
    ("wait, p99, ms", lambda one: one.wait.p99, "{:,.0f}", False),
    ("wait of resident, mean, ms", lambda one: one.resident.mean, "{:,.0f}", False),
    ("wait of resident, p99, ms", lambda one: one.resident.p99, "{:,.0f}", False),
    ("wait of all others, mean, ms", lambda one: one.loading.mean, "{:,.0f}", False),
    ("wait of all others, p99, ms", lambda one: one.loading.p99, "{:,.0f}", False),
    ("first token, mean, ms", lambda one: one.first_token.mean, "{:,.0f}", False),
    ("first token, p99, ms", lambda one: one.first_token.p99, "{:,.0f}", False),
    ("hit rate, %", lambda one: 100 * one.hit_rate, "{:.2f}", True),
)
"""What is compared: its name, where it stands, how it is written, and whether more is better."""


UNTOUCHED = (
    "nothing was read from the store, so nobody waited for the disk: give less room (--memory, --slots), or a trace "
    "that shares more"
)
"""What is said of a scenario in which the store brought nothing."""


def as_json(found: Comparison) -> dict[str, Any]:
    """The comparison as ``--json`` prints it."""
    runs = [_shown(one) for one in found.results]
    plain = None if found.plain is None else _shown(found.plain)
    costs = {name: asdict(one) for name, one in found.scenarios.items()}
    return {"ok": not found.violations, "complete": found.complete, "costs": costs, "runs": runs, "no_store": plain}


def _shown(one: Result) -> dict[str, Any]:
    return {name: value for name, value in asdict(one).items() if not name.startswith("ordered")}


def text(found: Comparison) -> list[str]:
    """The comparison in lines for people."""
    lines = []
    for scenario in found.scenarios:
        runs = [one for one in found.results if one.scenario == scenario]
        if len(runs) < len(LINES):
            lines.append(f"{scenario}: stopped")
            continue
        five, line = runs
        lines.append(f"{scenario}: {five.resident.count} of {five.requests} requests waited for no bytes in either run")
        lines.append(f"  {'':30}{LINES[0]:>14}{LINES[1]:>14}")
        for name, value, form, _ in ROWS:
            lines.append(f"  {name:30}{form.format(value(five)):>14}{form.format(value(line)):>14}")
        if not any(one.store_tokens for one in runs):
            lines.append(f"  {UNTOUCHED}")
        for one in runs:
            lines += [f"  {one.line}: {text} ({times} times)" for text, times in one.violations.items()]
    if found.plain is not None:
        lines += [f"without a store, as `kvfsm replay` alone runs it: {_plainly(found.plain)}"]
        lines += [f"  {text} ({times} times)" for text, times in found.plain.violations.items()]
    return lines


def _plainly(one: Result) -> str:
    return (
        f"{100 * one.hit_rate:.2f} % of tokens reused, waits of {one.wait.mean:,.0f} ms on average and "
        f"{one.wait.p99:,.0f} ms at the 99th percentile"
    )


def page(found: Comparison, picture: str, command: str) -> str:
    """The comparison as Markdown, beside its picture."""
    setting, costs = found.setting, found.setting.rules.costs
    stall = found.scenarios["stalled disk"].stalls[0]
    first = setting.trace.requests[0].at
    lines = [
        "<!-- Written by kvfsm replay. -->",
        "# Five queues beside one line",
        "",
        f"![Five queues beside one line]({picture})",
        "",
        "```bash",
        command,
        "```",
        "",
        f"{len(setting.trace.requests):,} requests on {setting.profile.name}, which come within "
        f"{(setting.trace.requests[-1].at - first) / 1000:,.0f} s; "
        f"{mapping(setting.trace.block, setting.profile.granule)}. "
        f"Both get the same manager, pools, limits ({setting.rules.limits.requests} requests with slots, "
        f"{setting.rules.limits.blocks['store']:,} slots in flight from the store) and store. Time is virtual: "
        f"a step takes {costs.step_ms:g} ms and {1000 / costs.prefill:g} ms more for each token of a prompt, "
        f"{setting.rules.step_tokens:,} of them at most in each queue; the disk gives {costs.disk:g} GB a second "
        f"after {costs.load_ms:g} ms, one load after the other. The stalled disk gives nothing from second "
        f"{(stall.start - first) / 1000:g} to second {(stall.stop - first) / 1000:g}.",
        "",
        "*One line* is first come, first served: nobody computes before those who came before him; who is first and "
        "loads keeps his place, and those behind him may load meanwhile. A *wait* is from a request's coming to its "
        "first step. *Resident* are those who waited for no bytes in either run.",
        "",
    ]
    if found.plain is not None:
        lines += [
            "These waits are not those that `kvfsm replay` tells without `--compare`: there nothing stands behind the "
            "manager, and what was evicted is computed again. Here a store keeps all that was published, so that more "
            f"is reused, less computed, and waits are shorter. Without a store it is {_plainly(found.plain)}.",
            "",
        ]
    for scenario in found.scenarios:
        five, line = found.of(scenario)
        lines += [
            f"## {scenario.capitalize()}",
            "",
            f"{five.finished:,} and {line.finished:,} of {five.requests:,} requests finished, in {five.seconds:,.1f} "
            f"and {line.seconds:,.1f} s; {five.resident.count:,} are resident.",
            "",
            f"| | {LINES[0]} | {LINES[1]} | better |",
            "|---|---:|---:|---|",
        ]
        for name, value, form, more in ROWS:
            shown = [form.format(value(one)) for one in (five, line)]
            ahead = (value(five) > value(line)) is more
            better = "alike" if shown[0] == shown[1] else LINES[0] if ahead else LINES[1]
            lines.append(f"| {name} | {shown[0]} | {shown[1]} | {better} |")
        if not five.store_tokens and not line.store_tokens:
            lines += ["", UNTOUCHED]
        lines.append("")
    return "\n".join(lines)
