"""The codes of one weight, where they are more than its values rounded to the nearest: a plan carries them.

plan.json names them by their digest; they lie in the file beside it (`code_file`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np

from ptq4vit_onnx.plan.quantizers.quantizer import Array


@dataclass(frozen=True)
class WeightCodes:
    """digest: SHA-256 of the shape and the codes, by which two are equal. values: int8 [inputs, outputs]; None as long
    as only plan.json was read."""

    digest: str
    values: Array | None = field(default=None, repr=False, compare=False)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """[inputs, outputs]; None as long as only plan.json was read."""
        return None if self.values is None else self.values.shape

    @classmethod
    def of(cls, values: Array) -> WeightCodes:
        assert values.dtype == np.int8 and values.ndim == 2, (values.dtype, values.shape)
        held = np.ascontiguousarray(values)
        held.setflags(write=False)
        return cls(digest_of(held), held)


def digest_of(values: Array) -> str:
    """Of int8 codes [inputs, outputs]."""
    text = "x".join(map(str, values.shape)).encode()
    return hashlib.sha256(text + b":" + np.ascontiguousarray(values).tobytes()).hexdigest()
