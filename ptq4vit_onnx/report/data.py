"""What an export measured, for programs (report.json) and for people (rows of a table)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptq4vit_onnx import __version__
from ptq4vit_onnx.plan import twins as twin_choice

if TYPE_CHECKING:
    from ptq4vit_onnx.images.loading import ImageSet
    from ptq4vit_onnx.network.load import LoadedModel
    from ptq4vit_onnx.passes import PassReport
    from ptq4vit_onnx.plan.scale_plan import ScalePlan
    from ptq4vit_onnx.proof.float_parity import FloatParity
    from ptq4vit_onnx.proof.prove import Proof
    from ptq4vit_onnx.request import ExportRequest
    from ptq4vit_onnx.runtime.bench import BenchResult
from ptq4vit_onnx.graph.model_proto import file_bytes

FORMAT = 1


@dataclass(frozen=True)
class Report:
    """data: exactly what report.json holds; folder: where the export lies."""

    data: Mapping[str, Any]
    folder: Path

    @classmethod
    def build(
        cls, request: ExportRequest, model: LoadedModel, images: ImageSet, plan: ScalePlan, parity: FloatParity,
        proof: Proof, passes: PassReport, path: Path, float_path: Path, latency: BenchResult,
        seconds: Mapping[str, float],
    ) -> Report:  # fmt: skip
        data = {
            "format": FORMAT,
            "version": __version__,
            "model": model.name,
            "random_weights": model.is_random,
            "synthetic_images": images.synthetic,
            "weights_from": model.origin,
            "bits": {"weights": request.options.weight_bits, "activations": request.options.activation_bits},
            "options": dict(plan.options),
            "versions": dict(plan.versions),
            "fingerprints": {"weights": plan.weights, "images": plan.images},
            "calibration_images": {"count": len(images), "skipped": list(images.skipped)},
            "sites": len(plan.sites),
            "float_parity": {**asdict(parity), "passed": parity.passed},
            "kernels": proof.kernels.to_data(),
            "site_parity": [site.to_data() for site in proof.sites],
            "replay": {
                "largest": max(item.relative_error for item in proof.replay),
                "limit": proof.replay[0].limit,
                "sites": {item.site: item.relative_error for item in proof.replay},
            },
            "end_to_end": proof.end_to_end.to_data(),
            "against_float": proof.against_float.to_data(),
            "measured_on": proof.images,
            "passes": asdict(passes),
            "losses": {name: dict(site.losses) for name, site in plan.sites.items()},
            "twins": {
                "summary": twin_choice.summary(plan.sites),
                "sites": {
                    name: str(choice)
                    for name, site in plan.sites.items()
                    if (choice := twin_choice.twin_choice(site)) is not None
                },
            },
            "channels": {name: site.channels.norm for name, site in plan.sites.items() if site.channels is not None},
            "latency": latency.to_data(),
            "bytes": {"float": file_bytes(float_path), "model": file_bytes(path)},
            "seconds": {stage: round(value, 3) for stage, value in seconds.items()},
        }
        return cls(data, request.folder)

    def save(self, folder: Path) -> None:
        (folder / "report.json").write_text(json.dumps(self.data, indent=1) + "\n", encoding="utf-8")

    def rows(self) -> list[tuple[str, str]]:
        """The verdict, line by line."""
        data, end, versus = self.data, self.data["end_to_end"], self.data["against_float"]
        moved = sum(data["passes"]["moved_weights"].values())
        rows = [
            ("model", data["model"] + (" with RANDOM WEIGHTS" if data["random_weights"] else "")),
            ("bits", f"weights {data['bits']['weights']}, activations {data['bits']['activations']}"),
            ("sites found", str(data["sites"])),
            ("float parity", f"{data['float_parity']['error']:.1e} of the logits' scale, ONNX Runtime against torch "
                             f"(limit {data['float_parity']['tolerance']:g})"),
            ("kernels", f"{data['kernels']['summary']}, {moved} weights moved to be exact on every CPU"),
            ("site parity", f"{sum(site['exact'] for site in data['site_parity'])} of {len(data['site_parity'])} "
                            "products equal integer arithmetic"),
            ("replay", f"every site within {data['replay']['largest']:.1e} of its spread of the simulator, from the "
                       f"runtime's own values (limit {data['replay']['limit']:g})"),
            ("end to end", end["sentence"]),
            ("against float", f"{versus['agreement']:.1f} % agreement, KL {versus['kl']:.2g}"
                              f"{' (random weights: says nothing about accuracy)' if data['random_weights'] else ''}"),
        ]  # fmt: skip
        if data["channels"]:
            rows.insert(3, ("channels", f"{len(data['channels'])} layers have their input channels centred and scaled "
                                        "one by one, folded into the LayerNorms before them"))  # fmt: skip
        if data["twins"]["summary"]:
            rows.insert(3, ("twins", data["twins"]["summary"]))
        if versus["top1_float"] is not None:
            rows.append(("top-1", f"{versus['top1_quantised']:.1f} % (float {versus['top1_float']:.1f} %), "
                                  f"{data['measured_on']}"))  # fmt: skip
        sizes = data["bytes"]
        rows += [
            ("file", str(self.folder / "model.onnx")),
            ("size", f"{sizes['model'] / 1e6:.1f} MB (float {sizes['float'] / 1e6:.1f} MB)"),
            ("latency", _latency(data["latency"])),
            ("time", ", ".join(f"{stage} {value:.0f} s" for stage, value in data["seconds"].items())),
        ]
        return rows


def _latency(latency: Mapping[str, Any]) -> str:
    before, after = latency["timings"]
    return (
        f"{after['median']:.1f} ms ({after['low']:.1f} .. {after['high']:.1f}), float {before['median']:.1f} ms "
        f"({before['low']:.1f} .. {before['high']:.1f}): {after['speed']:.2f}x, one thread, batch {after['batch']}, on "
        f"{latency['cpu']}"
    )
