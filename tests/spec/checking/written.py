"""Protocols written in a test, of machines that are shipped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kvfsm.spec.checking.sizes import Reread
from kvfsm.spec.language.problems import Problems
from kvfsm.spec.language.protocol import Protocol
from kvfsm.spec.language.protocol_reader import read_protocol

from .shipped import spec


def reread(folder: Path, text: str) -> Reread:
    """Reads a protocol, which is written to the folder, with other bounds; ``required`` is for the file's own."""
    name = text.split("\n", 1)[0].removeprefix("protocol: ")
    path = folder / f"{name}.yaml"
    path.write_text(text, encoding="utf-8")

    def read(bounds: Mapping[str, int]) -> Protocol | None:
        machines = (*spec().machines, *spec().protocol_machines)
        return read_protocol(path, path.name, spec().vocabulary, machines, Problems(), bounds)

    return read


def required(read: Reread, **bounds: int) -> Protocol:
    """The protocol with some bounds, with which it has no mistakes."""
    protocol = read(bounds)
    assert protocol is not None, bounds
    return protocol
