"""What a watch takes for the graphs of one runner, and how it tells what was found. On the host alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from kvfsm.kernels.backend import KernelBackend
from kvfsm.kernels.call_refusal import CallRefusal
from kvfsm.kernels.graph_watch import GraphWatch, in_words
from kvfsm.kernels.reference import NumpyBackend
from kvfsm.kernels.topology_check import RECORD, What
from kvfsm.runtime.generated import Refusal
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.graphs import GraphRunner, Inputs, Launch
from kvfsm.runtime.manager import Manager

from ..hostcuda.host import HostLauncher

PROFILE = PROFILES["tiny_gpt_oss"]
SLOTS = dict.fromkeys(PROFILE.kinds, 24)
BUCKET = 4


@dataclass
class Watched:
    """A runner of a step that may launch the check, and its watch."""

    launcher: HostLauncher
    backend: KernelBackend
    manager: Manager
    checks: bool = True
    watch: GraphWatch | None = None

    @classmethod
    def make(cls) -> Watched:
        backend = KernelBackend(launcher := HostLauncher())
        return cls(launcher, backend, Manager(PROFILE, SLOTS, backend, buffers=backend.arenas(PROFILE, SLOTS)))

    def step(self, launch: Launch, inputs: Inputs) -> None:
        if self.checks and self.watch is not None:
            self.watch.launch(launch, inputs)

    def runner(self) -> GraphRunner:
        return GraphRunner(self.manager, self.step, [BUCKET])


def test_a_watch_of_what_does_not_belong_together_is_refused() -> None:
    here, there = Watched.make(), Watched.make()
    runner = here.runner()
    for given, why in (
        ((here.launcher, here.manager, there.runner(), here.backend), "the runner is another manager's; fix: "),
        ((here.launcher, here.manager, runner, there.backend), "the backend is not the manager's, and has other words"),
        ((there.launcher, here.manager, runner, here.backend), "the slots lie in another launcher's memory; fix: "),
        ((there.launcher, here.manager, runner, None), "the slots lie in another launcher's memory; fix: "),
    ):
        with pytest.raises(ValueError, match=why):
            GraphWatch(*given)
    runner.capture(BUCKET)
    with pytest.raises(ValueError, match="the runner has captured 4 rows already, without the check; fix: make"):
        GraphWatch(here.launcher, here.manager, runner, here.backend)
    GraphWatch(here.launcher, here.manager, here.runner(), here.backend)


def test_a_graph_without_the_check_is_refused() -> None:
    here = Watched.make()
    runner = here.runner()
    here.watch = GraphWatch(here.launcher, here.manager, runner, here.backend)
    runner.capture(BUCKET)
    with pytest.raises(ValueError, match=r"runner.capture\(4\) told the watch nothing; fix: use watch.capture\(4\)"):
        here.watch.before_replay([])
    here.watch.capture(BUCKET)
    here.watch.before_replay([])
    runner.capture(BUCKET)  # of the same memory, and yet another graph
    with pytest.raises(ValueError, match="told the watch nothing"):
        here.watch.before_replay([])
    here.checks = False
    with pytest.raises(ValueError, match="the step for 4 rows doesn't launch the check; fix: begin it with watch"):
        here.watch.capture(BUCKET)
    assert runner.signature(BUCKET) is None


def test_a_watch_without_words_needs_no_backend() -> None:
    here = Watched.make()
    here.manager = Manager(PROFILE, SLOTS, NumpyBackend())
    here.watch = GraphWatch(here.launcher, here.manager, runner := here.runner())
    here.watch.capture(BUCKET)
    here.watch.before_replay([])
    runner.replay([])
    assert [in_words(one) for one in here.watch.violations()[0]] == []


@pytest.mark.parametrize("code", [*Refusal, *CallRefusal], ids=lambda code: code.name)
@pytest.mark.parametrize("what", What, ids=lambda what: what.name)
def test_a_record_is_told_by_names(what: What, code: Refusal | CallRefusal) -> None:
    record = np.array((what, 1, 0, code, 10, -3), RECORD)[()]
    assert in_words(record) == f"{what.name}, {code.name}: row 1, column 0: found 10, wanted -3"
