"""What report.html says of a budget: the files that were considered, which was chosen, and the bits of every weight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

from ptq4vit_onnx.plan.budget import Allocation, Budget, Point
from ptq4vit_onnx.report.charts import figure
from ptq4vit_onnx.report.site_charts import block_label, block_of
from ptq4vit_onnx.report.size_chart import Dot, size_chart
from ptq4vit_onnx.report.table import Cell, FileLine, FileTable, Heading, fixed, with_error


@dataclass(frozen=True)
class WeightBits:
    """A bar of the strip. title: the site with its bits."""

    title: str
    bits: int


@dataclass(frozen=True)
class WeightBlock:
    """Bars of one block of the network. label: the block's number; empty for sites outside the blocks."""

    label: str
    weights: tuple[WeightBits, ...]


@dataclass(frozen=True)
class Strip:
    """The bits of all weights in network order. counts: how many weights have how many bits, the fewest bits first.
    order: what a block's bars are, where all blocks have the same; else empty."""

    blocks: tuple[WeightBlock, ...]
    counts: Mapping[int, int]
    order: tuple[str, ...]

    @property
    def text(self) -> str:
        """The strip for those who do not see it."""
        return ", ".join(f"{count} with {bits} bits" for bits, count in self.counts.items())


@dataclass(frozen=True)
class BudgetSection:
    """strip: None where all weights have the same bits, as the sentence says."""

    sentence: str
    chart: Markup
    table: FileTable
    strip: Strip | None


def budget_section(allocation: Allocation, weight_bits: Mapping[str, int]) -> BudgetSection:
    """weight_bits: of the plan, by site in network order."""
    mixed = len(set(weight_bits.values())) > 1
    return BudgetSection(allocation.sentence, _chart(allocation), _table(allocation),
                         strip_of(weight_bits) if mixed else None)  # fmt: skip


def _chart(allocation: Allocation) -> Markup:
    """Of the files that were measured, which the chosen one is among."""
    measured = [point for point in allocation.points if point.measured is not None]
    dots = [
        Dot(point.title, point.size, point.measured, "mixed" if _mixed(point) else "single", point.predicted)
        for point in measured
        if point.measured is not None
    ]
    title = f"files that were considered, {allocation.distance} by size"
    return size_chart(dots, measured.index(allocation.choice), allocation.distance, allocation.budget, title)


def _mixed(point: Point) -> bool:
    return len(set(point.bits.values())) > 1


def _table(allocation: Allocation) -> FileTable:
    cells = [_cells(point, allocation.distance) for point in allocation.points]
    shown = [heading for heading in cells[0] if any(line[heading] for line in cells)]
    lines = [
        FileLine(f"{point.title}{', chosen' if number == allocation.chosen else ''}",
                 tuple(Cell(line[heading], heading.kind) for heading in shown),
                 "taken" if number == allocation.chosen else "" if fits(allocation.budget, point) else "dull")
        for number, (point, line) in enumerate(zip(allocation.points, cells, strict=True))
    ]  # fmt: skip
    return FileTable(tuple(shown), tuple(lines))


def _cells(point: Point, distance: str) -> dict[Heading, str]:
    """By column; one that is empty for all files is left out."""
    return {
        Heading("Size", "MB", "n"): f"{point.size / 1e6:.2f}",
        Heading("Bits on average", "", "n"): f"{point.average:.2f}",
        Heading("Predicted", distance, "n"): "" if point.predicted is None else figure(point.predicted),
        Heading("Measured", distance, "n"): "" if point.measured is None else figure(point.measured),
        Heading("Agreement", "%", "n"): fixed(point.agreement, 2),
        Heading("Drop", "points", "n"): with_error(point.drop, point.drop_error),
    }


def fits(budget: Budget, point: Point) -> bool:
    """Whether the file is within the budget; what was not measured is not."""
    spent = {"max_size": point.size, "max_kl": point.measured, "max_drop": point.drop,
             "average_weight_bits": point.average}[budget.limited]  # fmt: skip
    return spent is not None and spent <= budget.limit


def strip_of(weight_bits: Mapping[str, int]) -> Strip:
    grouped = {key: list(names) for key, names in _runs(weight_bits)}
    blocks = tuple(
        WeightBlock(block_label(key[1]), tuple(WeightBits(f"{name}: {weight_bits[name]} bits", weight_bits[name])
                                               for name in names))
        for key, names in grouped.items()
    )  # fmt: skip
    orders = {tuple(name.removeprefix(f"{key[1]}.") for name in names) for key, names in grouped.items() if key[1]}
    counts = Counter(weight_bits.values())
    return Strip(blocks, {bits: counts[bits] for bits in sorted(counts)}, orders.pop() if len(orders) == 1 else ())


def _runs(weight_bits: Mapping[str, int]) -> list[tuple[tuple[int, str], list[str]]]:
    """Neighbours of one block, with the number of the run: sites outside the blocks lie at both ends."""
    runs = groupby(weight_bits, key=block_of)
    return [((number, block), list(names)) for number, (block, names) in enumerate(runs)]
