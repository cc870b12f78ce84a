"""A run as people read it: who did what, what changed, which window was open, what broke."""
