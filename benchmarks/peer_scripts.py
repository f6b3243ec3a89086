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
# The setting is "config_file=... quant_scheme=...", or empty. Written in QDQ form, weights as integers.
AIMET = """
import sys
import numpy, onnx
from aimet_onnx import QuantizationSimModel
source, images, target, setting = sys.argv[1:5]
options = dict(item.split("=") for item in setting.split())
model = onnx.load(source)
name = model.graph.input[0].name
simulation = QuantizationSimModel(model, param_type="int8", activation_type="int8", **options)
simulation.compute_encodings([{name: image[None]} for image in numpy.load(images)])
onnx.save(simulation.to_onnx_qdq(prequantize_constants=True), target)
"""
# The setting is the calibration method. fp32: what is not quantised stays as it is, for a CPU has no kernels for fp16.
MODELOPT = """
import sys
import numpy
from modelopt.onnx.quantization import quantize
source, images, target, setting = sys.argv[1:5]
quantize(
    source, quantize_mode="int8", calibration_data=numpy.load(images), calibration_method=setting,
    calibration_eps=["cpu"], high_precision_dtype="fp32", dq_only=True, output_path=target,
)
"""
