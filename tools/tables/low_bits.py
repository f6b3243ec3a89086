"""Few bits, and files within a size."""

from __future__ import annotations

from collections.abc import Sequence

from tools.tables.markdown import BITS, Row, mean, table


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
                f"{mean(found, 'kl'):.3g}{each}",
                f"{mean(found, 'agreement'):.1f} %",
                f"{sum(drops) / len(drops):.2f} ± {error:.2f}",
                len(found),
            )
        )
    return table(("model", "bits", "rounding", "KL (by seed)", "agreement", "drop in top-1", "seeds"), lines)


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
    return table(titles, lines)
