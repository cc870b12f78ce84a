"""A folder of specs -> ``Spec``, with all problems of all files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from .model import Machine, Vocabulary
from .problems import Place, Problem, Problems, SpecError
from .reader import read_machine, read_vocabulary
from .rules import check_machine, check_vocabulary

FIRST_MACHINES = ("compressed_kv", "uncompressed_tail", "swa_window", "indexer_state", "ondisk_prefix")


@dataclass(frozen=True, slots=True)
class Spec:
    """Everything that one folder says."""

    vocabulary: Vocabulary
    machines: tuple[Machine, ...]
    protocols: tuple[Any, ...]
    profiles: tuple[Any, ...]
    root: Path

    def machine(self, name: str) -> Machine:
        """The machine of that name; KeyError when there is none."""
        return {machine.name: machine for machine in self.machines}[name]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A spec, or None, and what is wrong with it; ``sources`` gives the text of each file that problems point into."""

    spec: Spec | None
    problems: tuple[Problem, ...]
    sources: Mapping[str, str]

    def required(self) -> Spec:
        """The spec; raises SpecError when there are problems."""
        if self.spec is None:
            raise SpecError(self.problems, self.sources)
        return self.spec


def load_spec(directory: Path | None = None) -> Loaded:
    """Read and check a spec: ``vocabulary.yaml``, ``objects/``, ``protocols/``, ``models/``. None: the shipped one.

    Problems name files below ``directory`` as it was given; those of the shipped spec start with "spec/".
    """
    root = Path(str(files("kvfsm.spec"))) if directory is None else directory
    shown = "spec" if directory is None else directory.as_posix()
    problems = Problems()
    vocabulary = read_vocabulary(root / "vocabulary.yaml", f"{shown}/vocabulary.yaml", problems)
    paths = sorted((root / "objects").glob("*.yaml"), key=_machine_order)
    if not paths:
        problems.add(
            "E111", Place(f"{shown}/objects", 1, 1), "there are no machines", "put one YAML file a machine there"
        )
    read = [read_machine(path, f"{shown}/objects/{path.name}", vocabulary, problems) for path in paths]
    machines = tuple(machine for machine in read if machine is not None)
    for machine in machines:
        check_machine(machine, problems)
    if vocabulary is not None and len(machines) == len(paths):
        check_vocabulary(vocabulary, machines, problems)
    if vocabulary is None or problems.found:
        return Loaded(None, problems.sorted(), problems.sources)
    return Loaded(Spec(vocabulary, machines, (), (), root), problems.sorted(), problems.sources)


def _machine_order(path: Path) -> tuple[int, str]:
    rank = FIRST_MACHINES.index(path.stem) if path.stem in FIRST_MACHINES else len(FIRST_MACHINES)
    return rank, path.stem
