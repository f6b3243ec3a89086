"""Rows of benchmarks/speed.py: as Markdown, and as benchmarks/results/speed_*.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks import avx2_runtime, results
from ptq4vit_onnx.runtime.bench import Timing
from ptq4vit_onnx.runtime.cpu import cpu_features

COLUMNS = ("model", "threads", "batch", "ms", "quartiles", "x float", "x quantize_static", "busy cores", "slow mode")
STATIC = "static"
LABELS = {STATIC: "quantize_static u8s8"}
Row = dict[str, Any]


def rows_of(name: str, timings: Sequence[Timing], accuracy: Mapping[str, Mapping[str, float]]) -> list[Row]:
    """Of one setting: timings of all files, the float one first. Ratios are within one mode, the fast one."""
    static = next((timing.median for timing in timings if timing.model == STATIC), None)
    source = {key: value for key, value in results.provenance().items() if key in ("commit", "date")}
    found = []
    for timing in timings:
        own = {key: value for key, value in asdict(timing).items() if key != "model"}
        against = {} if static is None else {"x static": static / timing.median}
        found.append(
            {"model": name, "variant": timing.model, **own, **against, **accuracy.get(timing.model, {}), **source}
        )
    return found


def line(row: Row, more: Sequence[str] = ()) -> str:
    """more: keys of further columns, of the accuracy."""
    label = LABELS.get(row["variant"], row["variant"].replace("/", ", "))
    against = f"{row['x static']:.2f}" if "x static" in row else ""
    cells = (
        f"{row['model']} {label}", row["threads"], row["batch"], f"{row['median']:.1f}",
        f"{row['low']:.1f} .. {row['high']:.1f}", f"{row['speed']:.2f}", against, f"{row['cores']:.1f}",
        slow_mode(row),
        *(f"{row[key]:.1f}" if key in row else "" for key in more),
    )  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


def slow_mode(row: Row) -> str:
    """ms (quartiles), x float, share of the runs, busy cores; empty where there was one mode."""
    if not row["modes"]:
        return ""
    _, slow = row["modes"]
    times = f"{slow['median']:.1f} ({slow['low']:.1f} .. {slow['high']:.1f})"
    return f"{times}, {slow['speed']:.2f}x, {slow['share']:.0%} of runs, {slow['cores']:.1f} cores"


def heading(more: Sequence[str] = ()) -> str:
    columns = (*COLUMNS, *more)
    return "| " + " | ".join(columns) + " |\n|" + "---|" * len(columns)


def result_name(real: bool) -> str:
    """speed_avx2, speed_vnni_real: one file for each kind of kernels, and for trained weights."""
    kernels = "vnni" if cpu_features().vnni and not avx2_runtime.is_limited() else "avx2"
    return f"speed_{kernels}" + ("_real" if real else "")


def keep(name: str, rows: Sequence[Row], **settings: Any) -> None:
    """Into the results. A setting's rows are one run's, so they replace all older ones of that setting; rows of another
    machine do not stay beside them.
    """
    known = results.read(name)
    older = known.get("rows", []) if known.get("machine") == results.provenance()["machine"] else []
    measured = {_setting(row) for row in rows}
    kept = [row for row in older if _setting(row) not in measured]
    limited = {"onnxruntime": "limited to AVX2"} if avx2_runtime.is_limited() else {}
    results.write(name, [*kept, *rows], **limited, **settings)


def _setting(row: Row) -> tuple[Any, ...]:
    return row["model"], row["threads"], row["batch"]
