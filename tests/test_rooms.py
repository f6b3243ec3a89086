"""Who may import what, and who may print: read from the source, so that no import has to succeed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "ptq4vit_onnx"
TORCH, ONNX = {"torch", "timm", "torchvision"}, {"onnx", "onnx_graphsurgeon", "onnxruntime", "onnx_ir", "onnxscript"}
RIGHT_OF_THE_PLAN = (
    "plan",
    "quantizers",
    "sites",
    "report",
    "runtime",
    "weight_codes",
    "kernels",
    "metrics",
    "channels",
)
LEFT_OF_THE_PLAN = (
    "calibrate",
    "search",
    "tape",
    "grids",
    "objective",
    "samples",
    "surrogate",
    "products",
    "folding",
    "channel_choice",
)
MAY_PRINT = {"benchmarks", "models/train_digits.py", "ptq4vit_onnx/__main__.py"}


def sources() -> dict[str, Path]:
    """Every module of the package by its dotted name; passes and models live next to it."""
    places = {PACKAGE: ROOT / PACKAGE, f"{PACKAGE}.passes": ROOT / "passes", f"{PACKAGE}.models": ROOT / "models"}
    found = {}
    for package, folder in places.items():
        for file in folder.glob("*.py"):
            found[package if file.stem == "__init__" else f"{package}.{file.stem}"] = file
    return found


SOURCES = sources()


def imported(tree: ast.AST, everywhere: bool) -> Iterator[str]:
    """Dotted names a module imports: when it is loaded, or everywhere (inside functions too, types never)."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, "imports are absolute"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        elif everywhere or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from imported(node, everywhere)


def direct(module: str, everywhere: bool = False) -> set[str]:
    return set(imported(ast.parse(SOURCES[module].read_text(encoding="utf-8")), everywhere))


def loaded_with(module: str) -> set[str]:
    """Top-level packages that importing the module loads, through our own modules as well."""
    seen: set[str] = set()
    todo, found = [module], set()
    while todo:
        current = todo.pop()
        if current in seen:
            continue
        seen.add(current)
        names = direct(current)
        parts = current.split(".")
        parents = {".".join(parts[:end]) for end in range(1, len(parts))}
        found |= {name.partition(".")[0] for name in names}
        todo += [name for name in names | parents if name in SOURCES]
    return found - {PACKAGE}


def test_this_test_sees_the_package() -> None:
    assert len(SOURCES) > 40
    assert "torch" in loaded_with(f"{PACKAGE}.tape")
    assert "onnx" in loaded_with(f"{PACKAGE}.passes")
    assert "torch" in direct(f"{PACKAGE}.float_export", everywhere=True)
    assert "torch" not in loaded_with(f"{PACKAGE}.float_export")


@pytest.mark.parametrize("name", RIGHT_OF_THE_PLAN)
def test_right_of_the_plan_there_is_no_torch(name: str) -> None:
    assert not loaded_with(f"{PACKAGE}.{name}") & TORCH


@pytest.mark.parametrize("name", sorted(name for name in SOURCES if name.startswith(f"{PACKAGE}.passes")))
def test_passes_never_import_torch_not_even_inside_a_function(name: str) -> None:
    assert not {found.partition(".")[0] for found in direct(name, everywhere=True)} & TORCH
    assert not loaded_with(name) & TORCH


@pytest.mark.parametrize("name", LEFT_OF_THE_PLAN)
def test_left_of_the_plan_there_is_no_onnx(name: str) -> None:
    assert not {found.partition(".")[0] for found in direct(f"{PACKAGE}.{name}", everywhere=True)} & ONNX
    assert not loaded_with(f"{PACKAGE}.{name}") & ONNX


@pytest.mark.parametrize("name", ["models", "models.specs", "models.digits_arch", "cli", "options", "errors"])
def test_what_the_command_line_loads_first_is_light(name: str) -> None:
    assert not loaded_with(f"{PACKAGE}.{name}") & (TORCH | ONNX)


def printing(path: Path) -> list[int]:
    """Lines that call print, or write to a standard stream."""
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    streams = ("print", "pprint", "sys.stdout.write", "sys.stderr.write")
    return [call.lineno for call in calls if ast.unparse(call.func) in streams]


def test_only_the_command_line_prints() -> None:
    loud = {str(path.relative_to(ROOT)) for path in SOURCES.values() if printing(path)}
    commands = {f"{PACKAGE}/{path.name}" for path in (ROOT / PACKAGE).glob("cli*.py")}
    assert "ptq4vit_onnx/cli.py" in loud
    assert loud <= commands | MAY_PRINT


def test_only_the_pass_that_binds_sites_reads_the_exporters_metadata() -> None:
    readers = {path.name for path in SOURCES.values() if "pkg.torch" in path.read_text(encoding="utf-8")}
    assert readers == {"bind_sites.py"}


def test_nothing_imports_passes_or_models_by_their_bare_names() -> None:
    bare = {"passes", "models"}
    guilty = {name for name in SOURCES if {found.partition(".")[0] for found in direct(name, True)} & bare}
    assert guilty == set()
