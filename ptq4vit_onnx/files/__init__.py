"""Files: those that a user gives, those that are written whole or not at all, and what a result came from.

inputs      files that nobody vouches for: regular ones, up to a limit; JSON without surprises
outputs     output folders and files that appear under their names only when they are complete
leftovers   what lies next to an output while an export runs, and what dead runs left there
locks       files that one process holds
exchange    two folders that take each other's names in one step
scratch     folders for temporary files
provenance  versions of libraries; files and folders known again
"""

DOORS = ("inputs", "locks", "leftovers", "outputs", "provenance", "scratch")  # what other rooms may import
