"""Output folders and files that appear whole or not at all, and what a result came from."""
