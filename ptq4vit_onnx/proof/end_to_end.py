"""The quantised model's outputs against the simulator's, each running freely."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ptq4vit_onnx.output_kinds import metrics
from ptq4vit_onnx.output_kinds.kinds import KINDS, OutputKind
from ptq4vit_onnx.output_kinds.output_kind import Array, Outputs

SIMULATOR_AGREEMENT = 99.5  # percent of images
# Where weights are random, predictions are coin tosses, and logits are compared instead, as embeddings and features
# always are. This is a coarse net: an error in a single site may move them by less. check_sites and a replay are the
# fine ones.
OUTPUT_TOLERANCE = 0.05


@dataclass(frozen=True)
class EndToEnd:
    """The quantised ONNX model against the simulator, on the same images, each running freely.

    agreement: percent of equal predictions; None for a kind without predictions. relative_error: of the output that
    differs most. coin_toss: the weights are random, so `relative_error` decides and not `agreement`.
    identical: percent of the images whose outputs are all the simulator's bit for bit. kind: of the outputs.
    own_agreement, own_error: the simulator against itself with the last bit of every product nudged, where that
    was measured. Rounding is a cliff: a last bit decides now and then between two codes, the next site amplifies it,
    and no two implementations of LayerNorm or softmax agree better than this.
    """

    images: int
    agreement: float | None
    relative_error: float
    coin_toss: bool
    passed: bool
    sentence: str
    identical: float
    own_agreement: float | None = None
    own_error: float | None = None
    kind: str = "logits"

    def to_data(self) -> dict[str, Any]:
        return asdict(self)


def check_end_to_end(
    quantised: Outputs,
    simulated: Outputs,
    coin_toss: bool,
    nudged: Outputs | None = None,
    kind: OutputKind = KINDS["logits"],
) -> EndToEnd:
    """All outputs of the ONNX model against the simulator's.

    nudged: the simulator's outputs with the last bit of every product's output changed at random. The limits are
    99.5 % agreement of predictions (0.05 of the outputs' spread with random weights, and for a kind without
    predictions), or what the simulator reaches against itself, whichever is lower, less three standard errors of the
    latter.
    """
    images, same, error = len(quantised[0]), kind.agreement(quantised, simulated), _largest_error(quantised, simulated)
    own_same = None if nudged is None else kind.agreement(nudged, simulated)
    own_error = None if nudged is None else _largest_error(nudged, simulated)
    if not all(np.isfinite(output).all() for output in quantised):
        passed, sentence = False, f"the model's {kind.plural} are not finite"
    elif coin_toss or same is None:
        limit = max(OUTPUT_TOLERANCE, 3 * (own_error or 0.0))
        passed = error <= limit
        sentence = f"{kind.plural} differ from the simulator's by {error:.2g} of their spread (limit {limit:.2g})"
    else:
        floor = agreement_limit(own_same, images)
        passed = same >= floor
        sentence = f"{same:.2f} % of {images} predictions equal the simulator's (limit {floor:.1f} %)"
    identical = 100 * float(_identical(quantised, simulated).mean())
    if identical > 0:
        sentence += f"; {kind.plural} equal bit for bit on {identical:.4g} %"
    if own_same is not None and not coin_toss and own_same < 100:
        sentence += f"; the simulator with last bits nudged agrees with itself on {own_same:.2f} %"
    return EndToEnd(images, same, error, coin_toss, passed, sentence, identical, own_same, own_error, kind.name)


def _largest_error(outputs: Outputs, others: Outputs) -> float:
    return max(metrics.relative_error(*pair) for pair in zip(outputs, others, strict=True))


def _identical(outputs: Outputs, others: Outputs) -> Array:
    """By image, whether all of its outputs are equal."""
    pairs = zip(outputs, others, strict=True)
    return np.asarray(np.stack([(found == other).reshape(len(found), -1).all(-1) for found, other in pairs]).all(0))


def agreement_limit(own: float | None, images: int) -> float:
    """Percent of predictions that must agree, given the simulator's agreement with its nudged self."""
    if own is None or own >= 100:
        return SIMULATOR_AGREEMENT
    rate = own / 100
    return min(SIMULATOR_AGREEMENT, 100 * (rate - 3 * math.sqrt(rate * (1 - rate) / images)))
