"""The codes of weights that a plan carries, in a safetensors file beside it: plan.json -> plan.safetensors.

There is one uint8 tensor for each site whose codes are stored, by the site's name: the codes row by row, counted from
the lowest one their k bits can hold, k bits each, the first code in the lowest bits of the first byte. Bits behind the
last code are zero. The metadata has one entry, because safetensors writes several in random order: the weights' shapes
[inputs, outputs] by site, as JSON. plan.json names the codes by their digest.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save

from ptq4vit_onnx.errors import UserError, one_line
from ptq4vit_onnx.files.inputs import parse_json, read_bytes, unfit
from ptq4vit_onnx.plan.quantizers import WeightCodes
from ptq4vit_onnx.plan.saturation_safe_weights import first_unsafe_pair, pair_limit
from ptq4vit_onnx.plan.scale_plan import ScalePlan, SitePlan

SHAPES = "ptq4vit_onnx.weight_shapes"
MOST_CODES = 2**31  # bytes; a model of 1.8 billion weights has as many at 8 bits
BLOCK = 2**20  # codes that are packed at a time: a whole number of bytes at any width
_BEGINNING = f'{{"__metadata__":{{"{SHAPES}":'.encode()  # of the header, behind its length in 8 bytes
Array = np.ndarray[Any, Any]


def codes_path(plan_path: Path) -> Path:
    """plan.json -> plan.safetensors"""
    return plan_path.with_suffix(".safetensors")


def carried_codes(plan: ScalePlan) -> dict[str, WeightCodes]:
    """By site, the codes that the plan carries."""
    found = ((name, site.rhs.carried) for name, site in plan.sites.items())
    return {name: codes for name, codes in found if codes is not None}


def write_codes(plan: ScalePlan, path: Path) -> None:
    """Write the file of a plan's codes; where it carries none, remove that of an earlier plan.

    Any other file of this name stays: beside deit_b.json it may be a checkpoint. Refuses to write over it.
    """
    data = code_bytes(plan) if carried_codes(plan) else None
    if data is None:
        if _is_code_file(path):
            path.unlink()
        return
    if os.path.lexists(path) and not _is_code_file(path):
        raise UserError(
            f"cannot write the plan's codes {path}: there is another file of this name; move it away, or give the plan "
            "another name"
        )
    path.write_bytes(data)


def _is_code_file(path: Path) -> bool:
    if unfit(path) is not None:
        return False
    with path.open("rb") as file:
        return file.read(8 + len(_BEGINNING))[8:] == _BEGINNING


def code_bytes(plan: ScalePlan) -> bytes:
    """The file's content: the same bytes for equal codes."""
    tensors, shapes = {}, {}
    for name, codes in sorted(carried_codes(plan).items()):
        assert codes.values is not None, f"the codes of {name} were not read: use read_plan"
        require_sound(plan.sites[name], codes.values)
        tensors[name], shapes[name] = pack(codes.values, plan.sites[name].rhs.bits), list(codes.values.shape)
    return bytes(save(tensors, {SHAPES: json.dumps(shapes)}))


def read_codes(plan: ScalePlan, path: Path) -> ScalePlan:
    """The plan with the values of all codes that it carries; a mistake is a UserError that names file and site."""
    carried = carried_codes(plan)
    if not carried:
        return plan
    advice = f"put the {path.name} of the same export there, or calibrate again without --plan"
    data = read_bytes(path, f"the plan's codes (of {next(iter(carried))})", advice, MOST_CODES)
    try:
        tensors, shapes = _parse(data)
        _require_same_names(carried, tensors)
        sites = {name: _with_codes(name, site, tensors, shapes) for name, site in plan.sites.items()}
    except ValueError as error:
        raise UserError(f"the plan's codes {path}: {error}; {advice}") from error
    return replace(plan, sites=sites)


