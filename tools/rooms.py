"""Who imports whom, room by room, read from the source: `python tools/rooms.py` prints it and ends with 1 if a rule is
broken.

A room is a folder of the package; a module that lies in none is a room of its own. Every module is held to the rules
because of where it lies. Imports inside functions, and for types alone, count like all others.
"""

from __future__ import annotations

import ast
import graphlib
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PACKAGE = "ptq4vit_onnx"
ROOT = Path(__file__).resolve().parents[1]
# From the lowest to the highest: a room imports from lower lines, not from its own line or a higher one.
LEVELS: tuple[tuple[str, ...], ...] = (
    ("errors", "progress"),
    ("limits", "models"),
    ("files",),
    ("plan", "output_kinds", "threads"),
    ("images",),
    ("request",),
    ("graph",),
    ("runtime",),
    ("model_loading", "tasks"),
    ("network",),
    ("float_export", "calibration", "simulation", "passes", "evaluation"),
    ("proof",),
    ("planning",),
    ("report",),
    ("pipeline",),
    ("api",),
    ("studies",),
    ("cli",),
    ("__main__",),
)
TORCH = frozenset({"torch", "timm", "torchvision", "transformers", "safetensors.torch"})
RAY = "ray"
MAY_RAY = "tasks.on_ray"  # the one module that knows Ray
ONNX = frozenset({"onnx", "onnx_graphsurgeon", "onnxruntime", "onnx_ir", "onnxscript", "openvino"})
SAFETENSORS = frozenset({"safetensors"})  # itself without torch
# Which rooms may import torch, ONNX or safetensors themselves, even inside a function.
MAY_TORCH = frozenset({"threads", "model_loading", "network", "calibration", "simulation", "float_export"})
MAY_ONNX = frozenset({"graph", "runtime", "passes", "evaluation", "proof", "simulation", "float_export", "studies"})
MAY_SAFETENSORS = frozenset({"plan", "model_loading"})
# All that calibration sees of the network.
RECORDED = frozenset({"network.recording", "network.gradients", "network.planned_product"})
MOST_FILES, MOST_LINES, MOST_OUTSIDE = 15, 350, 7
HANDED_ON = frozenset({"export", "evaluate", "check_parity"})  # names of `api` that the package's __init__ hands on
# Quantizers answer for themselves; only they and the passes that emit them may ask which one it is, and few others.
QUANTIZER_TYPES = frozenset({"Uniform", "Diffused", "Compensated", "Affine", "Twin", "TwinSoftmax", "TwinGelu"})
MOST_TYPE_TESTS = 3
VAGUE = ("utils", "common", "core", "helpers", "base", "misc")

Edges = dict[tuple[str, str], set[tuple[str, str]]]


@dataclass(frozen=True)
class Module:
    """name: dotted, behind the package's: plan.sites. The package's own __init__ has the empty name."""

    name: str
    path: Path

    @property
    def room(self) -> str:
        return self.name.partition(".")[0]

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_text(encoding="utf-8"))

    @cached_property
    def imports(self) -> frozenset[str]:
        """Dotted names of everything imported anywhere in the module, `from x import y` as x and x.y."""
        return frozenset(_imported(self.tree))

    @property
    def libraries(self) -> frozenset[str]:
        """safetensors and safetensors.torch, of `from safetensors.torch import load_file`."""
        return frozenset(".".join(name.split(".")[:length]) for name in self.imports for length in (1, 2))

    @property
    def doors(self) -> tuple[str, ...]:
        """Of a room's __init__: the modules that others may import."""
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "DOORS":
                return tuple(ast.literal_eval(node.value))
        return ()

    @property
    def type_tests(self) -> int:
        """How often it asks whether something is a certain quantizer."""
        nodes = list(ast.walk(self.tree))
        calls = [node for node in nodes if isinstance(node, ast.Call) and len(node.args) == 2]
        asked: list[ast.expr] = [
            call.args[1] for call in calls if ast.unparse(call.func) in ("isinstance", "issubclass")
        ]
        asked += [node.cls for node in nodes if isinstance(node, ast.MatchClass)]
        return sum(bool({_last_name(part) for part in ast.walk(kinds)} & QUANTIZER_TYPES) for kinds in asked)

    @property
    def prints(self) -> bool:
        """Whether it calls print, or writes to a standard stream."""
        calls = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]
        return any(
            ast.unparse(call.func) in ("print", "pprint", "sys.stdout.write", "sys.stderr.write") for call in calls
        )


