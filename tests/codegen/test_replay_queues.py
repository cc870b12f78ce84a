"""A replay's queues: waits that sum up, requests that all end, five queues beside one line under a disk that stalls."""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvfsm.codegen.cli import main, replay_compare, replay_options
from kvfsm.codegen.cli.replay_clock import VirtualTime
from kvfsm.codegen.cli.replay_compare import Comparison, compare
from kvfsm.codegen.cli.replay_lines import FiveQueues, Journal, SingleLine
from kvfsm.codegen.cli.replay_service import Costs, Stall
from kvfsm.codegen.cli.replay_setting import Setting, serve
from kvfsm.codegen.cli.replay_tally import Course, Tally, Waits
from kvfsm.codegen.cli.replay_trace import read_trace
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.queues import Queue, Queues
from kvfsm.runtime.stores.memory import MemoryStore
from kvfsm.runtime.stores.store import EpochEnded, Item, ObjectId, Verdict

REPO = Path(__file__).parents[2]
SLICE = REPO / "tests" / "data" / "mooncake_slice.jsonl"
SHIPPED = ["tests/data/mooncake_slice.jsonl", "--model", "deepseek_v4_flash", "--memory", "40e9"]

SMALL = ["--model", "tiny_deepseek_v4", "--block", "64", "--slots", "40", "--step-tokens", "128", "--prefill", "2000"]


def setting(lines: list[str], *options: str) -> Setting:
    parser = argparse.ArgumentParser()
    replay_options.add_arguments(parser)
    args = parser.parse_args(["trace", *options])
    trace = read_trace("trace", lines, args.block)
    assert trace.problems == ()
    return replay_options.setting_of(args, trace, PROFILES[args.model])


def conversations(seed: int, count: int = 60) -> list[str]:
    """Prompts of few conversations, so that some find their prefixes in memory and others in the store."""
    chance, at, lines = random.Random(seed), 0.0, []
    for _ in range(count):
        who = chance.randrange(12)
        blocks = chance.randint(1, 6)
        at += chance.choice([0, 5, 40, 200])
        ids = [1000 * who + place for place in range(blocks)]
        prompt = 64 * blocks - chance.randrange(64)
        fields = {"timestamp": at, "input_length": prompt, "output_length": chance.randint(0, 40), "hash_ids": ids}
        lines.append(json.dumps(fields))
    return lines


def runs(seed: int, *options: str, single_line: bool) -> Tally:
    given = setting(conversations(seed), *SMALL, *options)
    return serve(replace(given, rules=replace(given.rules, single_line=single_line)), store=MemoryStore())


# ---- every run ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("single_line", [False, True])
def test_every_request_ends_once_and_its_waits_sum_up(seed: int, single_line: bool) -> None:
    tally = runs(seed, "--stall", "500:2500", "--give-up", "1500", "--audit", "7", single_line=single_line)
    assert tally.complete and tally.violations == {}
    outcomes = Counter(course.outcome for course in tally.courses)
    assert set(outcomes) <= {"finished", "rejected", "cancelled"} and sum(outcomes.values()) == 60
    assert outcomes["finished"] == tally.ended and outcomes["cancelled"] == tally.cancelled > 0
    assert outcomes["rejected"] == len(tally.rejected)
    assert sorted(course.asked.number for course in tally.courses) == list(range(60))
    for course in tally.courses:
        assert course.ended is not None
        if course.begun is None:
            assert course.outcome != "finished"
            continue
        assert course.asked.at <= course.begun <= course.ended
        assert sum(course.waits.values()) == pytest.approx(course.wait)
    waited = sum(course.wait for course in tally.courses if course.begun is not None)
    assert sum(waits.count for waits in tally.by_queue().values()) == tally.waits().count == tally.begun
    assert sum(waits.mean * waits.count for waits in tally.by_queue().values()) == pytest.approx(waited, abs=1.0)
    assert sum(tally.in_queues().values()) == pytest.approx(waited, abs=0.1)
    both = [course for course in tally.courses if course.begun is not None and len(course.waits) > 1]
    assert both, "else nobody could have been counted twice"
    assert {course.queue for course in both} == {Queue.DISK}


