"""Expressions as CUDA C++: those of C, with ``true`` and ``false`` built in. A module of its own so that callers say what they mean."""

from __future__ import annotations

from .c import render

__all__ = ["render"]
