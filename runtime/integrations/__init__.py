"""Clients of real engines."""
