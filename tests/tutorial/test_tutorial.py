"""The tutorial runs: each of its blocks, in order, in an empty folder, with the answers that it shows.

What the info string of a fence means:
    ```yaml PATH        the block is written to PATH
    ```bash [exit=N]    run as a script that stops at the first error; must end with N (default 0)
    ```python           run as a program of its own
    ```text             what the block before it printed; "…" stands for anything, on a line of its own for any lines
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).parents[2] / "spec" / "TUTORIAL.md"
SECONDS = 600  # for one command, on a machine that is busy with other things


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block: ``line`` is where its fence stands."""

    kind: str
    info: str
    text: str
    line: int


def blocks_of(markdown: str) -> list[Block]:
    """The fenced blocks of a page, in order; an unknown kind or an open fence is a mistake of the page."""
    found = []
    lines = iter(enumerate(markdown.splitlines(), 1))
    for number, line in lines:
        if not line.startswith("```"):
            continue
        kind, _, info = line[3:].partition(" ")
        if kind not in {"yaml", "bash", "python", "text"}:
            raise ValueError(f"line {number}: a block of kind '{kind}' would not be run")
        body = []
        for _, inside in lines:
            if inside == "```":
                break
            body.append(inside)
        else:
            raise ValueError(f"line {number}: the block is not closed")
        found.append(Block(kind, info, "\n".join([*body, ""]), number))
    return found


def matches(shown: str, printed: str) -> bool:
    """Whether ``printed`` is what the page shows. Ends of lines and of the whole don't count."""
    pattern = ""
    for line in shown.rstrip().splitlines():
        if line.strip() == "…":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*".join(re.escape(part) for part in line.rstrip().split("…")) + r"[ ]*\n"
    return re.fullmatch(pattern, printed.rstrip() + "\n" if printed.strip() else "") is not None


def run_page(markdown: str, folder: Path) -> list[str]:
    """Run all blocks in ``folder``; returns what went wrong, and stops at the first command that fails."""
    scripts = str(Path(sys.executable).parent)
    environment = os.environ | {
        "PATH": scripts + os.pathsep + os.environ.get("PATH", ""),
        "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
        "LC_ALL": "C.UTF-8",
        "COLUMNS": "120",
    }
    wrong: list[str] = []
    printed = ""
    for block in blocks_of(markdown):
        if block.kind == "yaml":
            (folder / block.info).write_text(block.text, "utf-8")
            continue
        if block.kind == "text":
            if not matches(block.text, printed):
                wrong.append(f"line {block.line}: shown\n{block.text}\nbut printed\n{printed}")
            continue
        command = ["bash", "-e", "-c", block.text] if block.kind == "bash" else [sys.executable, "-c", block.text]
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            timeout=SECONDS,
        )
        printed = done.stdout
        wanted = int(block.info.removeprefix("exit=") or 0)
        if done.returncode != wanted:
            wrong.append(f"line {block.line}: ended with {done.returncode} instead of {wanted}\n{printed}")
            break
    return wrong


def test_the_whole_tutorial_runs_as_it_reads(tmp_path: Path) -> None:
    wrong = run_page(TUTORIAL.read_text("utf-8"), tmp_path)
    assert wrong == [], "\n\n".join(wrong)
    assert (tmp_path / "mypkg" / "diagrams" / "recurrent_state.svg").is_file()


def test_the_tutorial_shows_an_answer_for_each_thing_that_it_prints() -> None:
    kinds = [block.kind for block in blocks_of(TUTORIAL.read_text("utf-8"))]
    assert kinds.count("text") >= 10
    assert all(after == "text" for kind, after in pairwise(kinds) if kind == "python")


def test_a_wrong_answer_on_the_page_is_noticed(tmp_path: Path) -> None:
    page = "```bash\necho one\n```\n\n```text\ntwo\n```\n"
    assert len(run_page(page, tmp_path)) == 1
    assert run_page(page.replace("two", "one"), tmp_path) == []


def test_a_command_that_fails_is_noticed(tmp_path: Path) -> None:
    assert "ended with 1 instead of 0" in run_page("```bash\nfalse\ntrue\n```\n", tmp_path)[0]
    assert "ended with 0 instead of 1" in run_page("```bash exit=1\ntrue\n```\n", tmp_path)[0]
    assert "ended with 1" in run_page("```python\nraise SystemExit(1)\n```\n", tmp_path)[0]


def test_a_block_that_would_not_be_run_is_a_mistake_of_the_page() -> None:
    with pytest.raises(ValueError, match="kind 'sh'"):
        blocks_of("```sh\nls\n```\n")
    with pytest.raises(ValueError, match="not closed"):
        blocks_of("```bash\nls\n")


def test_dots_stand_for_what_may_differ_and_for_nothing_else() -> None:
    assert matches("a … c\n", "a b c\n")
    assert matches("…\nlast\n", "first\nsecond\nlast\n")
    assert matches("…\nlast\n", "last\n")
    assert not matches("a … c\n", "a b d\n")
    assert not matches("first\n", "first\nlast\n")
    assert not matches("first\n", "")