@pytest.mark.parametrize("seed", range(3))
def test_what_was_reused_is_counted_once_in_each_sum(seed: int) -> None:
    tally = runs(seed, "--stall", "500:2500", single_line=False)
    assert tally.tiers["store"] > 0 and tally.tiers["memory"] > 0
    assert tally.tiers.total() == tally.reused_tokens
    kinds = {"compressed_kv", "indexer_state", "uncompressed_tail", "swa_window"}
    assert set(tally.tiers_of) == kinds and set(tally.verdicts) == {*kinds, "ondisk_prefix"}
    for kind in kinds:
        assert tally.tiers_of[kind].total() == tally.reused_tokens, kind
        assert tally.tiers_of[kind]["store"] <= tally.tiers["store"]  # it may have waited for another kind
        assert tally.reused_tokens <= tally.alone[kind] <= tally.prompt_tokens
    assert {verdicts.total() for verdicts in tally.verdicts.values()} == {tally.begun}


def test_a_wait_without_a_queue_would_be_seen() -> None:
    asked = setting(conversations(0), *SMALL).trace
    course = Course(asked.requests[0], [(Queue.DISK, 10.0), (Queue.RESIDENT, 30.0)], begun=100.0)
    assert course.waits == {Queue.DISK: 20.0, Queue.RESIDENT: 70.0}
    assert sum(course.waits.values()) != pytest.approx(course.wait)  # it came at 0 or later, and was heard of at 10


@pytest.mark.parametrize("single_line", [False, True])
def test_a_run_gives_the_same_numbers_twice(single_line: bool) -> None:
    first, second = (runs(5, "--stall", "500:2500", single_line=single_line) for _ in range(2))
    assert first.tiers["store"] > 0
    assert first.courses == second.courses
    assert (first.evictions, first.tiers, first.steps, first.now) == (
        second.evictions, second.tiers, second.steps, second.now)  # fmt: skip


def test_what_is_in_flight_stays_below_its_limits() -> None:
    given = setting(conversations(1), *SMALL, "--requests", "3", "--in-flight-blocks", "12", "--stall", "500:2500")
    tally = serve(given, store=MemoryStore())
    assert tally.complete and 0 < tally.in_flight.blocks_most["store"] <= 12 and tally.requests_most == 3
    wide = setting(conversations(1), *SMALL, "--requests", "3", "--in-flight-blocks", "40", "--stall", "500:2500")
    more = serve(wide, store=MemoryStore())
    assert more.in_flight.blocks_most["store"] > 12  # else the limit was never felt
    assert more.in_flight.bytes["store"] == 0 == more.in_flight.blocks["store"]


def test_a_load_takes_the_time_of_its_real_bytes() -> None:
    apart = [json.dumps(json.loads(text) | {"timestamp": 10_000 * n}) for n, text in enumerate(conversations(2, 20))]
    tally = serve(setting(apart, *SMALL, "--disk", "0.001"), store=MemoryStore())  # 1 kB a ms
    count = tally.by_queue()[Queue.DISK].count
    assert count > 1 and tally.in_flight.blocks_most["store"] > 0
    loads = tally.in_queues()[Queue.DISK]  # nobody else is there: all of it is latency and bytes
    assert loads == pytest.approx(count * 1.0 + tally.in_flight.moved["store"] / 1e3, rel=1e-3)


# ---- the comparison -------------------------------------------------------------------------------------------------


def test_a_stalled_disk_holds_up_residents_behind_one_line_only() -> None:
    given = setting(conversations(3), *SMALL, "--requests", "16", "--stall", "1000:9000", "--disk", "0.05")
    found = compare(given)
    assert found.complete and not found.violations
    five, line = found.of("stalled disk")
    assert five.resident.count == line.resident.count > 10
    assert line.resident.mean > 2 * five.resident.mean
    calm_five, calm_line = found.of("steady disk")
    assert calm_line.resident.max < line.resident.max  # without the stall the line is far better than with it
    assert calm_five.finished == calm_line.finished == five.finished == line.finished


OF_ONE_RUN = pytest.mark.xdist_group("shipped slice")
"""Of minutes: one process makes it, for all tests that look at it."""


@pytest.fixture(scope="module")
def shipped() -> Iterator[Comparison]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(REPO)
        yield compare(setting(SLICE.read_text("utf-8").splitlines(), *SHIPPED[1:]))


