"""The same file in many engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tools.tables.markdown import Row, table

FEW_IMAGES = 100  # a figure from fewer says so


def engines(rows: Sequence[Row]) -> str:
    """A table for each question, engines down, models across."""
    questions: dict[str, Callable[[Row], str]] = {
        "Products in integers": lambda row: f"{row['integers']} of {row['products']}" if row["products"] else "-",
        "Predictions equal to the newest ONNX Runtime's": lambda row: f"{row['agreement %']:.1f} %",
        "Outputs equal to the newest ONNX Runtime's, bit for bit": lambda row: f"{row['identical %']:.1f} %",
        "KL to float, in nats, and times that of the newest ONNX Runtime": lambda row: (
            f"{row['kl']:.2g} ({row['kl'] / row['newest kl']:.2f}x)"
        ),
    }
    return "\n\n".join(f"### {title}\n\n{_matrix(rows, cell)}" for title, cell in questions.items())


def _matrix(rows: Sequence[Row], cell: Callable[[Row], str]) -> str:
    models = list(dict.fromkeys(row["model"] for row in rows))
    known = {(row["engine"], row["model"]): row for row in rows}
    lines = []
    for engine in dict.fromkeys(row["engine"] for row in rows):
        found = [known.get((engine, model), {}) for model in models]
        fewer = {row["images"] for row in found if row.get("images", 1000) < FEW_IMAGES}
        remark = f" ({', '.join(map(str, sorted(fewer)))} images)" if fewer else ""
        remark += "" if all(row.get("claimed", True) for row in found) else " (not claimed)"
        lines.append([engine + remark, *("" if not row else row["error"] or cell(row) for row in found)])
    return table(("", *models), lines)
