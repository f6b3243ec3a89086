"""The command line: the only room that prints, and what its exit codes mean."""
