"""Accuracy on real photos: files in integers, plans simulated, ablation, other calibration photos."""

from __future__ import annotations

from collections.abc import Sequence

from tools.tables.markdown import BITS, NAMES, Row, mean, table

Groups = dict[tuple[str, ...], list[Row]]
ABLATION = ("none of the three", "Hessian", "Hessian + softmax twin", "Hessian + GELU twin", "softmax twin + GELU twin",
            "Hessian + both twins")  # fmt: skip
SHORT = ("W8A8", "W4A8")


def accuracy(rows: Sequence[Row]) -> str:
    """Means over seeds, through ONNX Runtime; the standard error is of one seed's photos."""
    return table(
        ("", "float top-1", "drop in top-1", "agreement", "KL", "KL by seed", "products in integers", "exact",
         "bit for bit", "MB (float)"),
        [
            (title(key), f"{found[0]['float_top1']:.1f}", drop(found), f"{mean(found, 'agreement'):.1f} %",
             f"{mean(found, 'kl'):.2g}", ", ".join(f"{row['kl']:.3g}" for row in found),
             f"{found[0]['integer_products']} of {found[0]['products']}", all_of(found, "exact", "checked"),
             f"{mean(found, 'identical'):.4g} % of {found[0]['identical_photos']}",
             f"{found[0]['mb']:.1f} ({found[0]['float_mb']:.1f})")
            for key, found in by_seed(rows, "model", "bits").items()
        ],
    )  # fmt: skip


def accuracy_short(rows: Sequence[Row]) -> str:
    """For a reader in a hurry: without loss, and half as large."""
    return table(
        ("", "float top-1", "drop in points", "same prediction", "KL, nats", "MB (float)"),
        [
            (title(key), f"{found[0]['float_top1']:.1f}", drop(found), f"{mean(found, 'agreement'):.1f} %",
             f"{mean(found, 'kl'):.2g}", f"{found[0]['mb']:.1f} ({found[0]['float_mb']:.1f})")
            for key, found in by_seed(rows, "model", "bits").items() if key[1] in SHORT
        ],
    )  # fmt: skip


def accuracy_simulated(rows: Sequence[Row]) -> str:
    """The same plans in integers and simulated in torch's float, and both folds."""
    lines = []
    for key, found in by_seed(rows, "model", "bits").items():
        simulated = [row["simulated"] for row in found]
        folds = [[row["folds"][fold] for row in found] for fold in sorted(found[0]["folds"])]
        lines.append(
            (title(key), f"{mean(found, 'kl'):.3g}", f"{mean(simulated, 'kl'):.3g}", drop(found), drop(simulated),
             *(f"{mean(fold, 'kl'):.3g}, {drop(fold)}" for fold in folds), len(found))
        )  # fmt: skip
    return table(
        (
            "",
            "KL",
            "KL, simulated",
            "drop in top-1",
            "drop, simulated",
            "fold 0: KL, drop",
            "fold 3: KL, drop",
            "seeds",
        ),
        lines,
    )


def ablation(rows: Sequence[Row]) -> str:
    """The paper's Table 3 on ViT-T and DeiT-T."""
    order = sorted(
        rows, key=lambda row: (row["model"] != "vit_t", row["bits"] != "W8A8", ABLATION.index(row["method"]))
    )
    return table(
        ("", "method", "drop in top-1", "agreement", "KL"),
        [
            (title((row["model"], row["bits"])), row["method"], drop([row]), f"{row['agreement']:.1f} %",
             f"{row['kl']:.3g}")
            for row in order
        ],
    )  # fmt: skip


def methods(rows: Sequence[Row]) -> str:
    """By where the calibration photos come from."""
    return table(
        ("", "method", "calibrated on", "drop in top-1", "agreement", "KL", "seeds"),
        [
            (title(key[:2]), key[2], f"{key[3]} photos", drop(found), f"{mean(found, 'agreement'):.1f} %",
             f"{mean(found, 'kl'):.3g} (" + ", ".join(f"{row['kl']:.3g}" for row in found) + ")", len(found))
            for key, found in by_seed(rows, "model", "bits", "method", "calibrated_on").items()
        ],
    )  # fmt: skip


def by_seed(rows: Sequence[Row], *keys: str) -> Groups:
    """ViT-T first, many bits first, seeds in their order."""
    groups: Groups = {}
    for row in sorted(rows, key=lambda row: (row["model"] != "vit_t", BITS.index(row["bits"]), row["seed"])):
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups


def title(key: Sequence[str]) -> str:
    return f"{NAMES[key[0]]} {key[1]}"


def drop(rows: Sequence[Row]) -> str:
    drops = [row["drop"] for row in rows]
    return f"{mean(drops, 'points'):.2f} ± {mean(drops, 'standard_error'):.2f}"


def all_of(rows: Sequence[Row], part: str, whole: str) -> str:
    """Of several seeds the one with the smallest part."""
    least = min(rows, key=lambda row: row[part] / row[whole])
    return f"{least[part]} of {least[whole]}"
