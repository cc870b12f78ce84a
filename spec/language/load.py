"""A folder of specs -> ``Spec``, with all problems of all files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from .model import HitPolicy, Machine, Vocabulary
from .problems import Place, Problem, Problems, SpecError
from .profile import ProfileSpec, read_profile
from .protocol import Protocol
from .protocol_reader import read_protocol
from .reader import read_machine, read_vocabulary
from .rules import check_machine, check_protocol_machine, check_safeguard, check_vocabulary

FIRST_MACHINES = ("compressed_kv", "uncompressed_tail", "swa_window", "indexer_state", "ondisk_prefix")
SAFEGUARDS = "safeguards"
PROTOCOL_MACHINES = "protocols/machines"


@dataclass(frozen=True, slots=True)
class Spec:
    """Everything that one folder says."""

    vocabulary: Vocabulary
    machines: tuple[Machine, ...]
    safeguards: tuple[Machine, ...]  # what the runtime keeps words for besides objects
    protocol_machines: tuple[Machine, ...]  # those that only protocols use; nothing is generated from them
    protocols: tuple[Protocol, ...]
    profiles: tuple[ProfileSpec, ...]
    root: Path

    def machine(self, name: str) -> Machine:
        """The machine of that name, of an object or a safeguard; KeyError when there is none."""
        return {machine.name: machine for machine in self.generated}[name]

    @property
    def generated(self) -> tuple[Machine, ...]:
        """The machines that have classes, pictures and tests: those of objects and safeguards."""
        return (*self.machines, *self.safeguards)

    @property
    def all_machines(self) -> tuple[Machine, ...]:
        """Every machine: of objects, of safeguards, and those that only protocols use."""
        return (*self.machines, *self.safeguards, *self.protocol_machines)

    def protocol_machine(self, name: str) -> Machine:
        """The machine of that name that only protocols use; KeyError when there is none."""
        return {machine.name: machine for machine in self.protocol_machines}[name]

    def protocol(self, name: str) -> Protocol:
        """The protocol of that name; KeyError when there is none."""
        return {protocol.name: protocol for protocol in self.protocols}[name]

    def profile(self, name: str) -> ProfileSpec:
        """The model profile of that name; KeyError when there is none."""
        return {profile.name: profile for profile in self.profiles}[name]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A spec, or None, and what is wrong with it; ``sources`` gives the text of each file that problems point into.

    ``notes``: what is wrong, and no reason not to check it; see ``load_spec``.
    """

    spec: Spec | None
    problems: tuple[Problem, ...]
    sources: Mapping[str, str]
    notes: tuple[Problem, ...] = ()

    def required(self) -> Spec:
        """The spec; raises SpecError when there are problems."""
        if self.spec is None:
            raise SpecError(self.problems, self.sources)
        return self.spec


def load_spec(
    directory: Path | None = None, bounds: Mapping[str, Mapping[str, int]] | None = None, *, for_checking: bool = False
) -> Loaded:
    """Read and check a spec: ``vocabulary.yaml``, ``objects/``, ``protocols/``, ``models/``. None: the shipped one.

    ``safeguards/`` holds machines of what the runtime keeps besides slots of objects, and ``protocols/machines/`` those
    that only protocols use. Problems name files below ``directory`` as it was given; those of the shipped spec start
    with "spec/".
    ``bounds`` are sizes in place of those that a protocol's file gives: protocol -> name of a bound -> value.
    ``for_checking`` makes notes of what a check does without, as whoever edits a guard leaves it behind: mistakes in
    ``mutants:`` and ``equivalent:``, which name cases by their numbers, and words that nothing uses any more.
    """
    sizes = bounds or {}
    root = Path(str(files("kvfsm.spec"))) if directory is None else directory
    shown = "spec" if directory is None else directory.as_posix()
    problems = Problems()
    aside = Problems() if for_checking else problems
    vocabulary = read_vocabulary(root / "vocabulary.yaml", f"{shown}/vocabulary.yaml", problems)
    paths = sorted(_files(root, "objects", shown, problems), key=_machine_order)
    if not paths:
        place = Place(f"{shown}/objects", 1, 1)
        problems.add("E111", place, "there are no machines", "put one YAML file a machine there")
    guard_paths = _files(root, SAFEGUARDS, shown, problems)
    other_paths = _files(root, PROTOCOL_MACHINES, shown, problems)

    def loaded(spec: Spec | None) -> Loaded:
        return Loaded(spec, problems.sorted(), problems.sources, aside.sorted() if for_checking else ())

    def read(paths: Sequence[Path], folder: str) -> tuple[Machine, ...]:
        of_object = folder == "objects"
        found = (
            read_machine(path, f"{shown}/{folder}/{path.name}", vocabulary, problems, aside, of_object=of_object)
            for path in paths
        )
        return tuple(machine for machine in found if machine is not None)

    machines, guards = read(paths, "objects"), read(guard_paths, SAFEGUARDS)
    others = read(other_paths, PROTOCOL_MACHINES)
    for machine in machines:
        check_machine(machine, problems, aside)
    for machine in guards:
        check_safeguard(machine, machines, problems, aside)
    for machine in others:
        check_protocol_machine(machine, (*machines, *guards), problems, aside)
    found = len(machines) + len(guards) + len(others)
    if vocabulary is None or found < len(paths) + len(guard_paths) + len(other_paths):
        return loaded(None)
    if machines:
        check_vocabulary(vocabulary, (*machines, *guards), others, problems, aside)
    with_slots = [machine.name for machine in machines if machine.hit is not HitPolicy.BY_KIND]
    protocols = [
        read_protocol(
            path,
            f"{shown}/protocols/{path.name}",
            vocabulary,
            (*machines, *guards, *others),
            problems,
            sizes.get(path.stem),
            aside,
        )
        for path in _files(root, "protocols", shown, problems)
    ]
    profiles = [
        read_profile(path, f"{shown}/models/{path.name}", with_slots, problems)
        for path in _files(root, "models", shown, problems)
    ]
    spec = Spec(
        vocabulary,
        machines,
        guards,
        others,
        tuple(protocol for protocol in protocols if protocol is not None),
        tuple(profile for profile in profiles if profile is not None),
        root,
    )
    return loaded(None if problems.found else spec)


def resized(spec: Spec, name: str, bounds: Mapping[str, int]) -> tuple[Protocol | None, Problems]:
    """One protocol of a spec, read again with other sizes; None, and the problems, where they are no sizes of it."""
    shown = spec.protocol(name).path
    problems = Problems()
    path = spec.root / "protocols" / f"{name}.yaml"
    faults = Problems()
    found = read_protocol(path, shown, spec.vocabulary, spec.all_machines, problems, bounds, faults)
    if found is not None and len(found.mutants) < len(spec.protocol(name).mutants):  # by these sizes, not by an edit
        problems.found.extend(faults)
        return None, problems
    return found, problems


def _files(root: Path, folder: str, shown: str, problems: Problems) -> list[Path]:
    """The YAML files of a folder, by name; a file that looks like YAML but would not be read is a problem."""
    for path in sorted((root / folder).glob("*.yml")):
        place = Place(f"{shown}/{folder}/{path.name}", 1, 1)
        problems.add("E111", place, "a file that ends in .yml is not read", f"rename it to {path.stem}.yaml")
    return sorted((root / folder).glob("*.yaml"))


def _machine_order(path: Path) -> tuple[int, str]:
    rank = FIRST_MACHINES.index(path.stem) if path.stem in FIRST_MACHINES else len(FIRST_MACHINES)
    return rank, path.stem