def _parse(data: bytes) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Every tensor as safetensors describes it, and the shapes of the weights; a ValueError for any other file."""
    try:
        tensors = dict(deserialize(data))  # type: ignore[no-untyped-call]
        header = parse_json(data[8 : 8 + int.from_bytes(data[:8], "little")])
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"expected a safetensors file, got what cannot be read as one: {one_line(error)}") from error
    said = (header.get("__metadata__") or {}).get(SHAPES)
    if said is None:
        raise ValueError(f"expected the metadata {SHAPES}, got none")
    try:
        shapes = parse_json(said)
    except ValueError:
        shapes = None
    if not isinstance(shapes, dict):
        raise ValueError(f"expected shapes by site in the metadata {SHAPES}, got {said!r:.60}")
    return tensors, shapes


def _require_same_names(carried: Mapping[str, WeightCodes], tensors: Mapping[str, Any]) -> None:
    missing, surplus = sorted(set(carried) - set(tensors)), sorted(set(tensors) - set(carried))
    if missing:
        raise ValueError(f"{missing[0]}: expected its codes, got none")
    if surplus:
        raise ValueError(f"{surplus[0]!r:.60}: expected no codes, since the plan names none of it")


def _with_codes(name: str, site: SitePlan, tensors: Mapping[str, Any], shapes: Mapping[str, Any]) -> SitePlan:
    if site.rhs.carried is None:
        return site
    try:
        codes = _codes(tensors[name], shapes.get(name), site.rhs.bits, site.rhs.carried.digest)
        assert codes.values is not None
        require_sound(site, codes.values)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    return replace(site, rhs=site.rhs.carrying(codes))


def _codes(held: Any, shape: Any, bits: int, digest: str) -> WeightCodes:
    """held: a tensor as safetensors describes it. digest: of plan.json."""
    if not _is_shape(shape):
        raise ValueError(f"expected the weight's shape [inputs, outputs] in {SHAPES}, got {shape!r:.60}")
    if held["dtype"] != "U8" or len(held["shape"]) != 1:
        raise ValueError(f"expected a tensor U8 of one axis, got {held['dtype']} {held['shape']!r:.60}")
    packed, length = np.frombuffer(held["data"], np.uint8), packed_length(shape, bits)
    if len(packed) != length:
        raise ValueError(f"expected {length} bytes for codes {shape} of {bits} bits, got {len(packed)}")
    found = WeightCodes.of(unpack(packed, shape, bits))
    if found.digest != digest:
        raise ValueError(f"expected codes of the digest {digest[:12]} in the plan, got {found.digest[:12]}")
    return found


def _is_shape(shape: Any) -> bool:
    if not isinstance(shape, list) or len(shape) != 2:
        return False
    return all(type(length) is int and 0 < length < MOST_CODES for length in shape)


def require_sound(site: SitePlan, values: Array) -> None:
    """Refuse codes [inputs, outputs] that this site's product cannot have, with a ValueError.

    Codes ship as they are stored. So they are pair-safe next to the left side, and zero where an input channel is an
    outlier, whose weights are in a product of their own.
    """
    inputs, outputs = values.shape
    if outputs % len(site.rhs.scale):
        raise ValueError(f"expected a number of scales that divides {outputs} outputs, got {len(site.rhs.scale)}")
    channels = list(site.outliers.channels) if site.outliers is not None else []
    for channel in channels:
        if channel >= inputs or values[channel].any():
            raise ValueError(f"expected {inputs} inputs with zeros at outlier channel {channel}, got others")
    limit = pair_limit(site.lhs)
    unsafe = first_unsafe_pair(values, limit)
    if unsafe is not None:
        row, column, total = unsafe
        raise ValueError(
            f"expected pairs of codes that add up to at most {limit}, got {total} at inputs {row} and {row + 1} of "
            f"output {column}, which could saturate"
        )


def packed_length(shape: Sequence[int], bits: int) -> int:
    """In bytes."""
    return -(-math.prod(shape) * bits // 8)


def pack(values: Array, bits: int) -> Array:
    """int8 codes [inputs, outputs] as bytes [packed_length]."""
    low = -(2 ** (bits - 1))
    assert low <= values.min() and values.max() < -low, f"codes beyond {bits} bits"
    return np.concatenate([_packed(part, bits, low) for part in _blocks(values.reshape(-1), BLOCK)])


def _packed(codes: Array, bits: int, low: int) -> Array:
    counted = (codes.astype(np.int16) - low).astype(np.uint8)
    return np.packbits(np.unpackbits(counted[:, None], axis=1, count=bits, bitorder="little"), bitorder="little")


def unpack(packed: Array, shape: Sequence[int], bits: int) -> Array:
    """The int8 codes of bytes [packed_length]; a ValueError if bits behind the last are not zero."""
    surplus = 8 * len(packed) - math.prod(shape) * bits
    if int(packed[-1]) >> (8 - surplus):
        raise ValueError("expected zeros in the bits behind the last code, got others")
    codes = np.concatenate([_unpacked(part, bits) for part in _blocks(packed, BLOCK // 8 * bits)])
    return codes[: math.prod(shape)].reshape(*shape)


def _unpacked(packed: Array, bits: int) -> Array:
    """All codes that lie in these bytes as a whole."""
    single = np.unpackbits(packed, count=8 * len(packed) // bits * bits, bitorder="little").reshape(-1, bits)
    counted: Array = np.packbits(single, axis=1, bitorder="little")[:, 0]
    return np.asarray(counted.astype(np.int16) - 2 ** (bits - 1), np.int8)


def _blocks(values: Array, length: int) -> Iterator[Array]:
    return (values[start : start + length] for start in range(0, len(values), length))
