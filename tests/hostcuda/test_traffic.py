"""What is counted is what a warp's requests move: whole sectors, once a request."""

from __future__ import annotations

import numpy as np
import pytest

from kvfsm.kernels.launch import Argument, Kernel, LaunchPlan

from .building import Build
from .host import HostLauncher
from .planted import planted_source
from .schedules import EVERY_DAY, FORWARD, Schedule
from .traffic import Traffic

ARGUMENTS = (Argument("from", "const u8*", alignment=16), Argument("to", "u8*", alignment=16))
BLOCKS = 4


def traffic_of(name: str, schedule: Schedule = FORWARD) -> Traffic:
    launcher = HostLauncher(Build.CHECK, schedule, planted_source)
    kernel = Kernel(name, "requests.cu", ARGUMENTS, threads=64)
    source, target = launcher.upload(np.zeros(4096, np.uint8)), launcher.empty((4096,), np.uint8)
    launcher.launch(LaunchPlan(kernel, (BLOCKS, 1, 1), (source.pointer, target.pointer)))
    assert launcher.traffic is not None
    return launcher.traffic


@pytest.mark.parametrize("schedule", EVERY_DAY, ids=str)
def test_a_coalesced_copy_moves_each_byte_once(schedule: Schedule) -> None:
    traffic = traffic_of("copies_by_16", schedule)
    assert (traffic.bytes_read, traffic.bytes_written) == (4096, 4096)
    assert (traffic.compulsory_read, traffic.compulsory_written) == (4096, 4096)
    assert traffic.sectors == 2 * 4096 // 32
    assert traffic.waste == 0.0
    load, store = sorted(traffic.sites, key=lambda site: site.is_write)
    for site in (load, store):
        assert (site.width, site.requests, site.sectors_per_request, site.efficiency) == (16, 2 * BLOCKS, 16.0, 1.0)
        assert site.place is not None and site.place.file == "tests/hostcuda/planted/requests.cu"


def test_a_stride_between_lanes_is_waste() -> None:
    traffic = traffic_of("copies_by_stride")
    assert traffic.compulsory == traffic.bytes_read + traffic.bytes_written == 2 * 4096
    assert traffic.bytes_moved == 2 * 2 * 4096
    assert traffic.waste == 1.0
    assert {site.sectors_per_request for site in traffic.sites} == {32.0}


def test_a_byte_that_all_lanes_read_is_asked_for_once_a_request() -> None:
    traffic = traffic_of("broadcasts")
    assert (traffic.bytes_read, traffic.sectors_read, traffic.compulsory_read) == (2 * BLOCKS, 2 * BLOCKS, 1)
    assert (traffic.bytes_written, traffic.sectors_written) == (64 * BLOCKS, 2 * BLOCKS)


def test_a_fast_build_has_no_traffic() -> None:
    launcher = HostLauncher(Build.FAST, FORWARD, planted_source)
    kernel = Kernel("broadcasts", "requests.cu", ARGUMENTS, threads=64)
    buffer = launcher.upload(np.zeros(256, np.uint8))
    launcher.launch(LaunchPlan(kernel, (1, 1, 1), (buffer.pointer, buffer.pointer)))
    assert launcher.traffic is None
