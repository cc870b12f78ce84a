"""CUDA sources run on the host: see README.md."""
