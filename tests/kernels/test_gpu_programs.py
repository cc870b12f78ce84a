"""The tests of ``tests/gpu`` have not run on a device; what of them can run on the host runs here."""

from __future__ import annotations

import pytest

from kvfsm.kernels.launch import Kernel

from ..gpu.differences import differences
from ..gpu.programs import E4M3_DIFFERENCES, REWRITE, program_source
from ..gpu.stress import Stress
from ..gpu.test_parity import collected, parity_modules
from ..hostcuda.building import Build
from ..hostcuda.host import HostLauncher, edited
from ..hostcuda.schedules import Random
from .compiling import LACKS, TABLE_MAJOR, nvrtcs


def test_the_parity_tests_are_collected_for_the_device() -> None:
    found, count = collected(), 0
    for module in parity_modules():
        tests = [value for name, value in vars(module).items() if name.startswith("test_") and callable(value)]
        assert tests and all(any(one is value for value in found.values()) for one in tests)
        count += len(tests)
    assert len(parity_modules()) >= 4
    assert sum(name.startswith(tuple("test_")) for name in found) >= count


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
@pytest.mark.parametrize("seed", range(3))
def test_readers_against_a_rewriter(pinned: bool, seed: int) -> None:
    launcher = HostLauncher(Build.CHECK, Random(seed, resident=8), program_source, races=False)
    counts = together(launcher, Stress(launcher, 6, 64, 4, 8), pinned)
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
