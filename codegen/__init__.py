"""From a spec to Python, CUDA, diagrams, documents and tests."""
