"""Files of the codes that a plan carries."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
from safetensors.numpy import save

from ptq4vit_onnx.plan.code_file import SHAPES, carried_codes, code_bytes, codes_path, pack
from ptq4vit_onnx.plan.plan_json import plan_text, read_plan
from ptq4vit_onnx.plan.quantizers import WeightCodes
from ptq4vit_onnx.plan.scale_plan import ScalePlan
from tests.fuzz.mutations import changed_bytes, changed_json
from tests.fuzz.targets.target import Target
from tests.stored_codes import with_codes

LENGTHS = (0, 1, 3, 10, 63, 64, 65, 192, 256, 2**20, 2**31, -1)


class Codes(Target):
    """plan.safetensors beside its plan.json: damaged, with another header, or other codes under their own digests."""

    examples = 80

    def __init__(self, model: Any, sites: Any, proto: onnx.ModelProto, plan: ScalePlan) -> None:
        self.model, self.sites, self.proto, self.plan, self.data = model, sites, proto, plan, code_bytes(plan)

    def attack(self, random: Random, folder: Path) -> None:
        from ptq4vit_onnx.network.plan_fit import require_plan_fits
        from ptq4vit_onnx.passes import quantize

        path, make = folder / "plan.json", random.choice((self._damaged, self._other_header, self._other_codes))
        plan, data = make(random)
        path.write_text(plan_text(plan))
        codes_path(path).write_bytes(data)
        found = read_plan(path)
        for name, site in plan.sites.items():
            wanted, got = site.rhs.carried, found.sites[name].rhs.carried
            assert wanted == got, f"{name} has other codes than its digest says"
            assert got is None or (got.values is not None and WeightCodes.of(got.values) == got)
        require_plan_fits(found, self.model, self.sites)
        if plan is not self.plan:
            quantize(self.proto, found)

    def _damaged(self, random: Random) -> tuple[ScalePlan, bytes]:
        return self.plan, changed_bytes(self.data, random)

    def _other_header(self, random: Random) -> tuple[ScalePlan, bytes]:
        """Of the file, or of the shapes in it, which are JSON inside of JSON."""
        length = struct.unpack("<Q", self.data[:8])[0]
        header = json.loads(self.data[8 : 8 + length])
        if random.random() < 0.5:
            shapes = json.loads(header["__metadata__"][SHAPES])
            shapes[random.choice(list(shapes))][random.randrange(2)] = random.choice(LENGTHS)
            text = changed_json(shapes, random) if random.random() < 0.7 else json.dumps(shapes).encode()
            header["__metadata__"][SHAPES] = text.decode(errors="replace")
            found = json.dumps(header).encode()
        else:
            found = changed_json(header, random)
        return self.plan, struct.pack("<Q", len(found)) + found + self.data[8 + length :]

    def _other_codes(self, random: Random) -> tuple[ScalePlan, bytes]:
        """What somebody could make by hand: it is for the product and the model to say what does not fit."""
        carried = carried_codes(self.plan)
        name, draw = random.choice(list(carried)), np.random.default_rng(random.randrange(2**32))
        site, codes = self.plan.sites[name], carried[name]
        assert codes.values is not None
        reach = random.choice((1, 2 ** (site.rhs.bits - 1) - 1))
        shape = random.choice((codes.values.shape, codes.values.shape[::-1], (random.choice(LENGTHS[1:9]), 10)))
        values = draw.integers(-reach, reach + 1, shape).astype(np.int8)
        plan = with_codes(self.plan, name, values)
        return plan, unchecked_bytes(plan)


def unchecked_bytes(plan: ScalePlan) -> bytes:
    """The file of codes that export would refuse to write."""
    held = {name: codes.values for name, codes in carried_codes(plan).items() if codes.values is not None}
    tensors = {name: pack(values, plan.sites[name].rhs.bits) for name, values in held.items()}
    return bytes(save(tensors, {SHAPES: json.dumps({name: values.shape for name, values in held.items()})}))
