"""How each of the other tools is called, in an environment of its own, where this repository is not installed.

A script is given the float file, the calibration images as .npy [n, 3, height, width], the file to write and the tool's
setting. What it does not say is the tool's default.
"""

from __future__ import annotations

NNCF = """
import sys
import numpy, onnx, nncf
source, images, target = sys.argv[1:4]
model = onnx.load(source)
name = model.graph.input[0].name
batches = [{name: image[None]} for image in numpy.load(images)]
made = nncf.quantize(
    model, nncf.Dataset(batches), model_type=nncf.ModelType.TRANSFORMER, subset_size=len(batches)
)
onnx.save(made, target)
"""
NNCF_OPENVINO = """
import sys
import numpy, openvino, nncf
source, images, target = sys.argv[1:4]
model = openvino.Core().read_model(source)
batches = [image[None] for image in numpy.load(images)]
made = nncf.quantize(
    model, nncf.Dataset(batches), model_type=nncf.ModelType.TRANSFORMER, subset_size=len(batches)
)
openvino.save_model(made, target, compress_to_fp16=False)
"""
# The setting is the name of one of Quark's own configurations.
QUARK = """
import sys
import numpy, onnx
from onnxruntime.quantization import CalibrationDataReader
from quark.onnx import ModelQuantizer, QConfig
source, images, target, setting = sys.argv[1:5]
name = onnx.load(source).graph.input[0].name

class Images(CalibrationDataReader):
    def __init__(self):
        self.left = iter(numpy.load(images))
    def get_next(self):
        image = next(self.left, None)
        return None if image is None else {name: image[None]}

ModelQuantizer(QConfig.get_default_config(setting)).quantize_model(source, target, Images())
"""
# The setting is empty, or the operators whose inputs are quantised, and nothing else. In QDQ form, weights as integers.
AIMET = """
import sys
import numpy, onnx
from aimet_onnx import QuantizationSimModel
source, images, target, setting = sys.argv[1:5]
products = setting.split()
moving = ("Reshape", "Transpose", "Split", "Slice", "Squeeze", "Unsqueeze", "Gather")
model = onnx.load(source)
name = model.graph.input[0].name
readers = {}
for node in model.graph.node:
    for tensor in node.input:
        readers.setdefault(tensor, []).append(node)

def is_read_by_product(tensor):
    return any(
        node.op_type in products or (node.op_type in moving and any(map(is_read_by_product, node.output)))
        for node in readers.get(tensor, [])
    )

simulation = QuantizationSimModel(model, param_type="int8", activation_type="int8")
for tensor in simulation.activation_names if products else ():
    if not is_read_by_product(tensor):
        simulation.qc_quantize_op_dict[tensor].enabled = False
simulation.compute_encodings([{name: image[None]} for image in numpy.load(images)])
onnx.save(simulation.to_onnx_qdq(prequantize_constants=True), target)
"""
# The setting is the calibration method and the operators to quantise, all that it knows where none is named. fp32: what
# is not quantised stays as it is, for ONNX Runtime's CPU kernels are not made for fp16. dq_only: weights as integers.
MODELOPT = """
import sys
import numpy
from modelopt.onnx.quantization import quantize
source, images, target, setting = sys.argv[1:5]
method, *operators = setting.split()
quantize(
    source, quantize_mode="int8", calibration_data=numpy.load(images), calibration_method=method,
    op_types_to_quantize=operators or None, calibration_eps=["cpu"], high_precision_dtype="fp32", dq_only=True,
    output_path=target,
)
"""
