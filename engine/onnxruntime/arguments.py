"""NodeArg and ModelMetadata: what a model says of itself, in onnxruntime's words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.types import DType, TensorSpec, ValueKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_ELEMENTS = {
    DType.FLOAT32: "float",
    DType.FLOAT64: "double",
    DType.FLOAT8E4M3FN: "float8e4m3fn",
    DType.FLOAT8E4M3FNUZ: "float8e4m3fnuz",
    DType.FLOAT8E5M2: "float8e5m2",
    DType.FLOAT8E5M2FNUZ: "float8e5m2fnuz",
    DType.FLOAT8E8M0: "float8e8m0",
    DType.FLOAT4E2M1: "float4e2m1",
}
"""Element types that onnxruntime calls otherwise."""


class NodeArg:
    """An input or output: its name, its shape, in which names stand for open sizes, its type."""

    __slots__ = ("name", "shape", "type")

    def __init__(self, name: str, type: str, shape: Sequence[int | str | None]) -> None:
        self.name = name
        self.type = type
        self.shape = list(shape)

    def __str__(self) -> str:
        return f"NodeArg(name='{self.name}', type='{self.type}', shape={self.shape})"

    __repr__ = __str__


class ModelMetadata:
    """The header of a model's file."""

    __slots__ = (
        "custom_metadata_map",
        "description",
        "domain",
        "graph_description",
        "graph_name",
        "producer_name",
        "version",
    )

    def __init__(
        self,
        custom_metadata_map: Mapping[str, str],
        producer_name: str = "",
        graph_name: str = "",
        domain: str = "",
        description: str = "",
        graph_description: str = "",
        version: int = 0,
    ) -> None:
        self.custom_metadata_map = dict(custom_metadata_map)
        self.producer_name = producer_name
        self.graph_name = graph_name
        self.domain = domain
        self.description = description
        self.graph_description = graph_description
        self.version = version


def copied(args: Iterable[Any]) -> list[NodeArg]:
    """Return onnxruntime's own NodeArgs as such of ours, which do not keep its session alive."""
    return [NodeArg(arg.name, arg.type, arg.shape) for arg in args]


def copied_metadata(found: Any) -> ModelMetadata:
    """Return onnxruntime's own ModelMetadata, likewise."""
    return ModelMetadata(**{name: getattr(found, name) for name in ModelMetadata.__slots__})


def node_arg(spec: TensorSpec) -> NodeArg:
    """Return what onnxruntime says of an input or output."""
    return NodeArg(spec.name, type_of(spec), spec.shape or ())


def type_of(spec: TensorSpec) -> str:
    """Return a type in onnxruntime's words, as "tensor(float)"."""
    tensor = f"tensor({element_name(spec.dtype)})"
    if spec.kind is ValueKind.SEQUENCE:
        return f"seq({tensor})"
    if spec.kind is ValueKind.OPTIONAL:
        return f"optional({tensor})"
    if spec.kind is ValueKind.MAP:
        return f"map(int64,{tensor})"
    return tensor


def element_name(dtype: DType) -> str:
    """Return an element type in onnxruntime's words."""
    return _ELEMENTS.get(dtype, str(dtype))
