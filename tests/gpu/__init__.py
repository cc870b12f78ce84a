"""What needs a CUDA device: see README.md."""
