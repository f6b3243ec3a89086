"""How fast files run, and how large they are."""

from __future__ import annotations

from collections.abc import Sequence

from tools.tables.markdown import Row, table

SHORT = ("float", "softmax/w8a8", "openvino:softmax/w8a8", "static", "nncf", "openvino:nncf")
TITLES = {"deit_t": "DeiT-T", "deit_s": "DeiT-S", "deit_b": "DeiT-B", "swin_t": "Swin-T"}


def speed(rows: Sequence[Row]) -> str:
    """Models across, a line for each file in an engine; of each setting a table."""
    settings = dict.fromkeys((row["threads"], row["batch"]) for row in rows)
    return "\n\n".join(
        f"### {threads} {'thread' if threads == 1 else 'threads'}, batch {batch}\n\n"
        + _speeds([row for row in rows if (row["threads"], row["batch"]) == (threads, batch)])
        for threads, batch in settings
    )


def speed_short(rows: Sequence[Row]) -> str:
    """One thread, one image, W8A8 with the softmax twin: times the float model in ONNX Runtime."""
    found = [row for row in rows if (row["threads"], row["batch"]) == (1, 1) and row["variant"] in SHORT]
    models = list(dict.fromkeys(row["model"] for row in found))
    known = {(row["variant"], row["model"]): row for row in found}
    return table(
        ("", *(TITLES[model] for model in models)),
        [
            (
                _file(variant).replace(", softmax twin, W8A8", ""),
                *(_times_float(known.get((variant, model))) for model in models),
            )
            for variant in SHORT if any(row["variant"] == variant for row in found)
        ],
    )  # fmt: skip


def _times_float(row: Row | None) -> str:
    if row is None:
        return ""
    return f"{row['median']:.1f} ms" if row["variant"] == "float" else f"{row['speed']:.2f}x"


def _speeds(rows: Sequence[Row]) -> str:
    models = list(dict.fromkeys(row["model"] for row in rows))
    known = {(row["variant"], row["model"]): row for row in rows}
    return table(
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
    return table(("model", "file", "MB (the paper's)", *(f"ms to load, {titles[item]}" for item in engines)), lines)
