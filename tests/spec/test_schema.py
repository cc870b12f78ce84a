"""The JSON Schemas take every shipped file, and see what a schema can see."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from kvfsm.spec.language.problems import Problems
from kvfsm.spec.language.schema import emit
from kvfsm.spec.language.source import List, Mapping, Node, Scalar, read_yaml

from .bad_specs import shipped as shipped_spec

REPO = Path(__file__).parent.parent.parent
FOLDERS = {
    "machine": ("spec/objects", "spec/safeguards", "spec/protocols/machines"),
    "vocabulary": ("spec",),
    "protocol": ("spec/protocols",),
    "profile": ("spec/models",),
}


def validator(name: str) -> jsonschema.Draft202012Validator:
    schema = json.loads(emit(shipped_spec())[f"spec/{name}.schema.json"])
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def shipped(name: str) -> dict[str, Any]:
    """File name -> content, as a reader of YAML 1.2 (which editors use) sees it."""
    paths = [path for folder in FOLDERS[name] for path in sorted((REPO / folder).glob("*.yaml"))]
    return {path.name: plain(read_yaml(path, path.name, Problems())) for path in paths}


def plain(node: Node | None) -> Any:
    match node:
        case Mapping():
            return {entry.key.text: plain(entry.value) for entry in node}
        case List(items=items):
            return [plain(item) for item in items]
        case Scalar(text=text, quoted=False) if text in ("true", "false"):
            return text == "true"
        case Scalar(text=text, quoted=False) if text.isdecimal():
            return int(text)
        case Scalar(text=text):
            return text
    raise AssertionError(node)


@pytest.mark.parametrize("name", ["machine", "vocabulary", "protocol", "profile"])
def test_shipped_files_pass(name: str) -> None:
    checker = validator(name)
    files = shipped(name)
    assert files
    for file, content in files.items():
        assert [f"{file}: {error.json_path}: {error.message}" for error in checker.iter_errors(content)] == []


@pytest.mark.parametrize("name", ["machine", "vocabulary", "protocol", "profile"])
def test_an_unknown_key_fails(name: str) -> None:
    checker = validator(name)
    for content in shipped(name).values():
        assert not checker.is_valid({**content, "whne": 1})


def test_a_refusal_that_applies_fails() -> None:
    checker = validator("machine")
    window = shipped("machine")["swa_window.yaml"]
    window["events"]["pin"]["cases"][1]["to"] = "resident"
    assert not checker.is_valid(window)


def test_an_unknown_actor_fails() -> None:
    checker = validator("machine")
    window = shipped("machine")["swa_window.yaml"]
    window["events"]["pin"]["by"] = "raeder"
    assert not checker.is_valid(window)


def test_schemas_are_the_same_each_time() -> None:
    assert emit(shipped_spec()) == emit(shipped_spec())
