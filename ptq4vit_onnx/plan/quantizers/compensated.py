"""Symmetric uniform quantisation of a weight whose codes were chosen together, and so are part of the plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np

from ptq4vit_onnx.plan.quantizers.quantizer import Array, Quantizer
from ptq4vit_onnx.plan.quantizers.rounding import Tensor
from ptq4vit_onnx.plan.quantizers.uniform import Uniform
from ptq4vit_onnx.plan.quantizers.weight_codes import WeightCodes


@dataclass(frozen=True)
class Compensated(Uniform):
    """The codes of a weight [inputs, outputs], each of which takes up what rounding the others has changed (GPTQ).

    They depend on the inputs that the weight was calibrated with, not on the weight alone, so `codes` answers with the
    stored ones. Those ship as they are: `code_file` takes only what is pair-safe already, and zero where inputs are
    outliers.
    """

    kind: ClassVar[str] = "compensated"
    title: ClassVar[str] = "symmetric, errors compensated"
    only_weights: ClassVar[bool] = True
    searched: ClassVar[Literal["scale", "shift", "nothing"]] = "nothing"

    stored: WeightCodes = field(kw_only=True)

    @classmethod
    def candidates(cls, bits: int, low: float, high: float, factors: Sequence[float]) -> tuple[Quantizer, ...]:
        """None: codes are chosen for scales that were found already."""
        return ()

    @property
    def carried(self) -> WeightCodes:
        return self.stored

    def carrying(self, codes: WeightCodes) -> Compensated:
        assert codes == self.stored, (codes, self.stored)
        return replace(self, stored=codes)

    def codes(self, x: Tensor) -> Tensor:
        """The stored codes, as floats of x's own type; x is the weight that they are of."""
        values = self.stored.values
        assert values is not None, "a plan's codes are read with the plan: use read_plan"
        if tuple(x.shape) != values.shape:
            raise ValueError(f"the plan's codes are of a weight {list(values.shape)}, this one is {list(x.shape)}")
        floats: Array = values.astype(np.float32)
        return floats if isinstance(x, np.ndarray) else x.new_tensor(floats)  # type: ignore[return-value]
