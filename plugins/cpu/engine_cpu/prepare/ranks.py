"""Inputs of no declared rank: whether the nodes of a model take those that they are given.

Kernels of ONNX Runtime rely on its shape inference, which has seen nothing of such an input: one of
too few axes ends the process. So its inference is asked once for each combination of ranks.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import onnx
from onnx import ModelProto

from engine.errors import InputError
from engine.types import ModelSource, TensorSpec, ValueKind
from engine_cpu.errors import explained, is_lack
from engine_cpu.prepare import light, read
from engine_cpu.prepare.trial import take


def has_no_rank(spec: TensorSpec) -> bool:
    """Return True for a tensor of any rank."""
    return spec.kind is ValueKind.TENSOR and spec.shape is None


class RankCheck:
    """Checks the ranks of one model's inputs, by any thread. inputs: all of the model's."""

    def __init__(self, model: ModelProto, inputs: Sequence[TensorSpec]) -> None:
        self._model = model
        self._open = [(i, spec.name) for i, spec in enumerate(inputs) if has_no_rank(spec)]
        self._answers: dict[tuple[int, ...], str] = {}
        self._lock = threading.Lock()

    @classmethod
    def of_bytes(cls, data: bytes, inputs: Sequence[TensorSpec]) -> RankCheck:
        """Return the check that gave these bytes. Raises ValueError for others."""
        try:
            return cls(onnx.load_model_from_string(data), inputs)
        except Exception as error:  # protobuf's
            raise ValueError(f"it is no model: {error}") from error

    def to_bytes(self) -> bytes:
        """Return what `of_bytes` makes the same check of."""
        return bytes(self._model.SerializeToString())

    def check(self, inputs: Sequence[Any]) -> None:
        """Raise InputError for inputs of ranks that the model's nodes do not take."""
        ranks = tuple(inputs[index].ndim for index, _ in self._open)
        refusal = self._answers.get(ranks)
        if refusal is None:
            with self._lock:
                refusal = self._answers[ranks] = self._ask(ranks)
        if refusal:
            given = ", ".join(
                f"{name!r} of {rank} axes"
                for (_, name), rank in zip(self._open, ranks, strict=True)
            )
            raise InputError(f"the model takes no {given}: {refusal}", self._open[0][1])

    def _ask(self, ranks: tuple[int, ...]) -> str:
        model = deepcopy(self._model)
        values = {value.name: value for value in model.graph.input}
        for (_, name), rank in zip(self._open, ranks, strict=True):
            shape = values[name].type.tensor_type.shape
            shape.SetInParent()
            for _ in range(rank):
                shape.dim.add()
        trial = take(model.SerializeToString())
        return "" if trial.is_taken or is_lack(trial.refusal) else explained(trial.refusal)


def rank_check(source: ModelSource, data: bytes, inputs: Sequence[TensorSpec]) -> RankCheck | None:
    """Return the check of a model, as prepared (`data`) or as it is; None where there is none."""
    whole = onnx.load_model_from_string(data) if data else read(source)
    model = light(whole)
    return RankCheck(model, inputs) if take(model.SerializeToString()).is_taken else None
