"""Keys of MindSpore's strategy files: an operator is the primitive's name, `_`, a parameter's name.

    MatMul_fc1.weight      the MatMul whose first parameter is fc1.weight
    Add_fc1.bias           the addition of fc1.bias, maybe part of a Gemm here

The splits of such a key are of the primitive's inputs. A node here may read the same parameter
transposed, or do the work of two primitives; a key finds it by the parameter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

Split: TypeAlias = "tuple[int, ...]"
"""Into how many slices each dimension of a tensor is split."""


class Node(NamedTuple):
    """A node of a graph, as far as keys need it.

    permutation: the order into which a Transpose brings dimensions; None for reversed.
    """

    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    permutation: tuple[int, ...] | None = None


class Origin(NamedTuple):
    """The parameter that a tensor is, its dimensions in another order."""

    name: str
    order: tuple[int, ...]


class KeyedNode(NamedTuple):
    """A node that a key means.

    node: its place among the nodes. rule: the operator whose inputs the splits are of. inputs:
    their names, "" for one that is no input of the node itself. positions: of each among the node's
    inputs, -1 for none. splits: of each, in the order of dimensions in which the node reads it.
    parameters: the places in `inputs` that are parameters.
    """

    node: int
    rule: str
    inputs: tuple[str, ...]
    positions: tuple[int, ...]
    splits: tuple[Split, ...]
    parameters: frozenset[int]


_PRODUCT = ("MatMul", "Gemm")
_SUM = ("Add",)
_LOOKUP = ("Gather",)
_KINDS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("MatMul", "MatMulV2", "MatMulExt", "BatchMatMul", "BatchMatMulExt", "Dense"),
                    _PRODUCT),
    **dict.fromkeys(("Add", "AddExt", "TensorAdd", "BiasAdd"), _SUM),
    **dict.fromkeys(("Gather", "GatherV2", "SparseGatherV2", "EmbeddingLookup", "Embedding"),
                    _LOOKUP),
    "SubExt": ("Sub",), "Muls": ("Mul",), "RealDiv": ("Div",),
    "Conv2D": ("Conv",), "Conv3D": ("Conv",),
    "Conv2DTranspose": ("ConvTranspose",), "Conv3DTranspose": ("ConvTranspose",),
    "LayerNorm": ("LayerNormalization",), "LayerNormExt": ("LayerNormalization",),
    "RmsNorm": ("RMSNormalization", "SimplifiedLayerNormalization"),
    "BatchNorm": ("BatchNormalization",), "FusedBatchNorm": ("BatchNormalization",),
    "PReLU": ("PRelu",),
}  # fmt: skip
BIAS: Mapping[str, int] = {"Gemm": 2, "Conv": 2, "ConvTranspose": 2}
"""Operators that add a bias, which MindSpore adds apart, and its place among their inputs."""
_CHANNELWISE = "BatchNormalization"
_MADE = "%"  # ends the names of parameters that reading a MindIR computed anew
_PASSING = ("Identity", "Cast", "Transpose")


def origins(nodes: Iterable[Node], parameters: Mapping[str, int]) -> dict[str, Origin]:
    """Return which tensors are a parameter: itself, or transposed or converted.

    parameters: how many dimensions each has.
    """
    found = {name: Origin(name, tuple(range(rank))) for name, rank in parameters.items()}
    for node in nodes:
        origin = found.get(node.inputs[0]) if node.inputs else None
        if origin is None or node.op_type not in _PASSING:
            continue
        order = origin.order
        if node.op_type == "Transpose":
            given = node.permutation
            order = tuple(order[dim] for dim in given) if given is not None else order[::-1]
        found.setdefault(node.outputs[0], Origin(origin.name, order))
    return found


def file_name(parameter: str) -> str:
    """Return what the file of a model calls a parameter that reading it may have computed anew."""
    return parameter.rstrip(_MADE) or parameter


def parameter_of(key: str, parameters: Collection[str]) -> tuple[str, str] | None:
    """Return the primitive and the parameter that a key names; None for no such key."""
    for place, letter in enumerate(key):
        if letter == "_" and place and key[place + 1 :] in parameters:
            return key[:place], key[place + 1 :]
    return None


def is_whole(splits: Iterable[Split]) -> bool:
    """Return whether nothing is split."""
    return all(count == 1 for split in splits for count in split)


def nodes_of(
    primitive: str,
    parameter: str,
    splits: Sequence[Split],
    nodes: Sequence[Node],
    origins: Mapping[str, Origin],
) -> list[KeyedNode]:
    """Return the nodes that do a primitive's work on a parameter; there may be several, or none."""
    kinds = _KINDS.get(primitive, (primitive,))
    return [
        found
        for index, node in enumerate(nodes)
        for found in _reading(index, node, kinds, parameter, splits, origins)
    ]


def _reading(
    index: int,
    node: Node,
    kinds: tuple[str, ...],
    parameter: str,
    splits: Sequence[Split],
    origins: Mapping[str, Origin],
) -> Iterator[KeyedNode]:
    reads = {
        position
        for position, name in enumerate(node.inputs)
        if name in origins and file_name(origins[name].name) == parameter
    }
    bias = BIAS.get(node.op_type, -1)
    if kinds == _SUM and bias in reads and len(splits) > 1:
        # The sum is part of the node: what the bias is added to is inside of it.
        rule = "Add" if node.op_type == "Gemm" else _CHANNELWISE
        places = (0, 1) if len(splits[0]) >= len(splits[1]) else (1, 0)
        inputs = tuple(("", node.inputs[bias])[place] for place in places)
        positions = tuple((-1, bias)[place] for place in places)
        both = tuple(splits[:2])
        yield KeyedNode(index, rule, inputs, positions, both, frozenset({places.index(1)}))
    elif node.op_type in kinds and reads - {bias}:
        count = min(len(node.inputs) if bias < 0 else bias, len(splits))
        held = frozenset(p for p in range(count) if node.inputs[p] in origins)
        yield KeyedNode(
            index,
            node.op_type,
            tuple(node.inputs[:count]),
            tuple(range(count)),
            tuple(
                _ordered(split, origins[name].order) if name in origins else split
                for name, split in zip(node.inputs, splits[:count])
            ),
            held,
        )


def _ordered(split: Split, order: Sequence[int]) -> Split:
    return tuple(split[dim] for dim in order) if len(split) == len(order) else split
