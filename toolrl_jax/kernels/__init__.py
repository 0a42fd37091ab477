"""Equations: arrays in, arrays out, no config, no I/O, no jit."""
