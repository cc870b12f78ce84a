"""Every order of a few operations on a tiny manager, under a deterministic scheduler."""
