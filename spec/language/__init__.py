"""The spec language: YAML with places -> typed model, or a list of problems."""
