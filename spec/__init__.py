"""The spec: YAML that says everything once, its reader, and printers of expressions. Imports nothing else of ours."""
