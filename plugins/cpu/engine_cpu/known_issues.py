"""Kernels of ONNX Runtime that are wrong, or end the process: not used as they are.

One table. A node it names is computed in wider types, by other operators (prepare/special.py) or by
the function that ONNX defines it by; where none of these is to be had, it is reported as
unsupported with the reason. Wrong is a result that ONNX's definition excludes, or a failure where
there need be none; never one that is merely rounded otherwise. Conditions err on the side of doubt
where a type is not known. Option `workarounds` turns off all but those that end the process.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from engine_cpu.issue import KnownIssue

if TYPE_CHECKING:
    from onnx import NodeProto, TypeProto

    from engine_cpu.prepare.kind import Scope

# TensorProto's numbers.
_FLOAT, _FLOAT16, _BFLOAT16, _DOUBLE, _BOOL, _UINT8 = 1, 10, 16, 11, 9, 2
_FLOATS = (_FLOAT, _FLOAT16)
_INT32, _INT64 = 6, 7
_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml"})  # no two of them have an operator in common
_INTEGERS = (2, 3, 4, 5, 6, 7, 12, 13)


def known_issue(node: NodeProto, scope: Scope, workarounds: bool = True) -> KnownIssue | None:
    """Return the table's entry for a node; None for nearly every one.

    workarounds: False for those alone that end the process.
    """
    if node.op_type not in OPERATORS or node.domain not in _DOMAINS:
        return None
    for condition, issue in _TABLE[node.op_type]:
        if (workarounds or issue.ends_process) and condition(_Node(node, scope)):
            return issue
    return None


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
        kind = self._type(index)
        return self.has(index) and (kind is None or kind.tensor_type.elem_type in types)

    def element(self, index: int) -> int:
        """Return the element type of an input; 0 where it is not known."""
        kind = self._type(index)
        return kind.tensor_type.elem_type if kind is not None else 0

    def dims(self, index: int) -> list[int | str | None] | None:
        """Return the sizes of an input's axes, None for unknown ones; None of unknown rank."""
        kind = self._type(index)
        if kind is None or not kind.tensor_type.HasField("shape"):
            return None
        return [
            dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
            for dim in kind.tensor_type.shape.dim
        ]

    def _type(self, index: int) -> TypeProto | None:
        return self._scope.types.get(self._node.input[index]) if self.has(index) else None

    def values(self, index: int) -> list[float] | None:
        """Return an input's values, flat, where it is a small constant."""
        return self._scope.values(self._node.input[index]) if self.has(index) else None

    def attribute(self, name: str) -> Any:
        """Return an attribute's value; None where it is not given."""
        from engine_cpu.prepare.kind import attribute  # it needs onnx

        return attribute(self._node, name)


def _is_power_of_two(size: int | str | None) -> bool:
    return isinstance(size, int) and size > 0 and size & (size - 1) == 0


def _transforms_odd_length(node: _Node) -> bool:
    """Return True for a DFT in float32 whose length may be other than a power of two.

    These go through chirps of angles up to pi * n * n, which float32 does not hold: the error grows
    with the length instead of its logarithm (9e-6 of the result at 100, 1e-2 at 100,000).
    """
    if not node.is_of(0, *_FLOATS):
        return False
    length, sizes = node.values(1), node.dims(0)
    if length:
        return not _is_power_of_two(int(length[0]))
    if sizes is None:
        return True
    # Without any, it is 1 or -2, by version.
    axes = node.values(2) if node.has(2) else [node.attribute("axis")]
    for axis in (1, -2) if axes == [None] else axes or ():
        if not -len(sizes) <= axis < len(sizes) or not _is_power_of_two(sizes[int(axis)]):
            return True
    return not axes


def _is_inverse_dft(node: _Node) -> bool:
    """Return True where such a DFT goes back to complex numbers.

    There the tests want float32's rounding errors, which are numpy's: float64 has none.
    """
    is_back = node.attribute("inverse") and not node.attribute("onesided")
    return bool(is_back) and _transforms_odd_length(node)


_SHORT_FRAME = 64
"""Up to here a frame's error is a rounding error of float32: 1e-6 of the result."""


def _has_long_frames(node: _Node) -> bool:
    """Return True for an STFT whose frames are long and of a length as _transforms_odd_length."""
    length, window = node.values(3), node.dims(2)
    size = int(length[0]) if length else window[0] if window else None
    if isinstance(size, int) and size <= _SHORT_FRAME:
        return False
    return node.is_of(0, *_FLOATS) and not _is_power_of_two(size)


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


@functools.cache
def divisors_at_risk(element: int) -> frozenset[int]:
    """Return the integers that ONNX Runtime must not be given to divide by, of an element type.

    The smallest integer divided by -1 is a signal of the processor (SIGFPE), which ends the
    process; smaller types are divided in 32 bits, where the quotient has room. A division by 0 is
    one too before the version named here; later ones raise an error.
    """
    values = {-1} if element in (_INT32, _INT64) else set()
    return frozenset(values if version() >= CHECKS_ZERO else values | {0})


CHECKS_ZERO = (1, 31)


@functools.cache
def version() -> tuple[int, ...]:
    """Return ONNX Runtime's, as far as behaviour depends on it."""
    from engine_cpu.runtime import ort as onnxruntime

    return tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])


