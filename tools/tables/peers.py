"""Other tools' files next to ours."""

from __future__ import annotations

from collections.abc import Sequence

from tools.tables.markdown import NAMES, Row, mean, table

TITLES = ("tool", "bits", "KL (by seed)", "agreement", "drop in top-1", "products in integers", "MB", "version",
          "setting")  # fmt: skip


def peers(rows: Sequence[Row]) -> str:
    """A table for each model, the closest to float first; tools without figures come last, with their reasons.

    Means over seeds; the standard error of the drop is of one seed's photos.
    """
    models = dict.fromkeys(row["model"] for row in rows)
    return "\n\n".join(_of_model(name, [row for row in rows if row["model"] == name]) for name in models)


def _of_model(name: str, rows: Sequence[Row]) -> str:
    tools = dict.fromkeys(row["tool"] for row in rows if row["tool"] != "float")
    measured = {tool: [row for row in rows if row["tool"] == tool and not row["failure"]] for tool in tools}
    ranked = sorted((tool for tool in tools if measured[tool]), key=lambda tool: mean(measured[tool], "kl"))
    lines = [_measured(tool, measured[tool]) for tool in ranked]
    lines += [_failed(row) for row in rows if row["failure"] and not measured[row["tool"]]]
    return f"### {NAMES.get(name, name)}\n\n{_about(rows)}\n\n{table(TITLES, lines)}"


def _about(rows: Sequence[Row]) -> str:
    """Of the float model, which every row is compared with."""
    known = [row for row in rows if row["tool"] == "float"]
    photos, seeds = known[0]["photos"], sorted({row["seed"] for row in rows})
    drawn = "one draw" if len(seeds) == 1 else f"{len(seeds)} draws"
    return (
        f"{photos} photos. Float: top-1 {known[0]['top1']:.1f} %, {known[0]['mb']:.1f} MB. Calibration photos: {drawn}."
    )


def _measured(tool: str, found: Sequence[Row]) -> tuple[str, ...]:
    first = found[0]
    each = " (" + ", ".join(f"{row['kl']:.2g}" for row in found) + ")" if len(found) > 1 else ""
    return (
        _title(tool), first["bits"], f"{mean(found, 'kl'):.2g}{each}",
        f"{mean(found, 'agreement'):.1f} %", f"{mean(found, 'drop'):.2f} ± {first['drop_error']:.2f}",
        f"{first['integer_products']} of {first['products']}", f"{mean(found, 'mb'):.1f}",
        first["version"], first["setting"],
    )  # fmt: skip


def _failed(row: Row) -> tuple[str, ...]:
    why = f"fails: {row['failure']}"
    return (_title(row["tool"]), row["bits"], why, "", "", "", "", row["version"], row["setting"])


def _title(tool: str) -> str:
    return f"**{tool}**" if tool.startswith("ptq4vit-onnx") else tool
