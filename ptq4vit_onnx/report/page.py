"""report.html: one self-contained file that a person reads in a minute. No torch, no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from string import Template
from typing import Any

from ptq4vit_onnx.plan.evidence import SiteEvidence
from ptq4vit_onnx.plan.scale_plan import ScalePlan
from ptq4vit_onnx.report.charts import figure
from ptq4vit_onnx.report.rows import SiteRow, noisiest, site_rows, worst
from ptq4vit_onnx.report.site_charts import details, overview
from ptq4vit_onnx.report.table import table

Data = Mapping[str, Any]
Tile = tuple[str, str, str]  # what, the number, a note


def render(report: Data, plan: ScalePlan, evidence: Mapping[str, SiteEvidence]) -> str:
    """The page. report: what report.json holds; evidence: by site, empty where calibration was skipped.

    `report["latency"]`, if there, is what BenchResult.to_data gives, the float model first.
    """
    rows = site_rows(report, plan.sites, evidence)
    recorded, metric = all(row.evidence for row in rows), str(report["options"].get("metric", ""))
    title = f"{report['model']} {_bits(report)}: quantisation report"
    template = resources.files("ptq4vit_onnx.report").joinpath("templates/report.html").read_text(encoding="utf-8")
    return Template(template).substitute(
        version=escape(report["version"]),
        title=escape(title),
        verdict=_verdict(report, rows),
        overview=_section("Where the error arises", *((RECORDED, overview(rows)) if recorded else (NOT_RECORDED, ""))),
        details=_section("One site", ONE_SITE, details(rows, metric), "one") if recorded else "",
        table=_section("All sites", ALL_SITES, table(rows)),
        provenance=_provenance(report),
    )


def _bits(report: Data) -> str:
    return f"W{report['bits']['weights']}A{report['bits']['activations']}"


def _verdict(report: Data, rows: Sequence[SiteRow]) -> str:
    failed = failures(report)
    text = f"Failed: {'; '.join(failed)}." if failed else "Passed: the ONNX model computes what calibration promised."
    tiles = "".join(
        f'<div><dt>{escape(what)}</dt><dd><div class="number">{escape(number)}</div>'
        f'<div class="note">{escape(note)}</div></dd></div>'
        for what, number, note in tiles_of(report)
    )
    weakest = f'<p class="soft">{escape(said)}</p>' if (said := _weakest(rows)) else ""
    return (
        f"<header>{_banners(report)}<h1>{escape(report['model'])}, {_bits(report)}</h1>"
        f'<p class="verdict {"failed" if failed else "passed"}">{escape(text)}</p>'
        f'{weakest}</header><dl class="tiles">{tiles}</dl>'
    )


def failures(report: Data) -> list[str]:
    """Everything that was checked and did not hold."""
    sites = [item for item in report["site_parity"] if not item["exact"]]
    found = []
    if not report["float_parity"]["passed"]:
        found.append("the float ONNX model differs from torch")
    if report["kernels"]["fell_back"]:
        found.append(f"not in integers: {', '.join(report['kernels']['fell_back'][:3])}")
    if sites:
        found.append(f"{len(sites)} products differ from integer arithmetic, first {sites[0]['site']}")
    if not report["end_to_end"]["passed"]:
        found.append(report["end_to_end"]["sentence"])
    return found


def _banners(report: Data) -> str:
    texts = []
    if report["random_weights"]:
        texts.append(
            (
                "RANDOM WEIGHTS",
                "A dry run: the model predicts nothing, and no figure here speaks of accuracy.",
            )
        )
    if report["synthetic_images"]:
        texts.append(("SYNTHETIC IMAGES", "Calibrated on made-up images: do not ship these scales."))
    return "".join(f'<p class="banner" role="alert"><strong>{name}</strong><br>{text}</p>' for name, text in texts)


def _weakest(rows: Sequence[SiteRow]) -> str:
    """Where most is lost, or nothing where no error was recorded: losses of a plan are in each site's own units."""
    peak, noise = worst(rows), noisiest(rows)
    if peak.evidence is None or noise is None or noise.evidence is None:
        return ""
    if peak is noise:
        return (
            f"The weakest site is {peak.name}: {100 * peak.weight:.0f} % of the expected damage and the noisiest "
            f"output ({noise.evidence.sqnr:.1f} dB)."
        )
    return (
        f"The largest part of the expected damage comes from {peak.name} ({100 * peak.weight:.0f} %); "
        f"the noisiest output is that of {noise.name} ({noise.evidence.sqnr:.1f} dB)."
    )


def tiles_of(report: Data) -> list[Tile]:
    versus, sizes = report["against_float"], report["bytes"]
    exact = sum(item["exact"] for item in report["site_parity"])
    integers = report["kernels"]["summary"].replace(" products in integers", "")
    moved = sum(report["passes"]["moved_weights"].values())
    random = "; random weights: says nothing about accuracy" if report["random_weights"] else ""
    return [
        *_accuracy(versus),
        ("Agreement with float", f"{versus['agreement']:.1f} %",
         f"KL {figure(versus['kl'], 2)} nats, {report['measured_on']}{random}"),
        ("Size", _megabytes(sizes["model"]),
         f"float {_megabytes(sizes['float'])}, {sizes['float'] / max(sizes['model'], 1):.1f}× smaller"),
        ("Products in integers", integers,
         f"on ONNX Runtime's own kernels; {moved} weights moved to be exact on every CPU"),
        ("Parity", f"{exact} of {len(report['site_parity'])}",
         f"products equal integer arithmetic; {report['end_to_end']['sentence']}"),
        *_latency(report.get("latency")),
    ]  # fmt: skip


