"""Device work behind events: CUDA kernels, their plans, what each means in NumPy, and backends over both."""
