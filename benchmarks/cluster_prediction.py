"""How long Table 1 on 50,000 photos takes on clusters that nobody here has: its tasks, with times scaled from measured
ones by multiply-adds, handed out as the program hands them out.

    python benchmarks/many_machines.py costs prediction

What is assumed: a core of the machine that was measured; a model's time in proportion to its multiply-adds; a task that
asks for two cores is no faster for it; photos and weights are on shared storage.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from ptq4vit_onnx.images.shards import cut
from ptq4vit_onnx.models.specs import find
from ptq4vit_onnx.studies.exports import LARGE, gigabytes_of
from ptq4vit_onnx.studies.paper_tables import MODELS

# Multiply-adds of a forward pass in thousand millions, as timm and the Swin paper give them.
GIGA = {"deit_t": 1.26, "vit_s_32": 1.15, "vit_s": 4.61, "vit_b": 17.6, "vit_b_384": 55.5, "deit_s": 4.61,
        "deit_b": 17.6, "deit_b_384": 55.5, "swin_t": 4.5, "swin_s": 8.7, "swin_b": 15.4,
        "swin_b_384": 47.0}  # fmt: skip
PHOTOS, CHUNK, ROWS = 50_000, 64, 4
CORES = 16  # of a machine
PRICE = 0.045  # dollars for a core and an hour: an assumption, near what clouds ask for general machines
START = 6.0  # seconds until a worker has imported its libraries, once
MACHINES = (0, 1, 2, 10, 100)  # 0: one core of one machine, which is one process of one thread


def rows(costs: list[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    known = max((row for row in costs if row["method"] == "paper"), key=lambda row: GIGA[row["model"]])
    whole = 0.0
    for machines in MACHINES:
        cores = max(1, machines * CORES)
        hours, busy = (seconds / 3600 for seconds in _run(known, cores))
        whole = whole or hours
        longest = max(_calibration(known, name) + _shard(known, name) for name in MODELS["table1"]) / 3600
        yield {"machines": machines, "cores": cores, "hours": hours, "faster": whole / hours,
               "busy percent": 100 * busy / hours / cores, "least hours": longest,
               "dollars": hours * cores * PRICE}  # fmt: skip


def _calibration(known: Mapping[str, Any], name: str) -> float:
    return float(known["load"] + (known["record"] + known["search"]) * GIGA[name] / GIGA[known["model"]])


def _shard(known: Mapping[str, Any], name: str) -> float:
    images = len(cut(range(PHOTOS), CHUNK)[0])
    forward = (known["float"] + ROWS * known["simulated"]) * GIGA[name] / GIGA[known["model"]]
    return float(known["load"] + images * forward)


def _run(known: Mapping[str, Any], cores: int) -> tuple[float, float]:
    """Seconds until the last task ends, and the seconds of all cores that were at work."""
    waiting = deque(("calibration", name) for name in MODELS["table1"] for _ in range(ROWS))
    left, now, busy = dict.fromkeys(MODELS["table1"], ROWS), START, 0.0
    free, running = cores, list[tuple[float, int, str, str]]()
    while waiting or running:
        while waiting and free >= min(cores, _cpus(waiting[0][1])):
            kind, name = waiting.popleft()
            seconds, taken = (_calibration if kind == "calibration" else _shard)(known, name), min(cores, _cpus(name))
            free, busy = free - taken, busy + seconds
            heapq.heappush(running, (now + seconds, taken, kind, name))
        now, taken, kind, name = heapq.heappop(running)
        free += taken
        if kind == "calibration":
            left[name] -= 1
            waiting.extend(("shard", name) for _ in cut(range(PHOTOS), CHUNK) if not left[name])
    return now, busy


def _cpus(name: str) -> int:
    spec = find(name)
    assert spec is not None
    return 1 if gigabytes_of(spec, 32) < LARGE else 2
