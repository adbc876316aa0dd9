"""Experiments and comparisons; not part of the package."""
