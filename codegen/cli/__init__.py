"""The `kvfsm` command."""
