"""Plans and the journals of interrupted runs."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from random import Random
from typing import Any

import onnx

from ptq4vit_onnx.images.loading import ImageSet
from ptq4vit_onnx.plan.plan_json import read_plan
from tests.fuzz.mutations import change_value, changed_json, changed_text
from tests.fuzz.targets.target import Target


class Plans(Target):
    """plan.json, next to the model it is for: read, held against the model, applied, and proven on a few images."""

    examples = 60

    def __init__(self, model: Any, sites: Any, float_path: Path, plan_path: Path, images: ImageSet) -> None:
        from ptq4vit_onnx.images.choice import ChosenImages

        self.model, self.sites, self.float_path = model, sites, float_path
        self.images = ChosenImages(images, images, None)
        self.text = plan_path.read_text()
        self.proto = onnx.load(str(float_path))

    def attack(self, random: Random, folder: Path) -> None:
        from ptq4vit_onnx.network.plan_fit import request_of, require_channels_fold, require_plan_fits
        from ptq4vit_onnx.passes import quantize
        from ptq4vit_onnx.proof.prove import prove
        from ptq4vit_onnx.request import ExportRequest

        path = folder / "plan.json"
        data = json.loads(self.text)
        sites = data["sites"]
        name = random.choice(list(sites))
        if random.random() < 0.6:  # in types that fit, so that it is for the model to say what does not
            for _ in range(random.choice((1, 1, 2))):
                random.choice(_SITES)(sites[name], sites[random.choice(list(sites))], random)
            path.write_text(json.dumps(data))
        elif random.random() < 0.7:
            sites[name] = change_value(sites[name], random)
            path.write_text(json.dumps(data))
        else:
            path.write_bytes(changed_json(data, random))
        plan = read_plan(path)
        request_of(plan, ExportRequest(self.model.name, plan=path))
        require_plan_fits(plan, self.model, self.sites)
        require_channels_fold(plan, self.model, self.sites, self.images.calibration.images[:1])
        onnx.save(quantize(self.proto, plan)[0], folder / "model.onnx")
        prove(folder / "model.onnx", self.float_path, plan, self.model, self.images, lambda items, _: items)


def _taken_over(site: Any, other: Any, random: Random) -> None:
    """A part of another site."""
    key = random.choice(list(site))
    site[key] = copy.deepcopy(other[key])


def _regrouped(site: Any, other: Any, random: Random) -> None:
    """Another number of scales, each a float32 value."""
    side = random.choice((site["lhs"], site["rhs"], site["channels"] or site["rhs"]))
    count, scale = random.choice((1, 2, 3, 4, 63, 64, 192, 256)), random.choice((0.5, 2.0**-140, 2.0**120, 2.0**-30))
    for key in {"scale", "zero_point", "centre", "shift"} & set(side):
        if isinstance(side[key], list):
            side[key] = [{"scale": scale, "zero_point": 3, "centre": 9.5, "shift": 1e30}[key]] * count
    if "axis" in side:
        side["axis"] = random.choice((-1, -3, -2, -4, side["axis"]))


def _scaled(site: Any, other: Any, random: Random) -> None:
    """All scales of a side, by a power of two."""
    side, factor = random.choice((site["lhs"], site["rhs"])), 2.0 ** random.choice((-100, -20, -1, 1, 20, 100))
    if isinstance(side.get("scale"), list):
        side["scale"] = [value * factor for value in side["scale"]]


def _widened(site: Any, other: Any, random: Random) -> None:
    """Another number of bits, zero point or shift."""
    side = random.choice((site["lhs"], site["rhs"]))
    side["bits"] = random.choice((2, 3, 4, 6, 7, 8))
    if isinstance(side.get("shift"), int):
        side["shift"] = random.choice((0, 1, 8, 15))


def _corrected(site: Any, other: Any, random: Random) -> None:
    site["bias_correction"] = [random.choice((0.0, 1e38, -1e300, 5e-324))] * random.choice((0, 1, 10, 64, 192, 256))


def _split(site: Any, other: Any, random: Random) -> None:
    """Outliers, of which few can be right."""
    channels = random.choice(([0], [3, 5], [63], [64], [2**31 - 1], [10**30], [-1], [0, 0], list(range(64)), []))
    lhs = {"type": "uniform", "bits": random.choice((8, 8, 4)), "scale": [0.5], "axis": random.choice((-1, -3, 10**30))}
    scales = [random.choice((0.5, 2.0**-140, 2.0**120))] * random.choice((1, 1, 2, 3, 64, 192))
    rhs = {"type": "uniform", "bits": 8, "scale": scales, "axis": random.choice((-1, -1, -3, 10**30))}
    site["outliers"] = {"channels": channels, "lhs": lhs, "rhs": rhs}


_SITES = (_taken_over, _regrouped, _scaled, _widened, _corrected, _split, _split)


class Journals(Target):
    """What an interrupted run leaves behind: a line for the run, and one for each site."""

    def __init__(self, plan_path: Path) -> None:
        self.sites = json.loads(plan_path.read_text())["sites"]

    def attack(self, random: Random, folder: Path) -> None:
        from ptq4vit_onnx.calibration.journal import Journal

        journal = Journal(folder / "journal", {"run": 1})
        lines = [
            changed_json([name, copy.deepcopy(self.sites[name])], random) for name in random.sample(list(self.sites), 2)
        ]
        lines.insert(random.randrange(3), b"[" * random.choice((10, 300, 100000)))
        text = b"\n".join([journal.key.encode(), *lines])
        journal.path.write_bytes(changed_text(text, random) if random.random() < 0.3 else text)
        journal.read()
