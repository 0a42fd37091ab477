"""The update, its state, and what a run writes."""
