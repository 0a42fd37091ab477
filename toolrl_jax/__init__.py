"""Reinforcement learning of tool calling in JAX."""
