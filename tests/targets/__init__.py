"""Tests of the printers: one expression, every target."""
