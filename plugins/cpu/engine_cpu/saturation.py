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
from engine_cpu.nodes import Body, Needles, bodies_in
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

    observe: has the optimised graph written, with its weights, and read, where there is no compiled
    form. is_exact: the option EXACT is set. Nothing is found where that graph cannot be written.
    """
    try:
        found = observe(found_in) if loaded.form is None else found_in(loaded.form.graph)
        if found is None or not found.kernels:
            return {}
        _warn(loaded.source, found.kernels, is_exact)
        outputs = {name for kernel in found.kernels for name in kernel.outputs if name}
        graph = graph_of(loaded.source)
        return {
            index: NOTE
            for kernel, indices in kernel_nodes(graph, found.graph, loaded.rewritten, loaded.leads)
            if not outputs.isdisjoint(kernel.outputs)
            for index in indices
        }
    except Exception as error:  # it is only a diagnosis that fails
        pass_interrupt(error)
        return {}


def found_in(path: Path) -> Found:
    """Look at an optimised graph, whose weights may lie beside it. Raises ValueError, OSError."""
    source = ModelSource(format="onnx", path=path, folder=path.parent)
    kernels: list[NodeInfo] = []
    for body in bodies_in(memoryview(path.read_bytes()), Needles(_FACTORS)):
        known: dict[str, bool] = {}
        kernels += (node for node in body.nodes if _may_saturate(node, body, source, known))
    return Found(read_optimised(path), kernels)


def _warn(source: ModelSource, kernels: Sequence[NodeInfo], is_exact: bool) -> None:
    names = [f"{kernel.op_type} {kernel.name!r}" for kernel in kernels[:_SHOWN]]
    more = ", ..." if len(kernels) > _SHOWN else ""
    advice = "weights of 7 bits are exact everywhere"
    if version() >= _EXACT_ENDS_NO_PROCESS and not is_exact:
        advice += f", and {EXACT} = 1 in [cpu_context] makes most others exact"
    logging.getLogger("engine").warning(
        "%s: products may saturate, which makes results wrong, in %s (kernels: %d): on x86 without "
        "VNNI, as here, onnxruntime adds products of uint8 and int8 in 16 bits; %s: "
        "docs/convert.md, Saturation",
        source.name,
        "kernels of a secret model" if source.is_secret else ", ".join(names) + more,
        len(kernels),
        advice,
    )


def _may_saturate(
    kernel: NodeInfo, body: Body, source: ModelSource, known: dict[str, bool]
) -> bool:
    """Return whether a kernel may saturate. known: of weights that were looked at."""

    def input_of(index: int | None) -> str:
        return "" if index is None or index >= len(kernel.inputs) else kernel.inputs[index]

    for unsigned, signed, unsigned_zero, signed_zero in _FACTORS.get(kernel.op_type, ()):
        name = input_of(signed)
        if not name or _type(name, input_of(signed_zero), body) not in (DType.INT8, None):
            continue
        other = input_of(unsigned)
        if other and _type(other, input_of(unsigned_zero), body) not in (DType.UINT8, None):
            continue
        if kernel.op_type == "QLinearConv" and _is_depthwise(kernel, name, body):
            continue
        if _exceeds(name, _MOST_SIGNED, body, source, known) and (
            not other or _exceeds(other, _MOST_UNSIGNED, body, source, known)
        ):
            return True
    return False


def _type(name: str, zero: str, body: Body) -> DType | None:
    """Return the element type of a quantized value and of its zero point; None if unknown."""
    for value in (zero, name):
        if value and (tensor := body.constant(value)) is not None:
            return dtype_of(tensor)
    at: Body | None = body
    seen = set[str]()
    while at is not None and name not in seen:
        node = at.producer(name)
        if node is None:
            if name in at.types:
                return at.types[name]
            at = at.outer
        elif node.op_type == "DynamicQuantizeLinear":
            return DType.UINT8
        elif node.op_type == "QuantizeLinear":
            zero = node.inputs[2] if len(node.inputs) > 2 else ""
            return _type(zero, "", at) if zero else DType.UINT8
        elif node.op_type in _MOVES and node.inputs:
            seen.add(name)
            name = node.inputs[0]
            if (tensor := at.constant(name)) is not None:
                return dtype_of(tensor)
        else:
            return None
    return None


def _is_depthwise(kernel: NodeInfo, weights: str, body: Body) -> bool:
    """Return True for one filter a channel, which a kernel of its own computes exactly."""
    tensor = body.constant(weights)
    dims = [] if tensor is None else dims_of(tensor)
    return len(dims) > 2 and dims[1] == 1 and kernel.attributes.get("group", 1) == dims[0] > 1


def _exceeds(name: str, most: int, body: Body, source: ModelSource, known: dict[str, bool]) -> bool:
    """Return True where two elements of one sign may have a larger sum than `most`."""
    if name not in known:
        tensor = body.constant(name)
        elements = None if tensor is None else array_of(tensor, source, maps=True)
        known[name] = elements is None or _has_larger_pair(elements, most)
    return known[name]


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
