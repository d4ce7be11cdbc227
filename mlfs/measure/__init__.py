"""Measures how fast the source, the cache directories and the memory are: what `mlfs calibrate` does."""
