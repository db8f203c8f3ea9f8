"""A collective node of a rank's model: read and checked when it is built, run in each predict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from engine.distributed.compose import Collectives
from engine.distributed.reduction import reduction
from engine.distributed.transport import HostCommunicator
from engine.errors import InputError, ModelError
from engine.formats.collectives import WITH_SHAPE
from engine.types import Dim, DType, NodeInfo, ReduceOp, TensorSpec

Array: TypeAlias = "np.ndarray[Any, Any]"

_MOST_AXES = 64
"""Of an array, as numpy has them: a shape that travels is a count and as many sizes."""

_OPS = {op.value: op for op in ReduceOp} | {"avg": ReduceOp.MEAN}


@dataclass(frozen=True, slots=True)
class Call:
    """A node's surroundings in a run: its group, the group's collectives, its deadline."""

    comm: HostCommunicator
    do: Collectives
    deadline_s: float | None

    @property
    def host(self) -> Call:
        """Return the same for what goes through the host's memory, as shapes do."""
        return self

    @property
    def stream(self) -> int | None:
        """Return where it is queued: nowhere, on the host it is done on return."""
        return None

    def receive(self, given: Array | None, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        """Return the buffer that was given for a result if it fits, else a new one."""
        if given is not None and given.dtype == dtype and given.shape == shape:
            return given
        return np.empty(shape, dtype)

    def copied(self, value: Array, given: Array | None) -> Array:
        """Return a copy of a value, in the buffer that was given if it fits."""
        result = self.receive(given, value.dtype, value.shape)
        result[...] = value
        return result


@dataclass(frozen=True, slots=True)
class CollectiveNode:
    """One node.

    group: its name, "" for all ranks. members: the ranks in it, in order.
    output: what it makes, as far as that is known before it runs. run(call, inputs, given):
    what it makes, in the buffer `given` where that fits.
    """

    info: NodeInfo
    group: str
    members: tuple[int, ...]
    output: TensorSpec
    run: Callable[[Call, Sequence[Array], Array | None], Array]


def read_node(
    node: NodeInfo, known: Mapping[str, TensorSpec], rank: int, world_size: int, model: str
) -> CollectiveNode:
    """Return a node of a rank's model.

    known: the specs of what it reads. model: how messages call the model.
    Raises ModelError naming the node for what cannot run.
    """
    try:
        members = _members(node, rank, world_size)
        inputs = [known[name] for name in node.inputs if name]
        output, run = _READERS[node.op_type](node, inputs, members)
    except InputError as error:
        raise ModelError(f"{model}: {node.op_type} {node.name!r}: {error}", model) from error
    name = node.outputs[0] if node.outputs else ""
    spec = TensorSpec(name, output[0], output[1])
    return CollectiveNode(node, _text(node, "group", ""), members, spec, run)


def tells_shape(node: CollectiveNode) -> bool:
    """Return whether the shape of what a node makes is told by another rank, in each run."""
    return node.info.op_type != "Send" and bool(node.info.attributes.get(WITH_SHAPE))


def _members(node: NodeInfo, rank: int, world_size: int) -> tuple[int, ...]:
    """Return the ranks of a node's group: those that it names, without a name all."""
    named = node.attributes.get("group_ranks")
    if isinstance(named, tuple) and named:
        members = tuple(int(member) for member in named)
    elif _text(node, "group", ""):
        raise InputError(
            f"group {_text(node, 'group', '')!r} has no members; name them in attribute group_ranks"
        )
    else:
        members = tuple(range(world_size))
    if len({*members}) < len(members) or not all(0 <= member < world_size for member in members):
        raise InputError(
            f"its group is of ranks {_listed(members)}, but this job has {world_size}; start as "
            "many ranks as the model was sliced for"
        )
    if not _text(node, "group", "") and len(members) != world_size:
        raise InputError(
            f"it is for all of {len(members)} ranks, but this job has {world_size}; start as many "
            "ranks as the model was sliced for"
        )
    if rank not in members:
        raise InputError(
            f"its group is of ranks {_listed(members)}, and this is rank {rank}; give each rank "
            "its own part of the model"
        )
    return members


# ------------------------------------------------------------------------------------- the kinds

Output: TypeAlias = "tuple[DType, tuple[Dim, ...] | None]"
Run: TypeAlias = "Callable[[Call, Sequence[Array], Array | None], Array]"


def _allreduce(
    node: NodeInfo, inputs: Sequence[TensorSpec], members: tuple[int, ...]
) -> tuple[Output, Run]:
    [spec] = _require(inputs, 1)
    op = _op(node, spec.dtype)

    def run(call: Call, values: Sequence[Array], given: Array | None) -> Array:
        [x] = values
        result = call.receive(given, x.dtype, x.shape)
        call.do.allreduce(call.comm, x, result, op, call.stream, True, call.deadline_s)
        return result

    return (spec.dtype, spec.shape), run


def _allgather(
    node: NodeInfo, inputs: Sequence[TensorSpec], members: tuple[int, ...]
) -> tuple[Output, Run]:
    [spec] = _require(inputs, 1)
    size = _group_size(node, members)
    axis = _axis(node, "axis", spec.shape)

    def run(call: Call, values: Sequence[Array], given: Array | None) -> Array:
        [x] = values
        along = axis % len(x.shape)
        shape = (*x.shape[:along], size * x.shape[along], *x.shape[along + 1 :])
        result = call.receive(given, x.dtype, shape)
        if along == 0:
            call.do.allgather(call.comm, x, result, call.stream, call.deadline_s)
            return result
        parts = np.empty((size, *x.shape), x.dtype)
        call.do.allgather(call.comm, x[None], parts, call.stream, call.deadline_s)
        return np.concatenate(list(parts), along, out=result)

    return (spec.dtype, _scaled(spec.shape, axis, size, 1)), run


def _reduce_scatter(
    node: NodeInfo, inputs: Sequence[TensorSpec], members: tuple[int, ...]
) -> tuple[Output, Run]:
    [spec] = _require(inputs, 1)
    op = _op(node, spec.dtype)
    size = _group_size(node, members)
    shape = _scaled(spec.shape, 0, 1, size)

    def run(call: Call, values: Sequence[Array], given: Array | None) -> Array:
        [x] = values
        require_divisible(x.shape, 0, size)
        result = call.receive(given, x.dtype, (x.shape[0] // size, *x.shape[1:]))
        call.do.reduce_scatter(call.comm, x, result, op, call.stream, True, call.deadline_s)
        return result

    return (spec.dtype, shape), run


def _alltoall(
    node: NodeInfo, inputs: Sequence[TensorSpec], members: tuple[int, ...]
) -> tuple[Output, Run]:
    [spec] = _require(inputs, 1)
    size = _group_size(node, members)
    split = _axis(node, "split_axis", spec.shape)
    concat = _axis(node, "concat_axis", spec.shape)
    shape = _scaled(_scaled(spec.shape, split, 1, size), concat, size, 1)

    def run(call: Call, values: Sequence[Array], given: Array | None) -> Array:
        [x] = values
        require_divisible(x.shape, split, size)
        outgoing = np.stack(np.split(x, size, split))
        incoming = np.empty_like(outgoing)
        call.do.alltoall(call.comm, outgoing, incoming, call.stream, call.deadline_s)
        return np.concatenate(list(incoming), concat)

    return (spec.dtype, shape), run


def _broadcast(
    node: NodeInfo, inputs: Sequence[TensorSpec], members: tuple[int, ...]
) -> tuple[Output, Run]:
    root = _place(node, "root", members)
    if node.attributes.get(WITH_SHAPE):
        return _broadcast_with_shape(node, inputs, root)
    [spec] = _require(inputs, 1)

    def run(call: Call, values: Sequence[Array], given: Array | None) -> Array:
        [x] = values
        result = call.copied(x, given)
        call.do.broadcast(call.comm, result, root, call.stream, call.deadline_s)
        return result

    return (spec.dtype, spec.shape), run


def _broadcast_with_shape(
    node: NodeInfo, inputs: Sequence[TensorSpec], root: int
) -> tuple[Output, Run]:
    """Read a Broadcast to which only the root need give something."""
    dtype = inputs[0].dtype if inputs else _element_type(node)

    def run(call: Call, values: Sequence[Array], given: Array | None) -> Array:
        is_root = call.comm.rank == root
        if is_root and not values:
            raise InputError("the root gives nothing to it")
        header = _header(values[0].shape if is_root else ())
        host = call.host
        host.do.broadcast(host.comm, header, root, None, host.deadline_s)
        shape = _shape_in(header)
        is_own = is_root or (values and values[0].shape == shape)
        result = (
            call.copied(values[0], given) if is_own else call.receive(given, dtype.numpy, shape)
        )
        call.do.broadcast(call.comm, result, root, call.stream, call.deadline_s)
        return result

    return (dtype, inputs[0].shape if inputs else None), run


def _send(
    node: NodeInfo, inputs: Sequence[TensorSpec], members: tuple[int, ...]
) -> tuple[Output, Run]:
    [spec] = _require(inputs, 1)
    peer = _place(node, "rank", members)
    has_shape = bool(node.attributes.get(WITH_SHAPE))

    def run(call: Call, values: Sequence[Array], given: Array | None) -> Array:
        [x] = values
        if has_shape:
            host = call.host
            host.do.send(host.comm, _header(x.shape), peer, None, host.deadline_s)
        call.do.send(call.comm, x, peer, call.stream, call.deadline_s)
        return call.copied(x, None)  # what reads the node's output is ordered after it, no more

    return (spec.dtype, spec.shape), run


def _receive(
    node: NodeInfo, inputs: Sequence[TensorSpec], members: tuple[int, ...]
) -> tuple[Output, Run]:
    peer = _place(node, "rank", members)
    dtype, sizes = _element_type(node), node.attributes.get("sizes", ())
    has_shape = bool(node.attributes.get(WITH_SHAPE))
    if not isinstance(sizes, tuple):
        raise InputError("expected attributes to (an element type) and sizes (its shape)")
    said = tuple(int(size) for size in sizes)
    if any(size < 0 for size in said):
        raise InputError(f"attribute sizes is {list(said)}; expected what is received, no -1")

    def run(call: Call, values: Sequence[Array], given: Array | None) -> Array:
        shape = said
        if has_shape:
            host, header = call.host, _header(())
            host.do.receive(host.comm, header, peer, None, host.deadline_s)
            shape = _shape_in(header)
        result = call.receive(given, dtype.numpy, shape)
        call.do.receive(call.comm, result, peer, call.stream, call.deadline_s)
        return result

    return (dtype, None if has_shape else said), run


def _barrier(
    node: NodeInfo, inputs: Sequence[TensorSpec], members: tuple[int, ...]
) -> tuple[Output, Run]:
    def run(call: Call, values: Sequence[Array], given: Array | None) -> Array:
        token = np.zeros(1, np.uint8)
        call.do.allreduce(call.comm, token, token, ReduceOp.MAX, call.stream, True, call.deadline_s)
        return values[0].copy() if values else token

    if inputs:
        return (inputs[0].dtype, inputs[0].shape), run
    return (DType.UINT8, (1,)), run


_READERS: Mapping[
    str, Callable[[NodeInfo, Sequence[TensorSpec], tuple[int, ...]], tuple[Output, Run]]
] = {
    "AllReduce": _allreduce,
    "AllGather": _allgather,
    "ReduceScatter": _reduce_scatter,
    "AllToAll": _alltoall,
    "Broadcast": _broadcast,
    "Send": _send,
    "Receive": _receive,
    "Barrier": _barrier,
}


# ------------------------------------------------------------------------------- their attributes


def _element_type(node: NodeInfo) -> DType:
    """Return the element type that a node names which has no input to tell it."""
    number = node.attributes.get("to")
    if not isinstance(number, int):
        raise InputError("expected attributes to (an element type) and sizes (its shape)")
    try:
        return DType.from_onnx(number)
    except ValueError as error:
        raise InputError(f"attribute to: {error}") from error


def _header(shape: tuple[int, ...]) -> Array:
    """Return a shape as ranks exchange it: always as many numbers."""
    header = np.zeros(1 + _MOST_AXES, np.int64)
    header[: 1 + len(shape)] = len(shape), *shape
    return header


def _shape_in(header: Array) -> tuple[int, ...]:
    return tuple(header[1 : 1 + int(header[0])].tolist())


def _text(node: NodeInfo, name: str, default: str) -> str:
    return str(node.attributes.get(name, default))


def _op(node: NodeInfo, dtype: DType) -> ReduceOp:
    text = _text(node, "reduction", "sum").lower()
    if text not in _OPS:
        raise InputError(f"reduction {text!r} is none of {', '.join(_OPS)}")
    reduction(_OPS[text], dtype)  # raises where it has no meaning for these elements
    return _OPS[text]


def _group_size(node: NodeInfo, members: tuple[int, ...]) -> int:
    size = node.attributes.get("group_size", len(members))
    if size != len(members):
        raise InputError(
            f"group_size is {size}, but the group has {len(members)} ranks; start as many ranks as "
            "the model was sliced for"
        )
    return len(members)


def _axis(node: NodeInfo, name: str, shape: tuple[Dim, ...] | None) -> int:
    axis = node.attributes.get(name, 0)
    if not isinstance(axis, int):
        raise InputError(f"attribute {name} is {axis!r}; expected a whole number")
    if shape is not None and not -len(shape) <= axis < len(shape):
        raise InputError(f"attribute {name} is {axis}, but its input has {len(shape)} axes")
    return axis


def _place(node: NodeInfo, name: str, members: tuple[int, ...]) -> int:
    """Return the place in the group of a rank that an attribute names."""
    rank = node.attributes.get(name, 0 if name == "root" else node.attributes.get("peer"))
    if rank not in members:
        raise InputError(
            f"attribute {name} is {rank!r}, which is none of its group's ranks {_listed(members)}"
        )
    return members.index(rank)


def _require(inputs: Sequence[TensorSpec], count: int) -> Sequence[TensorSpec]:
    if len(inputs) != count:
        raise InputError(f"expected {count} input, got {len(inputs)}")
    return inputs


def require_divisible(shape: tuple[int, ...], axis: int, size: int) -> None:
    """Raise InputError unless an axis can be cut into a part for each rank."""
    if shape[axis] % size:
        raise InputError(
            f"axis {axis} of shape {list(shape)} is not divisible by the {size} ranks of its group"
        )


def _scaled(
    shape: tuple[Dim, ...] | None, axis: int, times: int, over: int
) -> tuple[Dim, ...] | None:
    """Return a shape with one axis so many times as long; a symbolic one is not known then."""
    if shape is None or not shape:
        return shape
    dims = list(shape)
    dim = dims[axis]
    if isinstance(dim, int):
        require_divisible((dim,), 0, over)
        dims[axis] = dim * times // over
    elif (times, over) != (1, 1):
        dims[axis] = None
    return tuple(dims)


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
