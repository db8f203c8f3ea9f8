"""Hand-made rank models: local nodes of ONNX, and collectives of com.microsoft between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from graphs import of_nodes
from onnx import NodeProto, TensorProto, helper

from engine.formats.collectives import Part

Array = np.ndarray[Any, Any]


def node(op: str, reads: str, writes: str, **attributes: Any) -> NodeProto:
    """A node of ONNX, called after what it writes."""
    return helper.make_node(op, reads.split(), writes.split(), name=f"make {writes}", **attributes)


def together(op: str, reads: str, writes: str, **attributes: Any) -> NodeProto:
    """A collective node."""
    return helper.make_node(
        op, reads.split(), writes.split(), name=f"{op} {writes}", domain="com.microsoft",
        **attributes,
    )  # fmt: skip


def save(
    path: Path,
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Sequence[Any]],
    outputs: Mapping[str, Sequence[Any]],
    constants: Mapping[str, Array] | None = None,
    dtypes: Mapping[str, int] | None = None,
) -> Path:
    """Write a model; its inputs and outputs are float32 unless `dtypes` says otherwise."""
    onnx.save(of_nodes(nodes, inputs, outputs, constants, dtypes=dtypes), path)
    return path


def weights(seed: int = 0) -> tuple[Array, Array, Array]:
    """The weights of the MLP: 6 to 8 to 5, and a bias."""
    random = np.random.default_rng(seed)
    return tuple(  # type: ignore[return-value]
        random.standard_normal(shape).astype(np.float32) for shape in ((6, 8), (8, 5), (5,))
    )


def mlp(folder: Path) -> Path:
    """relu(x @ a) @ b + c, whole; x is float32[n, 6]."""
    a, b, c = weights()
    nodes = [
        node("MatMul", "x a", "h"), node("Relu", "h", "r"), node("MatMul", "r b", "s"),
        node("Add", "s c", "y"),
    ]  # fmt: skip
    return save(
        folder / "mlp.onnx", nodes, {"x": ["n", 6]}, {"y": ["n", 5]}, {"a": a, "b": b, "c": c}
    )


def sliced_mlp(folder: Path, world_size: int = 2) -> list[Path]:
    """The same in slices: columns of a, rows of b, one all-reduce."""
    a, b, c = weights()
    nodes = [
        node("MatMul", "x a", "h"), node("Relu", "h", "r"), node("MatMul", "r b", "s"),
        together("AllReduce", "s", "t"), node("Add", "t c", "y"),
    ]  # fmt: skip
    each = 8 // world_size
    return [
        save(
            folder / f"mlp{rank}.onnx", nodes, {"x": ["n", 6]}, {"y": ["n", 5]},
            {"a": a[:, own], "b": b[own], "c": c},
        )
        for rank in range(world_size)
        for own in [slice(each * rank, each * (rank + 1))]
    ]  # fmt: skip


def other_model(folder: Path) -> Path:
    """A model that fits none of these, for a rank that was given the wrong one."""
    nodes = [together("AllReduce", "x", "y", reduction="max")]
    return save(folder / "mlp_other.onnx", nodes, {"x": ["n", 6]}, {"y": ["n", 6]})


def marked(paths: Sequence[Path], slicing: str = "one") -> Sequence[Path]:
    """Have files say whose parts they are, as `engine slice` does."""
    for rank, path in enumerate(paths):
        model = onnx.load(path)
        helper.set_model_props(model, Part(rank, len(paths), slicing).metadata())
        onnx.save(model, path)
    return paths


def staged_mlp(folder: Path) -> list[Path]:
    """The same in two stages: rank 0 sends relu(x @ a) for three rows, rank 1 sends y back."""
    a, b, c = weights()
    first = [
        node("MatMul", "x a", "h"), node("Relu", "h", "r"), together("Send", "r", "sent", rank=1),
        together("Receive", "", "y", rank=1, to=TensorProto.FLOAT, sizes=[3, 5]),
    ]  # fmt: skip
    second = [
        together("Receive", "", "r", rank=0, to=TensorProto.FLOAT, sizes=[3, 8]),
        node("MatMul", "r b", "s"), node("Add", "s c", "y"),
        together("Send", "y", "sent", rank=0),
    ]  # fmt: skip
    shapes: Any = {"x": [3, 6]}, {"y": [3, 5]}
    return [
        save(folder / "stage0.onnx", first, *shapes, {"a": a}),
        save(folder / "stage1.onnx", second, *shapes, {"b": b, "c": c}),
    ]


def every_kind(folder: Path, world_size: int) -> Path:
    """One model for all ranks with each collective between two Negs; x is float32[n, 4].

    n and 4 are divisible by the number of ranks.
    """
    kinds = {
        "total": together("AllReduce", "neg", "p0"),
        "highest": together("AllReduce", "neg", "p1", reduction="max"),
        "mean": together("AllReduce", "neg", "p2", reduction="avg"),
        "rows": together("AllGather", "neg", "p3"),
        "columns": together("AllGather", "neg", "p4", axis=-1, group_size=world_size),
        "scattered": together("ReduceScatter", "neg", "p5", reduction="sum"),
        "turned": together("AllToAll", "neg", "p6", split_axis=1, concat_axis=0),
        "first": together("Broadcast", "neg", "p7", root=0),
        "weight": together("AllReduce", "w", "p8", reduction="prod"),
    }
    shapes: dict[str, list[Any]] = {
        "total": ["n", 4], "highest": ["n", 4], "mean": ["n", 4], "rows": [None, 4],
        "columns": ["n", 4 * world_size], "scattered": [None, 4], "turned": [None, None],
        "first": ["n", 4], "weight": [2],
    }  # fmt: skip
    nodes = [node("Neg", "x", "neg")]
    for number, (name, collective) in enumerate(kinds.items()):
        nodes += [collective, node("Neg", f"p{number}", name)]
    nodes.append(together("Barrier", "neg", "met"))
    return save(folder / "kinds.onnx", nodes, {"x": ["n", 4]}, shapes, {"w": np.float32([2, 3])})


def of_every_kind(parts: Sequence[Array], rank: int) -> dict[str, Array]:
    """Return the outputs of `every_kind` on one rank, by numpy, from the inputs of all ranks."""
    count, rows = len(parts), parts[0].shape[0] // len(parts)
    total = sum(parts[1:], parts[0])
    columns = slice(4 // count * rank, 4 // count * (rank + 1))
    return {
        "total": total,
        "highest": np.minimum.reduce(parts),  # -max(-x)
        "mean": total / np.float32(count),
        "rows": np.concatenate(parts),
        "columns": np.concatenate(parts, 1),
        "scattered": total[rows * rank : rows * (rank + 1)],
        "turned": np.concatenate([part[:, columns] for part in parts]),
        "first": parts[0],
        "weight": -(np.float32([2, 3]) ** np.float32(count)),
    }
