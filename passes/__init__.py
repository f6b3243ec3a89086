"""From a float ONNX model and a plan to a model that ONNX Runtime computes in integers.

    quantized, report = quantize(float_model, plan)

The graph goes down one line of passes; this page is their order, and the reason for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import onnx
import onnx_graphsurgeon as gs

from ptq4vit_onnx.passes.carry_bytes import CarryBytes
from ptq4vit_onnx.passes.drop_no_ops import DropNoOps
from ptq4vit_onnx.passes.drop_unread_rows import DropUnreadRows
from ptq4vit_onnx.passes.embed_patches import EmbedPatches
from ptq4vit_onnx.passes.find_products import FindProducts
from ptq4vit_onnx.passes.fold_channels import FoldChannels
from ptq4vit_onnx.passes.fold_head_scales import FoldHeadScales
from ptq4vit_onnx.passes.pack_weights import PackWeights
from ptq4vit_onnx.passes.pass_interface import InvariantError, Pass, PassError
from ptq4vit_onnx.passes.quantize_activations import QuantizeActivations
from ptq4vit_onnx.passes.quantize_pixels import QuantizePixels
from ptq4vit_onnx.passes.quantize_weights import QuantizeWeights
from ptq4vit_onnx.passes.restore_head_scales import RestoreHeadScales
from ptq4vit_onnx.passes.separate_readers import SeparateReaders
from ptq4vit_onnx.passes.shape_biases import ShapeBiases
from ptq4vit_onnx.passes.split_gelu import SplitGelu
from ptq4vit_onnx.passes.split_outliers import SplitOutliers
from ptq4vit_onnx.passes.split_softmax import SplitSoftmax
from ptq4vit_onnx.passes.take_bytes import TakeBytes
from ptq4vit_onnx.passes.tidy import Tidy
from ptq4vit_onnx.passes.unify_products import UnifyProducts
from ptq4vit_onnx.passes.work import Work
from ptq4vit_onnx.plan.file_layout import InputType, Target
from ptq4vit_onnx.plan.plan_json import fingerprint
from ptq4vit_onnx.plan.scale_plan import ScalePlan

OLDEST_RUNTIME = "ONNX Runtime 1.17, onnxruntime-web 1.17, OpenVINO 2026.2"
# Entries of the file's metadata that the float file does not have.
OWN_METADATA = tuple(f"ptq4vit_onnx.{key}" for key in ("input", "target", "oldest_runtime", "plan_sha256"))
INPUT, TARGET, OLDEST, PLAN = OWN_METADATA
OLDEST_IR = 9  # of opset 20, and the newest that ONNX Runtime 1.17 reads

__all__ = ["PASSES", "InvariantError", "PassError", "PassReport", "quantize"]

PASSES: tuple[type[Pass], ...] = (
    FindProducts,  # first: refuses what cannot be quantised before anything is changed
    DropNoOps,  # early: CarryBytes and FoldHeadScales look through movements, not through a Pad by nothing
    DropUnreadRows,  # while all shapes are known and the nodes are in order
    EmbedPatches,  # Conv becomes MatMul, and
    UnifyProducts,  # so does Gemm: from here on there is one kind of product
    FoldChannels,  # before anything reads the weights and biases that it changes
    ShapeBiases,  # while the bias still stands right behind its product
    SplitOutliers,  # before the weights are rounded: the main product's rows become zero first
    QuantizeWeights,  # before the activations: whether a twin's branches merge depends on the codes that ship
    QuantizePixels,  # after the weights: a constant of the codes that ship goes into the bias
    FoldHeadScales,  # after the weights and biases, whose scales it changes; before what it leaves over
    QuantizeActivations,  # the sides that FoldHeadScales left over
    RestoreHeadScales,  # when both sides are known; before the twins, so that two products share one Mul
    SplitSoftmax,  # after the right side is quantised: both branches read the same one
    SplitGelu,  # for the same reason
    CarryBytes,  # when all QuantizeLinear are in the graph
    SeparateReaders,  # when every QuantizeLinear stands where it stays
    PackWeights,  # late: SplitGelu reads the codes
    Tidy,  # last: sorts, and checks that no planned side was left out
)


@dataclass(frozen=True)
class PassReport:
    """What the passes did.

    moved_weights: per site, weight codes that differ from the nearest ones, because two neighbouring u8 x s8 products
    would overflow int16. products: per site, how many integer products it became (a twin 1 or 2, an outlier product one
    more). merged: twin sites whose branches are one product. operations_before, operations_after: node counts by
    operation. places: per pass, how many places it changed.
    """

    moved_weights: Mapping[str, int]
    products: Mapping[str, int]
    merged: tuple[str, ...]
    operations_before: Mapping[str, int]
    operations_after: Mapping[str, int]
    places: Mapping[str, int]


def quantize(
    float_model: onnx.ModelProto, plan: ScalePlan, input: InputType = "float", target: Target = "onnxruntime"
) -> tuple[onnx.ModelProto, PassReport]:
    """The integer model (the float one is not changed), and what was done.

    input: of the integer model; "uint8" runs TakeBytes, too, and says so in the metadata. target: the engine whose
    speed decides between forms of the same codes.
    float_model: site names on its product nodes (see bind_sites). Raises UserError for a plan that does not
    fit the model, PassError where a planned site has a form that no pass knows, InvariantError for a mistake in a pass.
    """
    work = Work(gs.import_onnx(_with_shapes(float_model)), plan, target)
    before = Counter(node.op for node in work.graph.nodes)
    extra: tuple[type[Pass], ...] = (TakeBytes,) if input == "uint8" else ()
    for make in (*PASSES[:-1], *extra, *PASSES[-1:]):  # Tidy stays the last
        make()(work)
    quantized = gs.export_onnx(work.graph)
    quantized.ir_version = min(float_model.ir_version, OLDEST_IR)
    for field in ("producer_name", "producer_version"):
        setattr(quantized, field, getattr(float_model, field))
    quantized.metadata_props.extend(float_model.metadata_props)
    if input == "uint8":
        quantized.metadata_props.add(key=INPUT, value="uint8 [batch, height, width, colours]")
    for key, value in ((TARGET, target), (OLDEST, OLDEST_RUNTIME), (PLAN, fingerprint(plan))):
        quantized.metadata_props.add(key=key, value=value)
    return quantized, _report(work, before)


def _with_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the shape of every tensor: inferred, which takes seconds, only where one is missing."""
    graph = model.graph
    known = {item.name for item in (*graph.value_info, *graph.output) if item.type.tensor_type.HasField("shape")}
    complete = all(name in known for node in graph.node for name in node.output)
    return model if complete else onnx.shape_inference.infer_shapes(model)


def _report(work: Work, before: Counter[str]) -> PassReport:
    extra = Counter(item.site for item in work.products)
    products = {site: extra[site] + work.twin_products.get(site, 1) - 1 for site in work.plan.sites}
    return PassReport(
        moved_weights=dict(work.moved_weights),
        products=products,
        merged=tuple(site for site, count in work.twin_products.items() if count == 1),
        operations_before=dict(before),
        operations_after=dict(Counter(node.op for node in work.graph.nodes)),
        places=dict(work.counts),
    )
