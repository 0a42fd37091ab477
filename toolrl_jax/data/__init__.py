"""Rows to examples, examples to prompts, and which prompts a step takes."""
