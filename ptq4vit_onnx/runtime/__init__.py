"""ONNX Runtime on this machine's CPU, and how this process behaves.

session        sessions, inference over batches, the graph that is really executed
feeding        images as a model file takes them: normalised floats, or bytes
inner_tensors  tensors inside a model, as ONNX Runtime computes them
bench          interleaved timing of models, and profiles
cpu            the CPU's features that decide the speed of integer kernels
process        how threads wait and freed memory is kept
quiet          libraries kept from logging, and their settings restored
"""

DOORS = ("bench", "process", "quiet", "session", "inner_tensors")  # what other rooms may import
