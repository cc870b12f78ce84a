"""The tests of ``tests/gpu`` have not run on a device; what of them can run on the host runs here."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from kvfsm.kernels.catalogue import catalogue
from kvfsm.kernels.launch import Kernel

from ..gpu.differences import differences
from ..gpu.programs import E4M3_DIFFERENCES, REWRITE, program_source
from ..gpu.stress import Stress
from ..gpu.test_parity import collected, parity_modules
from ..gpu.times import Row, table
from ..gpu.workloads import workloads
from ..hostcuda.building import Build
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
    for kernel in (E4M3_DIFFERENCES, REWRITE):
        usage = nvrtcs()[TABLE_MAJOR].compile(program_source(kernel), architecture).usage
        assert kernel.symbol in usage


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


def together(launcher: HostLauncher, stress: Stress, pinned: bool) -> dict[str, int]:
    """The rewriter and the launches of a turn, side by side, turn by turn."""
    for turn in range(stress.turns):
        peek, *reading = stress.reading(turn, pinned)
        launcher.launch(peek)
        if not pinned:
            launcher.launch_together([stress.rewriting(2), *reading])
            continue
        pin, gather, unpin = reading
        launcher.launch_together([stress.rewriting(1), pin])
        launcher.launch_together([stress.rewriting(2), gather])
        launcher.launch(unpin)
    return stress.verify(pinned)


@pytest.mark.parametrize("pinned", [True, False])
def test_readers_against_a_rewriter(pinned: bool) -> None:
    counts = Counter[str]()
    for seed in range(6):
        launcher = HostLauncher(Build.CHECK, Random(seed, resident=8), program_source, races=False)
        counts.update(together(launcher, Stress(launcher, 6, 64, 4, 8), pinned))
    assert counts["read"] and counts["refused"] and counts["taken"], counts


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


def test_every_kernel_has_a_launch_in_the_table_of_times() -> None:
    launcher = HostLauncher(Build.CHECK)
    jobs, _ = workloads(launcher, scale=64)
    assert sorted(one.name for one in jobs) == sorted(catalogue())
    launcher.launches.clear()
    for one in jobs:
        launcher.launch(one.plan)
        assert one.plan.kernel.name == one.name and launcher.launches[one.name] == 1
        # What docstrings count are sectors for words; at this size headers weigh more than they do on a device.
        assert 0.25 * one.bytes <= moved_bytes(launcher) <= 2.1 * one.bytes, one.name


def test_the_table_tells_times_over_the_copy() -> None:
    rows = [Row("gather", 2_000_000, 4.0, 2.0, "arena[ids]", 8.0), Row("unpin", 1_000, 2.0, 2.0, None, None)]
    lines = table(rows).splitlines()
    assert lines[2] == "| gather | 2.0 | 4.0 | 500 | 2.0 | 2.00 | 8.0 | `arena[ids]` |"
    assert lines[3] == "| unpin | 0.0 | 2.0 | 0 | 2.0 | 1.00 |  |  |"


def test_without_a_device_the_script_says_what_is_missing() -> None:
    done = subprocess.run([sys.executable, "tests/gpu"], cwd=REPO, capture_output=True, text=True, check=False)
    if done.returncode == 2:
        assert "CuPy" in done.stdout and "fix:" in done.stdout
    else:
        pytest.skip("there is a device; the script itself shows it")
