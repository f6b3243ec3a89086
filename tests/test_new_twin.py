"""A quantizer with two branches that nothing in the package knows: searched, applied, proven, and shown as taken.

`Stairs` codes probabilities in two parts that add up: what lies below a border in fine steps, what exceeds it in steps
three times as large. Unlike the paper's twins its steps are no power of two apart and its ranges are no alternatives.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from ptq4vit_onnx import passes, pipeline
from ptq4vit_onnx.calibration.grids import form_grid
from ptq4vit_onnx.passes.byte_codes import ByteCodes, add_dequantize, add_quantize
from ptq4vit_onnx.passes.pass_interface import Pass
from ptq4vit_onnx.passes.split_softmax import SplitSoftmax
from ptq4vit_onnx.passes.twin_codes import largest_byte
from ptq4vit_onnx.passes.work import Product, Work, scalar
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.plan.plan_json import read_plan
from ptq4vit_onnx.plan.quantizers import QUANTIZERS, Branch, Points, Quantizer, Tensor, as_float32
from ptq4vit_onnx.plan.quantizers.rounding import require_bits, require_scales, round_clip
from ptq4vit_onnx.plan.sites import Source
from ptq4vit_onnx.request import ExportRequest

Array = np.ndarray[Any, Any]
SITE = "blocks.0.attn.pv"


@dataclass(frozen=True)
class Stairs(Quantizer):
    """scale: the fine step."""

    kind: ClassVar[str] = "stairs"
    title: ClassVar[str] = "stairs"
    source: ClassVar[Source | None] = "softmax"

    scale: float

    def __post_init__(self) -> None:
        require_bits(self.bits)
        require_scales((self.scale,))

    @classmethod
    def candidates(cls, bits: int, low: float, high: float, factors: Sequence[float]) -> tuple[Quantizer, ...]:
        whole = 4 * (2 ** (bits - 1) - 1)  # fine steps up to the last point
        return tuple(cls(bits, as_float32(factor * max(high, 1e-12) / whole)) for factor in factors)

    @property
    def high(self) -> int:
        return int(2 ** (self.bits - 1) - 1)

    @property
    def coarse(self) -> float:
        return as_float32(3 * self.scale)

    @property
    def border(self) -> float | None:
        return as_float32(self.high * self.scale)

    @property
    def branches(self) -> tuple[Branch, ...]:
        return Branch("", (self.scale,), 0, self.high), Branch("coarse", (self.coarse,), 0, self.high)

    @property
    def points(self) -> tuple[Points, ...]:
        first = as_float32(self.high * self.scale) + self.coarse
        return Points("R1", 0.0, self.scale, self.high + 1), Points("R2", first, self.coarse, self.high)

    def units(self, x: Tensor) -> tuple[Tensor, ...]:
        exceeding = x - self.border
        return round_clip(x / self.scale, 0, self.high), round_clip(exceeding / self.coarse, 0, self.high)

    def fake_quantize(self, x: Tensor) -> Tensor:
        fine, coarse = self.units(x)
        return fine * self.scale + coarse * self.coarse  # type: ignore[no-any-return]

    def encode(self, x: Array) -> Array:
        raise NotImplementedError

    def decode(self, codes: Array) -> Array:
        raise NotImplementedError


class SplitStairs(Pass):
    """x @ v becomes Q(x) @ v + Q(x - border) @ v."""

    requires = ("RestoreHeadScales",)

    def apply(self, work: Work) -> int:
        products = [item for item in work.products if isinstance(item.lhs, Stairs)]
        for product in products:
            self._split(work, product)
        return len(products)

    def _split(self, work: Work, product: Product) -> None:
        quantizer, name, x = product.lhs, product.name, product.node.inputs[0]
        assert isinstance(quantizer, Stairs)
        fine, coarse = (ByteCodes(step, 0, 0, quantizer.high) for step in (quantizer.scale, quantizer.coarse))
        assert quantizer.border is not None
        border = work.constant(f"{name}/border", scalar(quantizer.border, np.float32))
        exceeding = work.add("Sub", f"{name}/lhs.coarse/Sub", [x, border])
        low, high = (
            add_dequantize(work, add_quantize(work, part, codes, where), codes, where)
            for part, codes, where in ((x, fine, f"{name}/lhs"), (exceeding, coarse, f"{name}/lhs.coarse"))
        )
        product.node.inputs[0] = low
        second = work.add("MatMul", f"{name}/MatMul.coarse", [high, product.node.inputs[1]])
        work.append_to(product.node, "Add", f"{name}/twin/Add", second)
        work.twin_products[product.site] = 2
        product.lhs_done = True


@pytest.fixture
def registered(quick_spine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only form made for softmax, and its pass."""
    monkeypatch.delitem(QUANTIZERS, "twin_softmax")
    monkeypatch.setitem(QUANTIZERS, Stairs.kind, Stairs)
    at = passes.PASSES.index(SplitSoftmax) + 1
    monkeypatch.setattr(passes, "PASSES", (*passes.PASSES[:at], SplitStairs, *passes.PASSES[at:]))


@pytest.mark.usefixtures("registered")
def test_a_new_quantizer_of_two_branches_goes_the_whole_way(tmp_path: Path) -> None:
    options = Options(images=4, candidates=16, weight_bits=5, activation_bits=5, channels="none")
    pipeline.export(ExportRequest(options=options, output=tmp_path / "out"))
    plan = read_plan(tmp_path / "out" / "plan.json")
    taken = {name for name, site in plan.sites.items() if isinstance(site.lhs, Stairs)}
    assert SITE in taken

    data = json.loads((tmp_path / "out" / "report.json").read_text())
    assert data["end_to_end"]["identical"] == 100, "file and exact simulator, bit for bit"
    checked = next(item["checked"] for item in data["site_parity"] if item["site"] == SITE)
    assert "twin codes" in checked
    softmaxes = {name: text for name, text in data["twins"]["sites"].items() if name.endswith(".pv")}
    assert {name for name, text in softmaxes.items() if text.endswith(": taken")} == taken & set(softmaxes)


def test_next_to_bytes_that_another_pass_chooses_the_right_side_reckons_with_any() -> None:
    assert largest_byte(Stairs(8, 0.5), None, never_negative=True) == 255


def test_a_form_that_does_not_offer_one_candidate_for_each_factor_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stairs, "candidates", classmethod(lambda cls, bits, low, high, factors: (cls(bits, 0.5),)))
    with pytest.raises(AssertionError, match="Stairs offers 1 candidates for 16 factors of its scale"):
        form_grid(Stairs, torch.ones(3), 8, Options(candidates=16))
