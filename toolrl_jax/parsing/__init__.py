"""Completion text to calls, and calls to integers."""
