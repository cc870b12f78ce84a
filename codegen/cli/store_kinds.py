"""Table classes of a spec, for a command that is told where the spec lies and not what was generated from it."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from importlib import import_module, invalidate_caches
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ...spec.language.load import Spec
from ..emit_python import Home, emit

if TYPE_CHECKING:
    from ...runtime.table import Table


def kinds_of(spec: Spec) -> Mapping[str, type[Table]]:
    """``KINDS`` of the package that `kvfsm gen` would write: written to a folder that goes again, and imported."""
    with tempfile.TemporaryDirectory() as folder:
        package = f"kvfsm_{Path(folder).name}"
        for path, text in emit(spec, Home(package, "kvfsm.runtime", "tests", package)).items():
            Path(folder, path).parent.mkdir(exist_ok=True)
            Path(folder, path).write_text(text, "utf-8")
        sys.path.insert(0, folder)
        try:
            invalidate_caches()
            return cast("Mapping[str, type[Table]]", import_module(package).KINDS)
        finally:
            sys.path.remove(folder)
