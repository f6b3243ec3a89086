"""ONNX Runtime on the CPU: sessions, inference, the graph that is really executed, the CPU's features."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.files.inputs import require_file
from ptq4vit_onnx.files.scratch import scratch_folder
from ptq4vit_onnx.graph import model_proto
from ptq4vit_onnx.graph.model_proto import Array, Model
from ptq4vit_onnx.limits import MAX_BATCH
from ptq4vit_onnx.runtime.feeding import as_fed
from ptq4vit_onnx.runtime.process import allowed_threads
from ptq4vit_onnx.runtime.runner import BYTES, FLOATS, Entry, Runner, engine_title, first_line, model_name

logger = logging.getLogger(__name__)


_CPU_ONLY = ["CPUExecutionProvider"]
_QUIET = 4  # ONNX Runtime's severity level "fatal": what it logs as an error it also raises


def session(
    model: Model,
    threads: int = 1,
    optimise: bool = True,
    optimised_path: Path | None = None,
    profile_prefix: Path | None = None,
) -> Runner:
    """An inference session on the CPU whose threads sleep between runs, so that other sessions are not
    disturbed.

    optimise=False runs the graph's nodes as they are. optimised_path: where ONNX Runtime writes the graph it
    made.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = allowed_threads(threads)
    options.inter_op_num_threads = 1
    options.log_severity_level = _QUIET
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimise else levels.ORT_DISABLE_ALL
    if optimised_path is not None:
        _write_optimised_graph_to(options, optimised_path, model)
    if profile_prefix is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile_prefix)
    with _source(model) as source:
        made: Runner = _create(source, options)
        return made


def run(
    model: Model | Runner,
    images: Array,
    batch: int = 8,
    threads: int = 1,
) -> Array:
    """The first output for `images` [n, channels, height, width] float32, as [n, ...]: logits of a
    classifier. `model` may also be a session.
    """
    return run_all(model, images, batch, threads)[0]


def run_all(model: Model | Runner, images: Array, batch: int = 8, threads: int = 1) -> tuple[Array, ...]:
    """All outputs in the model's order, each [n, ...], for `images` as in `run`.

    A model of static batch is run in batches of its own size; the last one is filled up by repeating its last image,
    and the surplus is cut off.
    """
    if len(images) == 0:
        raise UserError("no images to run the model on, expected at least one")
    runner = session(model, threads) if isinstance(model, (Path, bytes, onnx.ModelProto)) else model
    name, fixed = image_input(runner).name, static_batch(runner)
    size = fixed or batch
    images, outputs = as_fed(runner, images), []
    for start in range(0, len(images), size):
        part = images[start : start + size]
        fed = _fill(part, size) if fixed else part
        found = run_once(runner, {name: fed})
        for output in found:
            _require_rows(runner, output, len(fed))
        outputs.append([output[: len(part)] for output in found])
    return tuple(np.concatenate(parts) for parts in zip(*outputs, strict=True))


def run_once(runner: Runner, feeds: dict[str, Array], names: list[str] | None = None) -> list[Array]:
    """One run; a shape that the model does not take is the user's mistake, said in one line."""
    for wanted in runner.get_inputs():
        shape = feeds[wanted.name].shape
        fits = len(shape) == len(wanted.shape) and all(
            not isinstance(want, int) or want == got for want, got in zip(wanted.shape, shape, strict=True)
        )
        if not fits:
            raise UserError(f"the model's input {wanted.name!r} is {wanted.shape}, got images of {list(shape)}")
    return execute(runner, feeds, names)


def execute(runner: Runner, feeds: dict[str, Array], names: list[str] | None = None) -> list[Array]:
    """One run, unchecked; a graph that loads and then fails is said in one line."""
    try:
        return runner.run(names, feeds)
    except Exception as error:  # a class per status code, as when a session is made
        raise UserError(
            f"{engine_title(runner)} cannot run {model_name(runner)}: {first_line(error)}; give a file that "
            "ptq4vit-onnx export has written"
        ) from error


