"""What an export measured: one typed value, written here as JSON, for people in terminal.py and page.py."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptq4vit_onnx import __version__
from ptq4vit_onnx.graph.model_proto import file_bytes
from ptq4vit_onnx.output_kinds.kinds import KINDS, OutputKind
from ptq4vit_onnx.report import twin_words

if TYPE_CHECKING:
    from ptq4vit_onnx.images.loading import ImageSet
    from ptq4vit_onnx.model_loading.load import LoadedModel, Origin
    from ptq4vit_onnx.output_kinds.output_kind import AgainstFloat
    from ptq4vit_onnx.passes import PassReport
    from ptq4vit_onnx.plan.budget import Allocation
    from ptq4vit_onnx.plan.evidence import SiteEvidence
    from ptq4vit_onnx.plan.options import Options
    from ptq4vit_onnx.plan.scale_plan import ScalePlan
    from ptq4vit_onnx.proof.end_to_end import EndToEnd
    from ptq4vit_onnx.proof.float_parity import FloatParity
    from ptq4vit_onnx.proof.kernels import KernelAudit
    from ptq4vit_onnx.proof.prove import Proof
    from ptq4vit_onnx.proof.replay import Divergence
    from ptq4vit_onnx.request import ExportRequest
    from ptq4vit_onnx.runtime.bench import BenchResult

FORMAT = 1
OWN_IMAGES = "give your own by --data if they are not photographs, or of other sizes or channels"


@dataclass(frozen=True)
class Bits:
    """The widths of the plan: of weights one, or the smallest and the largest. It prints as W8A6, or W3-8A8."""

    weights: int | tuple[int, int]
    activations: int

    @classmethod
    def of(cls, plan: ScalePlan, options: Options) -> Bits:
        widths = set(weight_bits(plan).values()) or {options.weight_bits}
        least, most = min(widths), max(widths)
        return cls(least if least == most else (least, most), options.activation_bits)

    @property
    def weights_text(self) -> str:
        return f"{self.weights[0]} to {self.weights[1]}" if isinstance(self.weights, tuple) else str(self.weights)

    def __str__(self) -> str:
        return f"W{self.weights_text.replace(' to ', '-')}A{self.activations}"


def weight_bits(plan: ScalePlan) -> dict[str, int]:
    """By site that has a weight."""
    return {name: site.rhs.bits for name, site in plan.sites.items() if site.kind != "matmul"}


@dataclass(frozen=True)
class CalibrationImages:
    """The images that calibration looked at.

    Attributes:
        count: How many were used.
        skipped: Files that could not be read.
        source: Where they are from.
        built_in: From the package's own photos, because none were given.
        planned: What a given plan says that it was calibrated on, where that is not these images.
        warnings: Sentences on what is odd about them, and what to do.
    """

    count: int
    skipped: tuple[str, ...] = ()
    source: str = ""
    built_in: bool = False
    planned: str | None = None
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, images: ImageSet, plan: ScalePlan) -> CalibrationImages:
        planned = None if plan.images == images.fingerprint else str(plan.options.get("images_from", "other images"))
        return cls(len(images), images.skipped, images.source, images.built_in, planned, images.warnings)

    def __str__(self) -> str:
        if self.planned is not None:
            return f"{self.planned}, as the given plan says"
        advice = f"; {OWN_IMAGES}" if self.built_in else ""
        return f"{self.count} images of {self.source}{advice}"


@dataclass(frozen=True)
class Output:
    """What the model returns. names: of its tensors. why: a sentence, what it was taken for and why."""

    kind: OutputKind = KINDS["logits"]
    names: tuple[str, ...] = ("logits",)
    why: str = ""

    def __str__(self) -> str:
        return self.why or f"{self.kind.plural}: {', '.join(self.names)}"


@dataclass(frozen=True)
class Inputs:
    """What an export started from.

    Attributes:
        model: Its name.
        weights_from: Where its weights came from; "random" marks a dry run.
        bits: The widths of the plan.
        calibration_images: The images that calibration looked at.
        resampled: A sentence, where the weights are for another image size than the model's.
        output: What the model returns.
        remarks: Sentences on what else the user should know of the model as it was loaded.
        advice: A sentence on what was asked for.
    """

    model: str
    weights_from: Origin
    bits: Bits
    calibration_images: CalibrationImages
    resampled: str = ""
    output: Output = Output()
    remarks: tuple[str, ...] = ()
    advice: str = ""

    @classmethod
    def of(cls, model: LoadedModel, request: ExportRequest, images: ImageSet, plan: ScalePlan) -> Inputs:
        bits = Bits.of(plan, request.options)
        output = Output(model.kind, model.outputs, model.taken_for)
        return cls(
            model.name, model.origin, bits, CalibrationImages.of(images, plan), model.resampled, output, model.remarks,
            request.advice,
        )  # fmt: skip

    @property
    def random_weights(self) -> bool:
        return self.weights_from == "random"


@dataclass(frozen=True)
class FileSizes:
    """Of float.onnx and model.onnx, in bytes, with the external data of a file above 2 GB."""

    float: int
    model: int

    @classmethod
    def of(cls, float_path: Path, path: Path) -> FileSizes:
        return cls(file_bytes(float_path), file_bytes(path))


@dataclass(frozen=True)
class Report:
    """Everything that an export measured.

    Attributes:
        folder: Where the export lies.
        inputs: What it started from.
        plan: The scales that were applied.
        evidence: What calibration saw of each site, for the HTML page. Empty where a plan was given.
        float_parity: The float file against torch.
        proof: The quantised file against its plan, the simulator and the float file.
        passes: What the graph passes did.
        latency: The float model first, then the quantised one.
        sizes: Of the two files.
        seconds: By stage of the export.
        allocation: How a budget was spent, where one was given.
        against_float: The quantised model against the float one on the measured images, as its output kind measures it.
        end_to_end: The quantised file against the simulator.
        kernels: On which kernel each product runs.
    """

    folder: Path
    inputs: Inputs
    plan: ScalePlan
    evidence: Mapping[str, SiteEvidence]
    float_parity: FloatParity
    proof: Proof
    passes: PassReport
    latency: BenchResult
    sizes: FileSizes
    seconds: Mapping[str, float]
    allocation: Allocation | None = None

    @property
    def kernels(self) -> KernelAudit:
        return self.proof.kernels

    @property
    def end_to_end(self) -> EndToEnd:
        return self.proof.end_to_end

    @property
    def against_float(self) -> AgainstFloat:
        return self.proof.against_float

    @property
    def largest_divergence(self) -> Divergence:
        """Of the replay: the site whose output differs most from the simulator's."""
        return max(self.proof.replay, key=lambda item: item.relative_error)

    @property
    def exact_products(self) -> str:
        """How many products equal integer arithmetic, of how many: "44 of 44"."""
        return f"{sum(site.exact for site in self.proof.sites)} of {len(self.proof.sites)}"

    @property
    def moved_weights(self) -> int:
        """How many weight codes of all sites were changed so that no CPU saturates."""
        return sum(self.passes.moved_weights.values())

    @property
    def folded_channels(self) -> dict[str, str]:
        """By site whose input channels have scales of their own: the LayerNorm these are folded into."""
        return {name: site.channels.norm for name, site in self.plan.sites.items() if site.channels is not None}

    def save(self, folder: Path) -> None:
        (folder / "report.json").write_text(json.dumps(self.to_data(), indent=1) + "\n", encoding="utf-8")

    def to_data(self) -> dict[str, Any]:
        """What report.json holds. Programs read these keys: one that is renamed or dropped needs another FORMAT."""
        return {
            "format": FORMAT,
            "version": __version__,
            **_inputs_data(self.inputs, self.plan),
            "float_parity": {**asdict(self.float_parity), "passed": self.float_parity.passed},
            **_proof_data(self),
            "passes": asdict(self.passes),
            **_choices_data(self.plan, self.inputs.output.kind),
            "channels": self.folded_channels,
            "weight_bits": weight_bits(self.plan),
            "budget": None if self.allocation is None else self.allocation.to_data(),
            "latency": self.latency.to_data(),
            "bytes": asdict(self.sizes),
            "seconds": {stage: round(value, 3) for stage, value in self.seconds.items()},
        }


