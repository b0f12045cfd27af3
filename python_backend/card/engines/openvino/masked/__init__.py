"""Attention under masks: rows of a lane look at the same places, of which masks hide some."""
