"""Which folder may import which. The command line alone may reach everything, and only inside functions."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPO = Path(__file__).parent.parent
MAY_IMPORT = {
    "spec": {"spec"},
    "codegen": {"codegen", "spec"},
    "runtime": {"runtime"},
    "kernels": {"kernels", "runtime"},
}
WIDER = {  # folders inside those with a wider view
    "runtime/integrations": {"runtime", "kernels"},
    "codegen/cli": {"codegen", "spec", "runtime", "kernels"},
}


def imports(text: str, parts: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Line and top-level folder of each import of our own in a module at ``parts``."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                head, *rest = alias.name.split(".")
                if head == "kvfsm":
                    yield node.lineno, "absolute"
                elif head in MAY_IMPORT and not rest:
                    yield node.lineno, "absolute"
        if isinstance(node, ast.ImportFrom):
            target = (node.module or "").split(".")
            if node.level == 0:
                if target[0] == "kvfsm":
                    yield node.lineno, "absolute"
            elif node.level >= len(parts):
                yield node.lineno, target[0]
            else:
                yield node.lineno, parts[0]


def allowed(path: Path) -> set[str]:
    relative = path.relative_to(REPO).as_posix()
    for folder, wider in WIDER.items():
        if relative.startswith(folder + "/"):
            return wider
    return MAY_IMPORT[path.relative_to(REPO).parts[0]]


@pytest.mark.parametrize("folder", sorted(MAY_IMPORT))
def test_folder_imports_only_what_it_may(folder: str) -> None:
    wrong = []
    for path in sorted((REPO / folder).rglob("*.py")):
        for line, target in imports(path.read_text("utf-8"), path.relative_to(REPO).parts):
            if target not in allowed(path):
                wrong.append(f"{path.relative_to(REPO)}:{line}: may not import {target}")
    assert wrong == [], "inside the package, import relatively and only downwards"


def test_a_planted_upward_import_is_seen() -> None:
    assert list(imports("from ..spec import load", ("runtime", "pool.py"))) == [(1, "spec")]
    assert list(imports("from ...spec import load", ("runtime", "stores", "local.py"))) == [(1, "spec")]
    assert list(imports("import kvfsm.spec", ("runtime", "pool.py"))) == [(1, "absolute")]
    assert list(imports("from .pool import Pool", ("runtime", "manager.py"))) == [(1, "runtime")]


def test_the_runtime_imports_without_torch_or_yaml() -> None:
    code = (
        "import sys, kvfsm.runtime, kvfsm.runtime.manager, kvfsm.runtime.stores.local, kvfsm.kernels.reference;"
        "print(sorted({'torch', 'yaml', 'transformers', 'cupy', 'rich', 'transitions'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
