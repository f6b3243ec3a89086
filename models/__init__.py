"""WHAT can be quantised: the specs, and the embedded default models with their images."""

from ptq4vit_onnx.models.specs import DEFAULT, PAPER_MODELS, SPECS, ModelSpec, find, unknown_model

__all__ = ["DEFAULT", "PAPER_MODELS", "SPECS", "ModelSpec", "find", "unknown_model"]
