"""Where a model loses its agreement: quantise one site, one kind or one block alone, measure KL against float.

    python benchmarks/sensitivity.py --model vit_t --bits 6 --by kind block

Prints a Markdown table per grouping, worst first. Calibrated on 32 photos, measured on validation photos of fold 3.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import real_data
from benchmarks.plans import plan_on_photos
from ptq4vit_onnx.output_kinds import metrics
from ptq4vit_onnx.plan.options import Options
from ptq4vit_onnx.runtime import process
from ptq4vit_onnx.simulation.fake import simulate

GROUPINGS: dict[str, Callable[[str], str]] = {
    "site": lambda name: name,
    "kind": lambda name: name.rpartition(".")[2] if "blocks" in name else name,
    "block": lambda name: found[0] if (found := re.findall(r"(?:layers\.\d+\.)?blocks\.\d+", name)) else name,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vit_t", choices=sorted(real_data.WEIGHTS))
    parser.add_argument("--bits", type=int, default=6)
    parser.add_argument("--by", nargs="+", choices=sorted(GROUPINGS), default=["kind", "block"])
    parser.add_argument("--photos", type=int, default=100)
    parser.add_argument("--paper", action="store_true", help="the published form instead of the defaults")
    parsed = parser.parse_args()
    process.keep_freed_memory()
    model = real_data.load_model(parsed.model)
    width: dict[str, Any] = {"weight_bits": parsed.bits, "activation_bits": parsed.bits}
    options = Options.paper(**width) if parsed.paper else Options(**width)
    plans = plan_on_photos(model, options).sites
    images = real_data.validation_images(model, 3, parsed.photos).images
    reference = simulate(model.module, None, images)
    for by in parsed.by:
        groups: dict[str, set[str]] = {}
        for name in plans:
            groups.setdefault(GROUPINGS[by](name), set()).add(name)
        rows = []
        for group, sites in groups.items():
            logits = simulate(model.module, plans, images, sites=sites)
            rows.append((metrics.mean_kl(reference, logits), metrics.agreement(logits, reference), group, len(sites)))
        print(f"| {by} | sites | KL | agreement |\n|---|---|---|---|")
        for kl, agreement, group, count in sorted(rows, reverse=True):
            print(f"| {group} | {count} | {kl:.4f} | {agreement:.1f} |", flush=True)


if __name__ == "__main__":
    main()
