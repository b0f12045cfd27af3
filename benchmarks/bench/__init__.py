"""The benchmark: every system of this engine side by side in one run."""
