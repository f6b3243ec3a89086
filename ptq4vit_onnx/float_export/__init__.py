"""From the torch model to the float ONNX file whose nodes carry their sites' names."""
