"""A user's own spec becomes a user's own package: it imports, runs, passes its tests, and is strictly typed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kvfsm.codegen.cli import main

REPO = Path(__file__).parents[2]
TOY = REPO / "tests" / "golden" / "toy" / "spec"


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the toy spec, since gen writes schemas beside it."""
    return shutil.copytree(TOY, tmp_path_factory.mktemp("spec") / "spec")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory, spec: Path) -> Path:
    folder = tmp_path_factory.mktemp("user") / "my_cache"
    assert main(["gen", "--spec", str(spec), "--out", str(folder)]) == 0
    return folder


def run(package: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(package.parent)}
    return subprocess.run(
        [sys.executable, *command], cwd=package.parent, env=environment, capture_output=True, text=True, check=False
    )


def test_it_has_the_four_folders(package: Path) -> None:
    folders = {path.name for path in package.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == {"runtime", "kernels", "diagrams", "tests"}


def test_it_imports_and_runs(package: Path) -> None:
    code = (
        "from my_cache.runtime import KINDS, Toy, ToyTable\n"
        "table = ToyTable(3); table.fill([0, 2]); table.seal([2])\n"
        "print(table.pin([0, 2], expected=1).tolist(), table.count_by_state(), KINDS)\n"
    )
    done = run(package, "-c", code)
    assert done.stdout.startswith("[1, 0] {'free': 1, 'filled': 1, 'sealed': 1}"), done.stderr


def test_its_tests_pass(package: Path) -> None:
    done = run(package, "-m", "pytest", "-q", "-p", "no:cacheprovider", "my_cache/tests")
    assert done.returncode == 0, done.stdout


def test_it_is_strictly_typed(package: Path) -> None:
    links = REPO / "build" / "links"
    if not (links / "kvfsm" / "runtime").exists():
        (links / "kvfsm").mkdir(parents=True, exist_ok=True)
        for folder in ("spec", "codegen", "runtime", "kernels"):
            (links / "kvfsm" / folder).symlink_to(REPO / folder)
    configuration = package.parent / "mypy.ini"
    settings = f"[mypy]\nstrict = true\nmypy_path = {links}\n[mypy-transitions.*]\nignore_missing_imports = true\n"
    configuration.write_text(settings)
    done = run(package, "-m", "mypy", "--config-file", str(configuration), "my_cache/runtime")
    assert done.returncode == 0, done.stdout


def test_its_check_is_clean_until_a_file_is_edited(
    package: Path, spec: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["gen", "--check", "--spec", str(spec), "--out", str(package)]
    assert main(arguments) == 0
    path = package / "runtime" / "toy.py"
    text = path.read_text("utf-8")
    path.write_text(text.replace("MAX_PINS = 7", "MAX_PINS = 6"))
    assert main(arguments) == 1
    assert "-MAX_PINS = 6" in capsys.readouterr().out
    path.write_text(text)


def test_a_file_of_ones_own_is_never_replaced(
    tmp_path: Path, spec: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "mine" / "runtime" / "toy.py"
    own.parent.mkdir(parents=True)
    own.write_text("KEPT = True\n")
    assert main(["gen", "--json", "--spec", str(spec), "--out", str(tmp_path / "mine")]) == 1
    out, err = capsys.readouterr()
    assert "toy.py' is not a file that kvfsm gen wrote" in err
    assert json.loads(out) == {"ok": False, "files": []}
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [own]
    assert own.read_text() == "KEPT = True\n"


def test_an_empty_init_is_filled(tmp_path: Path, spec: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").touch()
    assert main(["gen", "--spec", str(spec), "--out", str(tmp_path / "mine")]) == 0


def test_a_keyword_is_no_package(
    tmp_path: Path, spec: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["gen", "--spec", str(spec), "--out", str(tmp_path / "class")]) == 2
    assert "cannot be a Python package" in capsys.readouterr().err


def test_the_schemas_beside_a_spec_know_its_words(tmp_path: Path) -> None:
    own = shutil.copytree(TOY, tmp_path / "spec")
    command = ["gen", "--spec", str(own), "--out", str(tmp_path / "mine")]
    assert main(command) == 0
    assert "too_cold" not in (own / "machine.schema.json").read_text()
    vocabulary = own / "vocabulary.yaml"
    vocabulary.write_text(vocabulary.read_text().replace("  pinned: ", "  too_cold: "))
    machine = own / "objects" / "toy.yaml"
    machine.write_text(machine.read_text().replace("refuse: pinned", "refuse: too_cold"))
    assert main([*command, "--check"]) == 1
    assert main(command) == 0
    assert "too_cold" in (own / "machine.schema.json").read_text()
    assert main([*command, "--check"]) == 0
