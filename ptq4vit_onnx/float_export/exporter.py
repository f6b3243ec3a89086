"""From torch to the float ONNX file that every pass starts from."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from ptq4vit_onnx import __version__
from ptq4vit_onnx.errors import UserError
from ptq4vit_onnx.float_export.bind_sites import bind_sites
from ptq4vit_onnx.float_export.stored_weights import store_weights
from ptq4vit_onnx.model_loading.load import LoadedModel
from ptq4vit_onnx.network.discovery import as_deployed
from ptq4vit_onnx.network.unfolding import Unfolding
from ptq4vit_onnx.plan.sites import FloatProduct, Site
from ptq4vit_onnx.runtime.process import environment_restored
from ptq4vit_onnx.runtime.quiet import quiet_logging

_OUTPUT = "ptq4vit_onnx_output_"  # of the exporter's program, with a number; no tensor of a model is called so
OPSET = 20  # the first with Gelu as one operator
OLDEST_IR = 9  # of opset 20, and the newest that ONNX Runtime 1.17 reads
INPUT = "image"


def export_float(model: LoadedModel, products: Sequence[Site | FloatProduct], batch: int | None = None) -> Any:
    """The model as an onnx.ModelProto whose nodes carry their sites' names.

    batch: None leaves the batch axis dynamic, a number fixes it.
    """
    program = _exported(model, batch)
    proto = program.model_proto
    _name_outputs(proto, model.outputs)
    if batch is None:
        _require_any_batch(proto, model.name)
    store_weights(proto)
    bind_sites(proto, products)
    _describe(proto, model)
    return proto


def _exported(model: LoadedModel, batch: int | None) -> Any:
    """The exporter's program; a UserError where it does not understand the model."""
    import torch

    example = torch.zeros(batch or 2, *model.preprocessing.size)
    dynamic = None if batch else ({0: torch.export.Dim("batch", min=1)},)
    try:
        with (
            as_deployed(model.module),
            Unfolding(),
            _quiet(),
            environment_restored("TORCHINDUCTOR_CACHE_DIR"),
        ):  # torch sets it
            program = torch.onnx.export(
                model.module,
                (example,),
                dynamo=True,
                opset_version=OPSET,
                dynamic_shapes=dynamic,
                input_names=[INPUT],
                output_names=[f"{_OUTPUT}{number}" for number in range(len(model.outputs))],
                verbose=False,
            )
    except torch.onnx.errors.OnnxExporterError as error:
        cause = error.__cause__ or error
        said = next((line.strip() for line in str(cause).splitlines() if line.strip()), "no reason given")
        advice = "its forward must be one graph, whatever the values" if batch else "try --batch 1"
        if "data-dependent" in str(cause):
            advice = "its forward must not branch on the values of tensors; choose between them by torch.where"
        raise UserError(
            f"torch cannot export {model.name} to ONNX: {type(cause).__name__}: {said[:200].rstrip('.')}; {advice}"
        ) from error
    assert program is not None
    return program


def _name_outputs(proto: Any, names: Sequence[str]) -> None:
    """Give the outputs their names; a tensor inside that has one of them (torch calls what F.embedding returns
    "embedding") gets another."""
    graph = proto.graph
    other = {name: f"{name}_inside" for name in names}
    other.update({item.name: name for item, name in zip(graph.output, names, strict=True)})
    for node in graph.node:
        node.input[:] = [other.get(name, name) for name in node.input]
        node.output[:] = [other.get(name, name) for name in node.output]
    for item in (*graph.value_info, *graph.initializer, *graph.output):
        item.name = other.get(item.name, item.name)


def _require_any_batch(proto: Any, name: str) -> None:
    """Refuse a file that takes one number of images only, where any was asked for: torch says nothing of it."""
    fixed = proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value
    if fixed:
        raise UserError(
            f"torch cannot export {name} for any number of images: its forward turns that into a plain number, as "
            "len(x) does; write x.shape[0] there, or fix it by --batch 1"
        )


def metadata_of(model: LoadedModel) -> dict[str, str]:
    """What a deployer needs to know, as it stands in the file. A file that names no output kind returns logits."""
    kind = {} if model.kind.name == "logits" else {"ptq4vit_onnx.output_kind": model.kind.name}
    return {
        "ptq4vit_onnx.model": model.name,
        "ptq4vit_onnx.version": __version__,
        "ptq4vit_onnx.weights": "RANDOM" if model.is_random else model.origin,
        "ptq4vit_onnx.weights_sha256": model.fingerprint,
        "ptq4vit_onnx.preprocessing": model.preprocessing.to_json(),
        **kind,
    }


def _describe(proto: Any, model: LoadedModel) -> None:
    proto.ir_version = min(proto.ir_version, OLDEST_IR)
    proto.producer_name, proto.producer_version = "ptq4vit-onnx", __version__
    proto.graph.name = model.name
    for key, value in metadata_of(model).items():
        proto.metadata_props.add(key=key, value=value)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Drop what the exporter logs, warns of and prints; its errors are exceptions."""
    sink = io.StringIO()
    with (
        quiet_logging("torch.onnx", "torch.export", "torch.fx", "torch._dynamo"),
        warnings.catch_warnings(),
        contextlib.redirect_stdout(sink),
        contextlib.redirect_stderr(sink),
    ):
        warnings.simplefilter("ignore")
        yield