@OF_ONE_RUN
def test_the_picture_is_the_one_of_the_shipped_slice(shipped: Comparison) -> None:
    from kvfsm.codegen.cli.replay_plot import plot

    command = " ".join(["kvfsm replay", *SHIPPED, "--compare -o diagrams/queues.svg"])
    assert shipped.complete and not shipped.violations
    again = f"to accept: {command}"
    assert plot(shipped) == (REPO / "diagrams" / "queues.svg").read_text("utf-8"), again
    page = replay_compare.page(shipped, "queues.svg", command)
    assert page == (REPO / "diagrams" / "queues.md").read_text("utf-8"), again
    assert command in (REPO / "diagrams" / "README.md").read_text("utf-8")


@OF_ONE_RUN
def test_on_the_slice_residents_wait_less_in_the_five_queues(shipped: Comparison) -> None:
    five, line = shipped.of("stalled disk")
    assert five.finished == line.finished == 250
    assert five.resident.p99 < line.resident.p99 and five.resident.mean < line.resident.mean / 2
    assert five.requests_per_second >= line.requests_per_second


@OF_ONE_RUN
def test_the_page_says_why_its_waits_are_not_those_of_the_readme(shipped: Comparison) -> None:
    plain = shipped.plain
    assert plain is not None and plain.store_tokens == 0
    five, _ = shipped.of("steady disk")
    assert five.store_tokens > 0 and five.hit_rate > plain.hit_rate and five.wait.mean < plain.wait.mean
    page = (REPO / "diagrams" / "queues.md").read_text("utf-8")
    assert f"Without a store it is {100 * plain.hit_rate:.2f} %" in page
    readme = " ".join((REPO / "README.md").read_text("utf-8").split())
    assert f"{100 * plain.hit_rate:.0f} % are reused in 40 GB" in readme
    seconds = [f"{wait / 1000:.1f} s" for wait in (plain.wait.mean, plain.wait.p99)]
    assert f"wait {seconds[0]} on average, {seconds[1]} at the 99th percentile" in readme


@OF_ONE_RUN
def test_the_picture_shows_other_numbers_otherwise(shipped: Comparison) -> None:
    from kvfsm.codegen.cli.replay_plot import plot

    first, *others = shipped.results
    slower = replace(first, wait=replace(first.wait, mean=first.wait.mean + 1000))
    assert plot(replace(shipped, results=(slower, *others))) != plot(shipped)


