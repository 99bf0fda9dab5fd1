"""Imitation learning: warm starts and the supervised baseline."""
