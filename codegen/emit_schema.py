"""JSON Schemas of the spec's files, for editors. What they say is ``spec/language/schema.py``."""

from __future__ import annotations

from ..spec.language.load import Spec
from ..spec.language.schema import emit as schemas


def emit(spec: Spec) -> dict[str, str]:
    """Path -> text of each schema, beside the vocabulary."""
    return schemas(spec)
