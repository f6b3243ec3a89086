"""ONNX models as protobuf messages: read, written, measured in bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx

from ptq4vit_onnx.errors import UserError, one_line
from ptq4vit_onnx.files.inputs import require_file

Array: TypeAlias = np.ndarray[Any, Any]
MOST_BYTES = 2**31  # of a file; protobuf reads no more
MOST_AXES = 32  # numpy before 2.0 has no more
_PACKED = {getattr(onnx.TensorProto, name): 8 // bits for name, bits in
           {"UINT4": 4, "INT4": 4, "FLOAT4E2M1": 4, "UINT2": 2, "INT2": 2}.items()
           if hasattr(onnx.TensorProto, name)}  # fmt: skip
PROTOBUF_LIMIT = MOST_BYTES - 2**24  # a protobuf message must stay below 2 GB; the graph itself needs a little room


Model: TypeAlias = Path | bytes | onnx.ModelProto


def load(model: Model, weights: bool = True) -> onnx.ModelProto:
    """`model` as a proto; weights=False leaves data outside the file unread."""
    if isinstance(model, onnx.ModelProto):
        return model
    if isinstance(model, bytes):
        return onnx.load_from_string(model)
    require_file(model, "model", "give an ONNX file", MOST_BYTES)
    try:
        proto = onnx.load(str(model), load_external_data=weights)
        _require_text(proto.graph)
        for tensor in proto.graph.initializer:
            _require_whole(tensor)
        return proto
    except OSError as error:
        raise UserError(f"cannot read model {model}: {error.strerror or error}") from error
    except Exception as error:  # protobuf's DecodeError is not importable on every version
        raise UserError(f"{model} is not an ONNX file: {one_line(error)}") from error


def _require_text(graph: onnx.GraphProto) -> None:
    """Refuse names that are not UTF-8: protobuf gives them as bytes, or fails when they are read."""
    for node in graph.node:
        if not all(isinstance(name, str) for name in (node.name, node.op_type, *node.input, *node.output)):
            raise ValueError(f"a {node.op_type!r:.40} has a name that is not UTF-8")


def _require_whole(tensor: onnx.TensorProto) -> None:
    """Refuse a tensor that numpy cannot hold, or whose data in the file is more or less than its shape says."""
    kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    if len(tensor.dims) > MOST_AXES or min(tensor.dims, default=0) < 0:
        raise ValueError(f"the shape of {tensor.name} is {list(tensor.dims)!r:.60}")
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return
    if not tensor.HasField("raw_data"):
        onnx.numpy_helper.to_array(tensor)  # such tensors are small
    elif len(tensor.raw_data) != (needed := _bytes_of(tensor.dims, tensor.data_type, kind)):
        raise ValueError(f"{tensor.name} has {len(tensor.raw_data)} bytes, its shape says {needed}")


def _bytes_of(dims: Sequence[int], data_type: int, kind: np.dtype[Any]) -> int:
    """Of types of four or two bits, several to a byte, numpy's type takes a whole one."""
    per_byte = _PACKED.get(data_type, 1)
    return -(-math.prod(dims) * kind.itemsize // per_byte)


def has_data_outside(model: onnx.ModelProto) -> bool:
    """Whether weights of a model that was loaded without them lie in other files."""
    return any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in model.graph.initializer)


def save_model(model: onnx.ModelProto, path: Path) -> Path:
    """Write and check: one file below 2 GB; above it the weights lie next to it in NAME.data."""
    write_model(model, path)
    onnx.checker.check_model(str(path), full_check=True)
    return path


def write_model(model: onnx.ModelProto, path: Path) -> None:
    """As `save_model`, unchecked; `model` is afterwards as before, and its weights are never held twice."""
    large = tensor_bytes(model) >= PROTOBUF_LIMIT
    onnx.save(model, path, save_as_external_data=large, all_tensors_to_one_file=True,
              location=f"{path.name}.data" if large else None)  # fmt: skip
    if large:  # onnx has moved the weights out of the message that it was given
        onnx.external_data_helper.load_external_data_for_model(model, str(path.parent))
        for tensor in model.graph.initializer:
            tensor.ClearField("data_location")


def tensor_bytes(model: onnx.ModelProto) -> int:
    """What the weights take, from their shapes: protobuf itself cannot tell the size of a message above 2 GB."""
    return sum(math.prod(tensor.dims) * _element_bytes(tensor.data_type) for tensor in model.graph.initializer)


def _element_bytes(data_type: int) -> int:
    return int(onnx.helper.tensor_dtype_to_np_dtype(data_type).itemsize)


def file_bytes(path: Path) -> int:
    """Size of a model, with its external data; of one in OpenVINO's own format, with the .bin next to it."""
    beside = path.with_suffix(".bin") if path.suffix == ".xml" else path.with_name(f"{path.name}.data")
    return path.stat().st_size + (beside.stat().st_size if beside.exists() else 0)
