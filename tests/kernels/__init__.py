"""Tests of the kernels: specs and plans, compilation, machine code, launches, wiring."""
