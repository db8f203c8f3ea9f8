"""Facts of a model that a rule may ask for: who applies the rules gives them."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from onnx import NodeProto

from engine.types import Dim, DType

Array: TypeAlias = "np.ndarray[Any, Any]"
Shape: TypeAlias = tuple[Dim, ...]


class Facts(Protocol):
    """A model as the rules of its operators see it."""

    @property
    def opsets(self) -> Mapping[str, int]:
        """Versions of the operator sets, "" for ONNX's own."""

    @property
    def constants(self) -> Container[str]:
        """Names of the tensors that the file holds."""

    @property
    def readers(self) -> Mapping[str, Sequence[NodeProto]]:
        """The nodes that read a tensor, by its name."""

    def dtype(self, name: str) -> DType | None:
        """Return the element type of a tensor; None for what is no tensor, or not known."""

    def shape(self, name: str) -> Shape | None:
        """Return the shape of a tensor as far as it is known; None for an open rank."""

    def value(self, name: str) -> Array | None:
        """Return the elements of a small constant; None for anything else."""

    def is_numeric(self, name: str) -> bool:
        """Return whether a tensor's elements are whole bytes that can be exchanged."""

    def is_random(self, node: NodeProto) -> bool:
        """Return whether a node, or one in its bodies, draws numbers."""
