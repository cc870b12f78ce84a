"""A running request's tokens: decoded, drafted, rolled back, and found again by the keys that grow with it."""

from __future__ import annotations

import pytest

from kvfsm.runtime.errors import Refused
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.scheduler import Live, Stepped, Work

from .bench import LLAMA, A, Bench
from .serving import prompt

DRAFTING = PROFILES["tiny_gpt_oss"]
D = DRAFTING.granule


def runs(bench: Bench, tokens: list[int]) -> Live:
    live = bench.submit(tokens)
    while live.row is None or live.computed < len(tokens):
        assert bench.scheduler.schedule()
    return live


# ---- keys -----------------------------------------------------------------------------------------------------------


def test_tokens_that_are_told_are_found() -> None:
    bench = Bench()
    one, two = runs(bench, prompt(3, A - 2)), runs(bench, prompt(4, A - 3))
    for token in range(5):
        assert bench.scheduler.decode([one, two], tokens=[token, 50 + token]).lives == (one, two)
    assert (one.keys.tokens, two.keys.tokens) == (one.tokens, two.tokens) == (A + 3, A + 2)
    assert bench.scheduler.publish(one) == 1 and bench.scheduler.publish(two) == 1
    assert bench.manager.match(bench.manager.keys([*prompt(3, A - 2), *range(5)])).length == A
    assert bench.manager.match(bench.manager.keys([*prompt(4, A - 3), *range(50, 55)])).length == A
    bench.over()


def test_who_goes_back_has_the_token_not_yet() -> None:
    bench = Bench(5)
    one, two = runs(bench, prompt(3, 2 * A)), runs(bench, prompt(4, 2 * A))
    stepped = bench.scheduler.decode([one, two], tokens=[7, 8])
    assert stepped == Stepped((one,), (one.row or 0,), (two,))
    assert (one.keys.tokens, two.keys.tokens, two.tokens) == (2 * A + 1, 2 * A, 2 * A)
    bench.over()


def test_who_was_given_up_does_not_step() -> None:
    bench = Bench()
    one, two = runs(bench, prompt(3, 20)), runs(bench, prompt(4, 20))
    assert bench.scheduler.cancel(one)
    assert bench.scheduler.decode([one, two], tokens=[7, 8]) == Stepped((two,), (two.row or 0,), ())
    assert one.keys.tokens == 20
    bench.over()


def test_keys_that_have_more_than_the_row_are_told_apart_from_those_that_have_less() -> None:
    bench = Bench()
    long = bench.scheduler.submit(bench.manager.keys(prompt(3, 20)), 10)
    short = bench.scheduler.submit(bench.manager.keys(prompt(4, 20)), 20 + 1)
    bench.granted()
    with pytest.raises(ValueError, match="request 1 have 20 tokens, and its row 10; they have more than"):
        bench.scheduler.decode([long], tokens=[7])
    with pytest.raises(ValueError, match="request 2 have 20 tokens, and its row 21; tokens= goes on from"):
        bench.scheduler.decode([short], tokens=[7])
    assert bench.scheduler.decode([long, short]).lives == (long, short)
    bench.over()


@pytest.mark.parametrize("tokens", [[1], [1, 2, 3], [1, -1], [1, 1 << 31]])
def test_tokens_that_can_not_be_meant_change_nothing(tokens: list[int]) -> None:
    bench = Bench()
    lives = [runs(bench, prompt(3, 20)), runs(bench, prompt(4, 20))]
    with pytest.raises(ValueError, match="token"):
        bench.scheduler.decode(lives, tokens=tokens)
    assert [(live.tokens, live.keys.tokens) for live in lives] == [(20, 20)] * 2
    bench.scheduler.decode(lives)  # keys lag from now on
    with pytest.raises(ValueError, match="the keys of request 1 have 20 tokens, and its row 21"):
        bench.scheduler.decode(lives, tokens=[1, 2])
    assert [live.tokens for live in lives] == [21, 21]
    bench.over()


def test_where_keys_lag_what_they_cover_is_found() -> None:
    bench = Bench()
    live = runs(bench, prompt(3, 3 * A - 2))
    for _ in range(5):
        bench.scheduler.decode([live])
    assert bench.scheduler.publish(live) == 2
    bench.scheduler.preempt(live)
    assert live.tokens == 3 * A + 3 and bench.manager.match(live.keys).length == 2 * A
    assert bench.granted() == [(1, 2 * A, 3 * A + 3)]
    live.keys.extend(range(5))
    assert bench.scheduler.publish(live) == 3
    bench.over()


# ---- the last whole granule -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["tiny_deepseek_v4", "tiny_gpt_oss", "tiny_llama", "tiny_gemma3"])
@pytest.mark.parametrize("chunks", [None, 1, 2, 8])
def test_a_prompt_that_ends_within_a_granule_is_found_up_to_it(model: str, chunks: int | None) -> None:
    profile = PROFILES[model]
    granule = profile.granule
    bench = Bench(64, profile=profile, chunk=None if chunks is None else chunks * granule)
    tokens = prompt(3, 3 * granule + 4)
    for start in (0, 3 * granule):
        steps: list[Work] = []
        live = bench.submit(tokens)
        while not steps or steps[-1].stop < len(tokens):
            for work in bench.scheduler.schedule():
                steps.append(work)
                bench.scheduler.publish(live)
        assert (steps[0].start, steps[0].exact) == (start, True)
        if start == 0 and chunks is None and bench.manager.core.trailing:
            assert [(work.start, work.stop) for work in steps] == [(0, 3 * granule), (3 * granule, len(tokens))]
        bench.scheduler.finish(live)
    assert bench.manager.match(bench.manager.keys(tokens)).length == 3 * granule
    bench.over()


