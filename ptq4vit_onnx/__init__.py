"""PTQ4ViT for ONNX Runtime: vision transformers, quantised after training, executed in integers."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ptq4vit_onnx.api import check_parity, evaluate, export

__version__ = "0.1.0"
__all__ = ["__version__", "check_parity", "evaluate", "export"]


def __getattr__(name: str) -> Any:
    """The functions of `ptq4vit_onnx.api`, imported when asked for: importing the package is instant."""
    if name not in ("check_parity", "evaluate", "export"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ptq4vit_onnx import api

    return getattr(api, name)
