"""Rows of a reproduced table: counted chunk by chunk, and read only where they are whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.output_kinds import metrics
from ptq4vit_onnx.studies import table_files as reproduced_rows
from ptq4vit_onnx.studies.table_files import COLUMNS, Tally


def test_a_tally_over_chunks_is_the_metrics_of_all_images() -> None:
    random = np.random.default_rng(0)
    reference, labels = random.standard_normal((50, 7)), random.integers(0, 7, 50)
    logits = reference + random.standard_normal((50, 7))
    tally = Tally()
    for part in (slice(0, 20), slice(20, 49), slice(49, 50)):
        tally.add(logits[part], reference[part], labels[part])
    drop = metrics.paired_drop(reference, logits, labels)
    assert drop.points != 0
    assert tally.cells() == {
        "top1": f"{metrics.top1(logits, labels):.2f}", "drop": f"{drop.points:.2f}",
        "drop_error": f"{drop.standard_error:.2f}", "float_top1": f"{metrics.top1(reference, labels):.2f}",
        "agreement": f"{metrics.agreement(logits, reference):.2f}", "kl": f"{metrics.mean_kl(reference, logits):.5f}",
        "validation_images": "50",
    }  # fmt: skip


def test_a_file_with_a_torn_row_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "table1.csv"
    reproduced_rows.write_rows(path, [dict.fromkeys(COLUMNS, "1")])
    path.write_text(path.read_text() + "vit_s,PTQ4ViT\n")
    with pytest.raises(UserError, match="has other columns"):
        reproduced_rows.read_rows(path)
