"""Read ONNX files: products and their codes, the values a tensor can hold, operators that move data, metadata."""