def _last_name(node: ast.AST) -> str:
    """Uniform, of `Uniform` as of `quantizers.Uniform`; empty for what is no name."""
    return ast.unparse(node).rpartition(".")[2] if isinstance(node, (ast.Name, ast.Attribute)) else ""


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, "imports are absolute"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def modules(root: Path = ROOT) -> dict[str, Module]:
    """All modules of the package by name; passes/ and models/ lie next to it."""
    found: dict[str, Module] = {}
    places = {"": root / PACKAGE, "passes": root / "passes", "models": root / "models"}
    for room, folder in places.items():
        for path in sorted(folder.rglob("*.py")):
            parts = [room, *path.relative_to(folder).with_suffix("").parts]
            name = ".".join(part for part in parts if part not in ("", "__init__"))
            found.setdefault(name, Module(name, path))
    return found


def edges(known: Mapping[str, Module]) -> Edges:
    """(importing room, imported room) -> the pairs of modules. The package's own __init__, which hands `api` on when
    asked, belongs to no room."""
    found: Edges = defaultdict(set)
    for module in known.values():
        for name in module.imports if module.name else ():
            package, _, inner = name.partition(".")
            inner = "api" if inner in HANDED_ON else inner
            if package == PACKAGE and inner and inner in known and inner != module.name:
                found[module.room, known[inner].room].add((module.name, inner))
    return dict(found)


def broken_rules(known: Mapping[str, Module]) -> list[str]:
    """A line for everything that the rules of the rooms forbid."""
    rules = (_directions, _cycles, _libraries, _narrow_doors, _doors, _sizes, _names, _type_tests, _printing, _purposes)
    return [line for rule in rules for line in rule(known)]


def _directions(known: Mapping[str, Module]) -> Iterator[str]:
    levels = {room: level for level, line in enumerate(LEVELS) for room in line}
    yield from (f"{room} has no place in LEVELS" for room in sorted({m.room for m in known.values()} - {*levels, ""}))
    for (room, other), pairs in sorted(edges(known).items()):
        if room != other and levels.get(other, 0) >= levels.get(room, 0):
            yield from (f"upwards: {module} imports {imported}" for module, imported in sorted(pairs))


def _cycles(known: Mapping[str, Module]) -> Iterator[str]:
    """Between modules, rooms' own included."""
    reads: dict[str, set[str]] = defaultdict(set)
    for pairs in edges(known).values():
        for module, imported in pairs:
            reads[module].add(imported)
    try:
        list(graphlib.TopologicalSorter(reads).static_order())
    except graphlib.CycleError as error:
        yield f"cycle: {' -> '.join(error.args[1])}"


def _libraries(known: Mapping[str, Module]) -> Iterator[str]:
    for module in known.values():
        for name, libraries, rooms in (
            ("torch", TORCH, MAY_TORCH),
            ("ONNX", ONNX, MAY_ONNX),
            ("safetensors", SAFETENSORS, MAY_SAFETENSORS),
        ):
            if module.libraries & libraries and module.room not in rooms:
                yield f"{module.name} imports {name}: {', '.join(sorted(module.libraries & libraries))}"
        if RAY in module.libraries and module.name != MAY_RAY:
            yield f"{module.name} imports Ray; only {MAY_RAY} does"


