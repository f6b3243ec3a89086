"""The tables of README and docs, written from benchmarks/results/*.json: nobody types a number.

    python tools/result_tables.py            # writes them
    python tools/result_tables.py --check    # ends with 1 where a document and its results disagree

A document says where a table stands:  <!-- results: families -->  ...  <!-- end of results -->
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
PLACE = re.compile(r"(<!-- results: (\w+) -->\n).*?(<!-- end of results -->)", re.DOTALL)
FEW_IMAGES = 100  # a figure from fewer says so
Row = Mapping[str, Any]


def families(rows: Sequence[Row]) -> str:
    return _table(
        ("family", "model", "output", "sites", "products in integers", "exact", "bit for bit", "seconds"),
        [
            (
                row["family"], f"`{row['model']}`" + (f", {row['remark']}" if row["remark"] else ""), row["output"],
                row["sites"], f"{row['integer products']} of {row['products']}", f"{row['exact']} of {row['checked']}",
                f"{row['identical percent']:.4g} %", row["seconds"],
            )
            for row in rows
        ],
    )  # fmt: skip


def embeddings_files(rows: Sequence[Row]) -> str:
    return _table(
        ("model", "file", "cosine", "worst cosine", "nearest neighbour kept", "k-NN accuracy", "products in integers"),
        [
            (row["model"], row["file"], _number(row, "cosine", ".4f"), _number(row, "worst cosine", ".4f"),
             _number(row, "neighbour kept %", ".1f", " %"), f"{row['k-NN %']:.1f} %", row["in integers"])
            for row in rows
        ],
    )  # fmt: skip


def embeddings_curvature(rows: Sequence[Row]) -> str:
    return _table(
        ("model", "bits", "curvature", "cosine", "worst cosine", "nearest neighbour kept"),
        [
            (row["model"], f"W{row['bits']}A{row['bits']}", row["curvature"], f"{row['cosine']:.4f}",
             f"{row['worst cosine']:.4f}", f"{row['neighbour kept %']:.1f} %")
            for row in rows if row["seed"] == "mean"
        ],
    )  # fmt: skip


def mobile_sam(rows: Sequence[Row]) -> str:
    return _table(
        ("", "products", "cosine of a position", "worst", "mean IoU of masks", "worst", "MB (float)", "ms (float)"),
        [
            (row["bits"], row["products"], f"{row['cosine']:.4f}", f"{row['worst cosine']:.4f}",
             f"{row['mean IoU']:.3f}", f"{row['worst IoU']:.3f}", f"{row['MB']:.1f} ({row['float MB']:.1f})",
             f"{row['ms']:.0f} ({row['float ms']:.0f}): {row['speed']:.2f}x")
            for row in rows
        ],
    )  # fmt: skip


def large_model(rows: Sequence[Row]) -> str:
    return _table(
        ("model", "float", "in integers", "products", "exact", "peak memory", "seconds"),
        [
            (f"`{row['model']}`", f"{row['float GB']} GB", f"{row['model GB']} GB", row["kernels"],
             row["exact products"], f"{row['peak GB']} GB", sum(row["seconds"].values()))
            for row in rows
        ],
    )  # fmt: skip


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
    return _table(("", *models), lines)


TABLES: dict[str, Callable[[Sequence[Row]], str]] = {
    make.__name__: make for make in (families, embeddings_files, embeddings_curvature, mobile_sam, large_model, engines)
}


def _number(row: Row, key: str, form: str, unit: str = "") -> str:
    return format(row[key], form) + unit if key in row else ""


def _table(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = ["| " + " | ".join(map(str, cells)) + " |" for cells in (titles, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(titles), *lines[1:]])


def written(text: str) -> str:
    """A document with its tables as the results say."""
    return PLACE.sub(lambda found: f"{found[1]}\n{_of_results(found[2])}\n\n{found[3]}", text)


def _of_results(name: str) -> str:
    data = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    commits = sorted({row.get("commit", data["commit"]) for row in data["rows"]})
    runtime = data["versions"]["onnxruntime"]
    source = f"{data['date']}, commit {', '.join(commits)}, {data['machine']}, ONNX Runtime {runtime}."
    return f"{TABLES[name](data['rows'])}\n\n{source}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = {
        path: text for path in DOCUMENTS if (text := written(path.read_text(encoding="utf-8"))) != path.read_text()
    }
    for path, text in stale.items():
        if not check:
            path.write_text(text, encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {'differs from its results' if check else 'written'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
