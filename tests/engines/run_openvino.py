"""Run a model in whatever OpenVINO this interpreter has. Stands alone: needs numpy and openvino, of any version.

    python run_openvino.py model.onnx images.npy FOLDER

Writes FOLDER/outputs.npy, the first output for every image, and FOLDER/about.json with the layers that OpenVINO
executed: their kinds, precisions and the nodes they were made of. One thread, eight images at a time; what is not in
integers is computed in float32, as OpenVINO's default, bfloat16 on some CPUs, would hide other differences.
"""

import json
import sys
from pathlib import Path

import numpy as np
import openvino

BATCH = 8
SETTINGS = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
KEYS = ("layerType", "runtimePrecision", "originalLayersNames", "primitiveType")


def main(model: str, images: str, folder: str) -> None:
    compiled = openvino.Core().compile_model(model, "CPU", SETTINGS)
    fed, request = np.load(images, mmap_mode="r"), compiled.create_infer_request()
    parts = []
    for start in range(0, len(fed), BATCH):
        request.infer([np.ascontiguousarray(fed[start : start + BATCH])])
        parts.append(request.get_output_tensor(0).data.copy())
    np.save(Path(folder) / "outputs.npy", np.concatenate(parts))
    # asked after a run: with a free batch size kernels are chosen when the first images come
    layers = [layer.get_rt_info() for layer in compiled.get_runtime_model().get_ordered_ops()]
    about = {
        "version": openvino.__version__,
        "layers": [{key: text(layer[key]) for key in KEYS if key in layer} for layer in layers],
    }
    (Path(folder) / "about.json").write_text(json.dumps(about), encoding="utf-8")


def text(value: object) -> str:
    """A value of the runtime information: a string, or an object that some versions wrap it in."""
    return value.astype(str) if hasattr(value, "astype") else str(value)


if __name__ == "__main__":
    main(*sys.argv[1:])
