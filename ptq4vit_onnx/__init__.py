"""PTQ4ViT for ONNX Runtime: vision transformers, quantised after training, executed in integers."""

__version__ = "0.1.0"
