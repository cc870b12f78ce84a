"""Protocols as text for other checkers: SPIN, TLC, Rumur and Z3 read what these modules write."""
