"""Work on several processes and machines: how time falls with workers, what stays serial, and what faults change.

    python benchmarks/many_machines.py exports table evaluation kills costs prediction    # all parts, or some

exports      four independent exports, on one and on two worker processes of one thread each, in turns
table        Table 1 of ViT-T and DeiT-T on 2000 photos: in one process, and on a Ray cluster of two workers
evaluation   `eval` on 2000 photos: in one process, on processes, on Ray
kills        Table 1 of ViT-T on a Ray cluster of a head and a second node: workers, a node and the driver are killed
costs        CPU seconds of a recording, a search, a forward pass
prediction   Table 1 on 50,000 photos on other clusters, from these costs (see cluster_prediction.py)
Rows are kept part by part. `table` and `kills` keep what they have measured in --folder, and go on from there. Needs
ray and the real weights and photos (see real_data.py). Ends with 1 where the bytes of two results differ.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import cluster_prediction, ray_faults, real_data, results

NAME = "many_machines"
PROGRAM = [sys.executable, "-m", "ptq4vit_onnx"]
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
Row = dict[str, Any]


class Load:
    """How busy this machine was with other things, while the block ran. Ray's processes count among these: nobody
    waits for them."""

    def __enter__(self) -> Load:
        self.started, self.before = time.perf_counter(), self._busy()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self.started
        ours, every = (now - then for now, then in zip(self._busy(), self.before, strict=True))
        self.cpu, self.others = ours, max(0.0, every - ours) / self.seconds

    @staticmethod
    def _busy() -> tuple[float, float]:
        """CPU seconds of this process with all that it has waited for, and of the machine."""
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        every = sum(map(int, fields[:3])) + sum(map(int, fields[5:8]))
        return sum(os.times()[:4]), every / os.sysconf("SC_CLK_TCK")


def exports(_folder: Path) -> Iterator[Row]:
    """Tasks of the same size, so that one and two workers have the same to do; started anew each time."""
    from ptq4vit_onnx.plan.options import Options
    from ptq4vit_onnx.progress import silent
    from ptq4vit_onnx.request import ExportRequest
    from ptq4vit_onnx.studies.exports import export_all
    from ptq4vit_onnx.tasks.start import LocalProcesses, opened

    os.environ["OMP_NUM_THREADS"] = "1"
    for turn in range(2):
        for jobs in (1, 2):
            with tempfile.TemporaryDirectory() as scratch, Load() as load, opened(LocalProcesses(jobs)) as tasks:
                options = [
                    Options(weight_bits=bits, activation_bits=8, images=16, rounding="diffused")
                    for bits in (8, 7, 6, 5)
                ]
                requests = [
                    ExportRequest("vit_t", each, Path(scratch) / str(each.weight_bits), random_weights=True)
                    for each in options
                ]
                done = export_all(requests, tasks, silent)
                assert not any(item.failure for item in done), [item.failure for item in done]
                busy = sum(item.seconds for item in tasks.history)
            yield {"workers": jobs, "turn": turn, "seconds": load.seconds, "task seconds": busy, "cpu": load.cpu,
                   "others": load.others}  # fmt: skip


def run(command: Sequence[str]) -> tuple[float, float]:
    """Seconds, and how many cores others kept busy meanwhile."""
    with Load() as load:
        done = subprocess.run([*PROGRAM, *command], env=ONE_THREAD, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return load.seconds, load.others


def reproduce(*models: str, limit: int | None = None, images: int = 32) -> list[str]:
    data = real_data.require_folder()
    weights = [f"--checkpoint={name}={data / 'weights' / real_data.WEIGHTS[name]}" for name in models]
    limited = [] if limit is None else ["--limit", str(limit)]
    places = ["--data", str(data / "validation"), "--calibration", str(data / "calibration"), "--images", str(images)]
    return ["reproduce", "table1", *places, "--models", *models, *weights, *limited]


def table(folder: Path) -> Iterator[Row]:
    for name, options in (("one process", []), ("Ray, 2 workers", ["--ray", "local", "--jobs", "2"])):
        place = folder / ("table_ray" if options else "table_alone")
        kept = place.with_suffix(".json")
        if not kept.exists():
            seconds, others = run([*reproduce("vit_t", "deit_t"), "--out", str(place), *options])
            kept.write_text(json.dumps({"seconds": seconds, "others": None if options else others}))
        same = (place / "table1.csv").read_bytes() == (folder / "table_alone" / "table1.csv").read_bytes()
        yield {"on": name, **json.loads(kept.read_text()), "same bytes": same}


def evaluation(folder: Path) -> Iterator[Row]:
    data, export = real_data.require_folder(), folder / "vit_t"
    if not export.exists():
        weights = data / "weights" / real_data.WEIGHTS["vit_t"]
        given = ["--checkpoint", str(weights), "--data", str(data / "calibration")]
        run(["export", "--model", "vit_t", *given, "--output", str(export)])
    files = [str(export / name) for name in ("float.onnx", "model.onnx")]
    command = [*PROGRAM, "eval", *files, "--data", str(data / "validation"), "--json", "--threads", "1"]
    first = None
    choices = {"one process": [], "1 process as worker": ["--jobs", "1"], "2 processes": ["--jobs", "2"],
               "Ray, 2 workers": ["--ray", "local", "--jobs", "2"]}  # fmt: skip
    for name, options in choices.items():
        with Load() as load:
            done = subprocess.run([*command, *options], env=ONE_THREAD, capture_output=True, check=True)
        first = first or done.stdout
        others = None if "--ray" in options else load.others
        yield {"on": name, "seconds": load.seconds, "others": others, "same bytes": done.stdout == first}


def kills(folder: Path) -> Iterator[Row]:
    """vit_t's four rows, 4 calibration images and 192 photos: undisturbed, and with each fault, to the same bytes."""
    command = [*PROGRAM, *reproduce("vit_t", limit=192, images=4)]
    first: bytes | None = None
    for name, fault in ray_faults.FAULTS.items():
        place = folder / f"kills_{name.replace(' ', '_')}"
        with ray_faults.cluster() as own, Load() as load:
            arguments = [*command, "--out", str(place), "--ray", own.address]
            driver = subprocess.Popen(arguments, env=own.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            killed = fault(driver, place, own)
            said, kept = driver.communicate()[1].decode(), 0
            if driver.returncode == -signal.SIGKILL:
                kept = (place / ray_faults.JOURNAL).read_text().count("\n")
                said = subprocess.run(arguments, env=own.environment, capture_output=True, text=True, check=True).stderr
        csv = (place / "table1.csv").read_bytes()
        first = first or csv
        lines = [line.split() for line in said.splitlines()]
        tasks = sum(int(line[2]) for line in lines if len(line) >= 4 and line[1].isdecimal())
        again = sum(int(line[-1]) for line in lines if len(line) == 5 and line[1].isdecimal())
        yield {
            "killed": name,
            "kills": killed,
            "seconds": load.seconds,
            "kept": kept,
            "tasks": tasks,
            "tried again": again,
            "same bytes": csv == first,
        }


def costs(_folder: Path) -> Iterator[Row]:
    """On one thread. CPU seconds, which a busy machine changes less than the clock's."""
    import torch

    from ptq4vit_onnx.calibration.calibrate import plan_site
    from ptq4vit_onnx.calibration.measure_evidence import collect
    from ptq4vit_onnx.images.builtin import built_in_photos
    from ptq4vit_onnx.model_loading.load import load, resolve
    from ptq4vit_onnx.network.tape import record
    from ptq4vit_onnx.plan.options import Options
    from ptq4vit_onnx.simulation.fake import predictor, simulate

    torch.set_num_threads(1)
    for name, method in (("deit_t", "paper"), ("deit_t", "ptq4vit"), ("deit_s", "paper")):
        options = Options.paper() if method == "paper" else Options()
        started = time.process_time()
        model = load(resolve(name), random_weights=True)
        loaded, spent, plans = time.process_time() - started, dict.fromkeys(("record", "search", "evidence"), 0.0), {}
        photos = built_in_photos(model.preprocessing, "calibration", 32, 0).images
        mark = time.process_time()
        for recording in record(model.module, torch.from_numpy(photos), labels=options.labels):
            for step in ("record", "search", "evidence"):
                if step == "search":
                    plans[recording.site.name] = plan_site(recording, options, model.pixel_grid)
                elif step == "evidence":
                    collect(recording, plans[recording.site.name], options)
                spent[step] += time.process_time() - mark
                mark = time.process_time()
        planned, photos = predictor(model.module, plans), photos[:16]
        planned(photos)  # weights are quantised once
        for step, forward in (("float", partial(simulate, model.module, None)), ("simulated", planned)):
            mark = time.process_time()
            forward(photos)
            spent[step] = (time.process_time() - mark) / len(photos)
        yield {"model": name, "method": method, "load": loaded, **spent}


def prediction(_folder: Path) -> Iterator[Row]:
    known = [row for row in results.read(NAME)["rows"] if row["part"] == "costs"]
    yield from cluster_prediction.rows(known)


PARTS: dict[str, Callable[[Path], Iterator[Row]]] = {
    part.__name__: part for part in (exports, table, evaluation, kills, costs, prediction)
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="*", choices=list(PARTS))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / NAME)
    parsed = parser.parse_args()
    parsed.folder.mkdir(parents=True, exist_ok=True)
    for part in parsed.part or PARTS:
        found = list[Row]()
        for row in PARTS[part](parsed.folder):
            rounded = {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()}
            found.append({"part": part, "commit": results.provenance()["commit"], **rounded})
            print(*(f"{key} {value}" for key, value in rounded.items()), sep=", ", flush=True)
            others = [other for other in results.read(NAME).get("rows", []) if other["part"] != part]
            results.write(NAME, [*others, *found])
    return 0 if all(row.get("same bytes", True) for row in results.read(NAME)["rows"]) else 1


if __name__ == "__main__":
    sys.exit(main())
