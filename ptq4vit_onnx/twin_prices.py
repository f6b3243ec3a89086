"""What a twin must save before its second product is worth its time."""

from __future__ import annotations

from ptq4vit_onnx.quantizers import Quantizer, TwinGelu, TwinSoftmax

# What the expected damage (1/2 g^2 d^2, in nats per image) must fall by before a twin is worth its second product. The
# two are in the ratio of what they cost in time: of a DeiT-S, twelve second P@V take 2 %, twelve second fc2 27 %.
SOFTMAX_NATS, GELU_NATS = 2.5e-5, 4e-4
# The same for metrics without nats: how many times smaller the loss must be.
SOFTMAX_RATIO, GELU_RATIO = 1.1, 8.0


def needs_second_product(lhs: Quantizer) -> bool:
    return isinstance(lhs, (TwinSoftmax, TwinGelu)) and not lhs.fits_a_byte


def price_in_nats(lhs: Quantizer) -> float:
    if not needs_second_product(lhs):
        return 0.0
    return SOFTMAX_NATS if isinstance(lhs, TwinSoftmax) else GELU_NATS


def price_as_ratio(lhs: Quantizer) -> float:
    if not needs_second_product(lhs):
        return 1.0
    return SOFTMAX_RATIO if isinstance(lhs, TwinSoftmax) else GELU_RATIO
