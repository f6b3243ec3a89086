"""The rules of the rooms hold, and each can be broken: who may import what, how large a room is, who may print."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tools import rooms
from tools.rooms import Module, broken_rules, modules


def test_no_rule_of_the_rooms_is_broken() -> None:
    assert broken_rules(modules()) == []


def test_every_module_of_the_package_is_seen() -> None:
    known = modules()
    assert len(known) > 100 and {"", "plan.sites", "passes.tidy", "models.specs", "cli.main"} <= set(known)
    assert ("network.tape", "runtime.process") in rooms.edges(known)["network", "runtime"]


@pytest.fixture
def with_module(tmp_path: Path) -> Callable[[str, str], list[str]]:
    """(name, source) -> the rules that are broken once a module of this name and source is there."""

    def broken(name: str, source: str) -> list[str]:
        path = tmp_path / f"{name}.py"
        path.write_text(f'"""A purpose."""\n{source}\n', encoding="utf-8")
        known = modules()
        return broken_rules({**known, name: Module(name, path)})

    return broken


@pytest.mark.parametrize(
    ("name", "source", "said"),
    [
        ("plan.new", "from ptq4vit_onnx.images.listing import SUFFIXES", "upwards: plan.new imports images.listing"),
        ("plan.new", "def f():\n    import ptq4vit_onnx.cli.main", "upwards: plan.new imports cli.main"),
        (
            "plan.new",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ptq4vit_onnx.report.data import Report",
            "upwards: plan.new imports report.data",
        ),
        (
            "simulation.new",
            "from ptq4vit_onnx.calibration.grids import factors",
            "upwards: simulation.new imports calibration.grids",  # rooms of one level do not see each other
        ),
        ("graph.new", "from ptq4vit_onnx import evaluate", "upwards: graph.new imports api"),
        ("passes.new", "def f():\n    import torch", "passes.new imports torch: torch"),
        ("plan.new", "from safetensors.torch import save", "plan.new imports torch: safetensors.torch"),
        ("plan.new", "from safetensors import numpy, torch", "plan.new imports torch: safetensors.torch"),
        ("network.new", "from safetensors.numpy import save", "network.new imports safetensors: safetensors"),
        ("images.new", "def f():\n    import safetensors", "images.new imports safetensors: safetensors"),
        ("network.new", "import onnx", "network.new imports ONNX: onnx"),
        ("tasks.new", "def f():\n    import ray", "tasks.new imports Ray; only tasks.on_ray does"),
        ("cli.new", "from ray import init", "cli.new imports Ray; only tasks.on_ray does"),
        ("models.new", "def f():\n    from timm import create_model", "models.new imports torch: timm"),
        (
            "calibration.new",
            "from ptq4vit_onnx.network.discovery import Call",
            "calibration.new sees network.discovery",
        ),
        ("proof.new", "print('loud')", "proof.new prints; only cli does"),
        ("graph.new", "SCOPES = 'pkg.torch.onnx'", "graph.new reads the exporter's metadata"),
        (
            "proof.new",
            "from ptq4vit_onnx.calibration.search import Found",
            "proof.new imports calibration.search, which is",
        ),
        ("graph.new", "", "graph does not describe new"),
        ("graph.utils", "", "graph.utils: says nothing"),
        ("attic.new", "", "attic has no place in LEVELS"),
        ("graph.new", "x = 1\n" * 350, "graph.new has 352 lines, at most 350"),
        ("proof.new", "isinstance(x, (int, Affine))\n" * 4, "6 tests on quantizer types, at most 3: plan"),
        ("proof.new", "isinstance(x, quantizers.Affine)\n" * 4, "6 tests on quantizer types"),
        ("proof.new", "match x:\n    case Affine():\n        pass\n" * 4, "6 tests on quantizer types"),
        ("graph.new", "import passes", "graph.new imports passes or models by a bare name"),
    ],
)
def test_a_module_is_guarded_because_of_where_it_lies(
    with_module: Callable[[str, str], list[str]], name: str, source: str, said: str
) -> None:
    assert any(line.startswith(said) for line in with_module(name, source))


def test_a_cycle_inside_a_room_is_found(with_module: Callable[[str, str], list[str]]) -> None:
    # sites is read by scale_plan; a sites that reads scale_plan closes the circle
    broken = with_module("plan.sites", "from ptq4vit_onnx.plan import scale_plan")
    assert any(line.startswith("cycle: ") and "plan.sites" in line for line in broken)


def test_a_crowded_room_and_a_crowded_hall_are_found(tmp_path: Path) -> None:
    for name in (*(f"plan/m{number}" for number in range(16)), *(f"m{number}" for number in range(8)), "__init__"):
        path = tmp_path / "ptq4vit_onnx" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('"""A purpose."""\n', encoding="utf-8")
    broken = broken_rules(modules(tmp_path))
    assert "plan has 16 files, at most 15" in broken and "8 modules lie outside a room, at most 7" in broken


def test_a_module_without_a_purpose_is_found(with_module: Callable[[str, str], list[str]], tmp_path: Path) -> None:
    path = tmp_path / "silent.py"
    path.write_text("x = 1\n", encoding="utf-8")
    assert "plan.silent does not say its purpose" in broken_rules(
        {**modules(), "plan.silent": Module("plan.silent", path)}
    )


def test_the_command_line_and_the_plan_load_neither_torch_nor_onnx(run_python: Callable[..., object]) -> None:
    heavy = "sorted({'torch', 'timm', 'onnx', 'onnxruntime'} & set(sys.modules))"
    every = [name for name in modules() if name.partition(".")[0] in ("plan", "models", "images", "errors", "limits")]
    imports = "; ".join(f"import ptq4vit_onnx.{name}" for name in [*every, "cli.main"])
    run_python(f"import sys; {imports}; assert not {heavy}, {heavy}")
