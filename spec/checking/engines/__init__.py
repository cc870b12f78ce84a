"""How a system is searched: generated code on NumPy arrays or in C, sets of states, renumbering."""
