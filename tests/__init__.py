"""Tests of the project; folders that share helpers are packages."""
