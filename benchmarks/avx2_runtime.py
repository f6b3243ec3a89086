"""A copy of the installed ONNX Runtime that takes its CPU for one with AVX2 and nothing newer.

    python benchmarks/avx2_runtime.py DIR
    PYTHONPATH=DIR python benchmarks/speed.py ...

For figures, and proofs of exactness, that hold without AVX-512 and VNNI, from an x86-64 Linux machine that has them.
A program learns from the instruction XGETBV which registers the operating system keeps; in the copy it is replaced by
the answer "up to AVX", upon which ONNX Runtime takes its AVX2 kernels. CPUs that have VNNI also among the instructions
of AVX are asked for it by CPUID; the copy overlooks the answer. That it does is shown, not believed: two
products of 255 * 127 next to each other must saturate 16 bits, as they do on AVX2 alone.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

MARK = "limited_to_avx2"
CHANGES = {
    b"\x31\xc9\x0f\x01\xd0": b"\x31\xc9\xb0\x07\x90",  # xor ecx, ecx; xgetbv -> xor ecx, ecx; mov al, 7; nop
    # mov ecx, 1; cpuid; test al, 16 (AVX-VNNI) -> mov ecx, 1; cpuid; test al, 0
    b"\xb9\x01\x00\x00\x00\x0f\xa2\xa8\x10": b"\xb9\x01\x00\x00\x00\x0f\xa2\xa8\x00",
}
EXACT, SATURATED = 2 * 255 * 127, 2**15 - 1
PROBE = """
import numpy as np, onnx, onnxruntime
from onnx import TensorProto as T, helper as h
node = h.make_node("MatMulInteger", ["a", "b"], ["y"])
ends = [h.make_tensor_value_info("a", T.UINT8, [1, 4])], [h.make_tensor_value_info("y", T.INT32, [1, 16])]
weight = onnx.numpy_helper.from_array(np.repeat(np.int8([[127], [127], [0], [0]]), 16, 1), "b")
model = h.make_model(h.make_graph([node], "g", *ends, [weight]), opset_imports=[h.make_opsetid("", 20)], ir_version=10)
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
print(session.run(None, {"a": np.full((1, 4), 255, np.uint8)})[0][0, 0])
"""


def limit(folder: Path) -> int:
    """Copy onnxruntime into `folder` and replace the questions; returns how often they are asked."""
    found = find_spec("onnxruntime")
    assert found is not None and found.origin is not None
    copy = folder / "onnxruntime"
    shutil.copytree(Path(found.origin).parent, copy, dirs_exist_ok=True)
    (library,) = (copy / "capi").glob("onnxruntime_pybind11_state*.so")
    binary = library.read_bytes()
    places = sum(binary.count(ask) for ask in CHANGES)
    for ask, answer in CHANGES.items():
        binary = binary.replace(ask, answer)
    library.write_bytes(binary)
    (copy / MARK).touch()
    return places


def product(folder: Path | None) -> int:
    """What two neighbouring products of 255 * 127 add up to."""
    environment = dict(os.environ) if folder is None else {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, env=environment, check=True)
    return int(done.stdout)


def is_limited() -> bool:
    """Is the onnxruntime of this process such a copy?"""
    found = find_spec("onnxruntime")
    return found is not None and found.origin is not None and (Path(found.origin).parent / MARK).exists()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the copy goes")
    folder = parser.parse_args().folder
    before, places = product(None), limit(folder)
    after = product(folder)
    print(f"two products of 255 * 127: {before} as installed, {after} in the copy ({places} places changed)")
    if after != SATURATED:
        shutil.rmtree(folder / "onnxruntime")
        raise SystemExit(f"the copy does not compute as AVX2 does (expected {SATURATED}); it was removed")
    print(f"PYTHONPATH={folder} takes the copy")


if __name__ == "__main__":
    main()
