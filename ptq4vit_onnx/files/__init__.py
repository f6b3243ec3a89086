"""What is written, whole or not at all, and what a result came from.

outputs     output folders and files that appear under their names only when they are complete
provenance  versions of libraries; files and folders known again
"""

DOORS = ("outputs", "provenance")  # what other rooms may import
