"""Files that were changed, exports that were killed, and bytes on any number of threads."""

from __future__ import annotations

from collections.abc import Sequence

from tools.tables.markdown import Row, table


def mutations(rows: Sequence[Row]) -> str:
    """By kind of change. Those that change no output are caught as well, though nobody would be hurt."""
    lines = []
    for model, kind in dict.fromkeys((row["model"], row["kind"]) for row in rows):
        found = [row for row in rows if (row["model"], row["kind"]) == (model, kind)]
        number, harmful, with_plan, without, others = (
            sum(row[key] for row in found)
            for key in ("number", "change an output", "caught with the plan", "caught without",
                        "others caught with the plan")
        )  # fmt: skip
        lines.append(
            (model, kind, number, harmful, f"{with_plan} of {harmful}", f"{without} of {harmful}",
             f"{others} of {number - harmful}")
        )  # fmt: skip
    return table(
        ("model", "what was changed", "changes", "change an output", "caught with the plan", "caught without it",
         "harmless ones caught with the plan"),
        lines,
    )  # fmt: skip


def kills(rows: Sequence[Row]) -> str:
    """By signal."""
    return table(
        ("signal", "exports killed", "next export exact in its bytes", "files left behind", "faults"),
        [
            (signal, len(found), f"{sum(row['same bytes'] for row in found)} of {len(found)}",
             sum(len(row["left"]) for row in found), sum(len(row["faults"]) for row in found))
            for signal in sorted({row["signal"] for row in rows})
            for found in [[row for row in rows if row["signal"] == signal]]
        ],
    )  # fmt: skip


def threads(rows: Sequence[Row]) -> str:
    """Whether exports on any number of threads wrote the same bytes."""
    lines = []
    for model in dict.fromkeys(row["model"] for row in rows):
        found = [row for row in rows if row["model"] == model]
        same = all(row["sha256"] == found[0]["sha256"] for row in found)
        lines.append((model, ", ".join(str(row["threads"]) for row in found), ", ".join(found[0]["sha256"]),
                      "yes" if same else "NO"))  # fmt: skip
    return table(("model", "threads", "files", "same bytes"), lines)
