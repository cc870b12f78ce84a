"""The spec: YAML that says everything once, its reader, and printers of expressions. Imports no other package of ours."""
