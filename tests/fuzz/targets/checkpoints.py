"""Checkpoints: safetensors and pickles, some of which would run code."""

from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.mutations import HOSTILE, changed_bytes, changed_json
from tests.fuzz.oracle import strike
from tests.fuzz.targets.target import Target


class Checkpoints(Target):
    """.safetensors and .pth of the embedded model: damaged bytes, odd tensors, odd names, wrappers, pickled code."""

    def __init__(self, module: Any, path: Path) -> None:
        from safetensors.torch import load_file

        self.module, self.path, self.state = module, path, load_file(path)

    def attack(self, random: Random, folder: Path) -> None:
        import torch

        from ptq4vit_onnx.model_loading.checkpoints import classes_in, load_state, read_state, resampled_tables

        path = random.choice((self._damaged, self._odd, self._odd, self._pickled))(random, folder)
        state = read_state(path)
        classes_in(state)
        load_state(self.module, state, path, "vit_digits", headless=random.random() < 0.1)
        resampled_tables(self.module, state)
        with torch.no_grad():
            self.module(torch.zeros(1, 1, 32, 32))

    def _damaged(self, random: Random, folder: Path) -> Path:
        if random.random() < 0.5:
            path = folder / "damaged.safetensors"
            data = self.path.read_bytes()
            length = struct.unpack("<Q", data[:8])[0]
            header = changed_json(json.loads(data[8 : 8 + length]), random)
            data = random.choice((data, struct.pack("<Q", len(header)) + header + data[8 + length :]))
            path.write_bytes(changed_bytes(data, random) if random.random() < 0.5 else data)
            return path
        path = self._odd(random, folder)
        path.write_bytes(changed_bytes(path.read_bytes(), random))
        return path

    def _odd(self, random: Random, folder: Path) -> Path:
        import torch

        state: dict[Any, Any] = dict(self.state)
        for _ in range(random.choice((1, 1, 2))):
            named = state.items() if isinstance(state, dict) else ()
            tensors = [key for key, value in named if isinstance(value, torch.Tensor) and value.dtype == torch.float32]
            if tensors:
                state = random.choice(_STATES)(state, random.choice(tensors), random)
        path = folder / "odd.pth"
        torch.save(state, path)
        return path

    def _pickled(self, random: Random, folder: Path) -> Path:
        path = folder / "code.pth"
        if random.random() < 0.5:
            path.write_bytes(pickle.dumps({"state_dict": _Attack(random)}, protocol=random.choice((0, 2, 4))))
        else:
            import torch

            torch.save({**self.state, random.choice(("head.bias", "x")): _Attack(random)}, path)
        return path


class _Attack:
    """An object whose unpickling runs code."""

    def __init__(self, random: Random) -> None:
        self.call: Any = random.choice((
            (strike, ("pickle",)), (eval, ("__import__('tests.fuzz.oracle').fuzz.oracle.strike('eval')",)),
            (exec, ("import tests.fuzz.oracle as o; o.strike('exec')",)), (getattr, (strike, "__call__")),
            (__import__, ("antigravity",)),
        ))  # fmt: skip

    def __reduce__(self) -> Any:
        return self.call


def _typed(state: Any, key: Any, random: Random) -> Any:
    import torch

    kinds = (torch.int8, torch.bool, torch.complex64, torch.float64, torch.float16, torch.bfloat16, torch.int64)
    return {**state, key: state[key].to(random.choice(kinds))}


def _laid_out(state: Any, key: Any, random: Random) -> Any:
    import torch

    value = state[key].float()
    square = value if value.dim() == 2 else value.reshape(1, -1)
    odd = random.choice((
        lambda: value.to_sparse(), lambda: value.to("meta"),
        lambda: torch.quantize_per_tensor(value, 0.1, 0, torch.qint8),
        lambda: torch.zeros(1).expand(value.shape), lambda: torch.zeros(1).expand(2**40), lambda: value.reshape(-1),
        lambda: torch.zeros(()), lambda: torch.zeros(0), lambda: square.t(),
        lambda: torch.nn.Parameter(value), lambda: torch.zeros((0,) * 60), lambda: square.to_sparse_csr(),
    ))()  # fmt: skip
    return {**state, key: odd}


def _valued(state: Any, key: Any, random: Random) -> Any:
    return {**state, key: state[key].float() * random.choice((0.0, float("nan"), float("inf"), 1e38, -1e30, 1e-38))}


def _named(state: Any, key: Any, random: Random) -> Any:
    renamed = random.choice(
        (f"module.{key}", f"module.module.{key}", f"_orig_mod.{key}", "", 7, None, "x" * 5000, key[1:])
    )
    kept = state if random.random() < 0.5 else {name: value for name, value in state.items() if name != key}
    return {**kept, renamed: state[key]}


def _wrapped(state: Any, key: Any, random: Random) -> Any:
    wrapper: dict[str, Any] = {random.choice(("model", "state_dict", "model_ema", "other")): state, "epoch": 3}
    if random.random() < 0.3:
        wrapper["model"] = wrapper
    return random.choice(
        (wrapper, {"model": wrapper}, [state], None, {"state_dict": {"model": []}}, {**state, "model": {}})
    )


def _replaced(state: Any, key: Any, random: Random) -> Any:
    return {**state, key: random.choice(HOSTILE)} if random.random() < 0.5 else {
        name: value for name, value in state.items() if name != key
    }  # fmt: skip


_STATES = (_typed, _laid_out, _laid_out, _valued, _named, _wrapped, _replaced)
