"""ONNX models as protobuf messages: read, written, measured in bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx

from ptq4vit_onnx.errors import UserError

Array: TypeAlias = np.ndarray[Any, Any]


Model: TypeAlias = Path | bytes | onnx.ModelProto


def load(model: Model, weights: bool = True) -> onnx.ModelProto:
    """`model` as a proto; weights=False leaves data outside the file unread."""
    if isinstance(model, onnx.ModelProto):
        return model
    if isinstance(model, bytes):
        return onnx.load_from_string(model)
    try:
        return onnx.load(str(model), load_external_data=weights)
    except OSError as error:
        raise UserError(f"cannot read model {model}: {error.strerror or error}") from error
    except Exception as error:  # protobuf's DecodeError is not importable on every version
        raise UserError(f"{model} is not an ONNX file: {error}") from error


def save_model(model: onnx.ModelProto, path: Path) -> Path:
    """One file below 2 GB; above it the weights lie next to it in NAME.data."""
    large = model.ByteSize() >= onnx.checker.MAXIMUM_PROTOBUF
    onnx.save(model, path, save_as_external_data=large, all_tensors_to_one_file=True,
              location=f"{path.name}.data" if large else None)  # fmt: skip
    onnx.checker.check_model(str(path), full_check=True)
    return path


def file_bytes(path: Path) -> int:
    """Size of a model, with its external data."""
    data = path.with_name(f"{path.name}.data")
    return path.stat().st_size + (data.stat().st_size if data.exists() else 0)
