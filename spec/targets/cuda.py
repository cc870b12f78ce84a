"""Expressions as CUDA C++: those of C. ``true`` and ``false`` are built in, so no header is needed."""

from __future__ import annotations

from .c import render

__all__ = ["render"]
