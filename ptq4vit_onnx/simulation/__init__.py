"""The plan on the torch model: fake-quantised, or in exact integers rounded as the file rounds.

fake         fake quantisation: accuracy without ONNX
exact        exact integer sums: its outputs are the file's, bit for bit
ort_kernels  ONNX Runtime's own LayerNorm, softmax and GELU inside the torch model
ort_convolutions  ONNX Runtime's own convolutions, for products that stay in float
"""

DOORS = ("fake",)  # what other rooms may import
