"""Models on a backend, alone or with others that run what it does not, against another target.

    for found in compare_models(["mine", "cpu"], "cpu", paths):
        print(found.name, found.status, found.nodes)

Each model has a process of its own, so that a crash or a hang is that model's alone.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import engine
from engine.errors import InputError, ModelError, one_line
from engine.report.comparison import outputs_of, values_for
from engine.report.differences import Comparison, OutputComparison, compare_outputs
from engine.report.filled import Fill, run_filled
from engine_testing.mixed_models import MODELS
from engine_testing.onnx_suite.pool import Died, each

ROUNDS = 3


class Status(StrEnum):
    """The outcome of a model."""

    WITHIN = "within"  # all outputs are those of the other target, within its tolerances
    ELSEWHERE = "elsewhere"  # the same, but no node ran on the backend: it says nothing of it
    REFUSED = "refused"  # an error of the engine says why the model is not taken, by either side
    DIFFERS = "differs"  # it ran, and something else came out
    FAILED = "failed"  # any other exception
    DIED = "died"  # the process crashed, or was stopped at the time limit


FAULTS = (Status.DIFFERS, Status.FAILED, Status.DIED)
"""Outcomes that no backend may have; to refuse a model is no fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelResult:
    """The result of one model.

    reason: why it is not within, in one line. outputs: each against the other target's. nodes: how
    many run on each backend. build_s, predict_s: the best of some; other_predict_s: the other
    target's.
    """

    name: str
    status: Status
    reason: str = ""
    outputs: tuple[OutputComparison, ...] = ()
    nodes: Mapping[str, int] = field(default_factory=dict)
    build_s: float = 0.0
    predict_s: float = 0.0
    other_predict_s: float = 0.0

    @property
    def is_mixed(self) -> bool:
        """Return whether several backends run it."""
        return len(self.nodes) > 1

    def values(self) -> dict[str, Any]:
        """Return all of it as plain values, for JSON."""
        times = ("build_s", "predict_s", "other_predict_s")
        return {
            "name": self.name,
            "status": str(self.status),
            "reason": self.reason,
            "nodes": dict(self.nodes),
            **{name: getattr(self, name) for name in times},
            "outputs": [
                {
                    "name": output.name,
                    "verdict": output.verdict,
                    "absolute_error": output.absolute.error if output.absolute else None,
                    "relative_error": output.relative.error if output.relative else None,
                }
                for output in self.outputs
            ],
        }


def models_of_the_kit(folder: Path) -> list[Path]:
    """Write the kit's models for mixed placement into `folder`, and return their paths."""
    return [make(folder) for make in MODELS]


def models_in(folder: Path) -> list[Path]:
    """Return the ONNX files of a folder and its subfolders, sorted."""
    return sorted(path for path in folder.rglob("*.onnx") if path.is_file())


def compare_models(
    targets: Sequence[str], other: str, paths: Sequence[Path], *, limit_s: float = 300.0
) -> Iterator[ModelResult]:
    """Run models on `targets`, the first first, and on `other`, with the same made up inputs.

    limit_s: for one model. Yields the results in the order of the paths.
    """
    one = partial(compare_model, tuple(targets), other)
    for path, answer in each(one, paths, workers=1, limit_s=limit_s):
        if isinstance(answer, Died):
            yield ModelResult(name=path.name, status=Status.DIED, reason=str(answer))
        else:
            yield answer


def compare_model(targets: tuple[str, ...], other: str, path: Path) -> ModelResult:
    """Run one model on both sides in this process."""
    try:
        expected, inputs, other_s = _run_other(other, path)
    except Exception as error:  # whatever a backend raises
        reason = f"{other} does not run it: {one_line(error)}"
        return ModelResult(name=path.name, status=_status_of(error), reason=reason)
    begin_s = time.monotonic()
    try:
        with engine.load(str(path), target=[*targets]) as model:
            build_s = time.monotonic() - begin_s
            nodes = Counter(place.backend for place in model.placement)
            values = values_for(model, inputs[0], inputs[1])
            outputs, predict_s = _timed(model, values)
    except Exception as error:  # whatever a backend raises
        return ModelResult(name=path.name, status=_status_of(error), reason=one_line(error))
    try:
        found = compare_outputs(outputs, expected)
    except InputError as error:
        return ModelResult(name=path.name, status=Status.DIFFERS, reason=str(error), nodes=nodes)
    return ModelResult(
        name=path.name,
        status=_verdict(found, nodes[targets[0]] > 0),
        reason=_reason(found),
        outputs=found.outputs,
        nodes=nodes,
        build_s=build_s,
        predict_s=predict_s,
        other_predict_s=other_s,
    )


def _verdict(found: Comparison, took_part: bool) -> Status:
    if not found.is_within:
        return Status.DIFFERS
    return Status.WITHIN if took_part else Status.ELSEWHERE


def _status_of(error: Exception) -> Status:
    """Return REFUSED for an error about the model or its data, FAILED for any other."""
    at_fault = isinstance(error, ModelError) and error.at_fault
    is_refusal = isinstance(error, ModelError | InputError) and not at_fault
    return Status.REFUSED if is_refusal else Status.FAILED


def _run_other(other: str, path: Path) -> tuple[dict[str, Any], tuple[Any, list[Any]], float]:
    """Return the outputs, the inputs with their descriptions, and the time of a predict."""
    with engine.load(str(path), target=other) as model:
        specs = model.inputs
        values, _ = run_filled(specs, Fill.RANDOM, lambda values: outputs_of(model, values))
        outputs, seconds = _timed(model, values)
        return outputs, (specs, values), seconds


def _timed(model: engine.Model, values: Sequence[Any]) -> tuple[dict[str, Any], float]:
    """Return a model's outputs, and the shortest time of some predicts."""
    outputs, seconds = outputs_of(model, values), []
    for _ in range(ROUNDS):
        begin_s = time.monotonic()
        model.predict(list(values))
        seconds.append(time.monotonic() - begin_s)
    return outputs, min(seconds)


def _reason(found: Comparison) -> str:
    return "; ".join(str(output) for output in found.outputs if not output.is_within)
