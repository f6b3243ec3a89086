"""The plan on the torch model: fake-quantised, or in exact integers rounded as the file rounds.

fake         fake quantisation: accuracy without ONNX
exact        exact integer sums: its outputs are the file's, bit for bit
ort_kernels  ONNX Runtime's own LayerNorm, softmax, GELU, .. inside the torch model
node_models  the models of a node or two that they run
"""

DOORS = ("fake",)  # what other rooms may import
