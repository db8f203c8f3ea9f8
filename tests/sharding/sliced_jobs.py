"""Slices by numpy alone, and jobs of ranks written with them: what the package is held against.

Nothing of engine's layout arithmetic is used here: a rank's place is looked up in the matrix of
devices, and its part is taken with np.split.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import sharding
from engine.sharding import Layout

Array = np.ndarray[Any, Any]


def place(layout: Layout, rank: int) -> tuple[int, ...]:
    """The rank's position in the matrix of devices."""
    grid = np.arange(prod(layout.dev_matrix)).reshape(layout.dev_matrix)
    [position] = np.argwhere(grid == rank)
    return tuple(int(index) for index in position)


def model_slice(layout: Layout, whole: Array, rank: int) -> Array:
    """A rank's slice without the optimizer's sharding."""
    position = place(layout, rank)
    for axis, index in enumerate(layout.tensor_map):
        if index != -1:
            axis_of_devices = len(layout.dev_matrix) - 1 - index
            parts = np.split(whole, layout.dev_matrix[axis_of_devices], axis)
            whole = parts[position[axis_of_devices]]
    return whole


def rank_slice(layout: Layout, whole: Array, rank: int) -> Array:
    """Return the part of a tensor that a rank of a stage holds."""
    part = model_slice(layout, whole, rank)
    step, size = layout.opt_weight_shard_step, layout.opt_weight_shard_size
    if not step or not size:
        return part
    if size == -1:
        size = prod(layout.dev_matrix) // step
    members = [rank % step + step * number for number in range(prod(layout.dev_matrix) // step)]
    return np.split(part, size)[members.index(rank) % size]


@dataclass
class Job:
    """Ranks of a job. layouts: by stage and parameter; stage_devices: ranks of each stage."""

    stage_devices: int
    layouts: list[dict[str, Layout]]

    @property
    def ranks(self) -> int:
        return self.stage_devices * len(self.layouts)

    def write_strategy(self, path: Path) -> Path:
        """The job's strategy, of all stages together as MindSpore merges them."""
        node = sharding.NodeStrategy(((1, 1), (1, self.stage_devices)))
        if len(self.layouts) == 1:
            sharding.Strategy({"node": node}, self.layouts[0]).save(path)
            return path
        folder = path.with_name(f"{path.stem}_stages")
        for stage, layouts in enumerate(self.layouts):
            of_stage = sharding.Strategy({f"node{stage}": node._replace(stage=stage)}, layouts)
            of_stage.save(folder / f"stage{stage}{path.suffix}")
        sharding.merge_pipeline_strategys(folder, path)
        return path

    def expected(self, full: Mapping[str, Array], rank: int) -> dict[str, Array]:
        """Return the parts of the full tensors that a rank of the job holds."""
        stage, local = divmod(rank, self.stage_devices)
        return {
            name: rank_slice(layout, full[name], local)
            for name, layout in self.layouts[stage].items()
        }

    def write(self, full: Mapping[str, Array], folder: Path, suffix: str = "ckpt") -> Path:
        """The checkpoint of each rank, in rank_0, rank_1, ..."""
        for rank in range(self.ranks):
            sharding.save_checkpoint(
                self.expected(full, rank), folder / f"rank_{rank}" / f"net.{suffix}"
            )
        return folder


def arrays(path: Path) -> dict[str, Array]:
    """The arrays of a checkpoint."""
    return {
        name: value.asnumpy()
        for name, value in sharding.load_checkpoint(path).items()
        if not isinstance(value, str)
    }


def assert_equal(got: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    """Names, types, shapes and bits are the same."""
    assert sorted(got) == sorted(expected)
    for name, array in expected.items():
        assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape), name
        assert got[name].tobytes() == array.tobytes(), name


def messages(fields: Mapping[str, list[tuple[str, int, str]]]) -> dict[str, Any]:
    """Messages as Google's protobuf makes them. fields: name, number, type; "*" for repeated."""
    pytest.importorskip("google.protobuf")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    numbers = {"uint32": 13, "int32": 5, "int64": 3, "string": 9, "bytes": 12}
    file = descriptor_pb2.FileDescriptorProto(name="own.proto", package="t", syntax="proto2")
    for name, own in fields.items():
        message = file.message_type.add(name=name)
        for field, number, kind in own:
            plain = kind.removesuffix("*")
            added = message.field.add(name=field, number=number, type=numbers.get(plain, 11))
            added.label = 3 if kind.endswith("*") else 1
            if plain not in numbers:
                added.type_name = f".t.{plain}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"t.{name}"))
        for name in fields
    }
