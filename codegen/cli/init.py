"""Copy a starting spec into a folder of your own: the vocabulary, the five machines, the protocols and model profiles.

  kvfsm init my_spec                         a new folder, or an empty one
  kvfsm init my_spec --machine ring_buffer   and a short machine of your own to grow from, objects/ring_buffer.yaml
                                             (into a spec that is there already, this adds the machine alone)

Nothing that exists is ever overwritten, and a folder appears whole or not at all.
"""

from __future__ import annotations

import argparse
import keyword
import os
import re
import shutil
import sys
import tempfile
from importlib.resources import as_file, files
from pathlib import Path

from ..starter import machine_text, readme_text

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_FOLDERS = ("objects", "safeguards", "protocols", "protocols/machines", "models")  # beside vocabulary.yaml
_SUFFIXES = frozenset({".yaml", ".json"})
_README = "README.md"  # of the language, less what is not copied; and of the profiles, whose keys it explains


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's options."""
    parser.add_argument("directory", type=Path, metavar="DIR", help="folder to make; it must be new, or empty")
    parser.add_argument("--machine", metavar="NAME", help="also start a machine of this name (lower_snake_case)")


def run(args: argparse.Namespace) -> int:
    """Copy: 0 done, 1 the disk did not take it, 2 the folder or the name cannot be used."""
    target: Path = args.directory
    name: str | None = args.machine
    if name is not None and (_NAME.fullmatch(name) is None or keyword.iskeyword(name)):
        return _refuse(f"'{name}' is no name for a machine: use lower_snake_case, such as ring_buffer")
    try:
        if name is not None and (target / "vocabulary.yaml").is_file():
            return _add_machine(target, name)
        if target.exists() and not target.is_dir():
            return _refuse(f"'{target}' is a file, not a folder")
        if target.is_dir() and any(target.iterdir()):
            return _refuse(f"'{target}' is not empty; name a new folder, as nothing is ever overwritten")
        if name is not None and _shipped(name):
            return _refuse(
                f"the starting spec has a machine '{name}' already; edit it in '{target}', or choose another name"
            )
        _copy(target, name)
    except OSError as error:
        print(f"kvfsm init: cannot write '{error.filename or target}': {error.strerror or error}", file=sys.stderr)
        return 1
    print(f"made {target}: {_counted(target)}")
    print(_next_steps(target))
    return 0


def _refuse(why: str) -> int:
    print(f"kvfsm init: {why}", file=sys.stderr)
    return 2


def _shipped(name: str) -> bool:
    return files("kvfsm.spec").joinpath("objects", f"{name}.yaml").is_file()


def _copy(target: Path, machine: str | None) -> None:
    """Build the folder beside its place, then rename it there; a failure leaves nothing behind."""
    parent = target.resolve().parent
    parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(dir=parent, prefix=f".{target.name}."))
    try:
        with as_file(files("kvfsm.spec")) as shipped:
            _copy_files(shipped, beside)
            for folder in _FOLDERS:
                _copy_files(shipped / folder, beside / folder)
            (beside / _README).write_text(readme_text((shipped / _README).read_text("utf-8")), "utf-8")
            shutil.copyfile(shipped / "models" / _README, beside / "models" / _README)
        if machine is not None:
            (beside / "objects" / f"{machine}.yaml").write_text(machine_text(machine), "utf-8")
        beside.chmod(0o755)
        os.rename(beside, target.resolve())  # takes the place of an empty folder, and of no other
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


def _copy_files(source: Path, target: Path) -> None:
    target.mkdir(exist_ok=True)
    for path in sorted(source.iterdir()):
        if path.is_file() and path.suffix in _SUFFIXES:
            shutil.copyfile(path, target / path.name)


def _add_machine(target: Path, name: str) -> int:
    """Write one new machine into a spec; never over one that is there."""
    path = target / "objects" / f"{name}.yaml"
    if path.exists():
        return _refuse(f"'{path}' is there already, and nothing is ever overwritten")
    path.parent.mkdir(exist_ok=True)
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(machine_text(name))
        os.chmod(beside, 0o644)
        os.link(beside, path)  # unlike a rename, fails if somebody was faster
    except FileExistsError:
        return _refuse(f"'{path}' is there already, and nothing is ever overwritten")
    finally:
        Path(beside).unlink()
    print(f"made {path}")
    print(_next_steps(target))
    return 0


def _counted(target: Path) -> str:
    words = {"objects": "machines", "protocols": "protocols", "models": "model profiles"}
    return ", ".join(f"{len(list((target / folder).glob('*.yaml')))} {word}" for folder, word in words.items())


def _next_steps(target: Path) -> str:
    return (
        f"next:  kvfsm lint --spec {target}                       after each change: is it sound?\n"
        f"       kvfsm check evict --spec {target}                every interleaving of one protocol, or of all\n"
        f"       kvfsm gen  --spec {target} --out my_package      write classes, headers, diagrams and tests"
    )