def _narrow_doors(known: Mapping[str, Module]) -> Iterator[str]:
    for name, imported in sorted(edges(known).get(("calibration", "network"), ())):
        if imported not in RECORDED:
            yield f"{name} sees {imported}: of the network, calibration sees {', '.join(sorted(RECORDED))}"
    for module in known.values():
        if "pkg.torch" in module.path.read_text(encoding="utf-8") and module.name != "float_export.bind_sites":
            yield f"{module.name} reads the exporter's metadata; only float_export.bind_sites does"


def _doors(known: Mapping[str, Module]) -> Iterator[str]:
    """A room's __init__ names each of its modules with a line, and in DOORS those that others may import."""
    for room in sorted({module.room for module in known.values() if "." in module.name} - {"passes", "models"}):
        if room not in known:
            yield f"{room} has no __init__.py"
            continue
        doors, described = known[room].doors, ast.get_docstring(known[room].tree) or ""
        inside = {name.split(".")[1] for name in known if name.startswith(f"{room}.")}
        yield from (f"{room} does not describe {name}" for name in sorted(inside) if f"\n{name} " not in described)
        yield from (f"{room} has a door to {name}, which is not there" for name in doors if name not in inside)
        asked = {pair for (one, other), pairs in edges(known).items() if other == room != one for pair in pairs}
        for module, imported in sorted(asked):
            if imported != room and imported.split(".")[1] not in doors:
                yield f"{module} imports {imported}, which is no door of {room}"


def _sizes(known: Mapping[str, Module]) -> Iterator[str]:
    folders: dict[Path, int] = defaultdict(int)
    for module in known.values():
        folders[module.path.parent] += 1
        lines = len(module.path.read_text(encoding="utf-8").splitlines())
        if lines > MOST_LINES:
            yield f"{module.name} has {lines} lines, at most {MOST_LINES}"
    for folder, count in folders.items():
        if folder.name == PACKAGE and count - 1 > MOST_OUTSIDE:
            yield f"{count - 1} modules lie outside a room, at most {MOST_OUTSIDE}"
        elif folder.name not in (PACKAGE, "passes") and count > MOST_FILES:
            yield f"{folder.name} has {count} files, at most {MOST_FILES}"


def _names(known: Mapping[str, Module]) -> Iterator[str]:
    yield from (f"{name}: says nothing" for name in known if set(name.split(".")) & set(VAGUE))
    bare = {"passes", "models"}
    yield from (f"{name} imports passes or models by a bare name" for name, m in known.items() if m.libraries & bare)


def _type_tests(known: Mapping[str, Module]) -> Iterator[str]:
    """Outside of plan.quantizers and the passes."""
    asking = {
        name: module.type_tests
        for name, module in known.items()
        if module.type_tests and module.room != "passes" and not name.startswith("plan.quantizers")
    }
    if sum(asking.values()) > MOST_TYPE_TESTS:
        yield f"{sum(asking.values())} tests on quantizer types, at most {MOST_TYPE_TESTS}: {', '.join(asking)}"


def _printing(known: Mapping[str, Module]) -> Iterator[str]:
    loud = (module.name for module in known.values() if module.prints and module.room not in ("cli", "__main__"))
    yield from (f"{name} prints; only cli does" for name in loud)


def _purposes(known: Mapping[str, Module]) -> Iterator[str]:
    yield from (
        f"{name or PACKAGE} does not say its purpose" for name, m in known.items() if not ast.get_docstring(m.tree)
    )


def main() -> int:
    known = modules()
    found = edges(known)
    for level in reversed(LEVELS):
        for room in level:
            files = Counter(module.path.parent.name for module in known.values() if module.room == room)
            inner = "".join(
                f" + {count} in {folder}" for folder, count in files.items() if folder not in (room, PACKAGE)
            )
            below = {other: len(pairs) for (one, other), pairs in found.items() if one == room != other}
            order = sorted(below, key=lambda other: -below[other])
            size = f"{files[room] or 1} files{inner}"
            print(f"{room:13}{size:28} -> {', '.join(f'{other} {below[other]}' for other in order) or 'nobody'}")
    broken = broken_rules(known)
    print("\n".join(broken) if broken else "no edge upwards, no cycle, all rules kept")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
