"""Several processes, several machines."""

from __future__ import annotations

from collections.abc import Sequence

from tools.tables.markdown import Row, table


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
    return table(("turn", "one worker: time, CPU time, cores that others kept busy", "two workers", "faster"), lines)


def _side_by_side(rows: Sequence[Row]) -> str:
    return table(
        ("on", "seconds", "cores that others kept busy", "same bytes"),
        [(row["on"], f"{row['seconds']:.0f}", _known(row["others"]), "yes" if row["same bytes"] else "NO")
         for row in rows],
    )  # fmt: skip


def _known(cores: float | None) -> str:
    return "-" if cores is None else f"{cores:.1f}"


def _kills(rows: Sequence[Row]) -> str:
    return table(
        ("killed", "processes", "seconds", "tasks tried again", "results kept", "same bytes"),
        [(row["killed"], row["kills"], f"{row['seconds']:.0f}", row["tried again"], row["kept"],
          "yes" if row["same bytes"] else "NO") for row in rows],
    )  # fmt: skip


def _costs(rows: Sequence[Row]) -> str:
    return table(
        ("model", "method", "recording (serial)", "search (a task a site)", "evidence (serial)", "float, an image",
         "simulated, an image"),
        [(row["model"], row["method"], *(f"{row[key]:.1f}" for key in ("record", "search", "evidence")),
          *(f"{row[key]:.3f}" for key in ("float", "simulated"))) for row in rows],
    )  # fmt: skip


def _prediction(rows: Sequence[Row]) -> str:
    return table(
        ("machines of 16 cores", "hours", "faster", "cores at work", "not below, however many", "dollars"),
        [(row["machines"] or "one core of one", f"{row['hours']:.1f}", f"{row['faster']:.0f}x",
          f"{row['busy percent']:.0f} %", f"{row['least hours']:.1f} h", f"{row['dollars']:.0f}") for row in rows],
    )  # fmt: skip
