"""Comparisons beyond one export: other tools on the same images, and the paper's tables.

peers         ONNX Runtime's quantize_static from the same float file and images
paper_tables  the paper's tables: rows, options, printed numbers
measuring     one row: a model, calibrated, run over images
shared_rows   rows on several workers
kept_results  what their tasks have found, on disk
reproduce     the paper's tables, measured row by row
pareto        many budgets from one calibration
exports       several models, each exported by a task of its own
table_files   measured rows on disk, as CSV and Markdown
"""

DOORS = (
    "measuring",
    "exports",
    "paper_tables",
    "pareto",
    "peers",
    "reproduce",
    "table_files",
)  # what other rooms may import
