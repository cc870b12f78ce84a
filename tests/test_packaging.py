"""What pyproject.toml ships is what the folders hold."""

from __future__ import annotations

import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path

REPO = Path(__file__).parent.parent
SETUPTOOLS = tomllib.loads((REPO / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
FOLDERS = {folder: package for package, folder in SETUPTOOLS["package-dir"].items()}
TOP_LEVEL = {".ci", "spec", "codegen", "runtime", "kernels", "tests", "diagrams"}


def repository_files(*folders: str) -> list[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *folders]
    listed = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=True).stdout
    return [Path(line) for line in listed.splitlines() if (REPO / line).exists()]


def not_shipped(paths: list[Path], globs: dict[str, list[str]]) -> list[str]:
    missing = []
    for path in paths:
        inside = Path(*path.parts[1:]).as_posix()
        patterns = globs[FOLDERS[path.parts[0]]]
        if path.suffix != ".py" and not any(fnmatch(inside, pattern.replace("**/", "*")) for pattern in patterns):
            missing.append(str(path))
    return missing


def test_every_package_is_listed() -> None:
    inits = [path for path in repository_files(*FOLDERS) if path.name == "__init__.py"]
    found = {".".join(("kvfsm", *path.parent.parts)) for path in inits}
    assert sorted(SETUPTOOLS["packages"]) == sorted(found)


def test_every_data_file_ships() -> None:
    missing = not_shipped(repository_files(*FOLDERS), SETUPTOOLS["package-data"])
    assert missing == [], "add a glob for these to [tool.setuptools.package-data]"


def test_a_planted_data_file_is_seen() -> None:
    stray = Path("runtime/generated/stray.bin")
    assert not_shipped([stray], SETUPTOOLS["package-data"]) == [str(stray)]


def test_no_other_top_level_folder() -> None:
    folders = {path.parts[0] for path in repository_files() if len(path.parts) > 1}
    assert folders <= TOP_LEVEL
