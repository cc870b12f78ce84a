"""Slower tiers that keep objects under content keys."""
