"""The quantised model's logits against the simulator's, each running freely."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ptq4vit_onnx.evaluation import metrics
from ptq4vit_onnx.graph.integer_products import Array

SIMULATOR_AGREEMENT = 99.5  # percent of images
# Where weights are random, predictions are coin tosses, and logits are compared instead. This is a coarse
# net: an error in a single site may move the logits by less. check_sites and a replay are the fine ones.
LOGITS_TOLERANCE = 0.05


@dataclass(frozen=True)
class EndToEnd:
    """The quantised ONNX model against the simulator, on the same images, each running freely.

    coin_toss: the weights are random, so `relative_error` of the logits decides and not `agreement`.
    identical: percent of the images whose logits are the simulator's bit for bit.
    own_agreement, own_error: the simulator against itself with the last bit of every product nudged, where that
    was measured. Rounding is a cliff: a last bit decides now and then between two codes, the next site amplifies it,
    and no two implementations of LayerNorm or softmax agree better than this.
    """

    images: int
    agreement: float
    relative_error: float
    coin_toss: bool
    passed: bool
    sentence: str
    identical: float
    own_agreement: float | None = None
    own_error: float | None = None

    def to_data(self) -> dict[str, Any]:
        return asdict(self)


def check_end_to_end(quantised: Array, simulated: Array, coin_toss: bool, nudged: Array | None = None) -> EndToEnd:
    """Logits [images, classes] of the ONNX model against the simulator's.

    nudged: the simulator's logits with the last bit of every product's output changed at random. The limits are
    99.5 % agreement (0.05 of the logits' spread with random weights), or what the simulator reaches against itself,
    whichever is lower, less three standard errors of the latter.
    """
    same, error = metrics.agreement(quantised, simulated), metrics.relative_error(quantised, simulated)
    own_same = None if nudged is None else metrics.agreement(nudged, simulated)
    own_error = None if nudged is None else metrics.relative_error(nudged, simulated)
    if not np.isfinite(quantised).all():
        passed, sentence = False, "the model's logits are not finite"
    elif coin_toss:
        limit = max(LOGITS_TOLERANCE, 3 * (own_error or 0.0))
        passed = error <= limit
        sentence = f"logits differ from the simulator's by {error:.2g} of their spread (limit {limit:.2g})"
    else:
        floor = agreement_limit(own_same, len(quantised))
        passed = same >= floor
        sentence = f"{same:.2f} % of {len(quantised)} predictions equal the simulator's (limit {floor:.1f} %)"
    identical = 100 * float((quantised == simulated).all(-1).mean())
    if identical > 0:
        sentence += f"; logits equal bit for bit on {identical:.4g} %"
    if own_same is not None and not coin_toss and own_same < 100:
        sentence += f"; the simulator with last bits nudged agrees with itself on {own_same:.2f} %"
    return EndToEnd(len(quantised), same, error, coin_toss, passed, sentence, identical, own_same, own_error)


def agreement_limit(own: float | None, images: int) -> float:
    """Percent of predictions that must agree, given the simulator's agreement with its nudged self."""
    if own is None or own >= 100:
        return SIMULATOR_AGREEMENT
    rate = own / 100
    return min(SIMULATOR_AGREEMENT, 100 * (rate - 3 * math.sqrt(rate * (1 - rate) / images)))
