"""Device work behind events: the NumPy backend, and CUDA headers generated from the spec."""
