"""Make one product of the two branches of a twin, or two that are added."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from ptq4vit_onnx.passes.byte_codes import add_dequantize
from ptq4vit_onnx.passes.twin_codes import coarse_bytes, fine_bytes, merged_bytes, merges
from ptq4vit_onnx.passes.work import Product, Work, scalar
from ptq4vit_onnx.plan.quantizers import TwinGelu, TwinSoftmax


def give_branches(work: Work, product: Product, fine: gs.Tensor, coarse: gs.Tensor) -> None:
    """Feed the product with the branches' bytes: merged where that is exact, else through a second product.

    The second product reads the same right side, and its name is SITE/MatMul.coarse.
    """
    twin, name = product.lhs, product.name
    assert isinstance(twin, (TwinSoftmax, TwinGelu))
    if merges(twin, product.codes):
        merged = _merge(work, twin, name, fine, coarse)
        product.node.inputs[0] = add_dequantize(work, merged, merged_bytes(twin), f"{name}/lhs")
        work.twin_products[product.site] = 1
    else:
        product.node.inputs[0] = add_dequantize(work, fine, fine_bytes(twin), f"{name}/lhs")
        lhs = add_dequantize(work, coarse, coarse_bytes(twin), f"{name}/lhs.coarse")
        second = work.add("MatMul", f"{name}/MatMul.coarse", [lhs, product.node.inputs[1]])
        work.append_to(product.node, "Add", f"{name}/twin/Add", second)
        work.twin_products[product.site] = 2
    product.lhs_done = True


def _merge(work: Work, twin: TwinSoftmax | TwinGelu, name: str, fine: gs.Tensor, coarse: gs.Tensor) -> gs.Tensor:
    """Bytes fine + coarse * 2^shift: one of the two stands at its zero point, so the sum fits.

    It is computed in int32: older runtimes have no Add and Mul of bytes.
    """
    wide, narrow = onnx.TensorProto.INT32, onnx.TensorProto.UINT8
    fine = work.add("Cast", f"{name}/lhs/twin/Cast_1", [fine], to=wide)
    coarse = work.add("Cast", f"{name}/lhs/twin/Cast_2", [coarse], to=wide)
    step = work.constant(f"{name}/lhs/twin/step", scalar(2**twin.shift, np.int32))
    aligned = work.add("Mul", f"{name}/lhs/twin/Mul", [coarse, step])
    joined = work.add("Add", f"{name}/lhs/twin/Add", [fine, aligned])
    return work.add("Cast", f"{name}/lhs/twin/Cast", [joined], to=narrow)
