"""Reading an ONNX file: its products and their codes, the values a tensor can hold, what it says about itself."""
