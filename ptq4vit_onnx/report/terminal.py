"""The table that an export prints at its end: rows of a title and a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptq4vit_onnx.report import float_words, twin_words
from ptq4vit_onnx.report.data import Report

if TYPE_CHECKING:
    from ptq4vit_onnx.runtime.bench import BenchResult

Row = tuple[str, str]


def rows(report: Report) -> list[Row]:
    """The verdict, line by line. Pixels, twins, channels and accuracy have a row where there is something to say."""
    return [*_model(report), *_choices(report), *_proof(report), *_accuracy(report), *_costs(report)]


def _model(report: Report) -> list[Row]:
    inputs = report.inputs
    warnings = (inputs.advice, inputs.resampled, *inputs.remarks, *inputs.calibration_images.warnings)
    return [
        ("model", inputs.model + (" with RANDOM WEIGHTS" if inputs.random_weights else "")),
        *(("WARNING", warning) for warning in warnings if warning),
        ("output", str(inputs.output)),
        ("bits", f"weights {inputs.bits.weights_text}, activations {inputs.bits.activations}"),
        *((("budget", report.allocation.sentence),) if report.allocation is not None else ()),
        ("calibrated on", str(inputs.calibration_images)),
        ("sites found", str(len(report.plan.sites))),
    ]


def _choices(report: Report) -> list[Row]:
    found: list[Row] = []
    pixels = report.plan.options.get("pixels_as")
    if pixels:
        found.append(("pixels", str(pixels)))
    summary = twin_words.summary(report.plan.sites, report.inputs.output.kind)
    if summary:
        found.append(("twins", summary))
    if report.folded_channels:
        found.append(("channels", f"{len(report.folded_channels)} layers have their input channels centred and scaled "
                                  "one by one, folded into the LayerNorms before them"))  # fmt: skip
    return found


def _proof(report: Report) -> list[Row]:
    parity, largest = report.float_parity, report.largest_divergence
    scale = f"{report.inputs.output.kind.plural}' scale"
    return [
        ("float parity", f"{parity.error:.1e} of the {scale}, ONNX Runtime against torch (limit {parity.tolerance:g})"),
        ("kernels", f"{report.kernels}, {report.moved_weights} weights moved to be exact on every CPU"),
        *(("in float", text) for text in float_words.by_reason(report.plan.floats)),
        ("site parity", f"{report.exact_products} products equal integer arithmetic"),
        ("replay", f"every site within {largest.relative_error:.1e} of its spread of the simulator, from the "
                   f"runtime's own values (limit {largest.limit:g})"),
        ("end to end", report.end_to_end.sentence),
    ]  # fmt: skip


def _accuracy(report: Report) -> list[Row]:
    versus = report.against_float
    caveat = " (random weights: says nothing about accuracy)" if report.inputs.random_weights else ""
    on = f"on {report.proof.measured_on}"
    found = [("against float", f"{versus.summary}, {on}{caveat}")]
    if versus.accuracy is not None:
        title, text = versus.accuracy
        found.append((title, f"{text}, {on}"))
    return found


def _costs(report: Report) -> list[Row]:
    sizes = report.sizes
    return [
        ("file", str(report.folder / "model.onnx")),
        ("size", f"{sizes.model / 1e6:.1f} MB (float {sizes.float / 1e6:.1f} MB)"),
        ("latency", _latency(report.latency)),
        ("time", ", ".join(f"{stage} {value:.0f} s" for stage, value in report.seconds.items())),
    ]


def _latency(latency: BenchResult) -> str:
    before, after = latency.timings
    return (
        f"{after.median:.1f} ms ({after.low:.1f} .. {after.high:.1f}), float {before.median:.1f} ms "
        f"({before.low:.1f} .. {before.high:.1f}): {after.speed:.2f}x, one thread, batch {after.batch}, on "
        f"{latency.cpu}{after.modes_note}"
    )
