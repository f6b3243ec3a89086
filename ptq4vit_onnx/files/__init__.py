"""Output folders and files that appear whole or not at all, and the provenance of a result."""