def image_input(runner: Runner) -> Entry:
    """The one input of a session's model: float images [batch, channels, height, width], or bytes [.., channels]."""
    inputs = runner.get_inputs()
    if len(inputs) != 1 or inputs[0].type not in (FLOATS, BYTES):
        found = ", ".join(f"{entry.name} {entry.type}" for entry in inputs) or "none"
        raise UserError(
            f"{model_name(runner)} has {len(inputs)} inputs ({found}); expected one {FLOATS} or {BYTES} of images"
        )
    return inputs[0]


def output_names(runner: Runner) -> tuple[str, ...]:
    """Of a session's model, in the order of its outputs."""
    return tuple(entry.name for entry in runner.get_outputs())


def static_batch(runner: Runner) -> int | None:
    """The batch size a session's model is fixed to, None where it is free."""
    shape = runner.get_inputs()[0].shape
    if not (shape and isinstance(shape[0], int)):
        return None
    if not 1 <= shape[0] <= MAX_BATCH:
        raise UserError(f"{model_name(runner)} has a fixed batch of {shape[0]}; expected 1 to {MAX_BATCH}")
    return shape[0]


def optimised_model(model: Model) -> onnx.ModelProto:
    """The graph ONNX Runtime executes on this CPU, after all of its own optimisations, weights included."""
    if isinstance(model, Path) and _size(model) < model_proto.PROTOBUF_LIMIT:
        proto = model_proto.load(model, weights=False)  # ONNX Runtime would look for outside data next to its own file
        model = model_proto.load(model) if model_proto.has_data_outside(proto) else model
    with scratch_folder() as folder:
        path = folder / "optimised.onnx"
        session(model, optimised_path=path)
        return onnx.load(str(path))


def _create(source: str | bytes, options: Any) -> Any:
    try:
        return onnxruntime.InferenceSession(source, options, providers=_CPU_ONLY, enable_fallback=0)
    except Exception as error:
        # ONNX Runtime raises a class per status code; all of them say that this file cannot be executed
        where = source if isinstance(source, str) else "the model"
        raise UserError(f"ONNX Runtime cannot load {where}: {first_line(error)}") from error


def _require_rows(runner: Runner, output: Any, images: int) -> None:
    shape = list(np.shape(output)) if isinstance(output, np.ndarray) else type(output).__name__
    if not isinstance(output, np.ndarray) or output.ndim < 1 or len(output) != images:
        raise UserError(f"{model_name(runner)} returns {shape} for {images} images; expected one row for each")


def _fill(part: Array, size: int) -> Array:
    missing = size - len(part)
    return part if missing == 0 else np.concatenate([part, np.repeat(part[-1:], missing, axis=0)])


def _write_optimised_graph_to(options: Any, path: Path, model: Model) -> None:
    options.optimized_model_filepath = str(path)
    if _size(model) > model_proto.PROTOBUF_LIMIT // 2:
        # constants may grow when packed weights are unfolded, so half the limit is where one file is safe
        key = "session.optimized_model_external_initializers"
        options.add_session_config_entry(f"{key}_file_name", path.name + ".data")
        options.add_session_config_entry(f"{key}_min_size_in_bytes", "1024")


def _size(model: Model) -> int:
    if isinstance(model, bytes):
        return len(model)
    if isinstance(model, onnx.ModelProto):
        return model_proto.tensor_bytes(model)
    beside = [path for path in model.parent.glob(model.name + "*") if path.is_file()]
    return sum(path.stat().st_size for path in beside)


@contextmanager
def _source(model: Model) -> Iterator[str | bytes]:
    """What ONNX Runtime reads: a path or bytes; a proto too large for bytes goes through a temporary file."""
    if isinstance(model, bytes):
        yield model
    elif isinstance(model, Path):
        require_file(model, "model", "give an ONNX file", model_proto.MOST_BYTES)
        yield str(model)
    elif _size(model) < model_proto.PROTOBUF_LIMIT:
        yield model.SerializeToString()
    else:
        with scratch_folder() as folder:
            path = folder / "model.onnx"
            model_proto.write_model(model, path)
            yield str(path)
