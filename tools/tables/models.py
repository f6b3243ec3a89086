"""What became of models: families, embeddings, features, large ones, all that are listed by name."""

from __future__ import annotations

from collections.abc import Sequence

from tools.tables.markdown import Row, table


def families(rows: Sequence[Row]) -> str:
    return table(
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
    return table(
        ("model", "file", "cosine", "worst cosine", "nearest neighbour kept", "k-NN accuracy", "products in integers"),
        [
            (row["model"], row["file"], _number(row, "cosine", ".4f"), _number(row, "worst cosine", ".4f"),
             _number(row, "neighbour kept %", ".1f", " %"), f"{row['k-NN %']:.1f} %", row["in integers"])
            for row in rows
        ],
    )  # fmt: skip


def embeddings_curvature(rows: Sequence[Row]) -> str:
    return table(
        ("model", "bits", "curvature", "cosine", "worst cosine", "nearest neighbour kept"),
        [
            (row["model"], f"W{row['bits']}A{row['bits']}", row["curvature"], f"{row['cosine']:.4f}",
             f"{row['worst cosine']:.4f}", f"{row['neighbour kept %']:.1f} %")
            for row in rows if row["seed"] == "mean"
        ],
    )  # fmt: skip


def mobile_sam(rows: Sequence[Row]) -> str:
    return table(
        ("", "products", "cosine of a position", "worst", "mean IoU of masks", "worst", "MB (float)", "ms (float)"),
        [
            (row["bits"], row["products"], f"{row['cosine']:.4f}", f"{row['worst cosine']:.4f}",
             f"{row['mean IoU']:.3f}", f"{row['worst IoU']:.3f}", f"{row['MB']:.1f} ({row['float MB']:.1f})",
             f"{row['ms']:.0f} ({row['float ms']:.0f}): {row['speed']:.2f}x")
            for row in rows
        ],
    )  # fmt: skip


def large_model(rows: Sequence[Row]) -> str:
    return table(
        ("model", "float", "in integers", "products", "exact", "peak memory", "seconds"),
        [
            (f"`{row['model']}`", f"{row['float GB']} GB", f"{row['model GB']} GB", row["kernels"],
             row["exact products"], f"{row['peak GB']} GB", sum(row["seconds"].values()))
            for row in rows
        ],
    )  # fmt: skip


def all_models(rows: Sequence[Row]) -> str:
    """Sizes, load times, calibration time and memory of the models that are known by name."""
    return table(
        ("model", "products in integers", "exact", "bit for bit", "MB (float)", "ms to load (float)", "calibration",
         "whole export", "CPU time", "peak memory"),
        [
            (f"`{row['model']}`", f"{row['integer products']} of {row['products']}",
             f"{row['exact']} of {row['checked']}", f"{row['identical percent']:.4g} % of {row['measured images']}",
             f"{row['MB']:.1f} ({row['float MB']:.1f})", f"{row['load ms']:.0f} ({row['float load ms']:.0f})",
             _seconds(row["calibration s"]), _seconds(row["export s"]), _seconds(row["cpu s"]),
             f"{row['peak GB']:.1f} GB")
            for row in rows
        ],
    )  # fmt: skip


def _seconds(value: float | None) -> str:
    """None: the process was stopped for a while, so that the clock says nothing."""
    return "-" if value is None else f"{value:.0f} s"


def _number(row: Row, key: str, form: str, unit: str = "") -> str:
    return format(row[key], form) + unit if key in row else ""
