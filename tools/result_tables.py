"""The tables of README and docs, written from benchmarks/results/*.json: nobody types a number.

    python tools/result_tables.py            # writes them
    python tools/result_tables.py --check    # ends with 1 where a document and its results disagree

A document says where a table stands:  <!-- results: families -->  ...  <!-- end of results -->
Of rows with a batch size, <!-- results: speed_vnni, batch 1 --> takes those of one. A table may have several forms:
<!-- results: accuracy, form short -->; form source is the line below a picture. Results that are older than the code
they measure are named.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.measured_code import fingerprints, older_rooms  # noqa: E402
from tools.tables import accuracy, engines, low_bits, machines, models, peers, robustness, speed  # noqa: E402
from tools.tables.markdown import Row  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
PLACE = re.compile(
    r"(<!-- results: (\w+)(?:, batch (\d+))?(?:, form (\w+))? -->\n).*?(<!-- end of results -->)", re.DOTALL
)
SPEEDS = ("speed_vnni", "speed_avx2", "speed_vnni_real", "two_threads")
Maker = Callable[[Sequence[Row]], str]
# By name of the results, and of the form, which is mostly empty.
TABLES: Mapping[tuple[str, str], Maker] = {
    ("accuracy", ""): accuracy.accuracy,
    ("accuracy", "short"): accuracy.accuracy_short,
    ("accuracy", "simulated"): accuracy.accuracy_simulated,
    ("ablation", ""): accuracy.ablation,
    ("methods", ""): accuracy.methods,
    ("all_models", ""): models.all_models,
    ("families", ""): models.families,
    ("embeddings_files", ""): models.embeddings_files,
    ("embeddings_curvature", ""): models.embeddings_curvature,
    ("mobile_sam", ""): models.mobile_sam,
    ("large_model", ""): models.large_model,
    ("engines", ""): engines.engines,
    ("file_size", ""): speed.file_size,
    ("many_machines", ""): machines.many_machines,
    ("low_bits", ""): low_bits.low_bits,
    ("budgets", ""): low_bits.budgets,
    ("peers", ""): peers.peers,
    ("mutations", ""): robustness.mutations,
    ("kills", ""): robustness.kills,
    ("threads", ""): robustness.threads,
    **{(name, ""): speed.speed for name in SPEEDS},
    **{(name, "short"): speed.speed_short for name in SPEEDS},
}


def written(text: str) -> str:
    """A document with its tables as the results say."""
    return PLACE.sub(lambda found: f"{found[1]}\n{_of_results(*found.group(2, 3, 4))}\n\n{found[5]}", text)


def _of_results(name: str, batch: str | None, form: str | None) -> str:
    data = _read(name)
    rows = [row for row in data["rows"] if batch is None or row["batch"] == int(batch)]
    if form == "source":
        return _source(data, rows)
    return f"{TABLES[name, form or ''](rows)}\n\n{_source(data, rows)}"


def _source(data: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """When, on which code and where: a row may be of another day than its file."""
    commits = sorted({row.get("commit", data["commit"]) for row in rows})
    dates = sorted({row.get("date", data["date"]) for row in rows})
    days = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    runtime = data["versions"]["onnxruntime"]
    return f"{days}, commit {', '.join(commits)}, {data['machine']}, ONNX Runtime {runtime}."


def _read(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return data


def older() -> dict[str, list[str]]:
    """By name of the results: the rooms of the package that have changed since, of those that decide their figures."""
    known = fingerprints()
    found = {path.stem: older_rooms(_read(path.stem), path.stem, known) for path in sorted(RESULTS.glob("*.json"))}
    return {name: rooms for name, rooms in found.items() if rooms}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = {
        path: text for path in DOCUMENTS if (text := written(path.read_text(encoding="utf-8"))) != path.read_text()
    }
    for path, text in stale.items():
        if not check:
            path.write_text(text, encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {'differs from its results' if check else 'written'}")
    for name, rooms in older().items():
        print(f"{name} is older than the code it measures: {', '.join(rooms)}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
