"""The tables of README and docs, written from benchmarks/results/*.json: nobody types a number.

    python tools/result_tables.py            # writes them
    python tools/result_tables.py --check    # ends with 1 where a document and its results disagree

A document says where a table stands:  <!-- results: families -->  ...  <!-- end of results -->
Of rows with a batch size, <!-- results: speed_vnni, batch 1 --> takes those of one.
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
PLACE = re.compile(r"(<!-- results: (\w+)(?:, batch (\d+))? -->\n).*?(<!-- end of results -->)", re.DOTALL)
BITS = ("W8A8", "W6A8", "W5A8", "W4A8", "W6A6", "W4A4")
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


def speed(rows: Sequence[Row]) -> str:
    """Models across, a line for each file in an engine; of each setting a table."""
    settings = dict.fromkeys((row["threads"], row["batch"]) for row in rows)
    return "\n\n".join(
        f"### {threads} {'thread' if threads == 1 else 'threads'}, batch {batch}\n\n"
        + _speeds([row for row in rows if (row["threads"], row["batch"]) == (threads, batch)])
        for threads, batch in settings
    )


def _speeds(rows: Sequence[Row]) -> str:
    models = list(dict.fromkeys(row["model"] for row in rows))
    known = {(row["variant"], row["model"]): row for row in rows}
    return _table(
        ("ms, times float", *models),
        [
            (_file(variant), *(_time(known[variant, model]) if (variant, model) in known else "" for model in models))
            for variant in dict.fromkeys(row["variant"] for row in rows)
        ],
    )


def _file(variant: str) -> str:
    """openvino:auto/w8a8 -> ours, W8A8, in OpenVINO"""
    name = variant.removeprefix("openvino:")
    twin, _, width = name.partition("/")
    titles = {"float": "float", "float-rows": "float without the unread rows", "static": "`quantize_static` u8s8",
              "nncf": "NNCF", "auto": "ours", "softmax": "ours, softmax twin", "both": "ours, both twins",
              "none": "ours, no twin"}  # fmt: skip
    engine = "OpenVINO" if variant.startswith("openvino:") else "ONNX Runtime"
    return f"{titles[twin]}{', ' + width.upper() if width else ''}, in {engine}"


def _time(row: Row) -> str:
    """The fast mode's; of two, the slow one's beside it."""
    slow = f"; slow mode {row['modes'][1]['median']:.1f}, {row['modes'][1]['speed']:.2f}x" if row["modes"] else ""
    return f"{row['median']:.1f} ({row['low']:.1f} .. {row['high']:.1f}), {row['speed']:.2f}x{slow}"


def file_size(rows: Sequence[Row]) -> str:
    engines = list(dict.fromkeys(row["engine"] for row in rows))
    titles = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}
    files = dict.fromkeys((row["model"], row["variant"], row["kind"]) for row in rows if row["kind"] != "before")
    known = {(row["model"], row["variant"], row["kind"], row["engine"]): row for row in rows}
    lines = []
    for model, variant, kind in files:
        found = [known[model, variant, kind, engine] for engine in engines]
        paper = f" ({found[0]['paper MB']})" if found[0]["paper MB"] else ""
        title = ("float" if variant == "float" else variant.partition("/")[2].upper()) + (f", {kind}" * (kind != "now"))
        times = [f"{row['load ms']:.0f} ({row['low']:.0f} .. {row['high']:.0f})" for row in found]
        lines.append((model, title, f"{found[0]['MB']:.1f}{paper}", *times))
    return _table(("model", "file", "MB (the paper's)", *(f"ms to load, {titles[item]}" for item in engines)), lines)


def many_machines(rows: Sequence[Row]) -> str:
    """A table for each part of the benchmark."""
    parts = {
        "Four independent exports, one thread each": _exports,
        "Table 1 of ViT-T and DeiT-T, 2000 photos": _side_by_side,
        "`eval` of ViT-T, 2000 photos": _side_by_side,
        "Killed on the way": _kills,
        "Seconds of one core": _costs,
        "Table 1 on 50,000 photos, predicted": _prediction,
    }
    names = ("exports", "table", "evaluation", "kills", "costs", "prediction")
    return "\n\n".join(
        f"### {title}\n\n{make([row for row in rows if row['part'] == name])}"
        for name, (title, make) in zip(names, parts.items(), strict=True)
        if any(row["part"] == name for row in rows)
    )


def _exports(rows: Sequence[Row]) -> str:
    found = {(row["turn"], row["workers"]): row for row in rows}
    lines = []
    for turn in sorted({turn for turn, workers in found if workers == 2}):
        one, two = found[turn, 1], found[turn, 2]
        cells = [f"{row['seconds']:.0f} s, {row['cpu']:.0f} s, {row['others']:.1f}" for row in (one, two)]
        lines.append((turn + 1, *cells,
                      f"{one['seconds'] / two['seconds']:.2f}x"))  # fmt: skip
    return _table(("turn", "one worker: time, CPU time, cores that others kept busy", "two workers", "faster"), lines)


def _side_by_side(rows: Sequence[Row]) -> str:
    return _table(
        ("on", "seconds", "cores that others kept busy", "same bytes"),
        [(row["on"], f"{row['seconds']:.0f}", _known(row["others"]), "yes" if row["same bytes"] else "NO")
         for row in rows],
    )  # fmt: skip


def _known(cores: float | None) -> str:
    return "-" if cores is None else f"{cores:.1f}"


def _kills(rows: Sequence[Row]) -> str:
    return _table(
        ("killed", "processes", "seconds", "tasks tried again", "results kept", "same bytes"),
        [(row["killed"], row["kills"], f"{row['seconds']:.0f}", row["tried again"], row["kept"],
          "yes" if row["same bytes"] else "NO") for row in rows],
    )  # fmt: skip


def _costs(rows: Sequence[Row]) -> str:
    return _table(
        ("model", "method", "recording (serial)", "search (a task a site)", "evidence (serial)", "float, an image",
         "simulated, an image"),
        [(row["model"], row["method"], *(f"{row[key]:.1f}" for key in ("record", "search", "evidence")),
          *(f"{row[key]:.3f}" for key in ("float", "simulated"))) for row in rows],
    )  # fmt: skip


def _prediction(rows: Sequence[Row]) -> str:
    return _table(
        ("machines of 16 cores", "hours", "faster", "cores at work", "not below, however many", "dollars"),
        [(row["machines"] or "one core of one", f"{row['hours']:.1f}", f"{row['faster']:.0f}x",
          f"{row['busy percent']:.0f} %", f"{row['least hours']:.1f} h", f"{row['dollars']:.0f}") for row in rows],
    )  # fmt: skip


def low_bits(rows: Sequence[Row]) -> str:
    """Means over seeds; the standard error is of one seed's photos."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row["model"], BITS.index(row["bits"]), row["rounding"] == "compensated")):
        groups.setdefault((row["model"], row["bits"], row["rounding"]), []).append(row)
    lines = []
    for (model, bits, rounding), found in groups.items():
        drops, error = [row["drop"]["points"] for row in found], found[0]["drop"]["standard_error"]
        each = " (" + ", ".join(f"{row['kl']:.3g}" for row in found) + ")" if len(found) > 1 else ""
        lines.append(
            (
                model,
                bits,
                rounding if not bits.startswith("W8") else "each by itself",
                f"{_mean(found, 'kl'):.3g}{each}",
                f"{_mean(found, 'agreement'):.1f} %",
                f"{sum(drops) / len(drops):.2f} ± {error:.2f}",
                len(found),
            )
        )
    return _table(("model", "bits", "rounding", "KL (by seed)", "agreement", "drop in top-1", "seeds"), lines)


