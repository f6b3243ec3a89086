"""Quantise the embedded model to six bits, look at what it costs, and check the file as CI would.

    python examples/quantize_and_check.py [FOLDER]

Needs no download: weights and images of the handwritten digits ship with the package. Takes about a minute.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ptq4vit_onnx import check_parity, evaluate, export
from ptq4vit_onnx.report.terminal import rows


def main() -> int:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "digits_w6a6")
    report = export("vit_digits", bits=6, output=folder, force=True)
    for name, value in rows(report):
        print(f"{name:14} {value}")

    float_model, model = folder / "float.onnx", folder / "model.onnx"
    exact, quantised = evaluate([float_model, model]).models  # without `data`: the embedded test images
    print(f"\ntop-1 {quantised.top1:.2f} % (float {exact.top1:.2f} %), agreement {quantised.agreement:.2f} %")

    result = check_parity(model, float_model, min_agreement=0.98, max_drop=1.0)
    for check in result.checks:
        print(f"{check.status:8} {check.name:11} {check.sentence}")
    return 0 if result.passed else 1


if __name__ == "__main__":
    sys.exit(main())
