"""What the tools need of a loaded model, whichever engine runs it. An ONNX Runtime session is one as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ptq4vit_onnx.graph.model_proto import Array

# ONNX's words for the types of inputs
FLOATS, BYTES = "tensor(float)", "tensor(uint8)"


class Entry(Protocol):
    """An input or output. type: as ONNX Runtime says it, FLOATS. shape: free lengths are no int."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def shape(self) -> Sequence[int | str | None]: ...


class Metadata(Protocol):
    @property
    def custom_metadata_map(self) -> Mapping[str, str]: ...


class Runner(Protocol):
    """A model in an engine, ready to run; named after ONNX Runtime's InferenceSession."""

    def get_inputs(self) -> Sequence[Entry]: ...
    def get_outputs(self) -> Sequence[Entry]: ...
    def get_modelmeta(self) -> Metadata: ...
    def run(self, names: list[str] | None, feeds: dict[str, Array]) -> list[Array]:
        """The outputs `names`, all for None, as arrays of their own."""
        ...


def engine_title(runner: Runner) -> str:
    return str(getattr(runner, "engine_title", "ONNX Runtime"))


def model_name(runner: Runner) -> str:
    """The file a runner was made from; one made from bytes has none."""
    return str(getattr(runner, "_model_path", None) or "the model")


def first_line(error: Exception) -> str:
    """What an engine says of its failure."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@dataclass(frozen=True)
class Layer:
    """A layer of the graph that an engine executes. kind: FullyConnected, Subgraph, .. origins: names of the file's
    nodes that it computes. inputs: their types, f32, u8, i8, .. computed: those of inputs that are no constants."""

    name: str
    kind: str
    origins: tuple[str, ...]
    inputs: tuple[str, ...]
    computed: tuple[str, ...]
