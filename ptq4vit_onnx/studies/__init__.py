"""Comparisons beyond one export: other tools on the same images, and the paper's tables.

peers         ONNX Runtime's quantize_static from the same float file and images
paper_tables  the paper's tables: rows, options, printed numbers
reproduce     the paper's tables, measured row by row
table_files   measured rows on disk, as CSV and Markdown
"""

DOORS = ("paper_tables", "peers", "reproduce", "table_files")  # what other rooms may import
