"""Kernels of ONNX Runtime whose results ONNX's own tests refuse: never used as they are.

One table. A node it names is computed in wider types, by other operators (prepare/special.py) or by
the function that ONNX defines it by; where none of these is to be had, it is reported as
unsupported with the reason. A kernel that fails where it need not counts as well. Conditions err on
the side of doubt where a type is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnx import NodeProto, TypeProto

    from engine_cpu.prepare.kind import Scope

# TensorProto's numbers.
_FLOAT, _FLOAT16, _DOUBLE, _BOOL, _UINT8 = 1, 10, 11, 9, 2
_FLOATS = (_FLOAT, _FLOAT16)


@dataclass(frozen=True)
class KnownIssue:
    """Why a kernel is not used. wider: types in which it is right, to be tried in this order."""

    reason: str
    wider: tuple[Mapping[int, int], ...] = ()


def known_issue(node: NodeProto, scope: Scope) -> KnownIssue | None:
    """Return the table's entry for a node; None for nearly every one."""
    if node.op_type not in OPERATORS or node.domain not in ("", "ai.onnx"):
        return None
    for condition, issue in _TABLE[node.op_type]:
        if condition(_Node(node, scope)):
            return issue
    return None


def _dims(kind: TypeProto | None) -> list[int | str | None] | None:
    """Return the sizes of a tensor's axes, None for unknown ones; None without a known rank."""
    if kind is None or not kind.tensor_type.HasField("shape"):
        return None
    return [
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
        for dim in kind.tensor_type.shape.dim
    ]


class _Node:
    """A node and what is known of its inputs, by index."""

    def __init__(self, node: NodeProto, scope: Scope) -> None:
        self._node = node
        self._scope = scope

    def has(self, index: int) -> bool:
        """Return True where an input is given."""
        return len(self._node.input) > index and bool(self._node.input[index])

    def gives(self, index: int) -> bool:
        """Return True where an output is wanted."""
        return len(self._node.output) > index and bool(self._node.output[index])

    def is_of(self, index: int, *types: int) -> bool:
        """Return True for a given input of one of these element types, or of an unknown one."""
        kind = self._scope.types.get(self._node.input[index]) if self.has(index) else None
        return self.has(index) and (kind is None or kind.tensor_type.elem_type in types)

    def dims(self, index: int) -> list[int | str | None] | None:
        """Return an input's sizes."""
        return _dims(self._scope.types.get(self._node.input[index])) if self.has(index) else None

    def values(self, index: int) -> list[float] | None:
        """Return an input's values, flat, where it is a small constant."""
        from onnx import numpy_helper

        tensor = self._scope.constants.get(self._node.input[index]) if self.has(index) else None
        return None if tensor is None else numpy_helper.to_array(tensor).reshape(-1).tolist()

    def attribute(self, name: str) -> Any:
        """Return an attribute's value; None where it is not given."""
        from onnx import helper

        given = (item for item in self._node.attribute if item.name == name)
        return next((helper.get_attribute_value(item) for item in given), None)


def _is_inverse_dft(node: _Node) -> bool:
    """Return True where it is a transform back to complex numbers in float32.

    There the tests want float32's rounding errors, which are numpy's: float64 has none.
    """
    is_back = node.attribute("inverse") and not node.attribute("onesided")
    return bool(is_back) and node.is_of(0, *_FLOATS)


def _masks_scores(node: _Node) -> bool:
    """Return True where Attention gives scores that a mask may have set to minus infinity."""
    is_masked = node.attribute("is_causal") or node.is_of(3, _BOOL) or node.has(6)
    return node.gives(3) and node.attribute("qk_matmul_output_mode") in (1, 2) and bool(is_masked)


def _has_short_mask(node: _Node) -> bool:
    """Return True where the mask covers less than all keys, which the rest of them then are not."""
    mask, keys = node.dims(3), node.dims(1)
    if not mask or not keys or len(keys) < 2 or node.has(4):
        return False
    return mask[-1] != keys[-2] and None not in (mask[-1], keys[-2])


def _may_stretch_unevenly(node: _Node) -> bool:
    """Return True where a size may be other than whole after Resize has scaled it."""
    if node.attribute("coordinate_transformation_mode") != b"align_corners" or not node.has(2):
        return False
    scales, sizes = node.values(2), node.dims(0)
    if not scales:  # unknown, or sizes are given instead
        return node.dims(2) != [0] and not node.has(3)
    axes = node.attribute("axes") or range(len(scales))
    for axis, scale in zip(axes, scales, strict=False):
        size = sizes[axis] if sizes is not None else None
        if not float(scale).is_integer() and not (
            isinstance(size, int) and (size * scale).is_integer()
        ):
            return True
    return False


_MAXIMA = (
    lambda node: node.is_of(0, _BOOL) and 0 in (node.dims(0) or ()),
    KnownIssue("onnxruntime has no maximum or minimum of no bool", ({_BOOL: _UINT8},)),
)
_IN_DOUBLE = ({_FLOAT: _DOUBLE, _FLOAT16: _DOUBLE},)
_IMPRECISE = "onnxruntime's kernel is off by more than rounding in float32"

# By operator: the conditions that are looked at in this order, and what is the matter then.
_TABLE: dict[str, tuple[tuple[Callable[[_Node], bool], KnownIssue], ...]] = {
    "Attention": (
        (
            _masks_scores,
            KnownIssue("onnxruntime gives finite scores where a mask says minus infinity"),
        ),
        (_has_short_mask, KnownIssue("onnxruntime wants a mask over all keys")),
        (
            lambda node: node.is_of(0, _FLOAT16),
            KnownIssue("onnxruntime rounds too often in float16", ({_FLOAT16: _FLOAT},)),
        ),
    ),
    "ConvInteger": (
        (
            lambda node: node.dims(3) not in (None, [], [1]),
            KnownIssue("onnxruntime has one zero point for all channels of the weights only"),
        ),
    ),
    "DFT": (
        (_is_inverse_dft, KnownIssue(_IMPRECISE)),
        (lambda node: node.is_of(0, *_FLOATS), KnownIssue(_IMPRECISE, _IN_DOUBLE)),
    ),
    "MaxUnpool": (
        (
            lambda node: node.has(2),
            KnownIssue("onnxruntime takes the indices for those in output_shape"),
        ),
    ),
    "ReduceMax": (_MAXIMA,),
    "ReduceMin": (_MAXIMA,),
    "Resize": (
        (
            _may_stretch_unevenly,
            KnownIssue("onnxruntime puts the last corner at the whole part of a scaled size"),
        ),
    ),
    "STFT": ((lambda node: node.is_of(0, *_FLOATS), KnownIssue(_IMPRECISE, _IN_DOUBLE)),),
}
OPERATORS = frozenset(_TABLE)