def _mean(rows: Sequence[Row], key: str) -> float:
    return float(sum(row[key] for row in rows)) / len(rows)


def budgets(rows: Sequence[Row]) -> str:
    """Files of one model by size; above a mixture stands the best single width that fits into its size."""
    lines = []
    for row in sorted(rows, key=lambda row: (row["model"], row["size"], row["title"])):
        if row["group"] == "float":
            continue
        fitting = [other["kl"] for other in rows if other["model"] == row["model"] and other["group"] == "single"
                   and other["size"] <= row["size"]]  # fmt: skip
        ratio = f"{row['kl'] / min(fitting):.2f}x" if row["group"] == "mixed" and fitting else ""
        predicted = "" if row["predicted"] is None else f"{row['predicted']:.3g}"
        lines.append((row["model"], row["title"], f"{row['size'] / 1e6:.2f}", predicted, f"{row['kl']:.3g}", ratio,
                      f"{row['agreement']:.1f} %", f"{row['drop']:.2f} ± {row['drop_error']:.2f}"))  # fmt: skip
    titles = ("model", "file", "MB", "KL predicted", "KL measured", "of the best single width that fits", "agreement",
              "drop in top-1")  # fmt: skip
    return _table(titles, lines)


TABLES: dict[str, Callable[[Sequence[Row]], str]] = {
    **{
        make.__name__: make
        for make in (
            families,
            embeddings_files,
            embeddings_curvature,
            mobile_sam,
            large_model,
            engines,
            file_size,
            many_machines,
            low_bits,
            budgets,
        )
    },
    **dict.fromkeys(("speed_vnni", "speed_avx2", "two_threads_1", "two_threads_2", "two_threads_3"), speed),
}


def _number(row: Row, key: str, form: str, unit: str = "") -> str:
    return format(row[key], form) + unit if key in row else ""


def _table(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = ["| " + " | ".join(map(str, cells)) + " |" for cells in (titles, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(titles), *lines[1:]])


def written(text: str) -> str:
    """A document with its tables as the results say."""
    return PLACE.sub(lambda found: f"{found[1]}\n{_of_results(found[2], found[3])}\n\n{found[4]}", text)


def _of_results(name: str, batch: str | None) -> str:
    data = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    rows = [row for row in data["rows"] if batch is None or row["batch"] == int(batch)]
    commits = sorted({row.get("commit", data["commit"]) for row in data["rows"]})
    runtime = data["versions"]["onnxruntime"]
    source = f"{data['date']}, commit {', '.join(commits)}, {data['machine']}, ONNX Runtime {runtime}."
    return f"{TABLES[name](rows)}\n\n{source}"


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
