"""ONNX Runtime on this machine's CPU: sessions, inner tensors, timing, features, memory."""
