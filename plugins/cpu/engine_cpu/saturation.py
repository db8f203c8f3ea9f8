"""Products of uint8 and int8 that ONNX Runtime's kernels may saturate on this processor.

On x86 without VNNI they multiply by vpmaddubsw, which adds two products in 16 bits and ends at
32767 and -32768: 255 * (64 + 64) fits, 255 * (65 + 64) does not. Two int8, or two uint8, are
multiplied exactly. The optimised graph says which kernels run, on what types, and with which
weights; what a caller's values will be is not known.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from engine.host import processor
from engine.host.interrupts import pass_interrupt
from engine.types import DType, ModelSource, NodeInfo
from engine_cpu.known_issues import version
from engine_cpu.node_states import OptimisedGraph, kernel_nodes, read_optimised
from engine_cpu.nodes import Body, Needles, bodies_in, bodies_of, held_still, view_of
from engine_cpu.risk import NESTS, QUANTIZED
from engine_cpu.session import CpuModel, graph_of
from engine_cpu.tensors import Array, array_of, dims_of, dtype_of

EXACT = "session.x64quantprecision"
"""Raw entry of [cpu_context]; with "1", ONNX Runtime makes uint8 of most constant int8 weights."""

NOTE = "may saturate: this processor adds products of uint8 and int8 in 16 bits"
_EXACT_FLAGS = frozenset({"avx512_vnni", "avx_vnni", "avx_vnni_int8", "amx_int8"})
_EXACT_ENDS_NO_PROCESS = (1, 30)  # before, it aborts for a MatMulInteger without zero points
_MOST_SIGNED = 128  # of the sum of two int8: 255 * 128 < 32768
_MOST_UNSIGNED = 256  # of the sum of two uint8: 128 * 256 = 32768
_SHOWN = 3  # names in a warning
_PART = 1 << 20  # elements that are looked at together


class _Factors(NamedTuple):
    """The inputs that a kernel multiplies as uint8 by int8, and their zero points, by index.

    None for no such input; the kernel quantizes the unsigned one itself then.
    """

    unsigned: int | None
    signed: int
    unsigned_zero: int | None = None
    signed_zero: int | None = None


_FACTORS: Mapping[str, Sequence[_Factors]] = {
    "ConvInteger": [_Factors(1, 0, 3, 2)],  # it multiplies the weights by the image
    "DynamicQuantizeLSTM": [_Factors(None, 1, None, 9), _Factors(None, 2, None, 11)],
    "DynamicQuantizeMatMul": [_Factors(None, 1, None, 3)],
    "MatMulInteger": [_Factors(0, 1, 2, 3)],
    "MatMulIntegerToFloat": [_Factors(0, 1, 4, 5)],
    "QAttention": [_Factors(0, 1, 6, 7)],
    "QGemm": [_Factors(0, 3, 2, 5)],
    "QLinearConv": [_Factors(0, 3, 2, 5)],
    "QLinearMatMul": [_Factors(0, 3, 2, 5)],
}
_MOVES = frozenset({
    "Expand", "Flatten", "Gather", "Identity", "MaxPool", "Pad", "Reshape", "Slice", "Squeeze",
    "Transpose", "Unsqueeze",
})  # fmt: skip


class Found(NamedTuple):
    """An optimised graph, and its kernels that may saturate, in subgraphs too."""

    graph: OptimisedGraph
    kernels: Sequence[NodeInfo]


Read: TypeAlias = Callable[[Path], Found]


def saturates() -> bool:
    """Return True where the processor is known to add products of uint8 and int8 in 16 bits."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    flags = processor.fields(processor.CPUINFO).get("flags")
    return flags is not None and _EXACT_FLAGS.isdisjoint(flags.split())


def notes_of(
    loaded: CpuModel, observe: Callable[[Read], Found | None], is_exact: bool
) -> Mapping[int, str]:
    """Return a note for each node whose products may saturate, by its index, and log a warning.

    observe: writes the optimised graph with its weights, calls its argument with that path, and
    returns what it gave; None where it cannot be written. Not used where there is a compiled form.
    is_exact: the option EXACT is set.
    """
    source = loaded.source
    try:
        if not _has_products(source):
            return {}
        found = observe(found_in) if loaded.form is None else found_in(loaded.form.graph)
        if found is None:
            raise OSError("its optimised graph could not be written")
        if not found.kernels:
            return {}
        _warn(source, found.kernels, is_exact)
        outputs = {name for kernel in found.kernels for name in kernel.outputs if name}
        return {
            index: NOTE
            for kernel, indices in kernel_nodes(
                graph_of(source), found.graph, loaded.rewritten, loaded.leads
            )
            if not outputs.isdisjoint(kernel.outputs)
            for index in indices
        }
    except Exception as error:  # it is only a diagnosis that fails
        pass_interrupt(error)
        text = "%s: not looked at for products that may saturate: %s"
        logging.getLogger("engine.cpu").info(text, source.name, error)
        return {}


def _has_products(source: ModelSource) -> bool:
    """Return whether a model has nodes for products of integers, in subgraphs and functions too."""
    wanted = QUANTIZED - NESTS
    with held_still(source):
        return any(
            node.op_type in wanted
            for body in bodies_of(view_of(source), graph_of(source), Needles(wanted))
            for node in body.nodes
        )


