"""Device work behind events: NumPy reference now, CUDA through CuPy."""