def _accuracy(versus: Data) -> list[Tile]:
    if versus["top1_quantised"] is None:
        return []
    note = f"float {versus['top1_float']:.1f} %"
    if versus["drop"] is not None:
        drop = versus["drop"]
        note += f", drop {drop['points'] + 0.0:.1f} ± {drop['standard_error']:.1f} points"
        note += f", {drop['images']} images"
    return [("Top-1", f"{versus['top1_quantised']:.1f} %", note)]


def _latency(latency: Data | None) -> list[Tile]:
    """The quantised model next to the first (float) one, at the first setting that was measured."""
    timings = [] if latency is None else latency["timings"]
    if latency is None or len(timings) < 2:
        return []
    first = timings[0]
    same = [item for item in timings[1:] if (item["threads"], item["batch"]) == (first["threads"], first["batch"])]
    if not same:
        return []
    own = same[0]
    threads = "1 thread" if own["threads"] == 1 else f"{own['threads']} threads"
    note = f"{own['speed']:.2f}× as fast as {first['model']} ({first['median']:.2f} ms); "
    note += f"{threads}, batch {own['batch']}; {latency['cpu']}"
    return [("Latency", f"{own['median']:.2f} ms", note)]


RECORDED = (
    "All sites in network order. Expected damage is ½ Σ g² d² on the calibration images, with the gradient g of "
    "the loss and the error d of the site's output: what the site alone adds to the loss. Choose a site to see why."
)
NOT_RECORDED = (
    "Not known here. Calibration was skipped because a plan was given, so no site's error was measured and there are "
    "no histograms; the plan's own losses are each in its site's own units and cannot be set side by side. An export "
    "without a plan shows both."
)
ONE_SITE = (
    "First the values of the left operand, and the points they are rounded to. Then how each metric judges the "
    "candidate scales: its loss over its own best (a dot), measured on a sample."
)
ALL_SITES = (
    "Left is the activation (a linear's input, Q, the probabilities P), right the weight, K or V. Steps of "
    "several groups (heads, output channels) are given as a range and their number. Channels: of the left "
    "side, one by one, folded into the LayerNorm before it; steps and weights are those after that. Moved: weight "
    "codes changed so that no CPU saturates. Twin: the expected damage that two ranges save, in nats per image (by "
    "another metric than the Hessian: its loss), and so whether they were worth a second product. Kernel: the codes "
    "that ONNX Runtime multiplies, what it returns, and how many products if several; float is returned by "
    "MatMulIntegerToFloat, codes by QLinearMatMul."
)


def _section(title: str, text: str, content: str, name: str = "") -> str:
    mark = f' id="{name}"' if name else ""
    return f'<section{mark}><h2>{title}</h2><p class="soft">{text}</p>{content}</section>'


def _provenance(report: Data) -> str:
    images, sizes = report["calibration_images"], report["bytes"]
    parity = report["float_parity"]
    groups = [
        ("Options", {name.replace("_", " "): value for name, value in report["options"].items()}),
        ("Versions", report["versions"]),
        ("Inputs", {
            "weights from": report["weights_from"], "weights SHA-256": report["fingerprints"]["weights"],
            "images": f"{images['count']}, {len(images['skipped'])} skipped",
            "images SHA-256": report["fingerprints"]["images"],
        }),
        ("Checks", {
            "float ONNX against torch":
                f"{figure(parity['error'], 2)} of the logits' scale (limit {parity['tolerance']:g})",
            "end to end": report["end_to_end"]["sentence"],
            "float.onnx": f"{sizes['float']:,} bytes", "model.onnx": f"{sizes['model']:,} bytes",
            "executed operations": ", ".join(f"{n} {op}" for op, n in report["kernels"]["op_counts"].items()),
        }),
    ]  # fmt: skip
    lists = "".join(f"<div><h3>{name}</h3>{_definitions(items)}</div>" for name, items in groups)
    times = f"<div><h3>Time</h3>{_times(report['seconds'])}</div>"
    return f'<section><h2>Provenance</h2><div class="facts">{lists}{times}</div></section>'


def _definitions(items: Data) -> str:
    def text(value: Any) -> str:
        return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)

    pairs = (f"<dt>{escape(name)}</dt><dd>{escape(text(value))}</dd>" for name, value in items.items())
    return f"<dl>{''.join(pairs)}</dl>"


def _times(seconds: Data) -> str:
    longest = max([*seconds.values(), 1e-9])
    rows = ""
    for stage, value in seconds.items():
        bar = f'<span class="time" style="width:{60 * value / longest:.1f}%"></span>'
        rows += f"<dt>{escape(stage)}</dt><dd>{bar}{value:.1f} s</dd>"
    return f"<dl>{rows}</dl>"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.2f} MB" if size < 10e6 else f"{size / 1e6:.1f} MB"
