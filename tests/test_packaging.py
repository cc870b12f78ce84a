"""What pyproject.toml ships is what the folders hold."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

REPO = Path(__file__).parent.parent
SETUPTOOLS = tomllib.loads((REPO / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
FOLDERS = {folder: package for package, folder in SETUPTOOLS["package-dir"].items()}
TOP_LEVEL = {".ci", "spec", "codegen", "runtime", "kernels", "tests", "diagrams"}


def repository_files(*folders: str) -> list[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *folders]
    listed = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=True).stdout
    return [Path(line) for line in listed.splitlines() if (REPO / line).exists()]


def matches(path: Path, glob: str) -> bool:
    """As setuptools does it: ``*`` stays within a folder, ``**/`` in front goes through all of them."""
    last = glob.removeprefix("**/")
    return path.match(last) and (last != glob or len(path.parts) == len(Path(glob).parts))


def not_shipped(paths: list[Path], globs: dict[str, list[str]]) -> list[str]:
    missing = []
    for path in paths:
        inside = Path(*path.parts[1:])
        patterns = globs[FOLDERS[path.parts[0]]]
        if path.suffix != ".py" and not any(matches(inside, pattern) for pattern in patterns):
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


def test_a_data_file_in_a_folder_without_a_glob_is_seen() -> None:
    assert matches(Path("protocols/machines/block.yaml"), "protocols/machines/*.yaml")
    assert not matches(Path("protocols/machines/block.yaml"), "protocols/*.yaml")
    assert not matches(Path("block.yaml"), "protocols/*.yaml")
    assert matches(Path("README.md"), "**/README.md") and matches(Path("models/README.md"), "**/README.md")


def test_globs_match_files_only() -> None:
    for package, globs in SETUPTOOLS["package-data"].items():
        folder = REPO / SETUPTOOLS["package-dir"][package]
        found = [path for glob in globs for path in folder.glob(glob)]
        assert [path for path in found if not path.is_file()] == []


def test_no_other_top_level_folder() -> None:
    folders = {path.parts[0] for path in repository_files() if len(path.parts) > 1}
    assert folders <= TOP_LEVEL
