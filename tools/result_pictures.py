"""The pictures of README and docs that show results, drawn from benchmarks/results/*.json.

    python tools/result_pictures.py            # draws them into docs/pictures
    python tools/result_pictures.py --check    # ends with 1 where a picture and its results disagree

Each in two colours: NAME-light.svg and NAME-dark.svg.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from ptq4vit_onnx.report.pareto_page import THEMES, sizes_svg  # noqa: E402
from ptq4vit_onnx.report.size_chart import Dot  # noqa: E402
from tools.tables.markdown import NAMES, Row  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
PICTURES = ROOT / "docs" / "pictures"
FARTHEST = 1.0  # files beyond this KL predict too little to be of use
# Of tools with several settings the one that serves them best; four-bit weights of ONNX Runtime are in budgets.json.
PEERS = {
    "ONNX Runtime quantize_static, best setting": "quantize_static",
    "ONNX Runtime quantize_dynamic": "quantize_dynamic",
    "NNCF": "NNCF",
    "AMD Quark": "Quark",
    "AIMET, products only": "AIMET",
    "NVIDIA ModelOpt, products only": "ModelOpt",
}


def pictures() -> dict[str, str]:
    """By name of the file."""
    files = [(row["model"], dot(row)) for row in _rows("budgets")] + [
        (row["model"], peer_dot(row)) for row in _rows("peers")
        if row["tool"] in PEERS and not row["failure"] and row["seed"] == 0
    ]  # fmt: skip
    return {
        f"pareto-{model}-{theme}.svg": sizes_svg(
            [item for of, item in files if of == model and item.distance < FARTHEST],
            f"{name}: size of the file against KL from the float model", "KL from the float model, nats", theme,
        )
        for model, name in NAMES.items() for theme in THEMES
    }  # fmt: skip


def _rows(name: str) -> list[Row]:
    rows: list[Row] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["rows"]
    return rows


def peer_dot(row: Row) -> Dot:
    return Dot(PEERS[row["tool"]], round(1e6 * row["mb"]), row["kl"], "peer")


def dot(row: Row) -> Dot:
    return Dot(row["title"], row["size"], row["kl"], row["group"])


def stale(drawn: Mapping[str, str]) -> list[str]:
    return [
        name
        for name, text in drawn.items()
        if not (PICTURES / name).is_file() or (PICTURES / name).read_text(encoding="utf-8") != text
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    drawn = pictures()
    wrong = stale(drawn)
    for name in wrong:
        if not check:
            PICTURES.mkdir(exist_ok=True)
            (PICTURES / name).write_text(drawn[name], encoding="utf-8")
        print(f"docs/pictures/{name}: {'differs from its results' if check else 'drawn'}")
    return 1 if check and wrong else 0


if __name__ == "__main__":
    sys.exit(main())
