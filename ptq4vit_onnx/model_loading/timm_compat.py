"""The only module that imports timm, which must also work if torchvision was built for another torch."""

import importlib.machinery
import importlib.util
from contextlib import suppress
from types import ModuleType
from typing import Any

_MISSING_SCHEMAS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
_BINARIES = ("_C", "_C_stable")  # of torchvision up to 0.28, and from 0.29 on
_library: Any = None  # torch drops the schemas when the library object is garbage collected


def declare_missing_torchvision_operators() -> list[str]:
    """Declare the operators that torchvision's Python code refers to when its binary part did not load.

    A torchvision built for CUDA torch cannot load its extension next to CPU torch, and then dies on import
    with `operator torchvision::nms does not exist`. timm needs torchvision but never calls these operators.
    Only those that are really missing are declared; returns their names.
    """
    global _library
    import torch

    if _library is not None or importlib.util.find_spec("torchvision") is None:
        return []
    _load_torchvision_binary()
    missing = [name for name in _MISSING_SCHEMAS if not _is_declared(torch, name)]
    if missing:
        make: Any = torch.library.Library
        _library = make("torchvision", "FRAGMENT")
        for name in missing:
            _library.define(_MISSING_SCHEMAS[name])
    return missing


def _load_torchvision_binary() -> None:
    """Load torchvision's own operators, as its package does on import, so that a good one declares them."""
    import torch

    operators: Any = torch.ops
    spec = importlib.util.find_spec("torchvision")
    folders = list(spec.submodule_search_locations or []) if spec else []
    for name in _BINARIES:
        extension = importlib.machinery.PathFinder.find_spec(name, folders)
        if extension is not None and extension.origin is not None:
            with suppress(OSError):  # built for another torch: this is the case the declarations are for
                operators.load_library(extension.origin)


def _is_declared(torch: Any, name: str) -> bool:
    return bool(torch._C._jit_get_schemas_for_operator(f"torchvision::{name}"))


def import_timm() -> ModuleType:
    """timm, imported also if torchvision was built for another torch."""
    declare_missing_torchvision_operators()
    import timm

    return timm  # type: ignore[no-any-return]
