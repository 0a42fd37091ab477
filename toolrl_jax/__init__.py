"""Reinforcement learning of tool calling in JAX."""

import os

# transformers serves tokenizers and chat templates here; that torch is absent
# is intended and needs no warning.
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
