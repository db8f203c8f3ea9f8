"""The names that a node may read."""

from __future__ import annotations

from engine.formats.onnx.tensor import Tensor
from engine.types import NodeInfo


class Scope:
    """The names that one graph has defined so far; a subgraph's scope sees its outer ones too.

    constants: small integer tensors by name, kept to judge shapes that are computed from them.
    """

    __slots__ = ("constants", "names", "outer")

    def __init__(self, outer: Scope | None = None) -> None:
        self.names: set[str] = set()
        self.constants: dict[str, Tensor] = {}
        self.outer = outer

    def sees(self, name: str) -> bool:
        """Return whether `name` is defined here or outside."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return True
            scope = scope.outer
        return False

    def constant(self, name: str) -> Tensor | None:
        """Return the constant called `name`, None where none was kept."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.constants.get(name)
            scope = scope.outer
        return None


def title(node: NodeInfo) -> str:
    """Return what messages call a node."""
    kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    called = f"node {node.name!r}" if node.name else f"node {node.index}"
    return f"{called} ({kind})" if kind else called
