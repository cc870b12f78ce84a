"""Recorded events held against the machines, one event at a time."""
