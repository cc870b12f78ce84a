"""Tests of the spec language: its reader, its rules, its meaning, and what it says of bad specs."""
