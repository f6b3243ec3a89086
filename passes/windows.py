"""The windows of a convolution as the rows of a product, by operations that move data."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import onnx_graphsurgeon as gs

from ptq4vit_onnx.passes.work import Work, integers
from ptq4vit_onnx.plan.quantizers.patch_order import is_tiling


@dataclass(frozen=True)
class Geometry:
    """A convolution over [batch, depth, *size]; pads: top, left, bottom, right."""

    depth: int
    size: tuple[int, int]
    kernel: tuple[int, int]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]

    @property
    def tiles(self) -> bool:
        return is_tiling(self.kernel, self.strides, self.pads, self.dilations)

    @property
    def padded(self) -> tuple[int, int]:
        return self.size[0] + self.pads[0] + self.pads[2], self.size[1] + self.pads[1] + self.pads[3]

    @property
    def grid(self) -> tuple[int, int]:
        """How many windows there are, downwards and to the right."""
        down, across = (
            (length - dilation * (kernel - 1) - 1) // stride + 1
            for length, kernel, stride, dilation in zip(
                self.padded, self.kernel, self.strides, self.dilations, strict=True
            )
        )
        return down, across


def patches(work: Work, site: str, image: gs.Tensor, geometry: Geometry) -> gs.Variable:
    """[batch, patches, inputs] of windows side by side, in the order of `pair_far_inputs`."""
    (rows, columns), (height, width) = geometry.grid, geometry.kernel
    count, inputs = rows * columns, geometry.depth * height * width
    split = work.constant(f"{site}/patches/split", integers(0, geometry.depth, rows, height, columns, width))
    out = work.add("Reshape", f"{site}/patches/Reshape", [image, split])
    out = work.add("Transpose", f"{site}/patches/Transpose", [out], perm=[0, 2, 4, 1, 3, 5])
    if inputs % 2 == 0:
        halves = work.constant(f"{site}/patches/halves", integers(0, count, 2, inputs // 2))
        out = work.add("Reshape", f"{site}/patches/Reshape_1", [out, halves])
        out = work.add("Transpose", f"{site}/patches/Transpose_1", [out], perm=[0, 1, 3, 2])
    flat = work.constant(f"{site}/patches/flat", integers(0, count, inputs))
    return work.add("Reshape", f"{site}/patches/Reshape_2", [out, flat])


def pixels(work: Work, site: str, image: gs.Tensor, geometry: Geometry) -> gs.Variable:
    """[batch, pixels, depth]: what a kernel of one pixel reads."""
    rows, columns = geometry.grid
    if set(geometry.strides) != {1}:
        names = ("starts", "ends", "axes", "steps")
        limits = (integers(0, 0), integers(*geometry.size), integers(2, 3), integers(*geometry.strides))
        parts = [work.constant(f"{site}/patches/{name}", value) for name, value in zip(names, limits, strict=True)]
        image = work.add("Slice", f"{site}/patches/Slice", [image, *parts])
    flat = work.constant(f"{site}/patches/flat", integers(0, geometry.depth, rows * columns))
    out = work.add("Reshape", f"{site}/patches/Reshape", [image, flat])
    return work.add("Transpose", f"{site}/patches/Transpose", [out], perm=[0, 2, 1])


def overlapping_windows(work: Work, site: str, image: gs.Tensor, geometry: Geometry) -> gs.Variable:
    """[batch, windows, height * width * depth]: one Slice for each place in the kernel."""
    rows, columns = geometry.grid
    out = work.add("Transpose", f"{site}/windows/Transpose", [image], perm=[0, 2, 3, 1])
    if any(geometry.pads):
        top, left, bottom, right = geometry.pads
        pads = work.constant(f"{site}/windows/pads", integers(0, top, left, 0, 0, bottom, right, 0))
        zero = work.constant(f"{site}/windows/zero", np.zeros((), np.float32))
        out = work.add("Pad", f"{site}/windows/Pad", [out, pads, zero])
    parts = [_place(work, site, out, geometry, place) for place in product(*map(range, geometry.kernel))]
    out = work.add("Concat", f"{site}/windows/Concat", parts, axis=3)
    inputs = geometry.depth * geometry.kernel[0] * geometry.kernel[1]
    flat = work.constant(f"{site}/windows/flat", integers(0, rows * columns, inputs))
    return work.add("Reshape", f"{site}/windows/Reshape", [out, flat])


def _place(work: Work, site: str, padded: gs.Tensor, geometry: Geometry, place: tuple[int, ...]) -> gs.Variable:
    """[batch, rows, columns, depth]: for every window, the pixel at one place of the kernel."""
    steps, name = geometry.strides, f"{site}/windows/Slice_{'_'.join(map(str, place))}"
    starts = [at * dilation for at, dilation in zip(place, geometry.dilations, strict=True)]
    ends = [start + step * (count - 1) + 1 for start, step, count in zip(starts, steps, geometry.grid, strict=True)]
    limits = [
        work.constant(f"{name}/starts", integers(*starts)),
        work.constant(f"{name}/ends", integers(*ends)),
        work.constant(f"{site}/windows/axes", integers(1, 2)),
        work.constant(f"{site}/windows/steps", integers(*steps)),
    ]
    return work.add("Slice", name, [padded, *limits])