def test_who_keeps_boundaries_itself_needs_no_step_more() -> None:
    bench = Bench(64, profile=DRAFTING, boundaries=False)
    bench.submit(prompt(3, 3 * D + 4))
    assert bench.granted() == [(1, 0, 3 * D + 4)]
    bench.over()


def test_plain_kv_needs_no_step_more() -> None:
    bench = Bench()
    bench.submit(prompt(3, 3 * A + 4))
    assert LLAMA.window is None and bench.granted() == [(1, 0, 3 * A + 4)]
    bench.over()


# ---- drafts ---------------------------------------------------------------------------------------------------------


def test_accepted_drafts_are_the_requests_tokens() -> None:
    bench = Bench(32, profile=DRAFTING)
    live = runs(bench, prompt(3, D - 4))
    stepped = bench.scheduler.propose([live], 2)
    assert stepped == Stepped((live,), (live.row or 0,), ()) and live.tokens == D - 4
    with pytest.raises(ValueError, match="open drafts"):
        bench.scheduler.decode([live])
    bench.scheduler.accept([live], 2, tokens=[[1, 2]])
    assert live.tokens == live.computed == live.keys.tokens == D - 2
    bench.scheduler.propose([live], [3])
    bench.scheduler.reject([live])
    assert live.tokens == D - 2
    bench.scheduler.decode([live], tokens=[3])
    bench.scheduler.decode([live], tokens=[4])
    assert bench.scheduler.publish(live) == 1
    bench.scheduler.preempt(live)
    assert live.tokens == live.keys.tokens == D
    bench.over()


def test_tokens_that_the_table_accepted_are_counted() -> None:
    bench = Bench(32, profile=DRAFTING)
    live = runs(bench, prompt(3, D - 4))
    bench.manager.requests.propose([live.row], 3)
    bench.manager.requests.accept([live.row], 2)
    assert live.tokens == live.computed == D - 2
    bench.scheduler.preempt(live)
    assert live.tokens == D - 2
    bench.over()


def test_what_can_not_be_accepted_changes_nothing() -> None:
    bench = Bench(32, profile=DRAFTING)
    live = runs(bench, prompt(3, 20))
    bench.scheduler.propose([live], 2)
    for counts, tokens, says in ((3, None, "at most so many"), ([1, 1], None, "2 numbers for 1"),
                                 (2, [[1]], "other tokens than"), (1, [], "tokens for 0 of 1")):  # fmt: skip
        with pytest.raises(ValueError, match=says):
            bench.scheduler.accept([live], counts, tokens=tokens)
    assert (live.tokens, live.keys.tokens) == (20, 20)
    bench.scheduler.accept([live], 1, tokens=[[5]])
    with pytest.raises(Refused):
        bench.scheduler.propose([live], 10_000)
    assert live.tokens == 21 and not bench.manager.requests.drafts.any()
    bench.over()


def test_a_request_goes_on_from_fewer_tokens() -> None:
    bench = Bench(32, profile=DRAFTING)
    tokens = prompt(3, D + 4)
    live = runs(bench, tokens)
    bench.scheduler.decode([live], tokens=[1])
    bench.scheduler.decode([live], tokens=[2])
    with pytest.raises(ValueError, match="give keys= of no more"):
        bench.scheduler.rollback(live, D + 5)
    assert live.tokens == D + 6
    with pytest.raises(Refused, match="was the prompt stays"):
        bench.scheduler.rollback(live, D + 3, keys=bench.manager.keys(tokens[: D + 3]))
    assert live.tokens == live.keys.tokens == D + 6
    assert bench.scheduler.rollback(live, D + 5, keys=bench.manager.keys([*tokens, 1]))
    assert live.tokens == live.computed == live.keys.tokens == D + 5
    bench.manager.requests.rollback(live.row, D + 4)
    assert live.tokens == D + 4
    bench.scheduler.preempt(live)
    assert live.tokens == D + 4
    assert bench.scheduler.cancel(live)
    assert not bench.scheduler.rollback(live, 1)
    bench.over()


# ---- who gives way --------------------------------------------------------------------------------------------------


def test_who_gave_way_begins_again_when_somebody_has_ended() -> None:
    bench = Bench(5)
    one, two = runs(bench, prompt(3, A - 2)), runs(bench, prompt(4, A - 2))
    left = {one: 4 * A - 2, two: 2 * A}
    back = 0
    for _ in range(40 * A):
        if not bench.scheduler.live:
            break
        bench.scheduler.schedule()
        stepping = [live for live in bench.scheduler.live.values() if live.row is not None and left[live]]
        stepped = bench.scheduler.decode(stepping, tokens=[5] * len(stepping))
        back += len(stepped.back)
        for live in stepped.lives:
            left[live] -= 1
            if not left[live]:
                bench.scheduler.finish(live)
    assert not bench.scheduler.live and back == bench.scheduler.report().preempted == 1
    bench.over()


def test_who_gave_way_waits_for_nobody_who_does_not_run() -> None:
    bench = Bench(5)
    one, two = runs(bench, prompt(3, 2 * A)), runs(bench, prompt(4, 2 * A))
    assert bench.scheduler.decode([one, two]).back == (two,)
    assert bench.granted() == [] and bench.states(two) == ["waiting"]
    bench.scheduler.preempt(one)  # it gives its room back
    assert sorted(number for number, _, _ in bench.granted()) == [1, 2]
    bench.over()
