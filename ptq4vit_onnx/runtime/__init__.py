"""Engines on this machine's CPU, and how this process behaves.

runner         what the tools need of a loaded model, in any engine
engines        the engines by name, and models opened in them
openvino_engine  OpenVINO: models as runners, the executed graph, times of layers
session        ONNX Runtime: sessions, inference over batches, the graph that is really executed
feeding        images as a model file takes them: normalised floats, or bytes
inner_tensors  tensors inside a model, as ONNX Runtime computes them
bench          interleaved timing of models, and profiles
schedule       when the rounds of a measurement take place
modes          the fast and the slow mode of a machine told apart
cpu            the CPU's features that decide the speed of integer kernels
process        how threads wait and freed memory is kept
quiet          libraries kept from logging, and their settings restored
"""

# what other rooms may import
DOORS = ("bench", "engines", "inner_tensors", "openvino_engine", "process", "quiet", "runner", "session")
