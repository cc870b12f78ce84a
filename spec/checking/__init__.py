"""Checking protocols: every interleaving explored, claims proved, faults hunted, recorded traces held to the model."""
