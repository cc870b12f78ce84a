"""The spec: what the cache objects are, and the reader that understands it."""
