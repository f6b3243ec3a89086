"""A made-up choice within a budget, and files of a comparison: sizes and distances as DeiT-T has them."""

from __future__ import annotations

from ptq4vit_onnx.plan.budget import Allocation, Budget, Point
from ptq4vit_onnx.report.pareto_rows import ParetoAbout, ParetoRow

SIZES = {2: 2_030_000, 3: 2_710_000, 4: 3_400_000, 5: 4_070_000, 6: 4_750_000, 7: 5_430_000, 8: 6_100_000}
DISTANCES = {2: 3.1, 3: 0.35, 4: 0.070, 5: 0.028, 6: 0.010, 7: 0.006, 8: 0.0045}
MIXTURES = {2.4: (2_300_000, 1.1), 3.43: (3_000_000, 0.16), 4.83: (3_950_000, 0.029), 6.38: (5_000_000, 0.0073)}
CHOSEN = "4.83 bits on average"
ABOUT = ParetoAbout("deit_t", "KL", "256 images of photos, none calibrated on", "AVX2, no VNNI", "0.1.0")


def allocation_of(weights: dict[str, int], budget: Budget | None = None) -> Allocation:
    """weights: the bits of the mixture that was chosen; the other mixtures have them, too."""
    singles = [
        Point(f"{bits} bits", dict.fromkeys(weights, bits), size, float(bits), 1.2 * DISTANCES[bits], DISTANCES[bits])
        for bits, size in SIZES.items()
    ]
    mixtures = [
        Point(f"{average} bits on average", weights, size, average, 0.9 * distance, distance)
        for average, (size, distance) in MIXTURES.items()
    ]
    points = tuple(sorted([*singles, *mixtures], key=lambda point: point.size))
    place = next(index for index, point in enumerate(points) if point.title == CHOSEN)
    return Allocation(budget or Budget("max_size", 4e6), points, place, 256, "KL")


def single(bits: int) -> ParetoRow:
    return ParetoRow(f"{bits} bits", "single", f"w{bits}/model.onnx", SIZES[bits], float(bits), DISTANCES[bits],
                     1.2 * DISTANCES[bits], 98.123, 0.31, 0.2, 14.25, 2.05)  # fmt: skip


def mixture(average: float) -> ParetoRow:
    size, distance = MIXTURES[average]
    return ParetoRow(f"{average} bits on average", "mixed", f"m{average}/model.onnx", size, average, distance)


def peer(title: str, size: int, distance: float) -> ParetoRow:
    return ParetoRow(title, "peer", f"../{title}.onnx", size, None, distance)


ROWS = [
    *map(single, SIZES), *map(mixture, MIXTURES),
    peer("quantize_static", 6_200_000, 0.05), peer("MatMulNBits", 5_000_000, 0.056), peer("NNCF", 6_300_000, 0.052),
    ParetoRow("float", "float", "float.onnx", 22_900_000, 32.0, 0.0, milliseconds=28.0, speed=1.0),
]  # fmt: skip
