"""From torch to the float ONNX file that every pass starts from."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from ptq4vit_onnx import __version__
from ptq4vit_onnx.loading import LoadedModel
from ptq4vit_onnx.passes.bind_sites import bind_sites
from ptq4vit_onnx.sites import Site

OPSET = 20  # the first with Gelu as one operator
INPUT, OUTPUT = "image", "logits"


def export_float(model: LoadedModel, sites: Sequence[Site], batch: int | None = None) -> Any:
    """The model as an onnx.ModelProto whose nodes carry their sites' names.

    batch: None leaves the batch axis dynamic, a number fixes it.
    """
    import torch

    example = torch.zeros(batch or 2, *model.preprocessing.size)
    dynamic = None if batch else ({0: torch.export.Dim("batch", min=1)},)
    with _quiet():
        program = torch.onnx.export(
            model.module,
            (example,),
            dynamo=True,
            opset_version=OPSET,
            dynamic_shapes=dynamic,
            input_names=[INPUT],
            output_names=[OUTPUT],
            verbose=False,
        )
    assert program is not None
    proto = program.model_proto
    bind_sites(proto, sites)
    _describe(proto, model)
    return proto


def metadata_of(model: LoadedModel) -> dict[str, str]:
    """What a deployer needs to know, as it stands in the file."""
    return {
        "ptq4vit_onnx.model": model.name,
        "ptq4vit_onnx.version": __version__,
        "ptq4vit_onnx.weights": "RANDOM" if model.is_random else model.origin,
        "ptq4vit_onnx.weights_sha256": model.fingerprint,
        "ptq4vit_onnx.preprocessing": model.preprocessing.to_json(),
    }


def _describe(proto: Any, model: LoadedModel) -> None:
    proto.producer_name, proto.producer_version = "ptq4vit-onnx", __version__
    proto.graph.name = model.name
    for key, value in metadata_of(model).items():
        proto.metadata_props.add(key=key, value=value)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporter's own chatter, kept from the user; its errors still come through as exceptions."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
