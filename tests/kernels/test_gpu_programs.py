"""The tests of ``tests/gpu`` have not run on a device; what of them can run on the host runs here."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from kvfsm.kernels.catalogue import catalogue
from kvfsm.kernels.launch import Kernel, LaunchPlan

from ..gpu import __main__ as script
from ..gpu import device, in_torch, test_streams, times, workloads
from ..gpu.differences import differences
from ..gpu.faults import launch
from ..gpu.programs import FAULTY, PROGRAMS, program_source
from ..gpu.running import run
from ..gpu.stress import Stress
from ..gpu.test_parity import collected, parity_modules
from ..gpu.test_sanitizer import TOLD, finds, verdict
from ..gpu.times import HEADER, Row, launches_of, leaves_out, tensors
from ..gpu.workloads import LAUNCHES, MAKERS, Sized, Workload
from ..hostcuda.building import Build
from ..hostcuda.faults import HostFault
from ..hostcuda.host import HostLauncher, edited
from ..hostcuda.schedules import Random
from .compiling import LACKS, TABLE_MAJOR, nvrtcs
from .traffic import moved_bytes

REPO = Path(__file__).parents[2]


def test_the_parity_tests_are_collected_for_the_device() -> None:
    found, count = collected(), 0
    for module in parity_modules():
        tests = [value for name, value in vars(module).items() if name.startswith("test_") and callable(value)]
        assert tests and all(any(one is value for value in found.values()) for one in tests)
        count += len(tests)
    assert len(parity_modules()) >= 4
    assert sum(name.startswith(tuple("test_")) for name in found) >= count


def test_some_of_them_run_with_the_launcher_of_that_folder() -> None:
    command = [sys.executable, "tests/kernels/rehearsal.py", "-k", "refuses_by_slot or each_replay"]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)
    passed = re.search(r"^(\d+) passed, \d+ deselected", done.stdout, re.M)
    assert done.returncode == 0 and passed is not None and int(passed[1]) >= 10, done.stdout + done.stderr


@pytest.mark.skipif(TABLE_MAJOR not in nvrtcs(), reason=LACKS)
@pytest.mark.parametrize("architecture", ["sm_75", "sm_90"])
def test_the_programs_compile(architecture: str) -> None:
    symbols: dict[str, set[str]] = {}
    for kernel in (*PROGRAMS, *FAULTY.values()):
        symbols.setdefault(program_source(kernel), set()).add(kernel.symbol)
    assert len(symbols) == 3
    for text, wanted in symbols.items():
        assert wanted <= nvrtcs()[TABLE_MAJOR].compile(text, architecture).usage.keys()


def test_floats_that_become_different_codes_are_counted() -> None:
    # On the host both conversions are the same text, so the bug is put into one by way of the other's name.
    twice = edited(
        (
            "  return kv_float_to_e4m3_soft(value);\n#endif",
            "  return (kv_u8)(kv_float_to_e4m3_soft(value) | 1u);\n#endif",
        ),
        sources=program_source,
    )
    first, count = 0x3F800000, 65536
    assert differences(HostLauncher(sources=program_source), first, count) == (0, None)
    found, least = differences(HostLauncher(sources=twice), first, count)
    assert found > 0 and least is not None and first <= least < first + count


def together(launcher: HostLauncher, stress: Stress, pinned: bool, pause: int = 0) -> dict[str, int]:
    """The evictor and the launches of a turn, side by side, turn by turn."""
    for turn in range(stress.turns):
        peek, *reading = stress.reading(turn, pinned)
        launcher.launch(peek)
        if not pinned:
            launcher.launch_together([stress.churning(2, pause), *reading])
            continue
        pin, gather, unpin = reading
        launcher.launch_together([stress.churning(1, pause), pin])
        launcher.launch_together([stress.churning(2, pause), gather])
        launcher.launch(unpin)
    return stress.verify(pinned)


@pytest.mark.parametrize("pinned", [True, False])
def test_readers_against_an_evictor(pinned: bool) -> None:
    counts = Counter[str]()
    for seed in range(6):
        launcher = HostLauncher(Build.CHECK, Random(seed, resident=8), program_source, races=False)
        counts.update(together(launcher, Stress(launcher, 6, 64, 4, 8), pinned, pause=24))
    assert min(counts["read"], counts["refused"], counts["taken"]) > 20, counts
    assert counts["held"] > 20 or not pinned, counts


BUGS: dict[str, tuple[bool, str, str, str]] = {
    "no second look": (
        False, "look_again(check, strip.item, slot) != kv_refusal::kApplied) fill16", "false) fill16",
        "were read wrong, and not refused",
    ),
    "what was read too late is left": (
        False, "kApplied) fill16<false>(to, strip.bytes, 0);", "kApplied) return;",
        "bytes of another generation are left",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_seen_by_the_stress(name: str) -> None:
    pinned, find, replace, told = BUGS[name]
    with_bug = edited((find, replace), sources=program_source)

    def sources(kernel: Kernel) -> str:
        return with_bug(kernel) if kernel.name == "gather" else program_source(kernel)

    def run() -> None:
        for seed in range(100):  # slots so large that a reader takes as long as a rewriter
            launcher = HostLauncher(Build.CHECK, Random(seed, resident=8), sources, races=False)
            together(launcher, Stress(launcher, 4, 8192, 2, 4), pinned)

    with pytest.raises(AssertionError, match=told):
        run()


@pytest.mark.parametrize("tells", [True, False])
def test_the_evictor_goes_on_until_it_is_told_to_stop(tells: bool) -> None:
    launcher = HostLauncher(Build.CHECK, Random(3, resident=8), program_source, races=False)
    stress = Stress(launcher, 4, 64, 2, 8)
    launcher.launch(stress.awaiting(tries=10))
    assert not stress.ran_beside()  # nobody has begun
    beside = [stress.awaiting(tries=10_000), stress.stopping()] if tells else [stress.awaiting(tries=10_000)]
    launcher.launch_together([stress.churning(rounds=2000 if tells else 3, pause=1), *beside])
    assert stress.ran_beside() is tells
    taken = stress.taken.download()
    assert (taken < 2000).all() if tells else (taken == 3).all()


ON_THE_HOST = {
    "memcheck": "out_of_bounds", "initcheck": "uninitialised", "racecheck": "race", "synccheck": "barrier_after_exit",
}  # fmt: skip


@pytest.mark.parametrize("tool", TOLD)
def test_the_bug_for_each_tool_of_the_sanitizer_is_one(tool: str) -> None:
    with pytest.raises(HostFault) as caught:
        launch(HostLauncher(Build.CHECK, sources=program_source), tool)
    assert ON_THE_HOST[tool] in str(caught.value)
    lines = (REPO / "tests/gpu/faulty.cu").read_text("utf-8").splitlines()
    marked = next(number for number, text in enumerate(lines, 1) if f"// {tool}: " in text)
    assert caught.value.line in (marked, marked + 1)


CLEAN = "........\n64 passed, 200 deselected in 9.1s\n========= ERROR SUMMARY: 0 errors\n"
WARNED = "========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)\n"


@pytest.mark.parametrize(
    ("code", "told", "why"),
    [
        (0, CLEAN, None),
        (0, CLEAN.replace("ERROR SUMMARY: 0 errors", "RACECHECK SUMMARY: 0 hazards displayed (0 errors)"), None),
        (99, CLEAN, "found something"),
        (1, CLEAN.replace("0 errors", "2 errors"), "found something"),
        (0, CLEAN + WARNED, "found something"),
        (None, "", "took more than"),
        (0, CLEAN.partition("=")[0], "was not attached"),
        (0, CLEAN.replace("64 passed", "64 skipped"), "fewer than 50 tests ran"),
        (1, CLEAN.replace("64 passed", "1 failed, 63 passed"), "exit code 1"),
    ],
)
def test_a_run_under_the_sanitizer_counts_if_it_was_one(code: int | None, told: str, why: str | None) -> None:
    found = verdict(code, told, passed_least=50)
    assert found is None if why is None else found is not None and why in found


def test_a_planted_bug_counts_as_found_if_the_tool_for_it_tells_of_it() -> None:
    race = "========= Error: Race reported between Write access at kv_unordered+0x90 and Read access\n"
    summary = "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)\n"
    assert finds("racecheck", race + summary)
    assert not finds("racecheck", race) and not finds("racecheck", summary)
    assert not finds("memcheck", race + summary) and not finds("racecheck", race + CLEAN)


def test_a_command_that_takes_too_long_is_ended_with_all_that_it_started() -> None:
    waits = "import subprocess; print('begun'); subprocess.run(['sleep', '60'])"
    lines = list[str]()
    code, told = run([sys.executable, "-c", waits], 2, lines.append)
    assert code is None and told.startswith("begun\n") and lines[0] == "begun\n"
    assert "KeyboardInterrupt" in told  # it could still say something
    deaf = ["bash", "-c", "trap '' INT; echo begun; sleep 60; echo never"]
    assert run(deaf, 1, patience=1) == (None, "begun\n")
    tells = "import os; print(os.environ['X']); exit(3)"
    assert run([sys.executable, "-c", tells], 60, env={"X": "y"}) == (3, "y\n")


def test_the_script_runs_part_after_part_and_keeps_what_each_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(REPO)
    monkeypatch.setattr(device, "missing", lambda: None)
    monkeypatch.setattr(script, "described", lambda: {"device": "Some GPU", "driver": 13000})
    monkeypatch.setattr(script, "lacking", lambda: ["a thing; fix: get it"])
    parts = {
        "times": (60, ("-c", "print('| gather |'); print('more')")),
        "parity": (60, ("-c", "print('FAILED test_x'); exit(1)")),
        "streams": (2, ("-c", "import time; print('pause 64: 3', flush=True); time.sleep(60)")),
        "fp8": (60, ("-c", "print('done')")),
    }
    monkeypatch.setattr(script, "PARTS", parts)
    out = tmp_path / "results" / "x.md"
    assert script.main(["--out", str(out)]) == 1
    seconds = re.compile(r"after \d+ s")
    assert seconds.sub("after 1 s", out.read_text("utf-8")) == (
        "# Some GPU\n\n- device: Some GPU\n- driver: 13000\n- lacks: a thing; fix: get it\n"
        "\n## times\n\n| gather |\nmore\n\ntimes: exit code 0, after 1 s\n"
        "\n## parity\n\nFAILED test_x\n\nparity: exit code 1, after 1 s\n"
        "\n## streams\n\npause 64: 3\nKeyboardInterrupt\n\nstreams: took longer than 2 s, and was ended, after 1 s\n"
        "\n## fp8\n\ndone\n\nfp8: exit code 0, after 1 s\n"
    )
    told = capsys.readouterr().out
    assert "lacks: a thing" in told and "== times: at most 60 s\n| gather |\nmore\n" in told
    assert script.main(["--only", "fp8", "--out", str(out)]) == 0
    assert "## times" not in out.read_text("utf-8")


def test_all_parts_together_end_within_half_an_hour() -> None:
    assert sum(seconds for seconds, _ in script.PARTS.values()) <= 29 * 60
    assert {*script.PARTS} == {"parity", "streams", "fp8", "times", "demo", "sanitizer"}
    for _, arguments in script.PARTS.values():
        assert all((REPO / each).is_file() for each in arguments if each.endswith(".py"))


def test_every_kernel_has_a_launch_in_the_table_of_times_and_a_way_in_torch() -> None:
    names = [make(Sized(HostLauncher(), 64, 0.0)).name for make in MAKERS]
    assert sorted(names) == sorted(catalogue())
    for name in names:
        assert leaves_out(getattr(in_torch, name))


def scale_of(make: Callable[[Sized], Workload]) -> int:
    """One slot is packed; of others there are some."""
    return 256 if make in MAKERS[-2:] else 64


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__.lstrip("_"))
def test_a_launch_of_the_table_does_all_its_work_each_time(make: Callable[[Sized], Workload]) -> None:
    launcher = HostLauncher(Build.CHECK)
    job = make(Sized(launcher, scale_of(make), 0.0))
    moved = []
    for _ in range(2):
        job.again()
        for plan in job.plans:
            assert plan.kernel.name == job.name
            launcher.launch(plan)
            moved.append(moved_bytes(launcher))
    # What docstrings count are sectors for words; at this size headers weigh more than they do on a device.
    assert 0.5 * job.bytes <= min(moved) <= max(moved) <= 2.1 * job.bytes
    assert max(moved) <= 1.02 * min(moved)
    assert not any(job.results[name].download().any() for name in CODES & job.results.keys())


CODES = {"refusals", "refused", "reasons", "verdicts"}
"""Results that say what was refused."""

IN_ANOTHER_ORDER = ("compress", "compress_v4", "compress_index_key")
"""Kernels whose sums torch makes in another order."""


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__.lstrip("_"))
@pytest.mark.parametrize("stale", [0.0, 0.2])
def test_torch_does_the_job_of_the_kernel(make: Callable[[Sized], Workload], stale: float) -> None:
    launcher = HostLauncher(Build.FAST)
    job = make(Sized(launcher, scale_of(make), stale))
    launcher.launch(job.plans[0])
    made = getattr(in_torch, job.name)(**tensors(torch, job.given, "cpu"))
    assert made.keys() == job.results.keys()
    refused = 0
    for name, buffer in job.results.items():
        ours = made[name].contiguous()
        theirs = torch.from_numpy(buffer.download()[: len(ours)].reshape(len(ours), -1).view(np.uint8))
        if job.name == "compress":
            torch.testing.assert_close(ours, theirs.view(torch.float32), rtol=1e-4, atol=1e-5)
            continue
        same = (ours.reshape(len(ours), -1).view(torch.uint8) == theirs).double().mean()
        assert same >= 0.995 if job.name in IN_ANOTHER_ORDER and name == "arena" else same == 1, (name, same)
        refused += int((ours != 0).sum()) if name in CODES else 0
    if CODES & job.results.keys():
        assert bool(refused) == bool(stale)


def test_launches_take_the_plans_of_a_workload_in_turn() -> None:
    launcher = HostLauncher()
    for make in MAKERS[:5]:
        job = make(Sized(launcher, 640, 0.0))
        launched = list[LaunchPlan]()
        recording = SimpleNamespace(launch=launched.append)
        for one in launches_of(recording, job):  # type: ignore[arg-type]
            one()
        assert launched == [job.plans[n % len(job.plans)] for n in range(LAUNCHES)]


class Stream:
    """As much of a stream of CuPy as the programs ask, on the host, where a launch ends before it returns."""

    ptr = 7

    def __init__(self, non_blocking: bool = False) -> None:
        assert non_blocking
        self.is_capturing = False

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def synchronize(self) -> None:
        assert not self.is_capturing

    def begin_capture(self) -> None:
        self.is_capturing = True

    def end_capture(self) -> Any:
        self.is_capturing = False
        return SimpleNamespace(launch=lambda stream: None)


class Event:
    """As much of an event of CuPy, or of torch."""

    def __init__(self, enable_timing: bool = True) -> None: ...

    def record(self, stream: Stream | None = None) -> None: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, end: Event) -> float:
        return 0.5


@pytest.fixture
def cupy_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy with memory of NumPy."""
    runtime = SimpleNamespace(memcpyAsync=lambda *given: None, memcpyDeviceToDevice=3)
    cuda = SimpleNamespace(
        Stream=Stream, Event=Event, runtime=runtime, get_elapsed_time=lambda begin, end: begin.elapsed_time(end),
        Device=lambda: SimpleNamespace(synchronize=lambda: None),
    )  # fmt: skip
    pool = SimpleNamespace(free_all_blocks=lambda: None)
    memory = SimpleNamespace(data=SimpleNamespace(ptr=4096))
    fake = SimpleNamespace(
        cuda=cuda, zeros=lambda count, dtype: memory, uint8=np.uint8, get_default_memory_pool=lambda: pool
    )
    monkeypatch.setitem(sys.modules, "cupy", fake)


