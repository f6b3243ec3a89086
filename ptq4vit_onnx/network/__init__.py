"""The torch model: loading it, finding its products, recording what they multiply. No ONNX."""
