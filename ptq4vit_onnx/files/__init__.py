"""Files: those that a user gives, those that are written whole or not at all, and what a result came from.

inputs      files that nobody vouches for: regular ones, up to a limit; JSON without surprises
outputs     output folders and files that appear under their names only when they are complete
provenance  versions of libraries; files and folders known again
"""

DOORS = ("inputs", "outputs", "provenance")  # what other rooms may import
