"""A plan in which every field of the file holds something."""

from __future__ import annotations

import numpy as np
import pytest

from ptq4vit_onnx.plan.channel_fold import Channels
from ptq4vit_onnx.plan.quantizers import (
    Affine,
    Compensated,
    Diffused,
    Pixels,
    TwinGelu,
    TwinSoftmax,
    Uniform,
    WeightCodes,
)
from ptq4vit_onnx.plan.scale_plan import Outliers, ScalePlan, SitePlan


@pytest.fixture
def plan() -> ScalePlan:
    fc2 = SitePlan(
        "linear", "gelu", TwinGelu(8, 0.25, 3), Uniform(8, (0.5, 0.25)),
        Outliers((3, 7), Affine(8, (0.5,), (128,)), Uniform(8, (0.125,))), (0.1, -0.2), {"hessian": 0.5},
        channels=Channels("blocks.0.norm2", (0.5, 2.0), (0.25, -1.0)),
    )  # fmt: skip
    codes = WeightCodes.of(np.array([[-8, 7], [3, -2], [0, 1]], np.int8))
    return ScalePlan(
        "vit_digits", "w" * 8, "i" * 8, {"activation_bits": 8}, {"torch": "2.13.0"},
        {
            "blocks.0.mlp.fc2": fc2,
            "blocks.0.attn.pv": SitePlan("matmul", "softmax", TwinSoftmax(8, 4), Uniform(8, (0.5,), -3)),
            "stem.proj": SitePlan("conv", "other", Pixels(8, (0.5, 0.25), (127.5, 3.0)), Uniform(8, (0.5,))),
            "patch_embed.proj": SitePlan("conv", "other", Uniform(8, (0.5,)), Diffused(4, (0.5, 0.25)),
                                         forms={"Uniform": 0.5, "Affine": 0.25}),
            "head": SitePlan("linear", "other", Uniform(8, (0.5,)), Compensated(4, (0.5, 0.25), stored=codes)),
        },
    )  # fmt: skip