@pytest.mark.usefixtures("cupy_on_the_host")
@pytest.mark.parametrize("has_torch", [True, False])
def test_there_is_a_row_for_every_kernel(monkeypatch: pytest.MonkeyPatch, has_torch: bool) -> None:
    cuda = SimpleNamespace(Event=Event, empty_cache=lambda: None)
    with_events = SimpleNamespace(cuda=cuda, from_numpy=torch.from_numpy, bfloat16=torch.bfloat16)
    monkeypatch.setattr(times, "torch_or_why", lambda: (with_events, "") if has_torch else (None, "no torch"))
    monkeypatch.setattr(times, "REPEATS", 3)
    monkeypatch.setattr(times, "LAUNCHES", 2)
    makers = MAKERS[:-2] if has_torch else MAKERS  # what torch makes of packing takes seconds here
    monkeypatch.setattr(workloads, "MAKERS", makers)
    rows = list(times.measured(HostLauncher(), scale=640, device="cpu"))  # type: ignore[arg-type]
    assert [row.name for row in rows] == [make(Sized(HostLauncher(), 640, 0.0)).name for make in makers]
    for row in rows:
        assert (row.kernel_us, row.copy_us, row.torch_us) == (250.0, 250.0, 250.0 if has_torch else None)
        assert row.torch == (leaves_out(getattr(in_torch, row.name)) if has_torch else "no torch")


