"""Float convolutions inside the torch model are those of ONNX Runtime, to the last bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ptq4vit_onnx.runtime.session import run
from ptq4vit_onnx.simulation.ort_kernels import RuntimeFloats

FORMS: list[dict[str, Any]] = [
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 7, "padding": 3, "groups": 16},
    {"kernel_size": (3, 1), "padding": (1, 0), "dilation": (1, 2), "bias": False},
]


class Stem(nn.Module):
    def __init__(self, form: dict[str, Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm = nn.Conv2d(16, 32, **form), nn.BatchNorm2d(32)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return F.silu(x) * F.hardswish(x) * x.sigmoid()


@pytest.mark.parametrize("form", FORMS)
def test_a_convolution_and_its_activations_are_the_files(form: dict[str, Any]) -> None:
    module, x = Stem(form).eval(), torch.randn(2, 16, 12, 12, generator=torch.Generator().manual_seed(1))
    program = torch.onnx.export(module, (x,), dynamo=True, opset_version=20, verbose=False)
    assert program is not None
    with torch.no_grad(), RuntimeFloats():
        simulated = module(x)
    assert torch.equal(simulated, torch.from_numpy(run(program.model_proto, x.numpy())))


def test_a_batch_norm_is_close_to_torchs_and_the_identity_is_exact() -> None:
    norm, x = nn.BatchNorm2d(32).eval(), torch.randn(2, 32, 5, 5)
    assert norm.running_mean is not None
    norm.running_mean.uniform_(-1, 1)
    with torch.no_grad(), RuntimeFloats():
        ours = norm(x)
        norm.running_mean.zero_()
        norm.eps = 0.0
        assert torch.equal(norm(x), x)
    norm.eps = 1e-5
    assert ours.shape == x.shape and not torch.equal(ours, x)
