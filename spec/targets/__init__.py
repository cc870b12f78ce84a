"""Printers of expressions, one module a target."""
