"""Trial files are compared with the float model's outputs on the same images, whatever is remembered of these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptq4vit_onnx.output_kinds.kinds import KINDS
from ptq4vit_onnx.planning import trial_files
from ptq4vit_onnx.planning.trial_files import TrialFiles

WIDTH = 5


class Images:
    """Image number n is all n; the pretended model answers with a row of its number."""

    labels = None

    def __init__(self, count: int) -> None:
        self.images = np.arange(count, dtype=np.float32).reshape(-1, 1, 1, 1) * np.ones((1, 1, 2, 2), np.float32)

    def __len__(self) -> int:
        return len(self.images)


def answer(_model: Any, images: Any, _batch: int) -> tuple[Any, ...]:
    return (images[:, 0, 0, :1] * np.arange(1, WIDTH + 1, dtype=np.float32),)


@pytest.mark.parametrize("most", [0, 10 * WIDTH, 20 * WIDTH, 10**9])
@pytest.mark.parametrize("count", [3, 16, 17, 25])
def test_a_file_that_answers_as_the_float_model_is_at_distance_zero_each_time(
    most: int, count: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(trial_files, "run_all", answer)
    monkeypatch.setattr(trial_files, "session", lambda path, threads: path)
    monkeypatch.setattr(trial_files, "output_names", lambda model: ("logits",))
    monkeypatch.setattr(trial_files, "file_bytes", lambda path: 1)
    monkeypatch.setattr(trial_files, "MOST_REMEMBERED", most)
    images: Any = Images(count)
    no_plan: Any = None
    files = TrialFiles(tmp_path, no_plan, KINDS["logits"], images, tmp_path, "float", "onnxruntime")
    assert [files.measure(tmp_path / "model").distance for _ in range(3)] == pytest.approx([0.0] * 3, abs=1e-6)
