"""A model of transformers behind a forward that takes pixels and returns one tensor."""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn

from ptq4vit_onnx.model_loading.output_kind import Returns

_ATTENTION = "ptq4vit_onnx_sdpa"


class Adapter(nn.Module):
    """takes: the field of the model's answer that is returned. first: of its tokens the first alone."""

    def __init__(self, model: nn.Module, takes: str, first: bool, returns: Returns, options: dict[str, Any]) -> None:
        super().__init__()
        self.model = model
        self.takes, self.first, self.options = takes, first, options
        self.ptq4vit_returns = returns

    def forward(self, pixel_values: Tensor) -> Tensor:
        answer: Tensor = getattr(self.model(pixel_values=pixel_values, **self.options), self.takes)
        return answer[:, 0] if self.first else answer


def adapted(model: nn.Module, features: bool, pooled: bool, resized: bool) -> Adapter:
    """features: tokens are asked for. pooled: the model has a pooler with weights, or needs none. resized: the images
    are not of the size that the position table is for."""
    name = type(model).__name__
    options = _options(model, resized)
    _without_mask(model)
    if "ForImageClassification" in name:
        headless = isinstance(getattr(model, "classifier", None), nn.Identity)
        returns = Returns("embedding", f"what the classifier of {name} reads") if headless else Returns(
            "logits", f"{name} is a classifier"
        )  # fmt: skip
        return Adapter(model, "logits", False, returns, options)
    if features or name.startswith("Sam"):
        return Adapter(model, "last_hidden_state", False, Returns("features", f"last_hidden_state of {name}"), options)
    if name.endswith("WithProjection"):
        return Adapter(model, "image_embeds", False, Returns("embedding", f"image_embeds of {name}"), options)
    if pooled:
        return Adapter(model, "pooler_output", False, Returns("embedding", f"pooler_output of {name}"), options)
    return Adapter(model, "last_hidden_state", True, Returns("embedding", f"the class token of {name}"), options)


def _without_mask(model: Any) -> None:
    """Have the model compute attention without the mask of ones that it makes for images while it is exported.

    transformers makes no mask for an attention function that it knows no mask function of.
    """
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if model._can_set_attn_implementation():
        AttentionInterface.register(_ATTENTION, sdpa_attention_forward)
        model.set_attn_implementation(_ATTENTION)


def _options(model: nn.Module, resized: bool) -> dict[str, Any]:
    accepted = inspect.signature(model.forward).parameters
    return {"interpolate_pos_encoding": True} if resized and "interpolate_pos_encoding" in accepted else {}
