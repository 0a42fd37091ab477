"""Prompts to completions, over a JetStream engine."""
