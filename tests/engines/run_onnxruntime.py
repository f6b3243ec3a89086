"""Run a model in whatever ONNX Runtime this interpreter has. Stands alone: needs numpy and onnxruntime, of any version.

    python run_onnxruntime.py model.onnx images.npy FOLDER [--as-written]

Writes FOLDER/outputs.npy, the first output for every image, and FOLDER/optimised.onnx, the graph that this version made
of the model. One thread, eight images at a time. --as-written leaves the optimiser out: then every operator of the file
needs a kernel of its own.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime

BATCH = 8


def main(model: str, images: str, folder: str, form: str = "") -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if form == "--as-written":
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.optimized_model_filepath = str(Path(folder) / "optimised.onnx")
    runner = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    name, fed = runner.get_inputs()[0].name, np.load(images, mmap_mode="r")
    batches = (np.ascontiguousarray(fed[start : start + BATCH]) for start in range(0, len(fed), BATCH))
    np.save(Path(folder) / "outputs.npy", np.concatenate([runner.run(None, {name: batch})[0] for batch in batches]))
    about = {"version": onnxruntime.__version__}
    (Path(folder) / "about.json").write_text(json.dumps(about), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
