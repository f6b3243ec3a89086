"""Search spaces: the scales that are on offer."""

from __future__ import annotations

import pytest
import torch

from ptq4vit_onnx.calibration.grids import channel_grid, factors, group_reduce
from ptq4vit_onnx.plan.options import Options


def test_candidates_span_alpha_to_beta_without_zero() -> None:
    assert factors(Options(candidates=4, beta=1.2)).tolist() == pytest.approx([0.3, 0.6, 0.9, 1.2])
    assert factors(Options(candidates=3, alpha=0.5, beta=1.5)).tolist() == pytest.approx([0.5, 1.0, 1.5])


def test_channel_grid_reaches_the_scale_at_which_no_pair_is_unsafe() -> None:
    weight = torch.tensor([[1.0, 0.5], [1.0, -0.5], [0.1, 0.1], [0.0, 0.0]])
    grid = channel_grid(weight, 8, Options(candidates=12, beta=1.2))
    assert grid.scales[-3].tolist() == pytest.approx([2.0 / 128, 0.5 / 128])  # the candidate of factor 1.0


def test_group_reduce_cuts_the_axis_into_equal_consecutive_parts() -> None:
    x = torch.arange(12.0).reshape(2, 6)
    assert group_reduce(x, 3, -1, "sum").tolist() == [0 + 1 + 6 + 7, 2 + 3 + 8 + 9, 4 + 5 + 10 + 11]
    assert group_reduce(x.reshape(2, 3, 2, 1), 3, -3, "amax").tolist() == [7, 9, 11]
