"""H-02: shareable groups alone are no hit; the window vouches for its rows, or the answer says what to replay."""

from __future__ import annotations

from typing import Any

from kvfsm.runtime.answers import AnswerKind
from kvfsm.runtime.policy import WindowPolicy
from kvfsm.runtime.requests import GUARD


def hybrid(bench: Any) -> Any:
    return bench.profile(
        256, bench.group("compressed", "compressed_kv", 256, 256, ratio=4), bench.window(64, 64),
        window=128, window_policy="blocks", window_block=64,
    )  # fmt: skip


def live_through(manager: Any, bench: Any, prompt: list[int]) -> None:
    """R1 runs and ends on row 0; R2 takes over its row and its window ring."""
    keys = manager.keys(prompt[:1024])
    first = manager.requests.admit(1024)
    ring = manager.requests.window_table([first])
    bench.put(manager, keys, 0, 4, tag=1, kinds=("compressed_kv",))
    manager.requests.finish(first)
    second = manager.requests.admit(300)
    assert second == first
    assert set(manager.requests.window_table([second]).ravel()) & set(ring.ravel()) - {GUARD}


def test_H02_a_window_that_nobody_vouches_for_is_a_miss(bench: Any) -> None:
    manager = bench.manager(hybrid(bench), {"compressed_kv": 16, "swa_window": 6})
    prompt = bench.tokens(1025)
    live_through(manager, bench, prompt)
    answer = manager.match(manager.keys(prompt), 1025)
    # sign of the defect: 1024, whose window rows carry R2's tag
    assert (answer.kind, answer.length) == (AnswerKind.MISS, 0)
    assert answer.objects["swa_window"].length == 0 and answer.objects["compressed_kv"].length == 1024
    bench.audited(manager)


def test_H02_without_kept_windows_the_replay_is_part_of_the_hit(bench: Any) -> None:
    manager = bench.manager(hybrid(bench), {"compressed_kv": 16, "swa_window": 6}, window=WindowPolicy.none())
    prompt = bench.tokens(1025)
    live_through(manager, bench, prompt)
    answer = manager.match(manager.keys(prompt), 1025)
    # sign of the defect: a plain, exact 1024
    assert (answer.kind, answer.length, answer.exact) == (AnswerKind.HIT, 1024, False)
    assert answer.replay is not None and answer.replay.start <= 897 and answer.replay.stop == 1024
    with manager.acquire(answer) as lease:
        assert lease.replay == answer.replay and not lease.exact and "swa_window" not in lease.slots
    bench.audited(manager)


def test_H02_a_published_window_makes_it_a_hit(bench: Any) -> None:
    manager = bench.manager(hybrid(bench), {"compressed_kv": 16, "swa_window": 16})
    prompt = bench.tokens(1025)
    bench.put(manager, manager.keys(prompt), 0, 4)
    assert manager.match(manager.keys(prompt), 1025).length == 1024
