"""The description of a model file in the terms of its own format, for `engine inspect`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from engine.types import ParameterInfo, TensorSpec


class SubGraph(NamedTuple):
    """One compiled model. inputs, outputs: their names in the order of its .om file.

    Both are () in a file of one model, where the .om file's own names count.
    """

    nbytes: int
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


class Executor(NamedTuple):
    """Sub-graphs `first` to `last`, that run one after the other, with their inputs and outputs."""

    first: int
    last: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class CompiledModels(NamedTuple):
    """All compiled models of a file, and the executors that they make up: () for a single one."""

    graphs: tuple[SubGraph, ...]
    executors: tuple[Executor, ...]

    def __str__(self) -> str:
        number = len(self.graphs)
        return f"a bundle of {number} models" if number > 1 else "a model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A model file as it is written.

    primitives: how many nodes there are of each operator, in the main graph and in functions.
    unsupported: those of them that cannot be had as ONNX. collectives: those by which the ranks of
    a sliced model wait for each other. functions: the names of functions that branches and loops
    call. compiled: models that are compiled for Ascend, which such a file has instead of a graph;
    None for all others.
    """

    producer: str
    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    primitives: Mapping[str, int]
    unsupported: tuple[str, ...] = ()
    collectives: tuple[str, ...] = ()
    parameters: tuple[ParameterInfo, ...] = ()
    functions: tuple[str, ...] = ()
    user_info: Mapping[str, str]
    compiled: CompiledModels | None = None