def test_the_command_draws_reports_and_can_be_read_by_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, picture = tmp_path / "trace.jsonl", tmp_path / "queues.svg"
    trace.write_text("\n".join(conversations(4, 20)), "utf-8")
    arguments = ["replay", str(trace), *SMALL, "--compare"]
    assert main([*arguments, "-o", str(picture)]) == 0
    out = capsys.readouterr().out
    assert "steady disk: " in out and "stalled disk: " in out and "wait of resident, p99, ms" in out
    assert "without a store" in out
    assert picture.read_text("utf-8").startswith("<svg") and "![" in picture.with_suffix(".md").read_text("utf-8")
    assert main([*arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["ok"] and [(run["scenario"], run["line"]) for run in found["runs"]] == [
        ("steady disk", "five queues"), ("steady disk", "one line"),
        ("stalled disk", "five queues"), ("stalled disk", "one line"),
    ]  # fmt: skip
    every = [*found["runs"], found["no_store"]]
    assert all(run["finished"] + run["rejected"] + run["cancelled"] == run["requests"] for run in every)


# ---- the single line ------------------------------------------------------------------------------------------------


def lined(*queues: Queue) -> SingleLine:
    line = SingleLine(Journal(VirtualTime()))
    for number, queue in enumerate(queues, 1):
        line.put(number, queue, cost=1.0, now=float(number))
    return line


def served(line: Queues, queue: Queue, **given: Any) -> list[int]:
    found = []
    for number in line.turns(queue, float("inf"), **given):
        line.granted(number)
        found.append(number)
    return found


def test_nobody_computes_before_one_who_came_earlier_and_loads() -> None:
    line = lined(Queue.DISK, Queue.RESIDENT, Queue.DISK)
    assert served(line, Queue.RESIDENT) == []  # the first has not even begun to load
    assert served(line, Queue.DISK) == [1]  # and the third stands behind the second
    assert served(line, Queue.RESIDENT) == []
    line.remove(1)
    line.put(1, Queue.RESIDENT, cost=1.0, now=1.0, holds=True)  # its load has ended
    assert served(line, Queue.RESIDENT) == [1, 2] and served(line, Queue.DISK) == [3]


def test_five_queues_let_the_others_go_first() -> None:
    queues = FiveQueues(Journal(VirtualTime()))
    for number, queue in enumerate((Queue.DISK, Queue.RESIDENT, Queue.DISK), 1):
        queues.put(number, queue, cost=1.0, now=float(number))
    assert served(queues, Queue.RESIDENT) == [2] and served(queues, Queue.DISK) == [1, 3]


def test_in_one_line_loads_overlap_but_nobody_passes_who_lacks_room() -> None:
    line = lined(Queue.DISK, Queue.DISK, Queue.RESIDENT)
    assert served(line, Queue.DISK) == [1, 2]
    line = lined(Queue.RESIDENT, Queue.RESIDENT)
    for number in line.turns(Queue.RESIDENT, float("inf")):
        line.passed(number)
        assert number == 1
    assert len(line) == 2 and line.where(1) is Queue.RESIDENT and line.depth(Queue.RESIDENT) == 2


def test_one_line_keeps_to_a_budget_and_asks_holders_first() -> None:
    line = lined(Queue.RESIDENT, Queue.RESIDENT)
    line.put(3, Queue.RESIDENT, cost=1.0, now=3.0, holds=True)
    assert served(line, Queue.RESIDENT, holders=True) == [3]
    found = []
    for number in line.turns(Queue.RESIDENT, 1.0, holders=False):  # the holder has spent it
        line.granted(number)
        found.append(number)
    assert found == []


# ---- time -----------------------------------------------------------------------------------------------------------


def test_what_is_due_comes_in_the_order_of_its_time() -> None:
    clock, told = VirtualTime(), list[tuple[str, float]]()
    clock.at(20, lambda: told.append(("second", clock.now)))
    clock.at(10, lambda: clock.at(15, lambda: told.append(("first", clock.now))))
    clock.at(20, lambda: told.append(("third", clock.now)))
    clock.advance_to(30)
    assert told == [("first", 15), ("second", 20), ("third", 20)] and (clock.now, clock.next) == (30, None)
    with pytest.raises(ValueError, match="29 has passed"):
        clock.at(29, lambda: None)


def test_a_stall_stops_what_is_on_its_way_and_what_begins_in_it() -> None:
    costs = Costs(disk=1.0, load_ms=0.0, stalls=(Stall(100, 200), Stall(300, 400)))
    second = 1_000_000  # bytes in a millisecond
    assert costs.read(0, 50 * second) == 50
    assert costs.read(50, 100 * second) == 250
    assert costs.read(150, 10 * second) == 210
    assert costs.read(250, 100 * second) == 450
    assert costs.read(50, 200 * second) == 450
    assert costs.read(500, 10 * second) == 510


def test_percentiles_are_waits_that_somebody_had() -> None:
    waits = Waits.of(float(n) for n in range(1, 201))
    assert (waits.count, waits.mean, waits.p50, waits.p99, waits.max) == (200, 100.5, 100.0, 198.0, 200.0)
    assert Waits.of([]) == Waits(0, 0.0, 0.0, 0.0, 0.0)


# ---- the store in memory --------------------------------------------------------------------------------------------


def test_the_store_in_memory_keeps_what_it_was_given() -> None:
    store, name, into = MemoryStore(), ObjectId("compressed_kv", bytes(32)), bytearray(4)
    assert store.get(name, into).verdict is Verdict.MISS
    store.put(name, b"abc", meta={"lossy": True})
    assert store.contains([name]).tolist() == [True]
    assert store.put_many([Item(name, b"abc", {"lossy": True})]) == 0
    assert store.put_many([Item(name, b"abd")]) == 1  # an exact one takes the place of a lossy one
    assert store.get(name, into).length == 3 and into == b"abd\0"
    assert (store.usage().objects, store.usage().bytes) == (1, 3)
    assert store.reset() == 2 and store.get(name, into).verdict is Verdict.MISS
    with pytest.raises(EpochEnded, match="epoch 1"):
        store.put(name, b"abc", meta={}, at_epoch=1)
    store.close()