def _inputs_data(inputs: Inputs, plan: ScalePlan) -> dict[str, Any]:
    images, output = inputs.calibration_images, inputs.output
    return {
        "model": inputs.model,
        "random_weights": inputs.random_weights,
        "synthetic_images": False,  # no export is calibrated on made-up images
        "weights_from": inputs.weights_from,
        "resampled": inputs.resampled or None,
        "output": {"kind": output.kind.name, "names": list(output.names), "why": output.why},
        "remarks": list(inputs.remarks),
        "advice": inputs.advice or None,
        "bits": asdict(inputs.bits),
        "options": dict(plan.options),
        "versions": dict(plan.versions),
        "fingerprints": {"weights": plan.weights, "images": plan.images},
        "calibration_images": {
            "count": images.count,
            "skipped": list(images.skipped),
            "source": images.source,
            "built_in": images.built_in,
            "sentence": str(images),
            "warnings": list(images.warnings),
        },
        "sites": len(plan.sites),
    }


def _proof_data(report: Report) -> dict[str, Any]:
    proof, largest = report.proof, report.largest_divergence
    return {
        "kernels": proof.kernels.to_data(),
        "float_products": dict(report.plan.floats),
        "site_parity": [site.to_data() for site in proof.sites],
        "replay": {
            "largest": largest.relative_error,
            "limit": largest.limit,
            "sites": {item.site: item.relative_error for item in proof.replay},
        },
        "end_to_end": proof.end_to_end.to_data(),
        "against_float": proof.against_float.to_data(),
        "measured_on": str(proof.measured_on),
        "measured_images": proof.measured_on.to_data(),
    }


def _choices_data(plan: ScalePlan, kind: OutputKind) -> dict[str, Any]:
    choices = {name: twin_words.twin_choice(site) for name, site in plan.sites.items()}
    return {
        "losses": {name: dict(site.losses) for name, site in plan.sites.items()},
        "twins": {
            "summary": twin_words.summary(plan.sites, kind),
            "sites": {name: str(choice) for name, choice in choices.items() if choice is not None},
        },
    }
