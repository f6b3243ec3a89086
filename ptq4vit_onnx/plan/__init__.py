"""The waist: sites, quantizers, options and the scale plan, as plain values. Neither torch nor ONNX."""
