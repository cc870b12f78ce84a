"""Four processes agree over gloo: they evict differently, one is slow, one comes late, one is killed."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

pytestmark = pytest.mark.xdist_group("torch ranks")  # one run of four processes, which several tests look at

REPO = Path(__file__).parents[2]
WORKER = [sys.executable, "-m", "tests.integrations.rank_worker"]
LEFT = (0, 1, 3)
CUTS_OF_2 = (2, 5)
Reports = dict[int, dict[str, Any]]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """What each of the surviving ranks reports; rank 2 is gone by the end."""
    folder = tmp_path_factory.mktemp("ranks")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=300))
    with ExitStack() as files:
        said = [files.enter_context((folder / f"{rank}.out").open("w")) for rank in range(4)]
        wrong = [files.enter_context((folder / f"{rank}.err").open("w")) for rank in range(4)]
        workers = [
            subprocess.Popen([*WORKER, str(rank), str(store.port)], cwd=REPO, stdout=out, stderr=err)
            for rank, (out, err) in enumerate(zip(said, wrong, strict=True))
        ]
        try:
            codes = [worker.wait(timeout=300) for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
    assert codes == [0, 0, -9, 0], "\n".join((folder / f"{rank}.err").read_text()[-3000:] for rank in range(4))
    return {rank: json.loads((folder / f"{rank}.out").read_text().splitlines()[-1]) for rank in LEFT}


def every(reports: Reports, name: str) -> list[Any]:
    return [reports[rank][name] for rank in LEFT]


def test_the_lines_of_the_readme_make_a_group_of_one() -> None:
    """Over gloo, on ports that are free now."""
    text = (REPO / "runtime" / "integrations" / "README.md").read_text("utf-8")
    *_, lines = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        ports = first.getsockname()[1], second.getsockname()[1]
    manager = """
from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.manager import Manager
profile = PROFILES["tiny_llama"]
manager = Manager(profile, dict.fromkeys(profile.kinds, 4), NumpyBackend())
"""
    here = lines.replace('"nccl"', '"gloo"').replace('"head", 29600', f'"127.0.0.1", {ports[0]}')
    assert here.count("gloo") == 2 and "127.0.0.1" in here
    ends = "\nassert group.rank == 0 and group.size == 1\ndist.destroy_process_group()\n"
    rank = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ports[1]), "RANK": "0", "WORLD_SIZE": "1"}
    command = [sys.executable, "-c", manager + here + ends]
    done = subprocess.run(command, env=os.environ | rank, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def test_ranks_that_evict_differently_agree_on_what_all_have(reports: Reports) -> None:
    evicting = every(reports, "evicting")
    own = [one["own"][0] for one in evicting]
    assert own == [[2, 5, 8], [2, 8], [2, 5, 9]]
    assert min(*map(max, own), max(CUTS_OF_2)) == 5  # the least of the greatest: rank 1 can't restore it
    assert [step["lengths"] for step in evicting[0]["steps"]] == [[2, 2, 0], [2], [0], [0]]
    assert [one["own"][1] for one in evicting] == [[2, 5, 8], [], [2, 5, 9]]


def test_all_ranks_decide_the_same_in_the_same_order(reports: Reports) -> None:
    evicting = every(reports, "evicting")
    assert evicting[0]["steps"] == evicting[1]["steps"] == evicting[2]["steps"]
    assert [one["exchanges"] for one in evicting] == [8, 8, 8]
    assert all(one["audit"] for one in evicting)


def test_a_rank_leases_what_was_agreed_and_nothing_else(reports: Reports) -> None:
    for one in every(reports, "evicting"):
        assert [step["leases"] for step in one["steps"]] == [step["lengths"] for step in one["steps"]]


def test_a_rank_without_room_makes_the_request_wait_on_all(reports: Reports) -> None:
    assert [one["steps"][2]["refused_by"] for one in every(reports, "evicting")] == [[[2]]] * 3


def test_schedulers_begin_the_same_requests_at_the_same_tokens(reports: Reports) -> None:
    ranks = every(reports, "scheduling")
    assert [one["alone"] for one in ranks] == [8, 8, 9]  # what each could go on from by itself
    assert ranks[0]["log"] == ranks[1]["log"] == ranks[2]["log"]
    (number, start, stop), *_ = ranks[0]["log"][0]
    assert (number, start, stop) == (1, 2 * 32, 6 * 32)  # what all have, and a chunk
    assert len({one["exchanges"] for one in ranks}) == 1 and all(one["audit"] and not one["held"] for one in ranks)


def test_schedulers_load_at_their_own_pace_and_begin_from_what_all_can_have(reports: Reports) -> None:
    """Of ten granules one store lacks the last, and another has a rotten eighth: after three loads all have seven."""
    ranks = every(reports, "loading")
    log = [tuple(work) for work in ranks[0]["log"]]
    assert all(one["log"] == ranks[0]["log"] for one in ranks)
    assert (1, 7 * 32, 10 * 32) in log and (2, 103, 104) in log
    assert log.index((2, 103, 104)) < log.index((1, 7 * 32, 10 * 32))  # nobody waits for rank 3 but who needs it
    assert [one["same"] for one in ranks] == [True] * 3 and len({one["exchanges"] for one in ranks}) == 1
    assert len({one["tries"] for one in ranks}) == 1 and all(one["loads"] for one in ranks)
    assert [one["failed"] > 0 for one in ranks] == [False, True, False]
    assert [one["leaks"] for one in ranks] == [[]] * 3


def test_a_scheduler_is_told_that_a_rank_was_killed(reports: Reports) -> None:
    for one in every(reports, "killed, scheduling"):
        assert (one["error"], one["ranks"], one["held"], one["states"]) == ("RankLost", [2], 0, {"waiting": 1})


def test_what_one_rank_loses_meanwhile_all_give_up_in_the_same_step(reports: Reports) -> None:
    for one in every(reports, "losing"):
        assert (one["steps"][0]["lengths"], one["steps"][0]["votes"], one["exchanges"]) == ([0], 2, 4)
        assert one["held"] == 0


def test_messages_longer_than_a_frame_arrive(reports: Reports) -> None:
    assert every(reports, "long") == [[True, True]] * 3


def test_another_order_of_requests_is_told_on_every_rank(reports: Reports) -> None:
    for one in every(reports, "order"):
        assert (one["error"], one["held"]) == ("RanksDiverged", 0)
        assert "differ in request 0 of step 0: rank 0, 2, 3: " in one["text"]


def test_a_rank_that_never_comes_is_named(reports: Reports) -> None:
    late = every(reports, "late")
    assert [one["error"] for one in late] == ["RankLost"] * 3
    assert [one["held"] for one in late] == [0, 0, 0]
    assert [one["ranks"] for one in late[:2]] == [[3], [3]]


def test_a_killed_rank_is_named_and_nothing_stays_leased(reports: Reports) -> None:
    for name in ("killed", "killed, collective"):
        for one in every(reports, name):
            assert (one["error"], one["ranks"], one["held"]) == ("RankLost", [2], 0), one
    assert every(reports, "audit") == [True, True, True]
    assert all("has ended" in text and "rank 2 is lost" in text for text in every(reports, "afterwards"))


def test_a_lost_group_stays_lost(reports: Reports) -> None:
    for name in ("killed, unnoted", "again"):
        assert [one["error"] for one in every(reports, name)] == ["RankLost"] * 3
    assert every(reports, "killed, unnoted")[0]["ranks"] == [2]
