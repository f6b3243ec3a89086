"""Files that a budget's choice is made between: built by the passes, and measured in ONNX Runtime."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ptq4vit_onnx.graph.model_proto import file_bytes, save_model
from ptq4vit_onnx.graph.model_proto import load as read_proto
from ptq4vit_onnx.images.loading import ImageSet
from ptq4vit_onnx.output_kinds.kinds import OutputKind
from ptq4vit_onnx.output_kinds.output_kind import Kept, Outputs
from ptq4vit_onnx.passes import quantize
from ptq4vit_onnx.plan.file_layout import InputType, Target
from ptq4vit_onnx.plan.scale_plan import ScalePlan, SitePlan
from ptq4vit_onnx.planning.within_budget import Measured
from ptq4vit_onnx.runtime.session import output_names, run_all, session

BATCH = 8
MOST_REMEMBERED = 50_000_000  # values of the float model's outputs that are kept; more are computed again


class TrialFiles:
    """Makes a file of the plans of all sites, and compares it with the float one on `images`.

    complete: makes a plan of the sites' plans. folder: where files lie while they are measured.
    """

    def __init__(
        self, float_path: Path, complete: Callable[[Mapping[str, SitePlan]], ScalePlan], kind: OutputKind,
        images: ImageSet, folder: Path, input: InputType, target: Target,
    ) -> None:  # fmt: skip
        self.float_path, self.complete, self.kind, self.images = float_path, complete, kind, images
        self.folder, self.input, self.target = folder, input, target
        self._float: list[Outputs] = []

    def write(self, plan: ScalePlan, path: Path) -> None:
        """The file, as an export writes it."""
        quantised, _ = quantize(read_proto(self.float_path), plan, self.input, self.target)
        gc.collect()  # a graph of onnx-graphsurgeon, which holds all weights, is full of cycles
        save_model(quantised, path)

    def make(self, sites: Mapping[str, SitePlan]) -> Measured:
        path = self.folder / "trial.onnx"
        self.write(self.complete(sites), path)
        try:
            return self.measure(path)
        finally:
            for file in self.folder.glob("trial.onnx*"):
                file.unlink()

    def measure(self, path: Path) -> Measured:
        quantised, reference = session(path, threads=0), session(self.float_path, threads=0)
        kept: list[Any] = []
        wanted: list[Any] = []
        for number, start in enumerate(range(0, len(self.images), BATCH)):
            pixels = self.images.images[start : start + BATCH]
            of_float = self._outputs(number, reference, pixels)
            kept.append(self.kind.keep(run_all(quantised, pixels, BATCH), of_float))
            wanted.append(self.kind.keep(of_float, of_float))
        names, labels = output_names(reference), self.images.labels
        against = self.kind.compare(
            Kept(np.concatenate(kept), names, labels), Kept(np.concatenate(wanted), names, labels)
        )
        figures = against.figures
        return Measured(file_bytes(path), against.distance, figures.get("agreement"), figures.get("drop"),
                        figures.get("drop_error"))  # fmt: skip

    def _outputs(self, number: int, reference: Any, pixels: Any) -> Outputs:
        if number < len(self._float):
            return self._float[number]
        found = run_all(reference, pixels, BATCH)
        remembered = sum(item.size for outputs in (*self._float, found) for item in outputs)
        if number == len(self._float) and remembered <= MOST_REMEMBERED:  # by number: none is left out in between
            self._float.append(found)
        return found
