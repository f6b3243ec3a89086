"""A quantizer is one dataclass and one pass: one that nothing in the package knows goes the whole way.

`Positive` rounds GELU's output to codes 0 .. 2^k-1 and takes negatives for zero. It is put into QUANTIZERS, its pass
into PASSES; plan JSON, search, both simulators, report and proof then treat it as any other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from ptq4vit_onnx import passes, pipeline
from ptq4vit_onnx.errors import ParityError
from ptq4vit_onnx.images.embedded import embedded_digits
from ptq4vit_onnx.passes.byte_codes import ByteCodes, add_dequantize, add_quantize
from ptq4vit_onnx.passes.pass_interface import Pass
from ptq4vit_onnx.passes.split_gelu import SplitGelu
from ptq4vit_onnx.passes.work import Work
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.plan_json import read_plan
from ptq4vit_onnx.plan.quantizers import QUANTIZERS, Branch, Points, Quantizer, Tensor, Uniform, as_float32
from ptq4vit_onnx.plan.quantizers.rounding import require_bits, require_scales, round_clip
from ptq4vit_onnx.plan.scale_plan import SitePlan
from ptq4vit_onnx.plan.sites import Source
from ptq4vit_onnx.report.twin_words import twin_choice
from ptq4vit_onnx.request import ExportRequest
from ptq4vit_onnx.simulation.fake import simulate

Array = np.ndarray[Any, Any]
SITE = "blocks.0.mlp.fc2"


@dataclass(frozen=True)
class Positive(Quantizer):
    """Codes 0 .. 2^k-1, zero is code 0."""

    kind: ClassVar[str] = "positive"
    title: ClassVar[str] = "positives alone"
    source: ClassVar[Source | None] = "gelu"

    scale: float

    def __post_init__(self) -> None:
        require_bits(self.bits)
        require_scales((self.scale,))

    @classmethod
    def candidates(cls, bits: int, low: float, high: float, factors: Sequence[float]) -> tuple[Quantizer, ...]:
        return tuple(cls(bits, as_float32(factor * max(high, 1e-12) / (2**bits - 1))) for factor in factors)

    @property
    def branches(self) -> tuple[Branch, ...]:
        return (Branch("", (self.scale,), 0, 2**self.bits - 1),)

    @property
    def points(self) -> tuple[Points, ...]:
        return (Points("", 0.0, self.scale, 2**self.bits),)

    def units(self, x: Tensor) -> tuple[Tensor, ...]:
        return (round_clip(x / self.scale, 0, 2**self.bits - 1),)

    def fake_quantize(self, x: Tensor) -> Tensor:
        return self.units(x)[0] * self.scale  # type: ignore[no-any-return]

    def encode(self, x: Array) -> Array:
        return np.asarray(self.units(x)[0], np.uint8)

    def decode(self, codes: Array) -> Array:
        return codes.astype(np.float32) * np.float32(self.scale)


class QuantizePositives(Pass):
    """x -> MatMul becomes x -> QuantizeLinear (zero point 0) -> DequantizeLinear -> MatMul."""

    requires = ("RestoreHeadScales",)
    steps = 1.0  # a wrong pass would write other steps than the plan's

    def apply(self, work: Work) -> int:
        products = [item for item in work.products if isinstance(item.lhs, Positive)]
        for product in products:
            assert isinstance(product.lhs, Positive)
            codes = ByteCodes(as_float32(self.steps * product.lhs.scale), 0, 0, 2**product.lhs.bits - 1)
            x = add_quantize(work, product.node.inputs[0], codes, f"{product.name}/lhs")
            product.node.inputs[0] = add_dequantize(work, x, codes, f"{product.name}/lhs")
            product.lhs_done = True
        return len(products)


@pytest.fixture
def registered(quick_spine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only form made for GELU, and its pass."""
    monkeypatch.delitem(QUANTIZERS, "twin_gelu")
    monkeypatch.setitem(QUANTIZERS, Positive.kind, Positive)
    at = passes.PASSES.index(SplitGelu) + 1
    monkeypatch.setattr(passes, "PASSES", (*passes.PASSES[:at], QuantizePositives, *passes.PASSES[at:]))


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("bits", [8, 5])
def test_a_new_quantizer_is_searched_saved_simulated_shown_and_proven(
    bits: int, tmp_path: Path, load_model: Callable[[str], Any]
) -> None:
    options = Options(images=4, candidates=16, twin="gelu", weight_bits=bits, activation_bits=bits, channels="none")
    pipeline.export(ExportRequest(options=options, output=tmp_path / "out"))
    plan = read_plan(tmp_path / "out" / "plan.json")
    assert isinstance(plan.sites[SITE].lhs, Positive)
    assert json.loads((tmp_path / "out" / "plan.json").read_text())["sites"][SITE]["lhs"]["type"] == "positive"
    pipeline.export(ExportRequest(plan=tmp_path / "out" / "plan.json", output=tmp_path / "again"))
    assert (tmp_path / "out" / "model.onnx").read_bytes() == (tmp_path / "again" / "model.onnx").read_bytes()

    data = json.loads((tmp_path / "out" / "report.json").read_text())
    assert data["end_to_end"]["identical"] == 100, "file and exact simulator, bit for bit"
    assert all(item["exact"] for item in data["site_parity"])
    checked = next(item["checked"] for item in data["site_parity"] if item["site"] == SITE)
    assert {"left range", "left step", "left codes"} <= set(checked)
    page = (tmp_path / "out" / "report.html").read_text()
    assert f"positives alone, {bits} bits, step" in page and f"{2**bits} quantisation points" in page

    model = load_model("vit_digits")
    images = embedded_digits(model.preprocessing, "test").images[:8]
    float_logits, logits = simulate(model.module, None, images), simulate(model.module, plan, images)
    assert 0 < np.abs(logits - float_logits).max() < np.abs(float_logits).max()
    assert torch.equal(plan.sites[SITE].lhs.fake_quantize(torch.tensor([-1.0, 0.0])), torch.zeros(2)), (
        "negatives are zero"
    )


def test_a_form_of_one_range_that_was_taken_is_said_to_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(QUANTIZERS, Positive.kind, Positive)
    forms = {"Positive": 1.0, "Affine": 2.0}
    choice = twin_choice(SitePlan("linear", "gelu", Positive(8, 0.5), Uniform(8, (0.5,)), forms=forms))
    assert str(choice) == "twin would save 1.0e+00 at no second product: taken"


@pytest.mark.usefixtures("registered")
def test_the_proof_sees_a_new_pass_that_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QuantizePositives, "steps", 1.5)
    options = Options(images=4, candidates=8, twin="gelu", channels="none")
    with pytest.raises(ParityError, match=f"{SITE}/MatMul.*the plan's"):
        pipeline.export(ExportRequest(options=options, output=tmp_path / "out"))
    assert not (tmp_path / "out").exists()