def _divides_integers(node: _Node) -> bool:
    """Return True for a division of integers by more than a harmless constant."""
    element = node.element(0) or node.element(1)
    # Where none is known, ONNX Runtime did not know it either: prepare/ has asked.
    risks = divisors_at_risk(element) if element in _INTEGERS else ()
    divisors = node.values(1)
    return bool(risks) and (divisors is None or any(value in risks for value in divisors))


_DIVISION = (
    _divides_integers,
    KnownIssue(
        "onnxruntime divides the smallest integer by -1, which ends the process", ends_process=True
    ),
)
_NO_SCALE = (
    lambda node: node.attribute("scale") == 0,
    KnownIssue(
        "onnxruntime aborts where random numbers are to have no variance", ends_process=True
    ),
)


def _may_have_no_frame(node: _Node) -> bool:
    """Return True for an STFT whose window may be a scalar, or whose frames may have no length."""
    if node.has(2):
        window = node.dims(2)
        return not (window and isinstance(window[0], int) and window[0])
    length = node.values(3)
    return length is None or 0 in length


def _may_have_empty_slices(node: _Node) -> bool:
    """Return True for a Unique along an axis beside which another one may be of size 0."""
    axis, sizes = node.attribute("axis"), node.dims(0)
    if axis is None:
        return False
    if sizes is None or not -len(sizes) <= axis < len(sizes):
        return True
    del sizes[axis]
    return not all(isinstance(size, int) and size for size in sizes)


_MAXIMA = (
    lambda node: node.is_of(0, _BOOL) and 0 in (node.dims(0) or ()),
    KnownIssue("onnxruntime has no maximum of no bool", ({_BOOL: _UINT8},)),
)
_MINIMA = (
    _MAXIMA[0],
    KnownIssue("onnxruntime has no minimum of no bool"),
)
_IN_FLOAT = ({_FLOAT16: _FLOAT, _BFLOAT16: _FLOAT},)
_IN_DOUBLE = ({_FLOAT: _DOUBLE, _FLOAT16: _DOUBLE},)
_IMPRECISE = (
    "onnxruntime's kernel is off by more the longer the transform (2e-4 to 4e-3 of the largest "
    "value for features of sound), so that results differ from its own, and are nearer to the truth"
)

ORDERS_TREES = (1, 24)
_HAS_CAUSAL_CONVOLUTION = (1, 32)  # before it ran ONNX's own definition


def _may_have_no_channels(node: _Node) -> bool:
    """Return True for a causal convolution of an input that may have no channels."""
    sizes = node.dims(0)
    return not (sizes and len(sizes) > 1 and isinstance(sizes[1], int) and sizes[1])


# By operator: the conditions that are looked at in this order, and what is the matter then.
_TABLE: dict[str, tuple[tuple[Callable[[_Node], bool], KnownIssue], ...]] = {
    "Attention": (
        (
            _masks_scores,
            KnownIssue("onnxruntime gives finite scores where a mask says minus infinity"),
        ),
        (_has_short_mask, KnownIssue("onnxruntime wants a mask over all keys")),
    ),
    "CausalConvWithState": (
        (
            lambda node: version() >= _HAS_CAUSAL_CONVOLUTION and _may_have_no_channels(node),
            KnownIssue(
                "onnxruntime divides by the channels of a causal convolution, also by 0",
                ends_process=True,
            ),
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
        (_transforms_odd_length, KnownIssue(_IMPRECISE, _IN_DOUBLE)),
    ),
    "Div": (_DIVISION,),
    "MaxUnpool": (
        (
            lambda node: node.has(2),
            KnownIssue("onnxruntime takes the indices for those in output_shape"),
        ),
    ),
    "Mod": (_DIVISION,),
    "RandomNormal": (_NO_SCALE,),
    "RandomNormalLike": (_NO_SCALE,),
    "ReduceMax": (_MAXIMA,),
    "ReduceMin": (_MINIMA,),
    "Resize": (
        (
            _may_stretch_unevenly,
            KnownIssue("onnxruntime puts the last corner at the whole part of a scaled size"),
        ),
    ),
    "STFT": (
        (_has_long_frames, KnownIssue(_IMPRECISE, _IN_DOUBLE)),
        (
            _may_have_no_frame,
            KnownIssue(
                "onnxruntime ends the process where a frame of STFT has no length",
                ends_process=True,
            ),
        ),
    ),
    "TreeEnsemble": (
        (
            lambda node: version() < ORDERS_TREES,
            KnownIssue(
                "onnxruntime before 1.24 puts a TreeEnsemble's nodes in the wrong order, or aborts",
                ends_process=True,
            ),
        ),
    ),
    "Unique": (
        (
            _may_have_empty_slices,
            KnownIssue(
                "onnxruntime aborts where there are several slices of nothing",
                _IN_FLOAT,
                ends_process=True,
            ),
        ),
    ),
}
OPERATORS = frozenset(_TABLE)
ENDS_PROCESS = frozenset(
    operator for operator, cases in _TABLE.items() if any(issue.ends_process for _, issue in cases)
)
"""Those of OPERATORS whose kernels may end the process."""
IS_WRONG = frozenset(
    operator
    for operator, cases in _TABLE.items()
    if not all(issue.ends_process for _, issue in cases)
)
"""Those whose kernels may be wrong."""
