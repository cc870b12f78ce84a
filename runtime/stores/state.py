"""The namespace's small durable state: its reset epoch, and how far the log was durable when this was written."""

from __future__ import annotations

import json
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

from .files import Files, read_file, replace_file
from .format import EPOCH_MAX, checksum
from .segments import Mark

NAME = "state.json"


@dataclass(frozen=True, slots=True)
class State:
    """Contents of the state file. Groups up to ``mark.group`` are known to be durable."""

    epoch: int
    mark: Mark

    def write(self, files: Files, directory: Path) -> None:
        """Replace the state file; durable when this returns. Raises what `replace_file` raises."""
        text = json.dumps({"epoch": self.epoch, "mark": asdict(self.mark)}, sort_keys=True)
        replace_file(files, directory / NAME, f"{text}\n{checksum(text.encode()).hex()}\n".encode())


def read_state(files: Files, directory: Path) -> State | None:
    """The state file's contents; None when it is missing, damaged, or says what this version doesn't write."""
    data = read_file(files, directory / NAME)
    if data is None:
        return None
    text, _, check = data.partition(b"\n")
    if check.strip() != checksum(text).hex().encode():
        return None
    try:
        fields = json.loads(text)
        state = State(fields["epoch"], Mark(**fields["mark"]))
    except (ValueError, KeyError, TypeError):
        return None
    numbers = [state.epoch, *astuple(state.mark)]
    sound = all(isinstance(number, int) and number >= 0 for number in numbers) and state.epoch <= EPOCH_MAX
    return state if sound else None
