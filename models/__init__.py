"""WHAT can be quantised: the specs, the embedded default models with their images, and the built-in photos."""

from ptq4vit_onnx.models.specs import DEFAULT, PAPER_MODELS, SPECS, ModelSpec, find, unknown_model

__all__ = ["DEFAULT", "PAPER_MODELS", "SPECS", "ModelSpec", "find", "unknown_model"]
