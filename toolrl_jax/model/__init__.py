"""The decoder, its presets, weights and shardings."""
