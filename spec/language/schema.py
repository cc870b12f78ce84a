"""JSON Schemas (draft 2020-12) of the spec's files, for editors that complete and underline while one types.

A schema knows keys, kinds of values and closed lists of words. What it lets pass may still be wrong: names, types and
meaning are the reader's. ``emit`` is pure; the generator writes the files.

To use one, start a YAML file with ``# yaml-language-server: $schema=../machine.schema.json``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .faults import FAULT_KEYS
from .load import Spec
from .model import HitPolicy, Vocabulary
from .profile import ITEM_BYTES, POLICIES, ROLES, SCORES
from .reader import COUNTS_AS, FIRSTS, LEAVES, META_TYPES, STRUCTURES

_Schema = dict[str, Any]

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_NAME = "^[a-z][a-z0-9]*(_[a-z0-9]+)*$"
_TEXT: _Schema = {"type": "string"}
_FLAG: _Schema = {"type": "boolean"}
_EXPRESSION: _Schema = {"type": ["string", "integer", "boolean"], "description": "an expression of the spec language"}
_INVARIANT: _Schema = {"type": "string", "pattern": "^[ST][1-9][0-9]?$", "description": "name of an invariant"}


def emit(spec: Spec) -> dict[str, str]:
    """Path -> text of the schemas; actors, refusals and machines are those of ``spec``."""
    machines = [machine.name for machine in spec.machines]
    schemas = {
        "machine": machine_schema(spec.vocabulary),
        "vocabulary": vocabulary_schema(),
        "protocol": protocol_schema(spec.vocabulary, machines),
        "profile": profile_schema(machines),
    }
    return {
        f"spec/{name}.schema.json": json.dumps({"$schema": _DRAFT, "title": f"kvfsm {name}", **schema}, indent=2) + "\n"
        for name, schema in schemas.items()
    }


def vocabulary_schema() -> _Schema:
    """``vocabulary.yaml``."""
    return _object({"actors": _named(_TEXT, 1), "refusals": _named(_TEXT, 1)}, ("actors", "refusals"))


def machine_schema(vocabulary: Vocabulary) -> _Schema:
    """A file of ``objects/``."""
    case = _case([word.name for word in vocabulary.refusals])
    event = _object(
        {
            "by": _one_or_more(_words([actor.name for actor in vocabulary.actors])),
            "about": _TEXT,
            "given": _named(_TEXT),
            "kernel": {"type": "string", "pattern": _NAME},
            "cases": {"type": "array", "items": case, "minItems": 1},
        },
        ("by", "about", "cases"),
    )
    eviction = _object(
        {
            "event": _TEXT,
            "from": _one_or_more(_TEXT),
            "when": _EXPRESSION,
            "structure": _words(STRUCTURES),
            # Unquoted, ``first: true`` is a truth value to an editor.
            "order": {
                "type": "array",
                "items": _object({"by": _EXPRESSION, "first": {"enum": [*FIRSTS, True, False]}}, ("by", "first")),
            },
            "leaves": _words(LEAVES),
        },
        ("event", "from", "structure", "order", "leaves"),
    )
    keys = {
        "machine": {"type": "string", "pattern": _NAME},
        "title": _TEXT,
        "about": _TEXT,
        "hit": _words([policy.value for policy in HitPolicy]),
        "word": _named({"oneOf": [_number(1, 64), {"const": "bool"}, _field()]}, 1),
        "meta": _named(
            {
                "oneOf": [
                    _words(tuple(META_TYPES)),
                    _object({"type": _words(tuple(META_TYPES)), "about": _TEXT}, ("type",)),
                ]
            }
        ),
        "states": _named(_state(), 1),
        "events": _named(event, 1),
        "eviction": eviction,
        **_properties(),
        "mutants": _named(_mutant({"event": _TEXT}, ("event",))),
    }
    return _object(keys, ("machine", "title", "about", "hit", "word", "states", "events"))


def protocol_schema(vocabulary: Vocabulary, machines: Sequence[str]) -> _Schema:
    """A file of ``protocols/``."""
    size: _Schema = {"type": ["integer", "string"]}
    fire = _object({"on": _TEXT, "event": _TEXT, "with": _named(_EXPRESSION)}, ("on", "event"))
    step = _object(
        {
            "about": _TEXT,
            "choose": _named(_TEXT),
            "when": _EXPRESSION,
            "otherwise": _TEXT,
            "do": _named(_EXPRESSION),
            "fire": {"type": "array", "items": fire},
            "refused": _TEXT,
            "then": _TEXT,
        }
    )
    actor = _object(
        {
            "about": _TEXT,
            "count": size,
            "plays": _one_or_more(_words([word.name for word in vocabulary.actors])),
            "locals": _named({"oneOf": [_TEXT, _object({"like": _TEXT}, ("like",))]}),
            "steps": _named(step, 1),
        },
        ("count", "plays", "steps"),
    )
    instance = _object({"machine": _words(machines), "slots": size, "narrow": _named(size)}, ("machine", "slots"))
    keys = {
        "protocol": {"type": "string", "pattern": _NAME},
        "title": _TEXT,
        "about": _TEXT,
        "bounds": _named({"type": "integer", "minimum": 0}),
        "machines": _named(instance, 1),
        "actors": _named(actor, 1),
        **_properties(),
        "mutants": _named(_mutant({"machine": _words(machines), "event": _TEXT}, ("machine", "event"))),
    }
    return _object(keys, ("protocol", "title", "about", "bounds", "machines", "actors"))


def profile_schema(machines: Sequence[str]) -> _Schema:
    """A file of ``models/``."""
    count: _Schema = {"type": "integer", "minimum": 0}
    layers: _Schema = {"$ref": "#/$defs/layers"}
    span = _object({"from": count, "below": count, "every": count, "but": layers}, ("from", "below"))
    some_layers = {"oneOf": [{"const": "all"}, {"type": "array", "items": count}, span]}
    part = _object(
        {
            "rows": _words(ROLES),
            "shape": {"type": "array", "items": _number(1, 1 << 24), "minItems": 1},
            "dtype": _words(tuple(ITEM_BYTES)),
            "meaning": {"type": "string", "pattern": "^[a-z][a-z0-9_]*$"},
            "row_bytes": _number(1, 1 << 40),
        },
        ("rows", "shape", "dtype", "meaning"),
    )
    group = _object(
        {
            "object": _words(machines),
            "layers": layers,
            "ratio": count,
            "span": count,
            "page": _object({"rows": count, "align": count, "bytes": count}, ("rows",)),
            "parts": _named(part, 1),
        },
        ("object", "layers", "parts"),
    )
    identity = _object(
        {"weights": _TEXT, "positions": _TEXT, "dtype": _TEXT, "scores": _words(SCORES)},
        ("weights", "positions", "dtype"),
    )
    keys = {
        "model": {"type": "string", "pattern": _NAME},
        "title": _TEXT,
        "source": _TEXT,
        "granule": _number(1, 1 << 24),
        "layer_count": _number(1, 1024),
        "window": count,
        "window_policy": _words(POLICIES),
        "window_block": count,
        "retained": count,
        "alignment": count,
        "offset_bits": count,
        "identity": identity,
        "groups": _named(group, 1),
    }
    required = ("model", "title", "source", "granule", "layer_count", "identity", "groups")
    return {**_object(keys, required), "$defs": {"layers": some_layers}}


def _properties() -> Mapping[str, _Schema]:
    claim = _object({"says": _INVARIANT, "that": _EXPRESSION, "about": _TEXT}, ("that",))
    later = {"says": _INVARIANT, "from": _EXPRESSION, "to": _EXPRESSION, "fair": _one_or_more(_TEXT), "about": _TEXT}
    return {
        "always": _named(claim),
        "sometimes": _named(claim),
        "leads_to": _named(_object(later, ("from", "to", "fair"))),
    }


def _case(refusals: Sequence[str]) -> _Schema:
    keys = {
        "from": _one_or_more(_TEXT),
        "when": _EXPRESSION,
        "to": _TEXT,
        "do": _named(_EXPRESSION),
        "refuse": _words(refusals),
    }
    applies: _Schema = {"anyOf": [{"required": ["to"]}, {"required": ["do"]}]}
    return {**_object(keys, ("from",)), "not": {"allOf": [{"required": ["refuse"]}, applies]}}


def _mutant(keys: Mapping[str, _Schema], required: tuple[str, ...]) -> _Schema:
    number = _number(1, 64)
    replaced = {"case": number, "when": _EXPRESSION, "to": _TEXT, "do": _named(_EXPRESSION)}
    faults: dict[str, _Schema] = {
        "drop_case": number,
        "drop_conjunct": _object({"case": number, "conjunct": number}, ("case", "conjunct")),
        "forget": _object({"case": number, "field": _TEXT}, ("case", "field")),
        "replace": _object(replaced, ("case",)),
    }
    assert tuple(faults) == FAULT_KEYS
    one = {"oneOf": [{"required": [fault]} for fault in faults]}
    return {**_object({**keys, "about": _TEXT, **faults}, required), **one}


def _field() -> _Schema:
    names = {"type": "array", "items": {"type": "string", "pattern": _NAME}, "minItems": 1}
    keys = {"bits": _number(1, 64), "names": names, "bool": {"const": True}, "about": _TEXT}
    return {**_object(keys), "anyOf": [{"required": ["bits"]}, {"required": ["bool"]}]}


def _state() -> _Schema:
    marks = {mark: _FLAG for mark in ("initial", "readable", "exclusive", "evictable")}
    return _object({**marks, "counts_as": _words(COUNTS_AS), "about": _TEXT}, ("counts_as", "about"))


def _object(keys: Mapping[str, _Schema], required: tuple[str, ...] = ()) -> _Schema:
    """A mapping with these keys and no others."""
    schema: _Schema = {"type": "object", "properties": dict(keys), "additionalProperties": False}
    return {**schema, "required": list(required)} if required else schema


def _named(value: _Schema, least: int = 0) -> _Schema:
    """A mapping from names of one's own."""
    schema: _Schema = {"type": "object", "propertyNames": {"pattern": _NAME}, "additionalProperties": value}
    return {**schema, "minProperties": least} if least else schema


def _one_or_more(value: _Schema) -> _Schema:
    return {"oneOf": [value, {"type": "array", "items": value, "minItems": 1}]}


def _words(words: Sequence[str]) -> _Schema:
    return {"enum": list(words)}


def _number(low: int, high: int) -> _Schema:
    return {"type": "integer", "minimum": low, "maximum": high}
