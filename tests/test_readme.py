"""Every block of the README runs, and its two commands are those that make and CI know."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).parent.parent
README = (REPO / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(bash|python|text)\n(.*?)^```$", README, re.S | re.M)


def run(kind: str, text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", text] if kind == "python" else ["bash", "-euo", "pipefail", "-c", text]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_every_block_runs_in_order(tmp_path: Path) -> None:
    """Shell blocks share a folder; a text block lists, line by line, what the block before it printed."""
    assert len(BLOCKS) > 5
    printed = ""
    for kind, text in BLOCKS:
        if kind == "text":
            missing = [line for line in text.splitlines() if line not in printed]
            assert missing == [], printed
            continue
        done = run(kind, text, tmp_path)
        printed = done.stdout + done.stderr
        assert done.returncode == 0, f"{text}\n{printed}"


def test_a_broken_block_is_seen(tmp_path: Path) -> None:
    assert run("bash", "kvfsm gen --spec nowhere --out x", tmp_path).returncode != 0
    assert run("python", "assert False", tmp_path).returncode != 0


def test_the_two_commands_are_the_ones_that_make_and_ci_know() -> None:
    makefile = (REPO / "Makefile").read_text("utf-8")
    (console,) = re.findall(r"^```console\n(.*?)^```$", README, re.S | re.M)
    commands = [line.split("#")[0].strip() for line in console.splitlines()]
    assert commands == ["make demo", "make test"]
    for command in commands:
        assert re.search(rf"^{command.removeprefix('make ')}:", makefile, re.M)
    assert "make test" in (REPO / ".ci" / "run").read_text("utf-8").splitlines()


def test_every_link_leads_somewhere() -> None:
    targets = [target.split("#")[0] for target in re.findall(r"\]\(([^)]+)\)", README)]
    assert len(targets) > 8
    assert [target for target in targets if target and not (REPO / target).exists()] == []


def test_every_protocol_has_its_row_in_the_table_of_races() -> None:
    folder = REPO / "spec" / "protocols"
    rows = re.findall(r"^\| \[(\w+)\]\((\w+\.yaml)\) \|", (folder / "README.md").read_text("utf-8"), re.M)
    assert sorted(f"{name}.yaml" for name, _ in rows) == sorted(path.name for path in folder.glob("*.yaml"))
    assert all(file == f"{name}.yaml" for name, file in rows)


def test_the_page_of_the_checker_names_every_module() -> None:
    folder = REPO / "spec" / "checking"
    page = (folder / "README.md").read_text("utf-8")
    modules = [*folder.glob("*.py"), *(folder / "engines").glob("*.[pc]*")]
    assert len(modules) > 25
    assert [path.name for path in modules if path.stem != "__init__" and path.name not in page] == []
    folders = [path.name for path in folder.iterdir() if (path / "__init__.py").exists()]
    assert [name for name in folders if f"{name}/" not in page] == []