def found_in(path: Path) -> Found:
    """Look at an optimised graph, whose weights may lie beside it. Raises ValueError, OSError."""
    source = ModelSource(format="onnx", path=path, folder=path.parent)
    kernels: list[NodeInfo] = []
    for body in bodies_in(memoryview(path.read_bytes()), Needles(_FACTORS)):
        products = _Products(body, source)
        kernels += (node for node in body.nodes if products.may_saturate(node))
    return Found(read_optimised(path), kernels)


_warned = set[str]()


def _warn(source: ModelSource, kernels: Sequence[NodeInfo], is_exact: bool) -> None:
    """Log a warning, once a process: a model is also opened anew from its compiled form."""
    names = [f"{kernel.op_type} {kernel.name!r}" for kernel in kernels[:_SHOWN]]
    where = ", ".join(names) + (", ..." if len(kernels) > _SHOWN else "")
    advice = "weights of 7 bits are exact everywhere"
    if version() >= _EXACT_ENDS_NO_PROCESS and not is_exact:
        advice += f", and {EXACT} = 1 in [cpu_context] makes most others exact"
    text = (
        f"{source.name}: products may saturate, which makes results wrong, in "
        f"{'kernels of a secret model' if source.is_secret else where} (kernels: {len(kernels)}): "
        "on x86 without VNNI, as here, onnxruntime adds products of uint8 and int8 in 16 bits; "
        f"{advice}: docs/convert.md, Saturation"
    )
    if text not in _warned:
        _warned.add(text)
        logging.getLogger("engine").warning("%s", text)


class _Products:
    """Kernels of one graph, and what has been found out of their values."""

    def __init__(self, body: Body, source: ModelSource) -> None:
        self._body = body
        self._source = source
        self._types: dict[str, DType | None] = {}
        self._large: dict[str, bool] = {}

    def may_saturate(self, kernel: NodeInfo) -> bool:
        """Return whether a kernel may saturate."""

        def input_of(index: int | None) -> str:
            return "" if index is None or index >= len(kernel.inputs) else kernel.inputs[index]

        for unsigned, signed, unsigned_zero, signed_zero in _FACTORS.get(kernel.op_type, ()):
            name, other = input_of(signed), input_of(unsigned)
            if (
                name
                and self._type(name, input_of(signed_zero)) in (DType.INT8, None)
                and (not other or self._type(other, input_of(unsigned_zero)) in (DType.UINT8, None))
                and not (
                    kernel.op_type == "QLinearConv" and _is_depthwise(kernel, name, self._body)
                )
                and self._exceeds(name, _MOST_SIGNED)
                and (not other or self._exceeds(other, _MOST_UNSIGNED))
            ):
                return True
        return False

    def _type(self, name: str, zero: str = "") -> DType | None:
        """Return the element type of a quantized value and of its zero point; None if unknown."""
        for value in (zero, name):
            if value and (tensor := self._body.constant(value)) is not None:
                return dtype_of(tensor)
        moved: list[str] = []
        while name not in self._types:
            self._types[name] = None  # until it is known
            moved.append(name)
            kind, source = self._made(name)
            if source:
                name = source
                continue
            self._types[name] = kind
            break
        for value in moved:
            self._types[value] = self._types[name]
        return self._types[name]

    def _made(self, name: str) -> tuple[DType | None, str]:
        """Return the type of a value by what makes it, or the value that is only moved."""
        body: Body | None = self._body
        while body is not None and (node := body.producer(name)) is None:
            if name in body.types:
                return body.types[name], ""
            body = body.outer
        if body is None or node is None:
            return None, ""
        if node.op_type == "DynamicQuantizeLinear":
            return DType.UINT8, ""
        if node.op_type == "QuantizeLinear":
            zero = node.inputs[2] if len(node.inputs) > 2 else ""
            tensor = body.constant(zero) if zero else None
            return (None if tensor is None else dtype_of(tensor)) if zero else DType.UINT8, ""
        if node.op_type in _MOVES and node.inputs:
            tensor = body.constant(node.inputs[0])
            return (None, node.inputs[0]) if tensor is None else (dtype_of(tensor), "")
        return None, ""

    def _exceeds(self, name: str, most: int) -> bool:
        """Return True where two elements of one sign may have a larger sum than `most`."""
        if name not in self._large:
            tensor = self._body.constant(name)
            elements = None if tensor is None else array_of(tensor, self._source, maps=True)
            self._large[name] = elements is None or _has_larger_pair(elements, most)
        return self._large[name]


def _is_depthwise(kernel: NodeInfo, weights: str, body: Body) -> bool:
    """Return True for one filter a channel, which a kernel of its own computes exactly."""
    tensor = body.constant(weights)
    dims = [] if tensor is None else dims_of(tensor)
    return len(dims) > 2 and dims[1] == 1 and kernel.attributes.get("group", 1) == dims[0] > 1


def _has_larger_pair(elements: Array, most: int) -> bool:
    ends: list[int] = []  # the two smallest and the two largest
    for begin in range(0, elements.size, _PART):
        part = elements[begin : begin + _PART]
        low, high = int(part.min()), int(part.max())
        if part.size > 4 and (2 * high > most or 2 * low < -most):
            found = np.partition(part, (1, -2))[[0, 1, -2, -1]].tolist()
        else:
            found = [low, high] if part.size > 4 else part.tolist()
        ends = sorted([*ends, *found])
        ends = ends[:2] + ends[2:][-2:]
        if len(ends) > 1 and (ends[-1] + ends[-2] > most or ends[0] + ends[1] < -most):
            return True
    return False