def test_what_torch_can_not_do_is_told_in_its_row() -> None:
    job = MAKERS[0](Sized(HostLauncher(), 640, 0.0))

    def fails(array: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried\nand more")

    assert times.torch_us(SimpleNamespace(from_numpy=fails), job, "cuda") == (
        "failed: CUDA out of memory. Tried", None,
    )  # fmt: skip


@pytest.mark.usefixtures("cupy_on_the_host")
@pytest.mark.parametrize("pinned", [True, False])
def test_streams_that_do_not_run_side_by_side_are_seen(monkeypatch: pytest.MonkeyPatch, pinned: bool) -> None:
    for name, value in {"SLOTS": 4, "SIZE": 64, "TURNS": 2, "ENTRIES": 8, "LOOKS": 192}.items():
        monkeypatch.setattr(test_streams, name, value)
    with pytest.raises(AssertionError, match=r"did not run as long as the reader: .*'taken': 12"):
        test_streams.one_run(HostLauncher(sources=program_source), pinned, pause=64)  # type: ignore[arg-type]


def test_the_table_tells_times_over_the_copy() -> None:
    assert Row("gather", 2_000_000, 4.0, 2.0, "Nothing else", 8.0).line() == (
        "| gather | 2.0 | 4.0 | 500 | 2.0 | 2.00 | 8.0 | Nothing else |"
    )
    alone = Row("unpin", 1_000, 2.0, 2.0, "no CUDA", None)
    assert alone.line() == "| unpin | 0.0 | 2.0 | 0 | 2.0 | 1.00 |  | no CUDA |"
    assert [line.count("|") for line in HEADER.splitlines()] == [9, 9]


def test_without_a_device_the_script_says_what_is_missing() -> None:
    done = subprocess.run([sys.executable, "tests/gpu"], cwd=REPO, capture_output=True, text=True, check=False)
    if done.returncode != 2:
        pytest.skip("there is a device; the script itself shows it")
    lines = done.stdout.splitlines()
    assert all(line.startswith("lacks: ") and "; fix: " in line for line in lines)
    assert "CuPy" in lines[0] and "NumpyBackend" not in done.stdout
    assert ("torch" in done.stdout) == (times.torch_or_why()[0] is None)
    assert ("compute-sanitizer" in done.stdout) == (device.sanitizer() is None)


SANITIZER = "pip install 'nvidia-cuda-sanitizer-api<14'"


def test_all_that_lacks_is_told_without_cupy_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(REPO)
    monkeypatch.setitem(sys.modules, "cupy", None)  # as if it were not installed
    monkeypatch.setattr(device, "missing", device.missing.__wrapped__)
    monkeypatch.setattr(device, "sanitizer", lambda: None)
    monkeypatch.setattr(times, "torch_or_why", lambda: (None, "torch is not installed"))
    needs_cupy, needs_torch, needs_sanitizer = script.lacking()
    assert needs_cupy.startswith("kernels on a GPU need CuPy, ") and "; fix: pip install 'kvfsm[cuda13]'" in needs_cupy
    assert needs_torch.startswith("torch is not installed: no graphs of decode steps, no comparison; fix: install a ")
    assert needs_sanitizer.endswith(SANITIZER)


def test_the_sanitizer_is_installed_in_one_way() -> None:
    readme = (REPO / "tests" / "gpu" / "README.md").read_text("utf-8")
    assert script.__doc__ is not None and f"``{SANITIZER}``" in script.__doc__ and f"`{SANITIZER}`" in readme
