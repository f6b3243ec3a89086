"""Comparisons beyond one export: other tools on the same images, and the paper's tables."""
